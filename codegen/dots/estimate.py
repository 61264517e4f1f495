"""The time that a contraction takes with a schedule, as a pure function of the machine's timing.

Work is added up for each resource of the core; the busiest one sets the time. To that comes what nothing hides: the
first blocks of both operands, blocks of a single buffer that are loaded after the work on the one before, the last
tiles of the result, and a part of what the other resources do, for no schedule overlaps perfectly.
"""

from __future__ import annotations

from math import prod

from neuronx_cc.codegen.dots.candidates import blocks_of
from neuronx_cc.codegen.dots.problem import Home, Operand, Problem
from neuronx_cc.codegen.dots.schedule import Leaves, Schedule, Sums
from neuronx_cc.codegen.movement.halves import HALVES
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32_PSUM, NOTHING, Tile, Timing, Work, total
from neuronx_cc.ir.types import itemsize

UNHIDDEN = 0.15
"""Part of the second busiest resource's work that takes time nevertheless."""
UNHIDDEN_IN_LOOPS = 0.8
"""Part of all other engines' work where blocks of k are loops, in which transposes and products wait for each other."""


def estimate(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Nanoseconds."""
    cut = schedule.sums is Sums.SBUF
    return (_of_k_blocks if cut else _of_whole_k)(problem, schedule, timing)


def bound(problem: Problem, timing: Timing) -> float:
    """Nanoseconds that no schedule is below: all products, each array moved once in long runs."""
    outside = [each for each in (problem.lhs, problem.rhs) if not each.on_chip]
    nbytes = sum(problem.elements(each) * itemsize(each.stored) for each in outside)
    if not problem.out.on_chip:
        nbytes += prod(problem.m) * prod(problem.n) * itemsize(problem.out.dtype)
    moved = timing.transfer(nbytes, timing.long_run) if nbytes else NOTHING
    return prod(problem.b) * max(products(problem, timing).bound, moved.bound)


def _of_whole_k(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    batches = prod(problem.b)
    m_blocks, n_blocks = blocks_of(problem, schedule)
    outer, inner, passes, others = problem.lhs, problem.rhs, m_blocks, n_blocks
    if schedule.stays == "rhs":
        outer, inner, passes, others = inner, outer, others, passes
    outer_load, inner_load = (load(problem, schedule, each, timing) for each in (outer, inner))
    outer_turn, inner_turn = (transposes(problem, each, timing) for each in (outer, inner))
    work = [outer_load, outer_turn, inner_load, inner_turn, products(problem, timing)]
    work.append(results(problem, schedule, timing))
    if passes > 1 and schedule.coming(inner).kept:
        kept = timing.transfer(problem.elements(inner) * itemsize(inner.dtype), timing.long_run)
        work += [kept, kept.times(passes - 1)]
    else:
        work.append((inner_load + inner_turn).times(passes - 1))
    all_ = total(work).times(batches)
    alone = 0.0
    if schedule.coming(outer).buffers == 1:
        alone = outer_load.dma / passes * (batches * passes - 1)
    first = outer_load.dma / passes + inner_load.dma / others + (outer_turn.bound / passes if others > 1 else 0.0)
    ranked = sorted(all_, reverse=True)
    return ranked[0] + UNHIDDEN * ranked[1] + alone + first + _tile(problem, timing).bound


def _of_k_blocks(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Both operands come anew for each pair of blocks, Vector adds the sums in SBUF."""
    m_blocks, n_blocks = blocks_of(problem, schedule)
    columns = min(max(1, schedule.rhs.rows), timing.sizes.bank_columns)
    add = timing.engine("tensor_tensor", Stream.VECTOR, columns, (Tile(),), (Tile(), F32_PSUM), ("add",))
    rows, all_columns = (max(1, prod(each)) for each in (problem.m, problem.n))
    tiles = -(-rows // min(schedule.lhs.rows, timing.sizes.columns)) * -(-all_columns // columns)
    count = boxes(problem, schedule)
    work = [products(problem, timing), results(problem, schedule, timing), add.times(tiles * count)]
    for operand, times in ((problem.lhs, n_blocks), (problem.rhs, m_blocks)):
        once = load(problem, schedule, operand, timing) + transposes(problem, operand, timing)
        work.append(once.times(times))
    batches = prod(problem.b)
    whole = total(work).times(batches)
    others = whole.tensor + whole.vector + whole.scalar + whole.dma - whole.bound
    starts = batches * m_blocks * n_blocks * count * timing.transfer_latency
    return whole.bound + UNHIDDEN_IN_LOOPS * others + (starts + whole.dma if schedule.lhs.buffers == 1 else 0.0)


def boxes(problem: Problem, schedule: Schedule) -> int:
    """Blocks of k."""
    return sum(
        prod(-(-size // part) for size, part in zip(chunks, box, strict=True))
        for chunks, box in zip(problem.all_chunks, schedule.boxes, strict=True)
    )


def load(problem: Problem, schedule: Schedule, operand: Operand, timing: Timing) -> Work:
    """Of all of one operand of one batch index, once."""
    if operand.on_chip:
        return NOTHING
    width = itemsize(operand.stored)
    nbytes = problem.elements(operand) * max(width, itemsize(operand.dtype))
    if operand.home is Home.CONSTANT:
        return timing.transfer(nbytes, timing.long_run)
    if operand.transposed:
        run = min(schedule.row_bytes, prod(problem.k) * width)
    else:
        dim = problem.tiled_dim(operand)
        rows = schedule.together if operand is problem.lhs else schedule.rhs.rows
        near = dim < 0 or operand.free[dim].stride == width
        run = width * (rows if near else 1)
        if not near and operand.free[-1].stride == width:
            run = width * operand.free[-1].size
    return timing.transfer(nbytes, max(width, run))


def transposes(problem: Problem, operand: Operand, timing: Timing) -> Work:
    """Of all of one operand of one batch index, once."""
    if not operand.transposed:
        return NOTHING
    sizes = timing.sizes
    squares = problem.elements(operand) / (sizes.rows * sizes.rows)
    per_bank = max(1, sizes.bank_columns // sizes.rows)
    parts, carrier, extract = 1, operand.dtype, NOTHING
    if not problem.fast(operand.dtype):
        part, carrier = HALVES[itemsize(operand.dtype)]
        parts = itemsize(operand.dtype) // itemsize(part)
        tiles = (Tile(carrier),), (Tile(part, stride=itemsize(operand.dtype)),)
        extract = timing.engine("tensor_copy", Stream.VECTOR, sizes.bank_columns, *tiles)
    product = timing.product(sizes.rows, sizes.rows, carrier).times(per_bank)
    bank = product + _leave(sizes.bank_columns, operand.dtype, timing) + extract
    return bank.times(parts * squares / per_bank)


def products(problem: Problem, timing: Timing) -> Work:
    """Of one batch index."""
    sizes = timing.sizes
    rows, columns = (max(1, prod(each)) for each in (problem.m, problem.n))
    wide = min(columns, sizes.bank_columns)
    flags = ("tf32",) if problem.tf32 and problem.dtype == "f32" else ()
    each = timing.product(min(rows, sizes.columns), wide, problem.dtype, flags=flags)
    return each.times(-(-rows // sizes.columns) * columns / wide * problem.products)


def results(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """Of one batch index: the sums leave PSUM, and are stored where they do not stay on chip."""
    sizes = timing.sizes
    rows, columns = (max(1, prod(each)) for each in (problem.m, problem.n))
    work = _tile(problem, timing).times(-(-rows // sizes.columns) * columns / min(columns, sizes.bank_columns))
    if schedule.leaves is Leaves.CHIP:
        return work
    width = itemsize(problem.out.dtype)
    near = problem.n_dim < 0 or problem.out.n[problem.n_dim].stride == width
    run = width * (min(schedule.rhs.rows, problem.n_tiled, schedule.columns) if near else 1)
    return work + timing.transfer(rows * columns * width, run)


def _tile(problem: Problem, timing: Timing) -> Work:
    """One tile of sums leaves PSUM."""
    columns = min(max(1, prod(problem.n)), timing.sizes.bank_columns)
    return _leave(columns, problem.out.dtype, timing)


def _leave(columns: int, dtype: str, timing: Timing) -> Work:
    return timing.engine("activation", Stream.SCALAR, columns, (Tile(dtype),), (F32_PSUM,), ("copy",))
