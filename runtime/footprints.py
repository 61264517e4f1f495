"""Which bytes each operand touches.

Input: operands with all values that their loop registers take. Every distinct set of bytes is a *footprint*: a
``Pattern`` at a base address. In SBUF and PSUM it touches the same bytes of each partition of an interval, so nothing
here grows with the number of partitions.

The order of an access pattern's dims does not matter to a set of bytes, so dims are sorted by stride and merged into
contiguous runs where they touch; what remains is a regular grid of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import gcd, prod
from operator import attrgetter

import numpy as np

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa import limits
from neuronx_cc.ir.isa.program import Ref, Space
from neuronx_cc.ir.types import itemsize
from neuronx_cc.runtime.intervals import Array, distinct
from neuronx_cc.runtime.race_native import distinct_firsts

SIZE = {
    Space.HBM: limits.HBM_BYTES,
    Space.SBUF: limits.SBUF_PARTITION_BYTES,
    Space.PSUM: limits.PSUM_PARTITION_BYTES,
}
"""Bytes of a memory, or of each of its partitions."""
MAX_RUNS = 1 << 25
"""Of one operand, some 30 bytes each."""
_SPAN = 2 * max(SIZE.values())
"""More than two addresses may be apart, either way."""

Dims = tuple[tuple[int, int], ...]
_key = attrgetter("space", "dtype", "dims", "partition")


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
        return self.run + sum([(count - 1) * stride for count, stride in self.dims])

    @property
    def runs(self) -> int:
        return prod([count for count, _ in self.dims])

    @property
    def pitch(self) -> int:
        """The runs begin at multiples of it."""
        return gcd(*[stride for _, stride in self.dims])

    def offsets(self) -> tuple[Array, Array]:
        """Disjoint, ascending runs as (starts, ends), relative to the base. Raises RunError ERUN920 for too many."""
        if self.runs > MAX_RUNS:
            raise RunError(
                "ERUN920", f"an operand of {self.runs} separate runs; the race check looks at up to {MAX_RUNS}"
            )
        starts = np.zeros(1, np.int64)
        for count, stride in reversed(self.dims):
            starts = (starts[:, None] + np.arange(count) * stride).reshape(-1)
        if (np.diff(starts) < self.run).any():  # dims interleave
            starts = distinct(starts)
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
class Patterns:
    """Distinct patterns, numbered."""

    all: list[Pattern] = field(default_factory=list)
    _numbers: dict[Pattern, int] = field(default_factory=dict)
    _known: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)

    def number(self, ref: Ref, spread: Dims) -> tuple[int, int]:
        """The number of the operand's pattern, -1 if it has no bytes; its base relative to the operand's address."""
        key = (*_key(ref), spread) if spread else _key(ref)
        known = self._known.get(key)
        if known is None:
            known = (-1, 0)
            if 0 not in ref.counts:
                pattern, base = pattern_of(ref, spread)
                known = (self._numbers.setdefault(pattern, len(self.all)), base)
            if known[0] == len(self.all):
                self.all.append(pattern)
            self._known[key] = known
        return known

    def numbers(self, refs: Sequence[Ref], spread: Mapping[int, Dims]) -> tuple[Array, Array]:
        """The same of many operands; ``spread`` has more dims for some of them."""
        found = [
            known or self.number(ref, ())
            for known, ref in zip(map(self._known.get, map(_key, refs)), refs, strict=True)
        ]
        for at, dims in spread.items():
            found[at] = self.number(refs[at], dims)
        numbers, bases = np.fromiter(chain.from_iterable(found), np.int64, 2 * len(refs)).reshape(-1, 2).T
        return numbers, bases

    def text(self, number: int, base: int) -> str:
        """The bytes of a pattern at ``base`` in words."""
        pattern = self.all[number]
        rows = "" if pattern.space is Space.HBM else f" partitions {pattern.first}..{pattern.last - 1}"
        scattered = f" ({pattern.runs} runs of {pattern.run})" if pattern.runs > 1 else ""
        return f"{pattern.space.name}{rows} bytes {base}..{base + pattern.extent - 1}{scattered}"

    def outside(self, numbers: Array, bases: Array) -> Array:
        """Which of the patterns ``numbers`` at ``bases`` leave their memory."""
        extents = np.array([pattern.extent for pattern in self.all] or [0])
        sizes = np.array([SIZE[pattern.space] if pattern.last <= limits.PARTITIONS else 0 for pattern in self.all])
        return np.flatnonzero((bases < 0) | (bases + extents[numbers] > np.append(sizes, 0)[numbers]))


@dataclass(slots=True)
class Footprints:
    """Distinct footprints, numbered; a column for each fact."""

    patterns: Patterns
    pattern: Array
    """Its number."""
    base: Array
    """The least byte, in its partition."""
    end: Array
    """Behind the greatest byte."""
    first: Array
    last: Array
    """Partitions ``first..last-1``."""
    space: Array
    written: Array
    """Whether some instruction writes it."""
    _overlaps: dict[tuple[int, int], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, patterns: Patterns, numbers: Array, bases: Array, writes: Array) -> tuple[Footprints, Array]:
        """The footprints of accesses, and the number of each access's."""
        every = numbers * _SPAN + bases
        owners, firsts = distinct_firsts(every)
        keys = every[firsts]
        pattern, base = np.divmod(keys, _SPAN)
        facts = [(each.extent, each.first, each.last, int(each.space)) for each in patterns.all]
        extent, first, last, space = np.array(facts, np.int64).reshape(-1, 4).T
        written = np.zeros(len(keys), bool)
        written[owners[writes]] = True
        end = base + extent[pattern]
        return cls(patterns, pattern, base, end, first[pattern], last[pattern], space[pattern], written), owners

    def __len__(self) -> int:
        return len(self.base)

    def at(self, footprint: int) -> tuple[Pattern, int]:
        """Pattern and base of a footprint."""
        return self.patterns.all[self.pattern[footprint]], int(self.base[footprint])

    def text(self, footprint: int) -> str:
        """The bytes of a footprint in words."""
        return self.patterns.text(int(self.pattern[footprint]), int(self.base[footprint]))

    def hulls_meet(self, ones: Array, others: Array) -> Array:
        """Whether pairs of footprints of the same memory may share a byte."""
        meet: Array = (self.base[ones] < self.end[others]) & (self.base[others] < self.end[ones])
        meet &= (self.first[ones] < self.last[others]) & (self.first[others] < self.last[ones])
        return meet

    def overlap(self, ones: Array, others: Array) -> Array:
        """Whether pairs of footprints, whose hulls meet, share a byte, exactly.

        That depends on patterns and distance alone, so a pair that loops move through memory is looked at once.
        """
        patterns = self.patterns.all
        pairs, which = np.unique(self.pattern[ones] * len(patterns) + self.pattern[others], return_inverse=True)
        distances = self.base[others] - self.base[ones]
        cases, where = np.unique(which.reshape(-1) * _SPAN + distances + _SPAN // 2, return_inverse=True)
        found = []
        for pair, distance in zip(pairs[cases // _SPAN].tolist(), (cases % _SPAN - _SPAN // 2).tolist(), strict=True):
            if (pair, distance) not in self._overlaps:
                one, other = divmod(pair, len(patterns))
                self._overlaps[pair, distance] = _overlap(patterns[one], patterns[other], distance)
            found.append(self._overlaps[pair, distance])
        shared: Array = np.array(found, bool)[where.reshape(-1)]
        return shared


def _overlap(one: Pattern, other: Pattern, distance: int) -> bool:
    """Whether two patterns share a byte, the second placed ``distance`` above the first; their hulls do."""
    if not one.dims and not other.dims:
        return True
    pitch = gcd(one.pitch, other.pitch)
    beyond = distance % pitch
    if beyond >= one.run and pitch - beyond >= other.run:
        return False  # the runs of each lie in columns of their own
    (starts, ends), (other_starts, other_ends) = one.offsets(), other.offsets()
    after = np.searchsorted(ends, other_starts + distance, side="right")
    inside = after < len(starts)
    return bool((starts[after[inside]] < other_ends[inside] + distance).any())
