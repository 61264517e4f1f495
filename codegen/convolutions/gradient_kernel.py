"""Convolutions with few output positions and a large window, as gradients of kernels are.

``out[n, o, p] = sum over c, k of x[n, c, k * dilation + p * stride - pad] * w[o, c, k]`` is contracted over window
positions ``k`` and ``c``, which go on the partitions: blocks of both operands are staged with ``n`` and ``o`` on the
partitions, TensorE transposes up to 128 positions at a time, and the products of all positions add up in PSUM. To ``x``
the output positions are the taps of a convolution over ``k``; ``gradient_plan`` says how a transposed tile of it
serves several taps. Nothing reads the result soon: Vector and its queue are left to the kernels after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, product
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.convolutions.axis import batch_axis
from neuronx_cc.codegen.convolutions.candidates import NATURAL_SHARE
from neuronx_cc.codegen.convolutions.form import Form
from neuronx_cc.codegen.convolutions.gradient_placement import arrays_of, order_of, pose
from neuronx_cc.codegen.convolutions.gradient_plan import Spread, Sum, even, parts_of, tiles_of
from neuronx_cc.codegen.convolutions.gradient_result import Results
from neuronx_cc.codegen.convolutions.gradient_schedule import Frame, Schedule, frame, unmet
from neuronx_cc.codegen.convolutions.gradient_stage import Side, Staging, merged
from neuronx_cc.codegen.convolutions.stage import RowsAt
from neuronx_cc.codegen.convolutions.turn import Turner
from neuronx_cc.codegen.dots.problem import rounding_of
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import TilePool, no_room
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.movement.halves import carrier_of
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream


def lower(context: Context, op: hlo.ConvolutionOp, step: int) -> None:
    """Emit the convolution and give its result a home."""
    del step
    builder, form = context.builder, Form(op)
    fast = context.moves_values(form.pe_dtype)
    home = context.new_hbm(op.result)
    context.homes[op.result] = [home]
    with TilePool(builder, f"gradient {op.loc.name}") as pool:
        for carrier in sorted({carrier_of(form.pe_dtype, fast), carrier_of(op.shape.dtype, False)}):
            context.fixed.identity(carrier)
        wholes = arrays_of(context, form)
        posed = pose(context, form, home, wholes)
        schedule = context.planner.choose(posed) if posed.meets else unmet(posed)
        if schedule is None:
            raise no_room("convolution's gradient", posed.room, op.loc)
        framed = frame(posed, schedule, builder.timing)
        # all of PSUM, the sums in one piece first
        builder.psum.make_room(builder.sizes.psum_bytes)
        sums = builder.ring(builder.psum, framed.sum_banks * builder.sizes.bank_bytes, 1, "sums")
        _Gradient(context, form, home, wholes, schedule, framed, pool, sums).emit()
        builder.psum.free(sums.alloc)


class _Gradient:
    def __init__(
        self,
        context: Context,
        form: Form,
        home: View,
        wholes: Sequence[View],
        schedule: Schedule,
        framed: Frame,
        pool: TilePool,
        sums: Ring,
    ) -> None:
        self.context, self.op, self.builder, self.sums = context, form.op, context.builder, sums
        self.schedule, self.frame, problem = schedule, framed, framed.problem
        self.face, sizes = framed.face, context.builder.sizes
        self.builder.program.schedules.setdefault(self.builder.kernel, schedule.line(problem))
        self.out = home.transpose(order_of(form, bool(schedule.face)))
        self.one_block = list(schedule.rows) == [axis.rows for axis in self.face.axes]
        self.emitter = Emitter(self.builder, lambda like, dtype: like)
        self.tiles = Tiles(self.builder, form.op.loc.name, {}, pool)
        self.zeros = self.tiles.tile(problem.dtype, [sizes.bank_columns], 1, "zeros", 1)
        banks = pool.psum(sizes.banks - framed.sum_banks, "transposes")
        banks.phases = 1 + (banks.count >= 4)  # what one iteration of a loop transposes leaves during the next one
        plain = [batch_axis(axis.rows) for axis in self.face.axes]
        sides = []
        wanted = self.frame.transposed(schedule.rows) if problem.meets else (0, 0)
        for name, nbytes, axes, whole in zip(
            ("left", "right"), wanted, (self.face.axes, plain), wholes[:: -1 if schedule.face else 1], strict=True
        ):
            planned = {(f"transposed {name}", schedule.transposed_buffers): nbytes}
            tiles = Tiles(self.builder, f"{name} of {form.op.loc.name}", planned, pool)
            turner = Turner(context, self.emitter, tiles, banks, problem.fast)
            staging = Staging(self.emitter, tiles, turner, problem.dtype, sizes.sbuf_share(NATURAL_SHARE))
            sides.append(Side(context, staging, whole, axes, 1 if self.one_block else 2))
        self.left, self.right = sides
        self.results = Results(
            self.out,
            self.face.kept,
            problem.groups,
            self.face.taps,
            self.emitter,
            self.tiles,
            Turner(context, self.emitter, self.tiles, banks, False),
            sums.alloc,
            self.frame.columns_are_left,
        )

    def emit(self) -> None:
        self.emitter.over("memset", Stream.VECTOR, [self.zeros], [], imm=[0.0])
        kept, together = self.face.kept, self.frame.together
        if self.frame.problem.meets:
            for first, groups in even(self.frame.problem.groups, together):
                for left, right in product(*self.frame.features(groups)):
                    self.left.restrict(first * kept[0] + left[0], left[1])
                    self.right.restrict(first * kept[1] + right[0], right[1])
                    self._slab(left[0], first * kept[1] + right[0], groups)
        self.results.store_unmet()

    # ---- sums -------------------------------------------------------------------------------------------------

    def _slab(self, left_start: int, right_start: int, groups: int) -> None:
        """All sums of the features that both sides are restricted to."""
        staged, packed, results = None, None, self.results
        taps, sizes = self.face.taps, self.builder.sizes
        if self.schedule.pack > 1 and not self.schedule.stacked:
            packed = results.room(self.right.inputs, [tap.count for tap in taps[1:]], self.face.kept[0])
        if self.one_block:
            ((left_at, right_at),) = self._blocks([], [])
            staged = self._stage(left_at, right_at)
        sums = self.frame.groups(self.left.inputs, self.right.inputs)
        for part in parts_of(sums, self.frame.columns_are_left, self.frame.sum_banks, sizes.bank_columns):
            self._clear(part, results)
            if staged is not None:
                self._multiply(part, results, *staged)
            else:
                for left_at, right_at in self._blocks([], []):
                    self._multiply(part, results, *self._stage(left_at, right_at))
            if self.schedule.stacked:
                results.store_stacked(part, right_start)
                continue
            if packed is None:
                results.store(part, left_start, right_start)
                continue
            for sum_ in part:
                results.take_diagonal(sum_, groups, packed)
        if packed is not None:
            results.send_packed(packed, results.place(0, right_start, [0 for _ in taps]))

    def _blocks(self, left: list[RowsAt], right: list[RowsAt]) -> Iterator[tuple[list[RowsAt], list[RowsAt]]]:
        """Blocks of both operands over the same positions."""
        if len(left) == len(self.face.axes):
            yield left, right
            return
        axis, rows, plain = self.face.axes[len(left)], self.schedule.rows[len(left)], self.right.axes[len(left)]
        for piece in axis.pieces(rows):
            same = replace(piece, axis=plain, before=0, after=0)
            for index in self.builder.each(piece.count, 1):
                yield from self._blocks([*left, RowsAt(piece, index)], [*right, RowsAt(same, index)])

    def _stage(self, left_at: list[RowsAt], right_at: list[RowsAt]) -> tuple[Spread, Block, Block]:
        """Both operands of a block, transposed: [partitions, tiles, kept dim]."""
        spread = self.frame.spread([at.piece.rows for at in left_at])
        partitions = prod(spread.partitions)
        left = self.left.loaded_tile(
            self.schedule.loaded[0], "transposed left", spread.tiles, partitions, self.schedule.transposed_buffers
        )
        count = prod(spread.inner)
        right = self.right.loaded_tile(
            self.schedule.loaded[1], "transposed right", count, partitions, self.schedule.transposed_buffers
        )
        left_tiles, right_tiles = tiles_of(spread, self.face.axes)
        if self.schedule.loaded[0]:
            self.left.load_windows(left_at, left_tiles, left)
        else:
            self.left.turn_windows(self.left.planes(self.left.staged(left_at), "left"), left_tiles, left)
        if self.schedule.loaded[1]:
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
                stationary, moving = (plain, moved) if self.frame.columns_are_left else (moved, plain)
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
