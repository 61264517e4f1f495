"""How a gradient of a kernel is computed: a frozen value that prints in one line, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod

from neuronx_cc.codegen.convolutions.candidates import NATURAL_SHARE
from neuronx_cc.codegen.convolutions.gradient_diagonal import nbytes_of as diagonal_bytes
from neuronx_cc.codegen.convolutions.gradient_plan import (
    Loading,
    Pace,
    Piece,
    Spread,
    Steps,
    Sum,
    even,
    parts_of,
    pieces_of,
    spread_of,
    sum_banks,
)
from neuronx_cc.codegen.convolutions.gradient_problem import Face, Problem, runs_of
from neuronx_cc.codegen.convolutions.schedule import ROW_BUFFERS
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

HOW = {Loading.TURNED: "transposed", Loading.ROWS: "loaded in rows", Loading.PLANES: "loaded in planes"}


@dataclass(frozen=True, slots=True)
class Schedule:
    """All that is decided."""

    face: int
    """The number of the face: 1 if the taps move the operand with positions of results."""
    loaded: tuple[Loading, Loading]
    """How positions of both operands come onto the partitions."""
    pack: int
    """Groups that share products."""
    stacked: bool
    """Whether these lie on rows and columns of the sums, the taps on rows; else the taps lie on columns."""
    slabs: tuple[int, int]
    """Features of both operands that are summed together."""
    rows: tuple[int, ...]
    """Positions of each axis in one block."""
    transposed_buffers: int

    def line(self, problem: Problem) -> str:
        """Problem and schedule for whoever reads along."""
        face = problem.faces[self.face]
        images, taps = ("x".join(str(each) for each in sizes) for sizes in (_sizes(face), [t.count for t in face.taps]))
        groups = f" in {problem.groups} groups, {self.pack} together" if problem.groups > 1 else ""
        groups += " with taps on rows" if self.stacked else ""
        how = " and ".join(HOW[each] for each in self.loaded)
        return (
            f"gradient of {face.kept[0]} x {face.kept[1]} features{groups} over {images}, {taps} taps of the "
            f"{'second' if self.face else 'first'} operand, {problem.dtype}: {how}, {self.slabs[0]} x {self.slabs[1]} "
            f"features at a time, blocks of {'x'.join(map(str, self.rows))} x{self.transposed_buffers}"
        )


def unmet(problem: Problem) -> Schedule:
    """Of a problem without products."""
    face = problem.faces[0]
    return Schedule(0, (Loading.TURNED, Loading.TURNED), 1, False, face.kept, tuple(_sizes(face)), 1)


def _sizes(face: Face) -> list[int]:
    return [axis.rows for axis in face.axes]


@dataclass(frozen=True)
class Frame:
    """What follows from a face and the features that are summed together, whatever the blocks are.

    Groups that share products fill rows and columns; only products of features of one group are kept.
    """

    problem: Problem
    number: int
    loaded: tuple[Loading, Loading]
    pack: int
    stacked: bool
    slabs: tuple[int, int]
    timing: Timing

    @property
    def face(self) -> Face:
        return self.problem.faces[self.number]

    @property
    def sizes(self) -> Sizes:
        return self.timing.sizes

    @property
    def tile_rows(self) -> int:
        return min(self.sizes.rows, self.sizes.columns)

    @property
    def columns_are_left(self) -> bool:
        """Whether ``o``, not ``n``, lies on the partitions of the sums."""
        if self.pack > 1:
            return not self.stacked
        return not self.face.features_last(self.problem.out_dtype)

    @property
    def together(self) -> int:
        """Groups that are staged together."""
        return self.slabs[0] if self.stacked else self.pack

    @cached_property
    def pace(self) -> Pace:
        return Pace.of(self.timing, self.problem.dtype, self.problem.fast)

    # ---- sums -------------------------------------------------------------------------------------------------

    def groups(self, left: int, right: int) -> list[list[tuple[Piece, tuple[int, int]]]]:
        """Pairs of pieces of so many features to be summed: those of a group have the same rows, or else the same
        columns.
        """
        taps, banks, columns = [tap.count for tap in self.face.taps], sum_banks(self.sizes), self.sizes.bank_columns
        if self.columns_are_left:
            whole = self.pack > 1 or prod(taps) * left <= columns
            most = left if whole else max(1, columns // -(-prod(taps) // banks))
            by_start = []
            for start, size in even(left, most):
                # several taps fill the columns of a product that one does not
                pieces = pieces_of(taps, size, columns, [whole or size < 64 for _ in taps])
                by_start.append([replace(piece, start=start + piece.start) for piece in pieces])
            return [[(piece, rows) for piece in group] for rows in even(right, self.tile_rows) for group in by_start]
        if self.stacked:
            found = []
            for start, size in even(left, self.pack):
                pieces = pieces_of(taps, size, self.tile_rows)
                found.append([(replace(piece, start=start), (start, size)) for piece in pieces])
            return found
        pieces = pieces_of(taps, left, self.tile_rows, self._stackable(left))
        return [[(piece, wide) for wide in even(right, columns)] for piece in pieces]

    @cached_property
    def pairs(self) -> list[tuple[Piece, tuple[int, int]]]:
        """Of the features that are summed together."""
        return [pair for group in self.groups(*self.slabs) for pair in group]

    @cached_property
    def columns(self) -> int:
        """Columns of the products of one position."""
        return sum(max(64, a.width if self.columns_are_left else b[1]) for a, b in self.pairs)

    @cached_property
    def parts(self) -> int:
        """Times that a block is multiplied, with other sums in PSUM."""
        return len(self._parts)

    @cached_property
    def _parts(self) -> list[list[Sum]]:
        sums, columns = self.groups(*self.slabs), self.sizes.bank_columns
        return parts_of(sums, self.columns_are_left, sum_banks(self.sizes), columns)

    @property
    def sum_banks(self) -> int:
        """Banks of PSUM for sums: where all add up at a time, no more than they fill. Transposes have the others."""
        if not self.problem.meets or self.parts > 1:
            return sum_banks(self.sizes)
        return max(sum_.bank for sum_ in self._parts[0]) + 1

    def _stackable(self, left: int) -> list[bool]:
        """Of each axis, whether several taps with all features are one progression of rows of the result."""
        face, found = self.face, list[bool]()
        stride = face.out[0].stride * face.kept[0]
        backwards = face.taps[-1].step < 0
        for atom, tap in zip(reversed(face.out[2:]), reversed(face.taps[1:]), strict=True):
            if atom.size > 1:
                # taps from last to first are stored one by one
                found.insert(0, left == face.kept[0] and (backwards or stride in (0, atom.stride)))
                stride = atom.stride * tap.count
            else:
                found.insert(0, True)
        return [False, *found]

    def features(self, groups: int) -> Iterator[list[tuple[int, int]]]:
        """(start, size) of features of both sides that are summed together, of ``groups`` groups."""
        for total, size in zip(self.face.kept, self.slabs, strict=True):
            yield list(even(groups * total, size))

    # ---- blocks -----------------------------------------------------------------------------------------------

    @cached_property
    def _spreads(self) -> dict[tuple[int, ...], Spread]:
        """Those that somebody asked for."""
        return {}

    def spread(self, rows: Sequence[int]) -> Spread:
        """How a block of ``rows`` positions is dealt out."""
        key = tuple(rows)
        if key not in self._spreads:
            self._spreads[key] = self._spread(key)
        return self._spreads[key]

    def _spread(self, rows: Sequence[int]) -> Spread:
        pairs = zip(rows, self.face.axes, self.face.taps, strict=True)
        steps = tuple(Steps(size, axis.step, tap.count, tap.stride) for size, axis, tap in pairs)
        totals = (self.problem.groups * kept for kept in self.face.kept)
        left, right = (slab == total for slab, total in zip(self.slabs, totals, strict=True))
        return spread_of(self.pace, steps, *self.slabs, self.loaded, self.columns, (left, right))

    def loads(self, rows: Sequence[int]) -> float:
        """Columns of TensorE in the time of loading what is transposed of a block of ``rows`` positions."""
        extents = [min(axis.extent(count), axis.size) for axis, count in zip(self.face.axes, rows, strict=True)]
        found = 0.0
        for lies, loaded, slab, sizes in zip(self.face.operands, self.loaded, self.slabs, (extents, rows), strict=True):
            if not loaded:
                runs, nbytes = runs_of(lies, sizes)
                found += slab * runs * self.pace.columns(nbytes / itemsize("f32"))
        return found

    def nbytes(self, rows: Sequence[int]) -> int:
        """Bytes a partition that staging a block and its transposed tiles take."""
        return self.staged(rows) + sum(self.transposed(rows))

    def staged(self, rows: Sequence[int]) -> int:
        """Of these, all but the transposed tiles."""
        axes, size = self.face.axes, itemsize(self.problem.dtype)
        whole = all(count >= axis.rows for axis, count in zip(axes, rows, strict=True))
        each = (1 if whole else 2) * size + (0 if self.problem.fast else 2 * size)
        extents = prod(axis.extent(count) for axis, count in zip(axes, rows, strict=True))
        chunks = [
            0 if loaded else -(-slab // self.tile_rows) for loaded, slab in zip(self.loaded, self.slabs, strict=True)
        ]
        held = chunks[0] * extents, chunks[1] * prod(rows)
        most = self.sizes.sbuf_share(NATURAL_SHARE)
        raw = sum(ROW_BUFFERS * min(most, count * size) for count in held)
        return sum(held) * each + raw + self._result_bytes

    @cached_property
    def _result_bytes(self) -> int:
        """Bytes a partition of what leaves PSUM: of groups that share products beside all that is kept of them."""
        taps, (left, right), packed = prod(tap.count for tap in self.face.taps), self.slabs, self.pack > 1
        columns = min(right, self.sizes.bank_columns)
        if self.columns_are_left:
            kept = taps * self.face.kept[0]
            columns = kept if packed else min(taps * left, sum_banks(self.sizes) * self.sizes.bank_columns)
        if self.stacked:
            columns = taps
            packed_bytes = diagonal_bytes(
                self.pack, self.tile_rows // self.pack, len(self.groups(self.pack, self.pack)[0])
            )
        else:
            packed_bytes = 2 * self.sizes.bank_bytes * packed
        nbytes = columns * itemsize(self.problem.out_dtype)
        return result_buffers(nbytes, self.sizes) * nbytes + packed_bytes

    def transposed(self, rows: Sequence[int]) -> tuple[int, int]:
        """Bytes a partition of the transposed tiles of both operands, of the block that has most."""
        sizes = [{count, axis.rows % count or count} for axis, count in zip(self.face.axes, rows, strict=True)]
        spreads = [self.spread(block) for block in product(*sizes)]
        size = itemsize(self.problem.dtype)
        left = max(spread.tiles for spread in spreads) * self.slabs[0] * size
        return left, max(prod(spread.inner) for spread in spreads) * self.slabs[1] * size


@lru_cache(maxsize=256)
def frame_of(
    problem: Problem,
    face: int,
    loaded: tuple[Loading, Loading],
    pack: int,
    stacked: bool,
    slabs: tuple[int, int],
    timing: Timing,
) -> Frame:
    """Equal frames once."""
    return Frame(problem, face, loaded, pack, stacked, slabs, timing)


def frame(problem: Problem, schedule: Schedule, timing: Timing) -> Frame:
    """That of a schedule."""
    return frame_of(problem, schedule.face, schedule.loaded, schedule.pack, schedule.stacked, schedule.slabs, timing)


def result_buffers(nbytes: int, sizes: Sizes) -> int:
    """Of results of ``nbytes`` a partition: as many as stores are under way at once, or two of large ones."""
    return 4 if nbytes <= sizes.bank_bytes else 2
