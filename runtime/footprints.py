"""Which bytes each operand touches, as small sets of numbered memory classes.

Input: operands with all values that their loop registers take. Every distinct set of bytes is a *footprint*. Memory is
cut into classes: two bytes are of one class when exactly the same footprints hold them. ``Footprints.classes`` then
gives each footprint as a short list of class numbers, and two footprints overlap exactly when they share a class.

The order of an access pattern's dims does not matter to a set of bytes, so dims are sorted by stride and merged into
contiguous runs where they touch; what remains is a regular grid of runs.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa import limits
from neuronx_cc.ir.isa.program import Ref, Space
from neuronx_cc.ir.types import itemsize

Array = np.ndarray[Any, np.dtype[Any]]

_PITCH = 1 << 20
"""Linear distance of partition rows: more than a partition holds."""
_SPACE_START = {Space.HBM: 0, Space.SBUF: 1 << 40, Space.PSUM: 1 << 41}
_SIZE = {
    Space.HBM: limits.HBM_BYTES,
    Space.SBUF: limits.SBUF_PARTITION_BYTES,
    Space.PSUM: limits.PSUM_PARTITION_BYTES,
}
MAX_RUNS = 1 << 22
"""Runs of all footprints together; beyond, the most scattered footprints are widened to their hulls."""

Classes = Array | slice
"""Numbers of memory classes, distinct and ascending; a slice where they follow each other."""

Dims = tuple[tuple[int, int], ...]


@dataclass(slots=True, frozen=True)
class Pattern:
    """The shape of a set of bytes, to be placed at a base address: ``run`` bytes at each point of the grid ``dims``.

    ``dims`` is (count, stride) with positive, ascending strides. Partitions are ``first..last-1`` (0..1 in HBM).
    """

    space: Space
    first: int
    last: int
    run: int
    dims: Dims

    @property
    def extent(self) -> int:
        return self.run + sum((count - 1) * stride for count, stride in self.dims)

    @property
    def runs(self) -> int:
        total = 1
        for count, _ in self.dims:
            total *= count
        return total

    def offsets(self) -> tuple[Array, Array]:
        """Disjoint, ascending runs as (starts, ends), relative to the base."""
        starts = np.zeros(1, np.int64)
        for count, stride in reversed(self.dims):
            starts = (starts[:, None] + np.arange(count) * stride).reshape(-1)
        if (np.diff(starts) < self.run).any():  # dims interleave
            starts = np.unique(starts)
            reach = np.maximum.accumulate(starts + self.run)
            fresh = np.concatenate([[True], starts[1:] > reach[:-1]])
            return starts[fresh], reach[np.append(fresh[1:], True)]
        return starts, starts + self.run


def pattern_of(ref: Ref, spread: Dims = ()) -> tuple[Pattern, int]:
    """The pattern of ``ref``, and its base address relative to ``ref.offset`` when all registers are 0.

    ``spread`` adds dims, for registers of which only the range is known.
    """
    dims = ref.dims if ref.space is Space.HBM else ref.dims[1:]
    base, run = 0, itemsize(ref.dtype)
    grid = []
    for count, stride in (*dims, *spread):
        if stride < 0:
            base += (count - 1) * stride
        if count > 1 and stride:
            grid.append((abs(stride), count))
    grid.sort()
    merged: list[tuple[int, int]] = []
    for stride, count in grid:
        if not merged and stride <= run:
            run += (count - 1) * stride
        elif merged and stride == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0], merged[-1][1] * count)
        else:
            merged.append((stride, count))
    first, last = (0, 1) if ref.space is Space.HBM else (ref.partition, ref.partition + ref.dims[0][0])
    return Pattern(ref.space, first, last, run, tuple((count, stride) for stride, count in merged)), base


@dataclass(slots=True)
class Footprints:
    """Collects footprints (``add``), then numbers the memory classes (``classify``)."""

    pattern_numbers: list[int] = field(default_factory=list)
    """Of each footprint: index into ``patterns``."""
    bases: list[int] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    """Footprints that some instruction writes."""
    classes: list[Classes] = field(default_factory=list)
    """Of each footprint, distinct; filled by ``classify``."""
    class_count: int = 0
    coarse: set[int] = field(default_factory=set)
    """Footprints whose classes may hold more bytes than they do."""
    patterns: list[Pattern] = field(default_factory=list)
    _number: dict[tuple[int, int], int] = field(default_factory=dict)
    _pattern_number: dict[Pattern, int] = field(default_factory=dict)
    _overlaps: dict[tuple[int, int], bool] = field(default_factory=dict)
    _known_refs: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)

    def pattern(self, ref: Ref, spread: Dims) -> tuple[int, int]:
        """The number of the operand's pattern, and its base address when all registers are 0."""
        key = (ref.space, ref.dtype, ref.dims, ref.partition, spread)
        known = self._known_refs.get(key)
        if known is None:
            pattern, base = pattern_of(ref, spread)
            number = self._pattern_number.setdefault(pattern, len(self.patterns))
            if number == len(self.patterns):
                self.patterns.append(pattern)
            known = self._known_refs[key] = (number, base)
        return known[0], ref.offset + known[1]

    def add(self, pattern: int, base: int, write: bool) -> int:
        """The footprint of a pattern at ``base``. Raises RunError ERUN914 when it leaves its memory."""
        number = self._number.setdefault((pattern, base), len(self.bases))
        if number == len(self.bases):
            shape = self.patterns[pattern]
            if base < 0 or base + shape.extent > _SIZE[shape.space] or shape.last > limits.PARTITIONS:
                span = f"{shape.space.name} bytes [{base}, {base + shape.extent})"
                raise RunError("ERUN914", f"an operand leaves its memory: {span}")
            self.pattern_numbers.append(pattern)
            self.bases.append(base)
        if write:
            self.written.add(number)
        return number

    def add_all(self, pattern: int, bases: Array, write: bool) -> list[int]:
        """The footprints of a pattern at each of ``bases``."""
        distinct, where = np.unique(bases, return_inverse=True)
        numbers = np.array([self.add(pattern, base, write) for base in distinct.tolist()], np.int64)
        found: list[int] = numbers[where.reshape(-1)].tolist()
        return found

    def at(self, footprint: int) -> tuple[Pattern, int]:
        """Pattern and base of a footprint."""
        return self.patterns[self.pattern_numbers[footprint]], self.bases[footprint]

    def classify(self, initialised: list[tuple[int, int]]) -> Classes:
        """Number the classes. Returns those that hold defined data from the start: HBM ranges [start, end).

        Numbers go by the address at which a class begins. Since a class lies in a footprint as a whole or not at all,
        the classes of a footprint are those that begin inside its runs.
        """
        self.classes = [slice(0, 0)] * len(self.bases)
        wanted = self._worth_tracking(initialised)
        starts, ends, owners = self._runs(wanted)
        known = len(self.bases)  # number of the pseudo-footprint that covers initialised memory
        extra = _union(initialised)
        starts = np.concatenate([starts, extra[:, 0]])
        ends = np.concatenate([ends, extra[:, 1]])
        owners = np.concatenate([owners, np.full(len(extra), known)])
        bounds = _distinct(np.concatenate([starts, ends]))
        low, high = np.searchsorted(bounds, starts), np.searchsorted(bounds, ends)
        # the sum of random numbers of all footprints that hold a cell names its class
        marks = np.random.default_rng(1).integers(1, 1 << 63, known + 1, np.uint64, endpoint=True)
        change = np.zeros(len(bounds), np.uint64)
        np.add.at(change, low, marks[owners])
        np.subtract.at(change, high, marks[owners])
        _, first = np.unique(np.cumsum(change, dtype=np.uint64), return_index=True)
        self.class_count = len(first)
        begins = np.zeros(len(bounds) + 1, np.int64)
        begins[first + 1] = 1
        begun = np.cumsum(begins)  # classes that begin before each cell
        found = _ranges(owners, begun[low], begun[high])
        for number in wanted:
            self.classes[number] = found[number]
        return found.get(known, slice(0, 0))

    def size(self, footprint: int) -> int:
        """How many classes a footprint has."""
        classes = self.classes[footprint]
        size: int = classes.stop - classes.start if isinstance(classes, slice) else len(classes)
        return size

    def members(self, footprint: int) -> Array:
        """The numbers of the classes of a footprint."""
        classes = self.classes[footprint]
        return np.arange(classes.start, classes.stop) if isinstance(classes, slice) else classes

    def overlap(self, one: int, other: int) -> bool:
        """Whether two footprints share a byte, exactly."""
        if (one, other) not in self._overlaps:
            self._overlaps[one, other] = self._overlap(one, other)
        return self._overlaps[one, other]

    def _overlap(self, one: int, other: int) -> bool:
        (a, a_base), (b, b_base) = self.at(one), self.at(other)
        if a.space is not b.space or a.first >= b.last or b.first >= a.last:
            return False
        (a_starts, a_ends), (b_starts, b_ends) = a.offsets(), b.offsets()
        shift = b_base - a_base
        after = np.searchsorted(a_ends, b_starts + shift, side="right")
        inside = after < len(a_starts)
        return bool((a_starts[after[inside]] < b_ends[inside] + shift).any())

    def _worth_tracking(self, initialised: list[tuple[int, int]]) -> list[int]:
        """All footprints but reads of initialised HBM that nothing writes: weights, mostly."""
        lows = np.array(self.bases, np.int64)
        extents = np.array([pattern.extent for pattern in self.patterns] or [0], np.int64)
        hbm = np.array([pattern.space is Space.HBM for pattern in self.patterns] or [False], bool)
        which = np.array(self.pattern_numbers, np.int64)
        highs, in_hbm = lows + extents[which], hbm[which]
        is_written = np.zeros(len(lows), bool)
        is_written[list(self.written)] = True
        busy = _union(np.stack([lows, highs], axis=1)[in_hbm & is_written])
        defined = _union(initialised)
        clear = in_hbm & ~_touches(busy, lows, highs) & _inside(defined, lows, highs)
        kept: list[int] = np.flatnonzero(~clear).tolist()
        return kept

    def _runs(self, wanted: list[int]) -> tuple[Array, Array, Array]:
        """Linear runs of the footprints: starts, ends, footprint numbers."""
        groups: dict[Pattern, list[int]] = {}
        for number in wanted:
            groups.setdefault(self.patterns[self.pattern_numbers[number]], []).append(number)
        rows = {
            space: sorted({row for p in groups if p.space is space for row in (p.first, p.last)}) for space in Space
        }
        budget = MAX_RUNS
        parts: list[tuple[Array, Array, Array]] = [(np.zeros(0, np.int64),) * 3]
        for pattern, numbers in sorted(groups.items(), key=lambda item: item[0].runs):
            in_space = rows[pattern.space]
            first, last = in_space.index(pattern.first), in_space.index(pattern.last)
            if pattern.runs * len(numbers) * (last - first) <= budget:
                starts, ends = pattern.offsets()
            else:
                starts, ends = np.zeros(1, np.int64), np.full(1, pattern.extent)
                self.coarse.update(numbers)
            linear = _SPACE_START[pattern.space] + np.arange(first, last) * _PITCH
            origin = (np.array([self.bases[number] for number in numbers])[:, None] + linear).reshape(-1)
            parts.append(
                (
                    (origin[:, None] + starts).reshape(-1),
                    (origin[:, None] + ends).reshape(-1),
                    np.repeat(np.array(numbers), (last - first) * len(starts)),
                )
            )
            budget -= len(parts[-1][0])
        starts, ends, owners = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return starts, ends, owners


def _ranges(owners: Array, low: Array, high: Array) -> dict[int, Classes]:
    """Of each owner, the numbers low..high-1 of all its rows, which are disjoint."""
    some = np.flatnonzero(high > low)
    if not len(some):
        return {}
    some = some[np.lexsort((low[some], owners[some]))]
    owners, low, high = owners[some], low[some], high[some]
    fresh = np.ones(len(some), bool)
    fresh[1:] = (owners[1:] != owners[:-1]) | (low[1:] != high[:-1])
    rows = np.flatnonzero(fresh)
    owners, low, high = owners[rows], low[rows], high[np.append(rows[1:], len(some))[: len(rows)] - 1]
    firsts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1])[: len(owners)]).tolist()
    found: dict[int, Classes] = {}
    for first, last in zip(firsts, [*firsts[1:], len(owners)], strict=True):
        starts, sizes = low[first:last], high[first:last] - low[first:last]
        if last - first == 1:
            found[int(owners[first])] = slice(int(starts[0]), int(high[first]))
        else:
            shift = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
            found[int(owners[first])] = np.arange(len(shift)) + shift
    return found


def _distinct(values: Array) -> Array:
    """The values, ascending, once each (``np.unique`` hashes, which takes longer)."""
    ordered = np.sort(values)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def _union(ranges: Any) -> Array:
    """Disjoint ascending [start, end) rows that cover the same as ``ranges``."""
    rows = np.array(ranges, np.int64).reshape(-1, 2)
    rows = rows[rows[:, 1] > rows[:, 0]]
    if not len(rows):
        return rows
    rows = rows[np.argsort(rows[:, 0])]
    reach = np.maximum.accumulate(rows[:, 1])
    fresh = np.concatenate([[True], rows[1:, 0] > reach[:-1]])
    return np.stack([rows[fresh, 0], reach[np.append(fresh[1:], True)]], axis=1)


def _touches(union: Array, lows: Array, highs: Array) -> Array:
    """Whether each [low, high) shares a byte with the union."""
    if not len(union):
        return np.zeros(len(lows), bool)
    after = np.minimum(np.searchsorted(union[:, 1], lows, side="right"), len(union) - 1)
    touching: Array = (union[after, 0] < highs) & (union[after, 1] > lows)
    return touching


def _inside(union: Array, lows: Array, highs: Array) -> Array:
    """Whether each [low, high) lies in one range of the union."""
    if not len(union):
        return np.zeros(len(lows), bool)
    at = np.maximum(np.searchsorted(union[:, 0], lows, side="right") - 1, 0)
    contained: Array = (union[at, 0] <= lows) & (highs <= union[at, 1])
    return contained
