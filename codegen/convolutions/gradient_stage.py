"""One operand of a gradient of a kernel: staged with its features on the partitions, then transposed tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import prod
from typing import TypeAlias

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.convolutions.axis import Axis
from neuronx_cc.codegen.convolutions.gradient_plan import GROUP, Loading, Tiles
from neuronx_cc.codegen.convolutions.problem import atom_of, contracted
from neuronx_cc.codegen.convolutions.schedule import Comes
from neuronx_cc.codegen.convolutions.stage import Coming, Images, PackAt, RowsAt, Source
from neuronx_cc.codegen.convolutions.turn import Turner
from neuronx_cc.codegen.dots.tiles import Tiles as Buffers
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import in_long_runs
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.movement.halves import halves_of, part_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream

QUEUE = Stream.DMA_WEIGHT
"""Maps after a gradient do not wait for this queue; they overlap with it where they do not read the gradient."""
WHOLE = PackAt(0, 1, 1, Affine())
UNROLLED = 4
"""Chunks of features of one tile of positions that are transposed in straight-line code."""
Planes: TypeAlias = list[tuple[Block, str, int]]
"""Blocks that TensorE carries exactly, the type of the parts that they hold, and their byte in an element."""


@dataclass(frozen=True, slots=True)
class _Partitions:
    """Neighbouring partitions along one axis that are loaded together."""

    partition: int
    count: int
    axis: int
    first: list[int]
    """Index of the first one along each axis."""


@dataclass(frozen=True, slots=True)
class _Turning:
    """The first of the tiles that are transposed, where it goes, and how the others follow."""

    source: Block
    """[kept dim, its tiles, positions on the partitions...]"""
    target: Block
    """[partitions, tiles, kept dim]"""
    loops: tuple[tuple[int, int], ...]
    """(tiles, bytes between them in ``source``), outermost first; in ``target`` they follow each other."""


@dataclass(frozen=True, slots=True)
class Staging:
    """What one side stages with."""

    emitter: Emitter
    tiles: Buffers
    turner: Turner
    dtype: str
    raw_bytes: int
    """Of what is loaded before it is put between its padding."""

    @property
    def height(self) -> int:
        """Partitions of a tile."""
        sizes = self.emitter.builder.sizes
        return min(sizes.rows, sizes.columns)


class Side:
    """One operand: its kept dim (``n`` or ``o``) on the partitions, then ``c`` and the positions."""

    def __init__(self, context: Context, stage: Staging, whole: View, axes: Sequence[Axis], buffers: int) -> None:
        """``whole``: all of the operand, in HBM, as [positions of axis 0, kept dim, positions...]."""
        self.context, self.stage, self.whole, self.axes, self.buffers = context, stage, whole, axes, buffers
        self.builder = context.builder
        self.batch, self.inputs = whole.shape[:2]

    def restrict(self, start: int, size: int) -> None:
        """Stage ``size`` of the kept dim's elements from ``start`` on."""
        part = self.whole.slice(1, start, size)
        assert part is not None, "an HBM view of one progression slices"
        self.x, self.inputs = part, size
        self.features = contracted(size, self.stage.height)[0]

    def staged(self, at: Sequence[RowsAt]) -> Block:
        """A block [kept dim, chunks, positions...], zeros where the padding lies."""
        stage = self.stage
        width, partitions, timing = at[-1].piece.valid, self.features.partitions_of_pack(1), self.builder.timing
        rows_are_cheap = partitions * timing.run_ns < timing.engine("tensor_copy", Stream.GPSIMD, max(1, width)).bound
        comes = Comes.LOADED if rows_are_cheap else Comes.BESIDE
        source = Source(self.x, QUEUE, self.features, stage.dtype, self.batch)
        coming = Coming(comes, self.buffers, 0, stage.raw_bytes, 1)
        return Images(stage.emitter, stage.tiles, stage.turner, source, coming).block(WHOLE, at)

    def loaded_tile(self, loading: Loading, name: str, tiles: int, partitions: int, buffers: int) -> Block:
        """Room for transposed tiles: [partitions, tiles, kept dim], stored as they lie in HBM."""
        if loading is Loading.PLANES:
            return self.stage.tiles.tile(self.stage.dtype, [self.inputs, tiles], partitions, name, buffers).select(
                [0, 2, 1]
            )
        return self.stage.tiles.tile(self.stage.dtype, [tiles, self.inputs], partitions, name, buffers)

    def load_windows(self, at: Sequence[RowsAt], tiles: Tiles, target: Block) -> None:
        """Load tiles of positions into ``target`` [partitions, tiles, kept dim], zeros for those in the padding."""
        pieces = [rows.piece for rows in at]
        if any(piece.before or piece.after for piece in pieces):
            self.stage.emitter.over("memset", Stream.GPSIMD, [target], [], imm=[0.0])
        if any(not piece.valid for piece in pieces):
            return
        ends = [(piece.before, piece.before + piece.valid) for piece in pieces]
        loops = [reach.loops[0] for reach in tiles.reach]
        several = [axis for axis, count in enumerate(tiles.partitions) if count > 1]
        last = several[-1] if several else 0
        first = [range(count) if axis != last else range(1) for axis, count in enumerate(tiles.partitions)]
        for number, partition in enumerate(product(*first)):
            # of each axis the tiles whose positions exist
            ranges = [
                _existing(begin * gap, loop, end)
                for begin, gap, loop, end in zip(partition, tiles.apart, loops, ends, strict=True)
            ]
            if any(start >= stop for axis, (start, stop) in enumerate(ranges) if axis != last):
                continue
            # partitions that lack the same tiles are loaded together: all but those at the borders
            loop, gap = loops[last], tiles.apart[last]
            met = [_existing(index * gap, loop, ends[last]) for index in range(tiles.partitions[last])]
            for (start, stop), same in groupby(range(len(met)), met.__getitem__):
                together = list(same)
                if start < stop:
                    ranges[last] = start, stop
                    firsts = [*partition[:last], together[0], *partition[last + 1 :]]
                    partitions = _Partitions(number * len(met) + together[0], len(together), last, firsts)
                    self._load_tiles(at, tiles, partitions, ranges, target)

    def _load_tiles(
        self,
        at: Sequence[RowsAt],
        tiles: Tiles,
        partitions: _Partitions,
        ranges: Sequence[tuple[int, int]],
        target: Block,
    ) -> None:
        """The tiles ``ranges`` (start, stop) along each axis for some of the partitions."""
        offset, free, kept = self.x.start, [], []
        first = 0
        for axis, rows in enumerate(at):
            stride = atom_of(self.x, axis if axis == 0 else axis + 1).stride
            (start, stop), (total, distance) = ranges[axis], tiles.reach[axis].loops[0]
            position = partitions.first[axis] * tiles.apart[axis] + start * distance - rows.piece.before
            offset = offset + (rows.input + position) * stride
            free.append(Atom(stop - start, distance * stride))
            first = first * total + start
            after = prod(each.loops[0][0] for each in tiles.reach[axis + 1 :])
            kept.append(Atom(stop - start, after * target.dims[1].stride))
        stride = atom_of(self.x, partitions.axis if partitions.axis == 0 else partitions.axis + 1).stride
        source = Block(
            self.x.alloc,
            self.x.dtype,
            offset,
            (Atom(partitions.count, tiles.apart[partitions.axis] * stride), *free, atom_of(self.x, 1)),
        )
        goal = target.moved(first * target.dims[1].stride)
        goal = replace(
            goal, partition=partitions.partition, dims=(Atom(partitions.count, 1, True), *kept, target.dims[2])
        )
        order = list(range(len(goal.dims)))
        if target.dims[2].stride > target.dims[1].stride:
            order = [0, order[-1], *order[1:-1]]
        copy(self.builder, goal.select(order), source.select(order), QUEUE)

    def planes(self, tile: Block, name: str) -> Planes:
        """What TensorE transposes: the tile, or both halves of its bits (both alive at once)."""
        if self.stage.turner.fast:
            return [(tile, tile.dtype, 0)]
        order = in_long_runs(tile)

        def room(carrier: str, number: int) -> Block:
            sizes = [tile.dims[dim].size for dim in order]
            stored = self.stage.tiles.tile(carrier, sizes, tile.dims[0].size, f"{name} bits {number}", 1)
            return stored.select([0, *(1 + order.index(dim) for dim in range(1, len(tile.dims)))])

        def move(target: Block, source: Block) -> None:
            for segment in self.features.segments:
                pair = [block.index(1, Affine(segment.first), segment.chunks) for block in (target, source)]
                to, of = (block.of((Atom(segment.partitions, 1, True), *block.dims[1:])) for block in pair)
                # not on Vector, which what comes after needs
                self.stage.emitter.over("tensor_copy", Stream.GPSIMD, [to], [of])

        return list(halves_of(tile, room, move))

    def turn_windows(self, planes: Planes, tiles: Tiles, target: Block) -> None:
        """Transpose tiles of positions into ``target`` [partitions, tiles, kept dim]."""
        windows = []
        for plane, part, byte in planes:
            dims = list(plane.dims)
            for axis, (partitions, apart) in enumerate(zip(tiles.partitions, tiles.apart, strict=True)):
                dims[2 + axis] = Atom(partitions, dims[2 + axis].stride * apart)
            strides = [atom.stride for atom in plane.dims[2:]]
            loops = tuple((count, distance * strides[axis]) for axis, count, distance in tiles.loops)
            windows.append(_Turning(plane.of(tuple(dims)), part_of(target, part, byte), loops))
        self._turn_loops(windows, [])

    def _turn_loops(self, windows: Sequence[_Turning], at: list[Affine]) -> None:
        loops = windows[0].loops
        inner = max((dim for dim, (count, _) in enumerate(loops) if count > 1), default=len(loops) - 1)
        if len(at) < inner:
            for index in self.builder.each(loops[len(at)][0], 1):
                self._turn_loops(windows, [*at, index])
            return
        count = loops[inner][0]
        most = max(1, min(GROUP, self.builder.sizes.bank_columns // self.features.partitions_of_pack(1)))
        for start, groups, several in self.builder.tiles(count, -(-count // -(-count // most))):
            for group in self.builder.each(groups, 1):
                for window in windows:
                    self._turn_group(window, [*at, group * several + start], several, len(windows))

    def _turn_group(self, window: _Turning, at: list[Affine], several: int, planes: int) -> None:
        """``several`` tiles from ``at`` on along its last loop; the loops after have one tile only.

        ``planes``: as many are transposed in an iteration of the loop around.
        """
        place, source, step = Affine(), window.source, 0
        for (count, step), index in zip(window.loops, at, strict=False):
            place = place * count + index
            source = source.moved(index * step)
        goal = window.target.moved(place * window.target.dims[1].stride)
        for segment in self.features.segments:
            # the only transpose in an iteration takes the next bank in each
            alone = segment.chunks > UNROLLED or (planes == 1 and self.features.chunks == 1)
            for chunk in self.builder.each(segment.chunks, UNROLLED):
                tile = source.index(1, chunk + segment.first)
                tile = tile.of((Atom(segment.partitions, 1, True), *tile.dims[1:]))
                width = goal.dims[2].stride
                kept = goal.offset + segment.start * width + chunk * (segment.chunk_step * width)
                columns = (Atom(several, goal.dims[1].stride), Atom(segment.partitions, width * segment.partition_step))
                self._turn_chunk(tile, step, replace(goal, offset=kept, dims=(goal.dims[0], *columns)), alone)

    def _turn_chunk(self, source: Block, step: int, target: Block, alone: bool) -> None:
        """``source`` [kept, positions...], each time ``step`` bytes on -> ``target`` [positions, times, kept]."""
        positions = merged(source.dims)
        taken = [source.moved(number * step).of(positions) for number in range(target.dims[1].size)]
        bank = self.context.fixed.transposes(self.stage.turner.banks, taken, several=not alone)
        self.stage.turner.leave(target, bank, self.stage.emitter.leave)


def _existing(first: int, loop: tuple[int, int], ends: tuple[int, int]) -> tuple[int, int]:
    """The range of ``loop``'s tiles, from position ``first`` on, that lie between ``ends``."""
    count, distance = loop
    start = max(0, -(-(ends[0] - first) // distance))
    return start, min(count, (ends[1] - 1 - first) // distance + 1)


def merged(dims: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """Free dims without those of size 1."""
    free = [atom for atom in dims[1:] if atom.size > 1]
    return (dims[0], *(free or [Atom(1, dims[-1].stride)]))
