"""One operand of a gradient of a kernel: staged with its features on the partitions, then transposed tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from neuronx_cc.codegen.builder import Affine, Block
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.conv_axis import Axis
from neuronx_cc.codegen.conv_gradient_plan import Spread
from neuronx_cc.codegen.conv_stage import ConvStaging
from neuronx_cc.codegen.dot_plan import HALVES, TILE_COLUMNS
from neuronx_cc.codegen.tiles import dense
from neuronx_cc.codegen.views import Atom, View
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

GROUP = 4
"""Tiles of positions whose transposes share a bank."""
Planes: TypeAlias = list[tuple[Block, str, int]]
"""Blocks that TensorE carries exactly, the type of the parts that they hold, and their byte in an element."""


class Side(ConvStaging):
    """One operand: its kept dim (``n`` or ``o``) on the partitions, then ``c`` and the positions."""

    def __init__(
        self, context: Context, op: hlo.ConvolutionOp, value: hlo.SSAValue, order: Sequence[int], axes: list[Axis]
    ) -> None:
        super().__init__(context, op, 0)
        self.input = self._source(value)[0]
        self.lhs_order = tuple(order)
        shape = hlo.shape_of(value)
        self.groups = self.batch_groups = self.pack = self.outputs = 1
        self.inputs, self.batch = shape.dims[order[1]], shape.dims[order[0]]
        self.axes = axes
        self.whole: View | None = None

    def restrict(self, start: int, size: int) -> None:
        """Stage ``size`` of the kept dim's elements from ``start`` on."""
        if self.whole is None:
            self.whole = self.dense_view()
        part = self.whole.slice(1, start, size)
        assert part is not None, "an HBM view of one progression slices"
        self.x, self.inputs = part, size
        self._segment()

    def planes(self, tile: Block, name: str) -> Planes:
        """What TensorE transposes: the tile, or both halves of its bits (both alive at once)."""
        if self.fast(tile.dtype):
            return [(tile, tile.dtype, 0)]
        part, carrier = HALVES[itemsize(tile.dtype)]
        order = sorted(range(1, len(tile.dims)), key=lambda dim: -abs(tile.dims[dim].stride))
        found = []
        for position in range(itemsize(tile.dtype) // itemsize(part)):
            byte = position * itemsize(part)
            bits = replace(tile, dtype=part, offset=tile.offset + byte)
            sizes = [tile.dims[dim].size for dim in order]
            stored = self.tile(f"{name} bits {position}", carrier, sizes, tile.dims[0].size, 1)
            plane = stored.select([0, *(1 + order.index(dim) for dim in range(1, len(tile.dims)))])
            for segment in self.segments_of(1):
                halves = [block.index(1, Affine(segment.first), segment.chunks) for block in (plane, bits)]
                halves = [replace(block, dims=(Atom(segment.lanes, 1, True), *block.dims[1:])) for block in halves]
                self.emitter.copy(*halves)
            found.append((plane, part, byte))
        return found

    def turn_windows(
        self, planes: Planes, spread: Spread, steps: Sequence[int], loops: Sequence[tuple[int, int, int]], target: Block
    ) -> None:
        """Transpose tiles of positions into ``target`` [lanes, tiles, kept dim].

        ``steps``: input positions between neighbouring positions of each axis; ``loops``: (axis, count, input positions
        apart) of the tiles, outermost first.
        """
        tiles = [count for _, count, _ in loops]
        inner = max((dim for dim, count in enumerate(tiles) if count > 1), default=len(tiles) - 1)
        self._turn_loops(planes, spread, steps, loops, target, inner, [])

    def _turn_loops(
        self,
        planes: Planes,
        spread: Spread,
        steps: Sequence[int],
        loops: Sequence[tuple[int, int, int]],
        target: Block,
        inner: int,
        at: list[Affine],
    ) -> None:
        if len(at) < inner:
            for index in self.builder.each(loops[len(at)][1], 1):
                self._turn_loops(planes, spread, steps, loops, target, inner, [*at, index])
            return
        count = loops[inner][1]
        most = max(1, min(GROUP, TILE_COLUMNS // self.lanes_of_pack(1)))
        for start, groups, several in self.builder.tiles(count, -(-count // -(-count // most))):
            for group in self.builder.each(groups, 1):
                self._turn_group(planes, spread, steps, loops, target, [*at, group * several + start], several)

    def _turn_group(
        self,
        planes: Planes,
        spread: Spread,
        steps: Sequence[int],
        loops: Sequence[tuple[int, int, int]],
        target: Block,
        at: list[Affine],
        several: int,
    ) -> None:
        """``several`` tiles from ``at`` on along its last loop; the loops behind have one tile only."""
        place = Affine()
        for (_, count, _), index in zip(loops, at, strict=False):
            place = place * count + index
        for plane, part, byte in planes:
            window, first = plane, plane.offset
            for axis, (lanes, inner, step) in enumerate(zip(spread.lanes, spread.inner, steps, strict=True)):
                stride = plane.dims[2 + axis].stride
                dims = (*window.dims[: 2 + axis], Atom(lanes, stride * step * inner), *window.dims[3 + axis :])
                window = replace(window, dims=dims)
            for (axis, _, distance), index in zip(loops, at, strict=False):
                first = first + index * (distance * plane.dims[2 + axis].stride)
            axis, _, distance = loops[len(at) - 1]
            step = distance * plane.dims[2 + axis].stride
            goal = replace(target, dtype=part, offset=target.offset + byte + place * target.dims[1].stride)
            for segment in self.segments_of(1):
                for chunk in self.builder.each(segment.chunks):
                    source = replace(window, offset=first).index(1, chunk + segment.first)
                    source = replace(source, dims=(Atom(segment.lanes, 1, True), *source.dims[1:]))
                    width = goal.dims[2].stride
                    kept = goal.offset + segment.start * width + chunk * (segment.chunk_step * width)
                    columns = (Atom(several, goal.dims[1].stride), Atom(segment.lanes, width * segment.lane_step))
                    self._turn_chunk(source, step, replace(goal, offset=kept, dims=(goal.dims[0], *columns)))

    def _turn_chunk(self, source: Block, step: int, target: Block) -> None:
        """``source`` [kept, positions...], each time ``step`` bytes on -> ``target`` [positions, times, kept]."""
        kept, (several, columns) = source.dims[0].size, (atom.size for atom in target.dims[1:])
        identity = self.context.identity(source.dtype)
        unit = replace(identity, dims=(Atom(kept, 1, True), replace(identity.dims[1], size=columns)))
        slot = self.builder.slot(self.turned, several=True)
        bank = Block(self.turned.alloc, "f32", slot, (target.dims[0], *dense([several, columns], "f32")))
        positions = merged(source.dims)
        for number in range(several):
            moved = replace(source, offset=source.offset + number * step, dims=positions)
            self.builder.emit("load_stationary", Stream.TENSOR, [], [moved])
            self.builder.emit("multiply_moving", Stream.TENSOR, [bank.index(1, Affine(number))], [unit])
        self.emitter.copy(target, bank)

    def free(self) -> None:
        for ring in self.rings:
            self.builder.sbuf.free(ring.alloc)


def merged(dims: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """Free dims without those of size 1."""
    free = [atom for atom in dims[1:] if atom.size > 1]
    return (dims[0], *(free or [Atom(1, dims[-1].stride)]))
