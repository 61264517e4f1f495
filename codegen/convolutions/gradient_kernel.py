"""Convolutions with few output positions and a large window, as gradients of kernels are.

``out[n, o, p] = sum over c, k of x[n, c, k * dilation + p * stride - pad] * w[o, c, k]`` is contracted over window
positions ``k`` and ``c``, which go on the partitions: blocks of both operands are staged with ``n`` and ``o`` on the
partitions, TensorE transposes up to 128 positions at a time, and the products of all positions add up in PSUM. To ``x``
the output positions are the taps of a convolution over ``k``; ``gradient_plan`` says how a transposed tile of it
serves several taps. Nothing reads the result soon: Vector and its queue are left to the kernels after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, product
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.convolutions.axis import axis_of, batch_axis
from neuronx_cc.codegen.convolutions.candidates import NATURAL_SHARE
from neuronx_cc.codegen.convolutions.gradient_plan import (
    ENOUGH,
    Loading,
    Pace,
    Piece,
    Spread,
    Steps,
    Sum,
    even,
    parts_of,
    pieces_of,
    rows_that_fit,
    spread_of,
    sum_banks,
    tiles_of,
)
from neuronx_cc.codegen.convolutions.gradient_result import Results, result_buffers
from neuronx_cc.codegen.convolutions.gradient_stage import Side, Staging, merged
from neuronx_cc.codegen.convolutions.placement import Form
from neuronx_cc.codegen.convolutions.problem import atom_of
from neuronx_cc.codegen.convolutions.schedule import ROW_BUFFERS
from neuronx_cc.codegen.convolutions.stage import RowsAt
from neuronx_cc.codegen.convolutions.turn import Turner
from neuronx_cc.codegen.dots.problem import rounding_of
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.halves import carrier_of
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

MAX_SUMS = 64
"""Sums that are unrolled at a time."""
SWAPPED_FROM = 0.75
"""The taps move the operand of fewer features if products take at most this part of the time then."""


def lower(context: Context, op: hlo.ConvolutionOp, step: int) -> None:
    """Emit the convolution and give its result a home."""
    del step
    _Gradient(context, op).emit()


class _Gradient:
    def __init__(self, context: Context, op: hlo.ConvolutionOp) -> None:
        self.context, self.op, self.builder = context, op, context.builder
        form, sizes = Form(op), context.builder.sizes
        self.window, self.pe_dtype = form.window, form.pe_dtype
        self.fast = context.moves_values(form.pe_dtype)
        self.tile_rows, self.tile_columns = min(sizes.rows, sizes.columns), sizes.bank_columns
        self.raw_bytes = sizes.sbuf_share(NATURAL_SHARE)
        self.emitter = Emitter(self.builder, lambda like, dtype: like)
        self.pool = TilePool(self.builder, f"gradient {op.loc.name}")
        self.tiles = Tiles(self.builder, op.loc.name, {}, self.pool)
        self.planned: tuple[dict[tuple[str, int], int], ...] = ({}, {})
        """Of each side, see ``Tiles``."""
        self.out_sizes = [op.shape.dims[axis] for axis in op.dims.data.out_spatial]
        self.sum_banks = sum_banks(sizes)
        # all of PSUM, the sums in one piece first
        self.builder.psum.make_room(sizes.psum_bytes)
        self.sums = self.builder.ring(self.builder.psum, self.sum_banks * sizes.bank_bytes, 1, "sums")
        banks = self.pool.psum(sizes.banks - self.sum_banks, "transposes")
        stages = []
        for name, planned in zip(("left", "right"), self.planned, strict=True):
            tiles = Tiles(self.builder, f"{name} of {op.loc.name}", planned, self.pool)
            turner = Turner(context, self.emitter, tiles, banks, self.fast)
            stages.append(Staging(self.emitter, tiles, turner, self.pe_dtype, self.raw_bytes))
        self.result_turner = Turner(context, self.emitter, self.tiles, banks, False)
        self.stages = stages
        self.groups = form.groups
        self.pack = 1
        """Groups that share products."""
        self.home = context.new_hbm(op.result)
        context.homes[op.result] = [self.home]
        self._face(form, False)
        met = all(tap.count for tap in self.taps)
        if met and self.groups == 1 and all(dim.rhs_dilation == 1 for dim in self.window):
            plain = self._weight()
            self._face(form, True)
            if self._weight() >= SWAPPED_FROM * plain:
                self._face(form, False)

    def _face(self, form: Form, swapped: bool) -> None:
        """Which operand the taps move, and with it ``n`` and ``o``: the one with positions of images, or the other.

        ``out[t] = sum over k of x[k + t * stride - pad] * w[k] = sum over q of w[q - t * stride + pad] * x[q]``, which
        are the same taps from the last to the first one.
        """
        op, dims = form.op, form.op.dims.data
        lhs = hlo.shape_of(op.lhs)
        channels, images = lhs.dims[dims.lhs_feature], [lhs.dims[axis] for axis in dims.lhs_spatial]
        shifts = [
            replace(dim, size=out, stride=dim.rhs_dilation, rhs_dilation=dim.stride)
            for dim, out in zip(self.window, self.out_sizes, strict=True)
        ]
        others = [dim.size for dim in self.window]
        sides = [
            (op.lhs, (dims.lhs_feature, dims.lhs_batch, *dims.lhs_spatial)),
            (op.rhs, (dims.rhs_input_feature, dims.rhs_output_feature, *dims.rhs_spatial)),
        ]
        order = form.orders[2]
        if swapped:
            shifts = [replace(dim, pad_low=(dim.size - 1) * dim.rhs_dilation - dim.pad_low) for dim in shifts]
            images, others = others, images
            sides.reverse()
            order = (order[1], order[0], *order[2:])
        pairs = zip(images, others, shifts, strict=True)
        self.axes = [batch_axis(channels), *(axis_of(size, count, dim) for size, count, dim in pairs)]
        plain = [batch_axis(channels), *map(batch_axis, others)]
        self.left = Side(self.context, self.stages[0], *sides[0], self.axes)
        self.right = Side(self.context, self.stages[1], *sides[1], plain)
        self.kept = self.left.inputs // self.groups, self.right.inputs // self.groups
        """Features of a group."""
        self.taps = [axis.taps[0] for axis in self.axes]
        if swapped:
            last = [0, *(size - 1 for size in self.out_sizes)]
            self.taps = [replace(tap, first=end - tap.first, step=-1) for tap, end in zip(self.taps, last, strict=True)]
        self.out = self.home.transpose(order)
        self.features_last = atom_of(self.out, 1).stride == itemsize(self.out.dtype)
        """Whether ``o``, not ``n``, are neighbours in the result."""

    def _weight(self) -> float:
        """Nanoseconds of the products of all positions, and of storing the result, whose rows lie on the partitions."""
        timing, width = self.builder.timing, itemsize(self.out.dtype)
        tiles = -(-prod(axis.rows for axis in self.axes) // self.tile_rows)
        run = width
        free = [0, *range(2, len(self.out.dims))] if self.columns_are_left else [1]
        for atom in sorted((atom_of(self.out, dim) for dim in free), key=lambda atom: atom.stride):
            if atom.size > 1 and atom.stride != run:
                break
            run *= atom.size
        stored = timing.transfer(prod(self.out.shape) * width, run, "write").bound
        return self._columns(*self.kept) * tiles * timing.column(self.pe_dtype) + stored

    def emit(self) -> None:
        context = self.context
        for carrier in {carrier_of(self.pe_dtype, self.fast), carrier_of(self.op.shape.dtype, False)}:
            context.fixed.identity(carrier)
        self.zeros = self.tiles.tile(self.pe_dtype, [self.tile_columns], 1, "zeros", 1)
        self.emitter.over("memset", Stream.VECTOR, [self.zeros], [], imm=[0.0])
        if all(tap.count for tap in self.taps):
            self._choose()
            for first, groups in even(self.groups, self.pack):
                for left, right in product(*self._parts(groups)):
                    self.left.restrict(first * self.kept[0] + left[0], left[1])
                    self.right.restrict(first * self.kept[1] + right[0], right[1])
                    self._slab(left[0], first * self.kept[1] + right[0], groups)
        self._results().store_unmet()
        self.pool.free()
        self.builder.psum.free(self.sums.alloc)

    # ---- sizes ------------------------------------------------------------------------------------------------

    def _steps(self, rows: Sequence[int]) -> tuple[Steps, ...]:
        """The axes of a block of ``rows`` positions."""
        pairs = zip(rows, self.axes, self.taps, strict=True)
        return tuple(Steps(size, axis.step, tap.count, tap.stride) for size, axis, tap in pairs)

    def _choose(self) -> None:
        """Kept features together, positions of a block, and buffers: what takes TensorE least time and fits."""
        gap = self.builder.sbuf.largest_gap()
        room = int(gap * 0.95) - min(2 * self.builder.sizes.bank_bytes, gap // 8)  # for zeros
        totals = [axis.rows for axis in self.axes]
        best: tuple[float, int, tuple[int, int], list[int], tuple[Loading, Loading]] | None = None
        for loaded in product(self.left.loadings(), self.right.loadings()):
            for pack, left, right in self._slabs():
                slabs = left, right
                self.loaded, self.pack, self.slabs = loaded, pack, slabs
                self.columns = self._columns(*slabs)
                rows = rows_that_fit(totals, self._spread, room, self._bytes, self._loads, self.tile_rows)
                if rows is None:
                    continue
                blocks = prod(-(-total // size) for total, size in zip(totals, rows, strict=True))
                again = (
                    len(parts_of(self._groups(*slabs), self.columns_are_left, self.sum_banks, self.tile_columns))
                    if blocks > 1
                    else 1
                )
                spread = self._spread(rows)
                cost = max(spread.products + again * spread.turns, again * self._loads(rows)) * blocks
                cost *= prod(-(-total * pack // size) for total, size in zip(self.kept, slabs, strict=True))
                cost *= -(-self.groups // pack)
                # fewer features at a time only for a clear gain
                if best is None or cost < best[0] * (0.8 if best[4] == loaded else 1):
                    best = cost, pack, self.slabs, rows, loaded
                if prod(spread.partitions) >= ENOUGH * self.tile_rows and again == 1:
                    break  # fewer features would only repeat transposes
        if best is None:
            raise AssertionError("one position of one feature fits")
        _, self.pack, self.slabs, self.rows, self.loaded = best
        self.columns = self._columns(*self.slabs)
        self.one_block = self.rows == totals
        self.left.buffers = self.right.buffers = 1 if self.one_block else 2
        self.transposed_buffers = 1
        if not self.one_block and self._bytes(self.rows) + sum(self._transposed_bytes(self.rows)) <= room:
            self.transposed_buffers = 2
        left, right = self._transposed_bytes(self.rows)
        self.planned[0]["transposed left", self.transposed_buffers] = left
        self.planned[1]["transposed right", self.transposed_buffers] = right

    def _spread(self, rows: Sequence[int]) -> Spread:
        """How a block of ``rows`` positions is dealt out, as things have been chosen."""
        return spread_of(Pace.of(self.builder.timing), self._steps(rows), *self.slabs, self.loaded, self.columns)

    def _loads(self, rows: Sequence[int]) -> float:
        """Columns of TensorE in the time of loading what is transposed of a block of ``rows`` positions."""
        extents = [min(axis.extent(count), axis.size) for axis, count in zip(self.axes, rows, strict=True)]
        sides = zip((self.left, self.right), self.loaded, self.slabs, (extents, rows), strict=True)
        return sum(slab * side.load_columns(sizes) for side, loaded, slab, sizes in sides if not loaded)

    def _columns(self, left: int, right: int) -> int:
        """Columns of the products of one position."""
        widths = (a.width if self.columns_are_left else b[1] for a, b in self._pairs(left, right))
        return sum(max(64, width) for width in widths)

    def _slabs(self) -> Iterator[tuple[int, int, int]]:
        """Groups, and features of both sides, to be summed together: all, and ever fewer.

        Groups that share products fill rows and columns; only products of features of one group are kept.
        """
        left, right = self.kept
        pack = min(self.groups, self.tile_rows // max(left, right))
        while pack > 1:
            yield pack, pack * left, pack * right
            pack //= 2
        while True:
            self.pack = 1
            if len(self._pairs(left, right)) <= MAX_SUMS or max(left, right) <= self.tile_rows:
                yield 1, left, right
            if max(left, right) == 1:
                return
            # of equal numbers that with taps, which has more tiles to transpose
            left, right = (left, -(-right // 2)) if right > left else (-(-left // 2), right)

    def _parts(self, groups: int) -> Iterator[list[tuple[int, int]]]:
        """(start, size) of features of both sides that are summed together, of ``groups`` groups."""
        for total, size in zip(self.kept, self.slabs, strict=True):
            yield list(even(groups * total, size))

    @property
    def columns_are_left(self) -> bool:
        """Whether ``o``, not ``n``, lies on the partitions of the sums."""
        return self.pack > 1 or not self.features_last

    def _bytes(self, rows: Sequence[int]) -> int:
        """Bytes a partition that staging a block and its transposed tiles take."""
        size = itemsize(self.pe_dtype)
        whole = all(count >= axis.rows for axis, count in zip(self.axes, rows, strict=True))
        each = (1 if whole else 2) * size + (0 if self.fast else 2 * size)
        extents = prod(axis.extent(count) for axis, count in zip(self.axes, rows, strict=True))
        chunks = [
            0 if loaded else -(-slab // self.tile_rows) for loaded, slab in zip(self.loaded, self.slabs, strict=True)
        ]
        held = chunks[0] * extents, chunks[1] * prod(rows)
        raw = sum(ROW_BUFFERS * min(self.raw_bytes, count * size) for count in held)
        return sum(held) * each + raw + sum(self._transposed_bytes(rows)) + self._result_bytes()

    def _result_bytes(self) -> int:
        """Bytes a partition of what leaves PSUM: of groups that share products beside all that is kept of them."""
        taps, (left, right), packed = prod(tap.count for tap in self.taps), self.slabs, self.pack > 1
        columns = min(right, self.tile_columns)
        if self.columns_are_left:
            columns = taps * self.kept[0] if packed else min(taps * left, self.sum_banks * self.tile_columns)
        nbytes, bank = columns * itemsize(self.out.dtype), self.builder.sizes.bank_bytes
        return result_buffers(nbytes, self.builder.sizes) * nbytes + 2 * bank * packed

    def _transposed_bytes(self, rows: Sequence[int]) -> tuple[int, int]:
        """Bytes a partition of the transposed tiles of both operands, of the block that has most."""
        sizes = [{count, axis.rows % count or count} for axis, count in zip(self.axes, rows, strict=True)]
        spreads = [self._spread(block) for block in product(*sizes)]
        size = itemsize(self.pe_dtype)
        left = max(spread.tiles for spread in spreads) * self.slabs[0] * size
        return left, max(prod(spread.inner) for spread in spreads) * self.slabs[1] * size

    # ---- sums -------------------------------------------------------------------------------------------------

    def _groups(self, left: int, right: int) -> list[list[tuple[Piece, tuple[int, int]]]]:
        """Pairs of pieces to be summed: those of a group have the same rows, or else the same columns."""
        taps = [tap.count for tap in self.taps]
        if self.columns_are_left:
            banks = -(-prod(taps) // self.sum_banks)
            whole = self.pack > 1 or prod(taps) * left <= self.tile_columns
            most = left if whole else max(1, self.tile_columns // banks)
            by_start = []
            for start, size in even(left, most):
                # several taps fill the columns of a product that one does not
                pieces = pieces_of(taps, size, self.tile_columns, [whole or size < 64 for _ in taps])
                by_start.append([replace(piece, start=start + piece.start) for piece in pieces])
            return [[(piece, rows) for piece in group] for rows in even(right, self.tile_rows) for group in by_start]
        pieces = pieces_of(taps, left, self.tile_rows, self._stackable(left))
        return [[(piece, columns) for columns in even(right, self.tile_columns)] for piece in pieces]

    def _pairs(self, left: int, right: int) -> list[tuple[Piece, tuple[int, int]]]:
        return [pair for group in self._groups(left, right) for pair in group]

    def _stackable(self, left: int) -> list[bool]:
        """Of each axis, whether several taps with all features are one progression of rows of the result."""
        found: list[bool] = []
        stride = atom_of(self.out, 0).stride * self.kept[0]
        backwards = self.taps[-1].step < 0
        for axis in reversed(range(len(self.out_sizes))):
            apart = atom_of(self.out, 2 + axis).stride
            if self.out_sizes[axis] > 1:
                # taps from last to first are stored one by one
                found.insert(0, left == self.kept[0] and (backwards or stride in (0, apart)))
                stride = apart * self.taps[1 + axis].count
            else:
                found.insert(0, True)
        return [False, *found]

    def _slab(self, left_start: int, right_start: int, groups: int) -> None:
        """All sums of the features that both sides are restricted to."""
        staged, packed, results = None, None, self._results()
        if self.pack > 1:
            packed = results.room(self.right.inputs, [tap.count for tap in self.taps[1:]], self.kept[0])
        if self.one_block:
            ((left_at, right_at),) = self._blocks([], [])
            staged = self._stage(left_at, right_at)
        sums = self._groups(self.left.inputs, self.right.inputs)
        for part in parts_of(sums, self.columns_are_left, self.sum_banks, self.tile_columns):
            self._clear(part, results)
            if staged is not None:
                self._multiply(part, results, *staged)
            else:
                for left_at, right_at in self._blocks([], []):
                    self._multiply(part, results, *self._stage(left_at, right_at))
            if packed is None:
                results.store(part, left_start, right_start)
                continue
            for sum_ in part:
                results.take_diagonal(sum_, groups, packed)
        if packed is not None:
            results.send_packed(packed, results.place(0, right_start, [0 for _ in self.taps]))

    def _results(self) -> Results:
        """Of the groups that share products as has been chosen."""
        return Results(
            self.out,
            self.kept,
            self.groups,
            self.taps,
            self.emitter,
            self.tiles,
            self.result_turner,
            self.sums.alloc,
            self.columns_are_left,
        )

    def _blocks(self, left: list[RowsAt], right: list[RowsAt]) -> Iterator[tuple[list[RowsAt], list[RowsAt]]]:
        """Blocks of both operands over the same positions."""
        if len(left) == len(self.axes):
            yield left, right
            return
        axis, rows, plain = self.axes[len(left)], self.rows[len(left)], self.right.axes[len(left)]
        for piece in axis.pieces(rows):
            same = replace(piece, axis=plain, before=0, after=0)
            for index in self.builder.each(piece.count, 1):
                yield from self._blocks([*left, RowsAt(piece, index)], [*right, RowsAt(same, index)])

    def _stage(self, left_at: list[RowsAt], right_at: list[RowsAt]) -> tuple[Spread, Block, Block]:
        """Both operands of a block, transposed: [partitions, tiles, kept dim]."""
        spread = self._spread([at.piece.rows for at in left_at])
        partitions = prod(spread.partitions)
        left = self.left.loaded_tile(
            self.loaded[0], "transposed left", spread.tiles, partitions, self.transposed_buffers
        )
        count = prod(spread.inner)
        right = self.right.loaded_tile(self.loaded[1], "transposed right", count, partitions, self.transposed_buffers)
        left_tiles, right_tiles = tiles_of(spread, self.axes)
        if self.loaded[0]:
            self.left.load_windows(left_at, left_tiles, left)
        else:
            self.left.turn_windows(self.left.planes(self.left.staged(left_at), "left"), left_tiles, left)
        if self.loaded[1]:
            self.right.load_windows(right_at, right_tiles, right)
        else:
            w = self.right.planes(self.right.staged(right_at), "right")
            self.right.turn_windows(w, right_tiles, right)
        return spread, left, right

    def _clear(self, part: Sequence[Sum], results: Results) -> None:
        """Zeros by a product for each bank, which starts the sums."""
        for _, sums in groupby(part, lambda sum_: sum_.bank):
            several = list(sums)
            shapes = [results.shape(sum_) for sum_ in several]
            rows, columns = max(rows for rows, _ in shapes), sum(columns for _, columns in shapes)
            bank = results.bank(rows, columns, several[0])
            self.builder.multiply(bank, self.zeros.index(1, Affine(), rows), self.zeros.index(1, Affine(), columns))

    def _multiply(self, part: Sequence[Sum], results: Results, spread: Spread, left: Block, right: Block) -> None:
        """Add the products of a block to the sums of ``part``."""
        apart = [prod(reach.count for reach in spread.reach[axis + 1 :]) for axis in range(len(spread.reach))]
        tile = left.dims[1].stride
        taps = [reach.tap * each * tile for reach, each in zip(spread.reach, apart, strict=True)]
        steps = [reach.position * each * tile for reach, each in zip(spread.reach, apart, strict=True)]
        for x, w in self._inner(spread, steps, right.dims[1].stride, 0, left.offset, right.offset):
            loaded: object = None
            for sum_ in part:
                piece, (start, size) = sum_.left, sum_.right
                offset = x + piece.start * left.dims[2].stride
                offset = offset + sum(at * stride for at, stride in zip(piece.first, taps, strict=True))
                free = [Atom(count, stride) for count, stride in zip(piece.taps, taps, strict=True)]
                dims = merged((left.dims[0], *free, Atom(piece.size, left.dims[2].stride)))
                moved = replace(left, offset=offset, dims=dims)
                width = right.dims[2].stride
                plain = replace(right, offset=w + start * width, dims=(right.dims[0], Atom(size, width)))
                stationary, moving = (plain, moved) if self.columns_are_left else (moved, plain)
                if loaded != stationary:
                    self.builder.emit("load_stationary", Stream.TENSOR, [], [stationary], flags=rounding_of(self.op))
                    loaded = stationary
                bank = results.bank(*results.shape(sum_), sum_)
                flags = ["accumulate", *rounding_of(self.op)]
                self.builder.emit("multiply_moving", Stream.TENSOR, [bank], [moving], flags=flags)

    def _inner(
        self, spread: Spread, steps: Sequence[int], width: int, axis: int, x: Affine, w: Affine
    ) -> Iterator[tuple[Affine, Affine]]:
        """Where the tiles of each of a partition's positions lie, for the first tap."""
        if axis == len(steps):
            yield x, w
            return
        apart = prod(spread.inner[axis + 1 :]) * width
        for index in self.builder.each(spread.inner[axis], 2):
            yield from self._inner(spread, steps, width, axis + 1, x + index * steps[axis], w + index * apart)
