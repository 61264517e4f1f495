"""Convolutions on TensorE.

A convolution is a sum over kernel positions (taps) of contractions over input features. Blocks of the input lie in SBUF
with features on the partitions; the operand of one tap is a strided window of such a block, so nothing is copied per
tap, and all taps and feature tiles add up in PSUM. Either the kernel is stationary and windows stream past it (output
features land on the partitions, positions are neighbours in the result), or windows are stationary and the kernel
streams (positions land on the partitions, output features are neighbours in the result). A dilated input is computed
phase by phase (``convolutions.axis``). A kernel that does not fit comes in parts, each of which is added to as many
banks of PSUM as a block's sums fill. ``placement`` finds where everything lies and states the problem, ``choose`` its
schedule, which is carried out here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.choose import DOUBT
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.control.residence import assign
from neuronx_cc.codegen.convolutions import depthwise_kernel, patches, patches_kernel
from neuronx_cc.codegen.convolutions import gradient_kernel as conv_gradient_kernel
from neuronx_cc.codegen.convolutions.candidates import MAX_BANDS
from neuronx_cc.codegen.convolutions.finish import Finish
from neuronx_cc.codegen.convolutions.finite import FiniteSums
from neuronx_cc.codegen.convolutions.form import Form
from neuronx_cc.codegen.convolutions.placement import Convolving, Placed, patches_of, place
from neuronx_cc.codegen.convolutions.problem import Problem
from neuronx_cc.codegen.convolutions.result import Results
from neuronx_cc.codegen.convolutions.schedule import Schedule, footprint, interleaved_banks, sum_banks, tiles_together
from neuronx_cc.codegen.convolutions.stage import Coming, Images, PackAt, RowsAt, Source
from neuronx_cc.codegen.convolutions.sums import Sums, Terms
from neuronx_cc.codegen.convolutions.tiling import Tiling
from neuronx_cc.codegen.convolutions.turn import Turner
from neuronx_cc.codegen.convolutions.weights import Kernels, OutputsAt
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Builder
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import TilePool, no_room, room_of
from neuronx_cc.codegen.epilogues.chain import Chain
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.plan import load_stream
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.passes.analysis.convolutions import is_kernel_gradient

SPARE_SHARE = (1, 11)
"""Of a partition of SBUF: what is left beside the tiles, so that those of the kernel after begin in other memory."""


def lower(context: Context, kernel: Kernel, step: int) -> None:
    """Emit the convolution and its epilogue, and give the result a home."""
    op = kernel.ops[0]
    assert isinstance(op, hlo.ConvolutionOp)
    context.builder.mark(op.loc)  # the ops of an epilogue mark what is theirs
    convolving = Convolving(op, kernel.ops[-1].results[0], step, Chain.of(context, op.result, kernel.ops[1:]))
    if op.shape.size and is_kernel_gradient(op):
        conv_gradient_kernel.lower(context, op, step)
    elif op.shape.size == 0:
        context.homes[convolving.result] = [context.new_hbm(convolving.result)]
    elif not depthwise_kernel.lower(context, op):
        _lower(context, convolving, not context.fast_relayout)


def _lower(context: Context, convolving: Convolving, apart: bool) -> None:
    """``apart``: groups share no products, in which an infinity or NaN of one would reach the others."""
    op = convolving.op
    placed = place(context, convolving, apart)
    posed = placed.problem
    cut = patches_of(placed, context.builder.sizes)
    if cut is not None and context.planner.time(cut) < DOUBT * context.planner.time(posed):
        watched = Form(op).may_be_infinite
        of_patches = context.planner.choose(cut)
        assert of_patches is not None, "takes less time"
        finite = _prepared(context, patches.footprint(cut, of_patches, context.builder.sizes), watched)
        patches_kernel.emit(context, placed, cut, of_patches, finite)
    else:
        schedule = context.planner.choose(posed)
        if schedule is None:
            raise no_room("convolution", posed.room, op.loc)
        solved = posed.under(schedule.fold)
        watched = solved.shares_products and Form(op).may_be_infinite
        finite = _prepared(context, footprint(solved, schedule, context.builder.sizes), watched)
        emit(context, replace(placed, problem=solved.given), solved, schedule, finite)
    if finite is not None:
        finite.free()
        with context.recovery.otherwise():
            _lower_apart(context, convolving)
    placed.columns.free()


def _prepared(context: Context, tiles: Mapping[tuple[str, int], int], watched: bool) -> FiniteSums | None:
    """Make room for a kernel's tiles; what looks at its sums, if these are ``watched``."""
    builder = context.builder
    # the checks of sums lie in the same piece of memory as all tiles
    room = room_of(tiles) + builder.sizes.sbuf_share(SPARE_SHARE)
    builder.sbuf.make_room(min(builder.sbuf.largest_gap(), room))
    return FiniteSums(builder, context.recovery.prepare()) if watched else None


def _lower_apart(context: Context, convolving: Convolving) -> None:
    """Once more into the result's home, each group by itself, and without products for transposes."""
    result, homes = convolving.result, context.homes
    (home,) = homes[result]
    with context.scope(f"{context.prefix}{convolving.op.loc.name}/groups"):
        context.homes.update({value: list(views) for value, views in homes.items() if value is not result})
        if not home.in_sbuf:
            context.outputs[result] = home
        _lower(context, convolving, True)
        if home.in_sbuf:
            assign(context, home, result)


def emit(
    context: Context, placed: Placed, problem: Problem, schedule: Schedule, finite: FiniteSums | None = None
) -> None:
    """Carry out a schedule; ``problem`` is what it makes of the one that is posed."""
    builder = context.builder
    builder.program.schedules.setdefault(builder.kernel, schedule.line(placed.problem))
    planned = footprint(problem, schedule, builder.sizes)
    emitter = Emitter(builder, lambda like, dtype: like)
    with TilePool(builder, f"convolution {placed.op.loc.name}") as pool:
        tiles = Tiles(builder, placed.op.loc.name, planned, pool)
        zeros = tiles.tile(problem.dtype, [builder.sizes.bank_columns], 1, "zeros", 1)
        open_ = sum_banks(problem, schedule, builder.sizes)
        banks = tiles.banks(open_, "sums")
        transposed = tiles.banks(builder.sizes.banks - open_, "transposes") if open_ < builder.sizes.banks else banks
        turner = Turner(context, emitter, tiles, transposed, problem.fast)
        stream = load_stream(placed.input)
        batch = problem.axes[0].size
        features = problem.features.abreast(problem.groups, problem.pack) if schedule.abreast else problem.features
        source = Source(placed.x, stream, features, problem.dtype, batch, problem.batch_groups)
        coming = Coming(
            schedule.comes,
            schedule.input_buffers,
            schedule.row_bytes,
            schedule.raw_bytes,
            tiles_together(problem, schedule),
            schedule.row_parts,
            schedule.copies,
        )
        emitter.over("memset", Stream.VECTOR, [zeros], [], imm=[0.0])
        kernels = Kernels(context, emitter, tiles, turner, placed, problem, schedule)
        kernels.prepare()
        ready = None
        if placed.chain is not None:
            ready = placed.chain.ready(tuple(map(problem.repeats, problem.arrays)))
        own = tuple(replace(emitter) for _ in range(interleaved_banks(problem, schedule, builder.sizes)))
        finish = Finish(emitter, own, tiles, finite, ready, placed.op.loc)
        results = Results.of(placed, problem, schedule, tiles, finish)
        sums = Sums(builder, problem, schedule, turner, banks, zeros)
        tiling = Tiling(builder, problem, schedule, kernels, sums, results)
        _Blocks(builder, problem, schedule, Images(emitter, tiles, turner, source, coming), kernels, tiling).emit()


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The loops over packs, blocks of outputs and blocks of positions."""

    builder: Builder
    problem: Problem
    schedule: Schedule
    images: Images
    kernels: Kernels
    tiling: Tiling

    def emit(self) -> None:
        problem = self.problem
        if self.schedule.abreast:
            with self.builder.unrolled():
                self._abreast()
            return
        for start, count, groups in self.builder.tiles(problem.groups, problem.pack):
            for index in self.builder.each(count, 1):
                self._pack(PackAt(start, count, groups, index))

    def _abreast(self) -> None:
        """Blocks of positions, of all packs each, whose kernels stay."""
        problem, each = self.problem, self.problem.outputs
        tiles = self.builder.tiles(problem.groups, problem.pack)
        packs = [PackAt(start, count, groups, Affine(at)) for start, count, groups in tiles for at in range(count)]
        outs = [OutputsAt(0, 1, pack.groups * each, Affine()) for pack in packs]
        kernels = [self.kernels.block(*both) for both in zip(packs, outs, strict=True)]
        whole, total = PackAt(0, 1, 1, Affine()), OutputsAt(0, 1, problem.groups * each, Affine())
        columns = self.tiling.results.columns(whole, total)
        for at in self._positions([]):
            x = self.images.block(whole, at)
            blocks = (x.index(1, Affine(number), 1) for number in range(len(packs)))
            parts = zip(packs, outs, blocks, kernels, strict=True)
            self.tiling.block([Terms(*part, (), columns) for part in parts], at)

    def _pack(self, pack: PackAt) -> None:
        """All blocks of one pack: the kernel stays while blocks of the input stream by, unless those all fit."""
        problem, schedule = self.problem, self.schedule
        total = pack.groups * problem.outputs
        blocks = prod(-(-axis.rows // rows) for axis, rows in zip(problem.axes, schedule.rows, strict=True))
        parts = self.builder.tiles(total, min(total, schedule.outputs))
        if schedule.streamed is not None or (blocks == 1 and len(parts) + parts[0][1] > 2):
            for at in self._positions([]):
                x = self.images.block(pack, at)
                for outs in self._outputs(parts):
                    kernel = None if schedule.streamed is not None else self.kernels.block(pack, outs)
                    self.tiling.block([Terms(pack, outs, x, kernel, (), self.tiling.results.columns(pack, outs))], at)
            return
        for outs in self._outputs(parts):
            kernel = self.kernels.block(pack, outs)
            columns = self.tiling.results.columns(pack, outs) if blocks > 1 else ()
            for at in self._positions([]):
                x = self.images.block(pack, at)
                # sums wait for the image, not for what the epilogue reads
                columns = columns if blocks > 1 else self.tiling.results.columns(pack, outs)
                self.tiling.block([Terms(pack, outs, x, kernel, (), columns)], at)

    def _outputs(self, parts: list[tuple[int, int, int]]) -> Iterator[OutputsAt]:
        for start, count, size in parts:
            for index in self.builder.each(count, 1):
                yield OutputsAt(start, count, size, index)

    def _positions(self, at: list[RowsAt]) -> Iterator[list[RowsAt]]:
        axes = self.problem.axes
        if len(at) == len(axes):
            yield at
            return
        unrolls = len(at) >= self.schedule.unrolled
        with self.builder.unrolled() if unrolls else nullcontext():
            axis, rows = axes[len(at)], self.schedule.rows[len(at)]
            for piece in axis.pieces(rows):
                for index in self.builder.each(piece.count, MAX_BANDS if unrolls else 1):
                    yield from self._positions([*at, RowsAt(piece, index)])
