"""Convolutions with few output positions and a large window, as gradients of kernels are.

``out[n, o, p] = sum over c, k of x[n, c, k * dilation + p * stride - pad] * w[o, c, k]`` is contracted over window
positions ``k``, which go on the partitions: blocks of both operands are staged with ``n`` and ``o`` on the partitions,
TensorE transposes up to 128 positions at a time (those of ``x`` once for every output position), and the products of
all positions add up in PSUM. To ``x`` the output positions are the taps of a convolution over ``k``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import TypeAlias

from neuronx_cc.codegen.builder import PSUM_BANK, Affine, Block
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.conv_axis import Axis, axis_of, batch_axis
from neuronx_cc.codegen.conv_plan import atom_of
from neuronx_cc.codegen.conv_stage import ConvStaging, PackAt, RowsAt
from neuronx_cc.codegen.dot_plan import HALVES, TILE_COLUMNS, TILE_ROWS
from neuronx_cc.codegen.tiles import dense
from neuronx_cc.codegen.transfer import copy
from neuronx_cc.codegen.views import Atom, View
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

MAX_OUTPUTS = 64
"""Output positions that are worth a transpose of their own."""
SUM_BANKS = 5
TURN_BANKS = 3
GROUP = 4
"""Tiles of positions that are transposed before the first of them is multiplied, so that TensorE need not wait."""
WHOLE = PackAt(0, 1, 1, Affine())
Planes: TypeAlias = list[tuple[Block, str, int]]
"""Blocks that TensorE carries exactly, the type of the parts that they hold, and their byte in an element."""


def applies(op: hlo.ConvolutionOp) -> bool:
    """Whether the window has many more positions than the result, without groups or a dilated input."""
    window, dims = op.window.data, op.dims.data
    outputs, taps = prod(op.shape.dims[axis] for axis in dims.out_spatial), prod(dim.size for dim in window)
    plain = all(dim.lhs_dilation == 1 and not dim.reversal for dim in window)
    grouped = op.feature_group_count.data > 1 or op.batch_group_count.data > 1
    return plain and not grouped and outputs <= MAX_OUTPUTS and taps >= 16 and taps > outputs


def lower(context: Context, op: hlo.ConvolutionOp, step: int) -> None:
    """Emit the convolution and give its result a home."""
    del step
    _Gradient(context, op).emit()


class _Side(ConvStaging):
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
        self.input_buffers = 2

    def restrict(self, view: View, start: int, size: int) -> None:
        """Stage ``size`` of the kept dim's elements from ``start`` on."""
        part = view.slice(1, start, size)
        assert part is not None, "an HBM view of one progression slices"
        self.x, self.inputs = part, size
        self._segment()

    def planes(self, tile: Block, name: str) -> Planes:
        """What TensorE transposes: the tile, or both halves of its bits (both alive at once)."""
        if self.fast(tile.dtype):
            return [(tile, tile.dtype, 0)]
        part, carrier = HALVES[itemsize(tile.dtype)]
        width, ratio = itemsize(part), (itemsize(carrier), itemsize(tile.dtype))
        found = []
        for position in range(ratio[1] // width):
            bits = replace(tile, dtype=part, offset=tile.offset + position * width)
            plane = self.tile(f"{name} bits {position}", carrier, [a.size for a in tile.dims[1:]], tile.dims[0].size, 1)
            order = tuple(Atom(atom.size, atom.stride // ratio[1] * ratio[0]) for atom in tile.dims[1:])
            plane = replace(plane, dims=(tile.dims[0], *order))
            self.emitter.copy(plane, bits)
            found.append((plane, part, position * width))
        return found

    def free(self) -> None:
        for ring in self.rings:
            self.builder.sbuf.free(ring.alloc)


class _Gradient(ConvStaging):
    def __init__(self, context: Context, op: hlo.ConvolutionOp) -> None:
        super().__init__(context, op, 0)
        dims = op.dims.data
        lhs = hlo.shape_of(op.lhs)
        channels = lhs.dims[dims.lhs_feature]
        self.out_sizes = [op.shape.dims[axis] for axis in dims.out_spatial]
        flipped = [
            replace(dim, size=out, stride=dim.rhs_dilation, rhs_dilation=dim.stride)
            for dim, out in zip(self.window, self.out_sizes, strict=True)
        ]
        sizes = [lhs.dims[axis] for axis in dims.lhs_spatial]
        taps = [batch_axis(channels)]
        taps += [axis_of(size, dim.size, turned) for size, dim, turned in zip(sizes, self.window, flipped, strict=True)]
        plain = [batch_axis(channels), *(batch_axis(dim.size) for dim in self.window)]
        self.axes = taps
        order = (dims.lhs_feature, dims.lhs_batch, *dims.lhs_spatial)
        self.left = _Side(context, op, op.lhs, order, taps)
        order = (dims.rhs_input_feature, dims.rhs_output_feature, *dims.rhs_spatial)
        self.right = _Side(context, op, op.rhs, order, plain)

    def emit(self) -> None:
        context = self.context
        if self.fast(self.pe_dtype):
            context.identity(self.pe_dtype)
        else:
            context.identity(HALVES[itemsize(self.pe_dtype)][1])
        home = context.new_hbm(self.result)
        context.homes[self.result] = [home]
        self.out = home.transpose(self.out_order)
        count, outputs = prod(self.out_sizes), self.right.inputs
        self.right_rows = self.left.inputs < 32 or atom_of(self.out, 1).stride != itemsize(self.out.dtype)
        """Whether ``o``, not ``n``, lies on the partitions of the result."""
        limit = SUM_BANKS * TILE_COLUMNS // count
        pitch = 1 << (min(limit, TILE_COLUMNS).bit_length() - 1)
        columns = min(self.left.inputs if self.right_rows else outputs, pitch)
        self.pitch = 1 << (columns - 1).bit_length() if columns > 1 else 1
        rows = min(outputs if self.right_rows else self.left.inputs, TILE_ROWS)
        left, right = (columns, rows) if self.right_rows else (rows, columns)
        views = [side.dense_view() for side in (self.left, self.right)]
        totals = self.left.inputs, outputs
        self.sums = self.builder.ring(self.builder.psum, SUM_BANKS * PSUM_BANK, 1, "sums")
        self.banks.append(self.sums)
        self.turned = self.make_bank(TURN_BANKS)
        self.next_bank = 0
        self.zeros = self.tile("zeros", self.pe_dtype, [TILE_COLUMNS], 1, 1)
        self.emitter.over("memset", Stream.VECTOR, [self.zeros], [], imm=[0.0])
        self.left.turned = self.right.turned = self.turned
        self._choose_rows(left, right)
        one_block = all(rows >= axis.rows for axis, rows in zip(self.axes, self.rows, strict=True))
        for left_start in range(0, totals[0], left):
            self.left.restrict(views[0], left_start, min(left, totals[0] - left_start))
            x = None
            for right_start in range(0, totals[1], right):
                self.right.restrict(views[1], right_start, min(right, totals[1] - right_start))
                if one_block and x is None:
                    ((at, _),) = self._blocks([], [])
                    x = self.left.planes(self.left.stage_input(WHOLE, at), "left")
                self._part(left_start, right_start, x)
        self.left.free()
        self.right.free()
        self.release()

    def _choose_rows(self, left: int, right: int) -> None:
        """Positions staged at a time: whole images where they fit."""
        size = itemsize(self.pe_dtype)
        each = size if self.fast(self.pe_dtype) else 3 * size
        count = prod(self.out_sizes)
        room = int(self.builder.sbuf.largest_gap() * 0.9) - 4 * 16384
        room -= GROUP * 2 * size * (count * left + right) + 2 * 4 * count * (left if self.right_rows else right)
        rows = [axis.rows for axis in self.axes]
        rows[0] = min(rows[0], max(1, TILE_ROWS // prod(rows[1:])))
        while True:
            extents = prod(axis.extent(n) for axis, n in zip(self.axes, rows, strict=True))
            used = (-(-left // TILE_ROWS) * extents + -(-right // TILE_ROWS) * prod(rows)) * (size + each)
            shrinkable = [axis for axis, n in enumerate(rows) if n > 1]
            if used <= room or not shrinkable:
                break
            rows[shrinkable[0]] = -(-rows[shrinkable[0]] // 2)
        self.rows = rows

    def _part(self, left_start: int, right_start: int, staged: Planes | None) -> None:
        """One tile of the result's rows with one block of its columns; ``staged``: all of the left side, if it is."""
        count = prod(self.out_sizes)
        columns, rows = (
            (self.left.inputs, self.right.inputs) if self.right_rows else (self.right.inputs, self.left.inputs)
        )
        for position in range(count):
            bank = self._bank(rows, columns, position)
            self.builder.emit("load_stationary", Stream.TENSOR, [], [self.zeros.index(1, Affine(), rows)])
            self.builder.emit("multiply_moving", Stream.TENSOR, [bank], [self.zeros.index(1, Affine(), columns)])
        for left_at, right_at in self._blocks([], []):
            x = staged or self.left.planes(self.left.stage_input(WHOLE, left_at), "left")
            w = self.right.planes(self.right.stage_input(WHOLE, right_at), "right")
            for tiles in self._tiles([rows_at.piece.outs for rows_at in left_at], [], []):
                turned = [self._turned(x, w, at, sizes, slot) for slot, (at, sizes) in enumerate(tiles)]
                for left, right in turned:
                    self._multiply(left, right, rows, columns)
        self._store(left_start, right_start, rows, columns)

    def _blocks(self, left: list[RowsAt], right: list[RowsAt]) -> Iterator[tuple[list[RowsAt], list[RowsAt]]]:
        """Blocks of both operands over the same positions."""
        if len(left) == len(self.axes):
            yield left, right
            return
        axis, rows, plain = self.axes[len(left)], self.rows[len(left)], self.right.axes[len(left)]
        for piece in axis.pieces(rows):
            same = replace(piece, axis=plain, before=0, after=0)
            for index in self.builder.each(piece.count):
                yield from self._blocks([*left, RowsAt(piece, index)], [*right, RowsAt(same, index)])

    def _tiles(
        self, counts: Sequence[int], at: list[Affine], sizes: list[int]
    ) -> Iterator[list[tuple[list[Affine], list[int]]]]:
        """Groups of tiles of at most 128 positions, inner axes whole as far as they fit."""
        inner = list(counts[len(at) + 1 :])
        count = counts[len(at)]
        size = min(count, max(1, TILE_ROWS // prod(inner)))
        size = -(-count // -(-count // size))
        whole = prod(inner) <= TILE_ROWS
        for start, tiles, wide in self.builder.tiles(count, size):
            if not whole:
                for index in self.builder.each(tiles):
                    yield from self._tiles(counts, [*at, index * wide + start], [*sizes, wide])
                continue
            for first, groups, several in self.builder.tiles(tiles, GROUP):
                for group in self.builder.each(groups):
                    rest = [Affine() for _ in inner]
                    yield [
                        ([*at, (group * several + (first + j)) * wide + start, *rest], [*sizes, wide, *inner])
                        for j in range(several)
                    ]

    def _bank(self, rows: int, columns: int, position: int) -> Block:
        offset = Affine(self.sums.alloc.lo + position * self.pitch * 4)
        return Block(self.sums.alloc, "f32", offset, (Atom(rows, 1, True), Atom(columns, 4)))

    def _shifts(self) -> tuple[list[list[int]], list[int]]:
        """Offsets of the windows of the output positions that meet any input, and which positions these are."""
        shifts, met = [], []
        for number, index in enumerate(product(*(range(size) for size in self.out_sizes))):
            steps = [_shift(axis, place) for axis, place in zip(self.axes[1:], index, strict=True)]
            if None not in steps:
                shifts.append([0, *(step or 0 for step in steps)])
                met.append(number)
        return shifts, met

    def _turned(
        self,
        x: Planes,
        w: Planes,
        at: list[Affine],
        sizes: list[int],
        slot: int,
    ) -> tuple[Block, Block]:
        """Both operands of up to 128 positions, [positions, window, kept dim]."""
        shifts, _ = self._shifts()
        lanes = prod(sizes)
        left = self.tile(f"turned left {slot}", self.pe_dtype, [prod(self.out_sizes), self.left.inputs], lanes, 2)
        right = self.tile(f"turned right {slot}", self.pe_dtype, [1, self.right.inputs], lanes, 2)
        self._turn(self.left, x, at, sizes, shifts, left)
        self._turn(self.right, w, at, sizes, [[0] * len(sizes)], right)
        return left, right

    def _multiply(self, left: Block, right: Block, rows: int, columns: int) -> None:
        """The products of up to 128 positions, for every output position."""
        for slot, position in enumerate(self._shifts()[1]):
            bank = self._bank(rows, columns, position)
            pair = left.index(1, Affine(slot)), right.index(1, Affine())
            stationary, moving = pair[::-1] if self.right_rows else pair
            if slot == 0 or not self.right_rows:
                self.builder.emit("load_stationary", Stream.TENSOR, [], [stationary])
            self.builder.emit("multiply_moving", Stream.TENSOR, [bank], [moving], flags=["accumulate"])

    def _turn(
        self,
        side: _Side,
        planes: Planes,
        at: list[Affine],
        sizes: list[int],
        shifts: list[list[int]],
        target: Block,
    ) -> None:
        """Transpose the windows of a staged tile at each of ``shifts`` into ``target`` [positions, shift, kept]."""
        lanes = target.dims[0].size
        for plane, part, byte in planes:
            identity = self.context.identity(plane.dtype)
            window = plane
            for axis, (row, size) in enumerate(zip(at, sizes, strict=True)):
                stride, step = plane.dims[2 + axis].stride, side.axes[axis].step
                dims = (*window.dims[: 2 + axis], Atom(size, stride * step), *window.dims[3 + axis :])
                window = replace(window, offset=window.offset + row * (stride * step), dims=dims)
            goal = replace(target, dtype=part, offset=target.offset + byte)
            width = goal.dims[2].stride
            for segment in side.segments_of(1):
                unit = replace(
                    identity, dims=(Atom(segment.lanes, 1, True), replace(identity.dims[1], size=segment.lanes))
                )
                for chunk in range(segment.chunks):
                    source = window.index(1, Affine(segment.first + chunk))
                    source = replace(source, dims=(Atom(segment.lanes, 1, True), *source.dims[1:]))
                    first = segment.start + chunk * segment.chunk_step
                    each = max(1, TILE_COLUMNS // segment.lanes)
                    for start in range(0, len(shifts), each):
                        some = shifts[start : start + each]
                        self.next_bank = (self.next_bank + 1) % self.turned.count
                        bank = Block(
                            self.turned.alloc,
                            "f32",
                            Affine(self.turned.alloc.lo + self.next_bank * PSUM_BANK),
                            (Atom(lanes, 1, True), *dense([len(some), segment.lanes], "f32")),
                        )
                        for number, shift in enumerate(some):
                            offset = sum(by * plane.dims[2 + axis].stride for axis, by in enumerate(shift))
                            moved = replace(source, offset=source.offset + offset, dims=_merged(source.dims))
                            self.builder.emit("load_stationary", Stream.TENSOR, [], [moved])
                            piece = bank.index(1, Affine(number))
                            self.builder.emit("multiply_moving", Stream.TENSOR, [piece], [unit])
                        columns = (Atom(len(some), goal.dims[1].stride), Atom(segment.lanes, width * segment.lane_step))
                        place = goal.offset + (start * goal.dims[1].stride + first * width)
                        self.emitter.copy(replace(goal, offset=place, dims=(goal.dims[0], *columns)), bank)

    def _store(self, left_start: int, right_start: int, rows: int, columns: int) -> None:
        """Out of PSUM, in the order of the result in HBM."""
        kept = [atom_of(self.out, 0), atom_of(self.out, 1)]
        offset = self.out.offset + left_start * kept[0].stride + right_start * kept[1].stride
        row, column = (kept[1], kept[0]) if self.right_rows else (kept[0], kept[1])
        spatial = [atom_of(self.out, 2 + axis) for axis in range(len(self.out_sizes))]
        free = [*(Atom(size, atom.stride) for size, atom in zip(self.out_sizes, spatial, strict=True))]
        free.append(Atom(columns, column.stride))
        order = sorted(range(len(free)), key=lambda dim: -abs(free[dim].stride))
        stored = self.tile("result", self.out.dtype, [free[dim].size for dim in order], rows, 2)
        result = stored.select([0, *(1 + order.index(dim) for dim in range(len(free)))])
        for position, index in enumerate(product(*(range(size) for size in self.out_sizes))):
            target = result
            for at in index:
                target = target.index(1, Affine(at))
            self.emitter.copy(target, self._bank(rows, columns, position))
        by_stride = [0, *(1 + dim for dim in order)]
        target = Block(self.out.alloc, self.out.dtype, Affine(offset), (Atom(rows, row.stride), *free))
        copy(self.builder, target.select(by_stride), result.select(by_stride), Stream.DMA_STORE)


def _shift(axis: Axis, index: int) -> int | None:
    """Offset of output position ``index`` from the start of a block's input; None where it meets padding alone."""
    taps = axis.taps[0]
    step, rest = divmod(index - taps.first, taps.step)
    if rest or not 0 <= step < taps.count:
        return None
    return taps.offset - axis.low + step * taps.stride


def _merged(dims: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """Free dims without those of size 1."""
    free = [atom for atom in dims[1:] if atom.size > 1]
    return (dims[0], *(free or [Atom(1, dims[-1].stride)]))
