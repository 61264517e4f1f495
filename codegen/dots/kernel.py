"""Contractions on TensorE.

``out[b, m, n] = sum_k lhs[b, m, k] * rhs[b, n, k]``: the array wants k on the partitions of both operands; lhs tiles
are stationary, rhs tiles stream through, and m lands on the partitions of PSUM. An operand with k on its partitions (in
SBUF, or loaded so from HBM) is used as it is; one whose rows lie on the partitions is transposed by TensorE, bit for
bit. ``placement`` finds where everything lies and states the problem, ``choose`` its schedule, which is carried out
here, without decisions.
"""

from __future__ import annotations

from functools import partial
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots import conversion, pairs
from neuronx_cc.codegen.dots.constants import ConstantLayout
from neuronx_cc.codegen.dots.contraction import Bound, Contraction, Placed
from neuronx_cc.codegen.dots.filler import Filler, transposer_of
from neuronx_cc.codegen.dots.loops import Loops
from neuronx_cc.codegen.dots.nest import Nest, Waiting
from neuronx_cc.codegen.dots.placement import bind, place
from neuronx_cc.codegen.dots.problem import (
    DECODED,
    PAIR,
    PE_DTYPES,
    TWO,
    Home,
    Operand,
    Problem,
    exact_type,
    order_of,
    pe_dtype,
    turnable,
)
from neuronx_cc.codegen.dots.products import Products
from neuronx_cc.codegen.dots.result import Bias, Output
from neuronx_cc.codegen.dots.scaling import Scaling
from neuronx_cc.codegen.dots.schedule import (
    ZEROS,
    Schedule,
    Way,
    footprint,
    row_tiles,
)
from neuronx_cc.codegen.dots.stage import InPairs, KeptBlocks, Stage, kept_bytes
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.dots.turned import Turned
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Block, Builder
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import TilePool, no_room, room_of
from neuronx_cc.codegen.epilogues.chain import Chain
from neuronx_cc.codegen.formation.graph import Kernel, base
from neuronx_cc.codegen.maps.plan import is_given
from neuronx_cc.codegen.movement.halves import carrier_of
from neuronx_cc.codegen.movement.transpose_kernel import SQUARE
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import WIDE_FLOATS, itemsize

OF_SCALES = 2
"""Of PSUM, for scales."""
MAX_ROWS_WITH_BIAS = 2 * PARTITIONS
"""Rows up to which TensorE adds a bias; its cost grows with the rows, Vector's does not depend on it."""


def lower(context: Context, kernel: Kernel, step: int) -> None:
    """Emit the contraction (and what the kernel adds to it) and give the result a home."""
    op, result = kernel.ops[0], kernel.ops[-1].results[0]
    assert isinstance(op, hlo.DotOp)
    context.builder.mark(op.loc)  # the ops of an epilogue mark what is theirs
    if op.shape.size == 0:
        context.homes[result] = [context.new_hbm(result)]
        return
    start, ops = op.result, kernel.ops[1:]
    bias = _added_row(context, op, ops[0]) if ops else None
    if bias is not None:
        start, ops = ops[0].results[0], ops[1:]
    contraction = Contraction(op, result, step, bias, Chain.of(context, start, ops))
    bound = bind(context, contraction)
    if bias is not None and _may_stream_past(contraction, bound[1]):
        contraction = replace(contraction, bias=None, chain=Chain.of(context, op.result, kernel.ops[1:]))
    stored = [each.taken(op, index) for index, each in enumerate(bound)]
    taken = (pe_dtype(op, index, dtype) for index, dtype in enumerate(stored))
    dtypes = {*taken, *filter(None, map(exact_type, stored)), *map(turnable, stored)} & PE_DTYPES
    for dtype in sorted(dtypes):
        # made here because staging asks for them inside loops
        context.fixed.identity(carrier_of(dtype, context.moves_values(dtype)))
    for dtype in sorted({scale.stored for each in bound for view, scale in each.scales if view is not None}):
        context.fixed.identity(dtype)
    placed = place(context, contraction, bound)
    if placed.problem.comes_in_pairs:
        context.fixed.identity(PAIR)
    schedule = context.planner.choose(placed.problem)
    if schedule is None:
        raise no_room("contraction", placed.problem.room, op.loc)
    emit(context, placed, schedule)


def _added_row(context: Context, dot: hlo.DotOp, op: hlo.HloOp) -> hlo.SSAValue | None:
    """The repeated row that ``op`` adds to the contraction, when TensorE can add it to the sums.

    That is: both FP32, the row perhaps from 16 bits, the contraction has no other user, and the row is given before the
    program starts and repeats over all of the result's dims but the free dims of rhs.
    """
    if not isinstance(op, hlo.AddOp) or op.shape.dtype != "f32" or not dot.result.has_one_use():
        return None
    if dot.result not in (op.lhs, op.rhs) or any(
        # the sums of decoded operands are smaller than those that the row belongs to
        hlo.shape_of(context.source_of(operand)).dtype in DECODED
        for operand in dot.operands
    ):
        return None
    other = op.rhs if op.lhs is dot.result else op.lhs
    free = len(order_of(dot, 1)[1])
    if not free or prod(op.shape.dims[: op.shape.rank - free]) > MAX_ROWS_WITH_BIAS:
        return None
    if not isinstance(other, hlo.OpResult) or not isinstance(other.op, hlo.BroadcastOp):
        return None
    row = hlo.shape_of(other.op.operand).dims
    varying = {axis for axis, size in zip(other.op.dimensions.data, row, strict=True) if size != 1}
    given = context.source_of(base(other))
    if hlo.shape_of(given).dtype not in WIDE_FLOATS or not is_given(given):
        return None
    return other if all(axis >= op.shape.rank - free for axis in varying) else None


def _may_stream_past(contraction: Contraction, columns: Bound) -> bool:
    """Whether few rows may stream past columns of 8 bits (``turned``), which leaves no row to TensorE."""
    few = prod(contraction.sizes(0)[1]) <= SQUARE
    return few and columns.home is Home.HBM and itemsize(columns.view.dtype) == 1


def emit(context: Context, placed: Placed, schedule: Schedule) -> None:
    """Carry out a schedule."""
    builder, problem, op = context.builder, placed.problem, placed.contraction.op
    builder.program.schedules[builder.kernel] = schedule.line(problem)
    planned = footprint(problem, schedule, builder.sizes)
    builder.sbuf.make_room(room_of(planned))
    pool = TilePool(builder, f"contraction {op.loc.name}")
    tiles = Tiles(builder, op.loc.name, planned, pool)
    emitter = Emitter(builder, lambda like, dtype: like)
    half = builder.sizes.banks // 2
    of_scales = OF_SCALES if problem.scaled is not None and not problem.scaled.transposed else 0
    banks = tiles.banks(half, "partial sums")
    if problem.epilogue is not None and 2 * row_tiles(problem, schedule, builder.sizes) <= banks.count:
        banks.phases = 2  # what one iteration of a loop makes is read while the next one's sums are added up
    scale_banks = tiles.banks(of_scales, "scales") if of_scales else banks
    transposer = None
    if problem.lhs.transposed or problem.rhs.transposed:
        other = tiles.banks(half - of_scales, "transposes")
        transposer = transposer_of(context, emitter, tiles, other, schedule.transposes)
    kept = _kept(builder, problem, schedule, op.loc.name)
    bias = Bias.load(context, placed, schedule, tiles)
    products = Products(builder, banks, problem.flags, bias, _zeros(builder, problem, tiles))
    waiting = Waiting(builder)

    def stage(operand: Operand, bound: Bound) -> Stage:
        coming, layout = schedule.coming(operand), None
        row = schedule.row_bytes, schedule.row_buffers, coming.beside
        in_tiles = operand is problem.lhs and schedule.beside > 1
        carried = problem.carried(operand)
        brought = replace(bound, view=replace(bound.view, dtype=PAIR)) if operand.paired else bound
        turns, apart = transposer, 1
        if carried[1].dtype == TWO and turns is not None:
            apart = pairs.bytes_apart(problem, operand, schedule.together if operand is problem.lhs else coming.rows)
            turns = replace(turns, leaves=partial(conversion.leave_pairs, emitter, apart))
        register = registers.get(operand.name, -1)
        filler = Filler(*carried, brought, *row, emitter, tiles, turns, in_tiles, register, waiting.between)
        scaling = None
        if operand.scales:
            scaling = Scaling.ready(filler, scale_banks, context.fixed.identity)
            filler = replace(filler, scaled=scaling.rows)
        if Way.LAID_OUT in coming.ways:
            layout = ConstantLayout(context, bound, operand, problem.k, problem.k_dim, problem.segments[0])
        alloc = kept.get(operand.name)
        there = None if alloc is None else KeptBlocks(*carried, alloc)
        two = InPairs(problem, operand, apart) if problem.comes_in_pairs else None
        return Stage(coming, filler, layout, there, waiting.told, two, None if operand.transposed else scaling)

    output = Output.ready(placed, emitter, tiles, schedule, banks.count)
    registers = {each.name: builder.new_register() for each in (problem.lhs, problem.rhs) if each.apart}
    lhs, rhs = stage(problem.lhs, placed.lhs), stage(problem.rhs, placed.rhs)
    nest = Nest(builder, problem, schedule, waiting, bool(kept))
    turned = Turned(problem, builder, products, tiles, emitter)
    Loops(nest, lhs, rhs, products, output, tiles, turned).emit()
    pool.free()
    for register in registers.values():
        builder.release_register(register)
    for alloc in kept.values():
        builder.hbm.free(alloc)


def _kept(builder: Builder, problem: Problem, schedule: Schedule, name: str) -> dict[str, Alloc]:
    """HBM for blocks that are kept, by the name of their operand."""
    found: dict[str, Alloc] = {}
    for operand in (problem.lhs, problem.rhs):
        if schedule.coming(operand).kept:
            alloc = builder.hbm.allocate(kept_bytes(*problem.carried(operand)), f"{operand.name} of {name}")
            found |= {operand.name: alloc} if alloc is not None else {}
    return found


def _zeros(builder: Builder, problem: Problem, tiles: Tiles) -> Block | None:
    """What patterns that tell NaNs are multiplied with."""
    if not (problem.lhs.suspected or problem.rhs.suspected):
        return None
    zeros = tiles.tile(conversion.SUSPECTS, [1], builder.sizes.rows, ZEROS, 1)
    builder.emit("memset", Stream.GPSIMD, [zeros], [], imm=[0.0])
    return zeros
