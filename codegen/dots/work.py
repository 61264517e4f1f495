"""The work of a contraction with a schedule, for each resource of the core: what is moved, transposed, multiplied and
left. Pure functions of the machine's timing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from neuronx_cc.codegen.dots import conversion, scaled, splitting
from neuronx_cc.codegen.dots.blocks import blocks_of
from neuronx_cc.codegen.dots.problem import TWO, Home, Operand, Problem, Result, run_of
from neuronx_cc.codegen.dots.schedule import Kept, Leaves, Schedule, Sums, count_row_tiles, row_run
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.epilogues.work import leave, tile_work
from neuronx_cc.codegen.movement.halves import HALVES
from neuronx_cc.codegen.movement.transpose_kernel import SQUARE
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, F32_PSUM, NOTHING, Tile, Timing, Work
from neuronx_cc.ir.types import itemsize


def load(problem: Problem, schedule: Schedule, operand: Operand, timing: Timing) -> Work:
    """Of all of one operand of one batch index, once: transfers, conversions and splitting on chip."""
    made = made_on_chip(problem, operand, timing)
    return made if operand.on_chip else transfers(problem, schedule, operand, timing) + made


def made_on_chip(problem: Problem, operand: Operand, timing: Timing) -> Work:
    """What engines make of all of one operand of one batch index, once."""
    if operand.scales:
        return scaled.work(problem, operand, timing)
    return conversion.of_all(problem, operand, timing) + splitting.work(problem, operand, timing)


def transfers(problem: Problem, schedule: Schedule, operand: Operand, timing: Timing) -> Work:
    """Of all of one operand of one batch index, from HBM, once, with what its codes are scaled by."""
    came = _transfers(problem, schedule, operand, timing)
    return came + scaled.moved(problem, operand, timing) if operand.scales else came


def _transfers(problem: Problem, schedule: Schedule, operand: Operand, timing: Timing) -> Work:
    problem, operand = problem.carried(operand)
    width = itemsize(operand.stored)
    nbytes = problem.elements(operand) * max(width, itemsize(operand.loaded))
    if operand.home is Home.CONSTANT:
        return timing.transfer(nbytes, timing.long_run)
    transfer = timing.found if operand.apart else timing.transfer
    if operand.transposed:
        row = row_run(problem, schedule, operand)
        grouped = operand is problem.lhs and schedule.group > 1
        along = problem.m_around if grouped else problem.tiled_dim(operand)
        near = along >= 0 and operand.free[along].stride == row == prod(problem.k) * width
        return transfer(nbytes, row * schedule.coming(operand).beside if near else row)
    dim = problem.tiled_dim(operand)
    rows = schedule.coming(operand).rows
    if operand is problem.lhs and schedule.group > 1 and problem.follows(problem.m_around):
        rows = schedule.together
    if dim >= 0 and operand.free[dim].stride != width:
        rows = 1

    *box, steps = schedule.boxes_of(problem, operand)[0]
    around = [atom for dim, atom in enumerate(operand.contracted) if dim != problem.k_dim]
    terms = [replace(atom, size=size) for atom, size in zip(around, box, strict=True)]
    if problem.segments[0].neighbours:
        terms.append(Atom(steps, operand.contracted[problem.k_dim].stride))

    def moved(part: float, count: int) -> Work:
        return transfer(nbytes, max(width, run_of(terms, width * count))).times(part)

    return _with_rest(operand.free[dim].size if dim >= 0 else 1, rows, moved)


def _with_rest(size: int, block: int, moved: Callable[[float, int], Work]) -> Work:
    """Of blocks along a dim and of the rest that they leave, in shorter runs: ``moved(part of it all, rows)``."""
    rest = size % max(1, block) if size > block else 0
    whole = moved((size - rest) / size, max(1, block))
    return whole + moved(rest / size, rest) if rest else whole


def transposes(problem: Problem, schedule: Schedule, operand: Operand, timing: Timing) -> Work:
    """Of all of one operand of one batch index, once."""
    if not operand.transposed:
        return NOTHING
    problem, operand = problem.carried(operand)
    sizes = timing.sizes
    rows = prod(problem.m if operand is problem.lhs else problem.n)
    height = min(rows, max(1, schedule.coming(operand).rows), sizes.rows)
    per_bank = max(1, min(sizes.bank_columns // height, problem.products * schedule.coming(operand).beside))
    parts, carrier, extract = 1, problem.transposed_as(operand), NOTHING
    if operand.dtype == TWO:
        left = conversion.pairs_work(timing, per_bank * height)
    else:
        left = leave(per_bank * height, operand.dtype, timing)
    if not problem.fast(carrier):
        part, carrier = HALVES[itemsize(operand.dtype)]
        parts = itemsize(operand.dtype) // itemsize(part)
        tiles, taken = ((Tile(carrier),), (Tile(part, stride=itemsize(operand.dtype)),)), per_bank * problem.partitions
        by_vector = timing.engine("tensor_copy", Stream.VECTOR, taken, *tiles)
        by_scalar = timing.engine("activation", Stream.SCALAR, taken, *tiles, ("copy",))
        # whichever engine is free takes them
        share = min(max((by_vector.bound - left.scalar) / (by_vector.bound + by_scalar.bound), 0.0), 1.0)
        extract = by_scalar.times(share) + by_vector.times(1 - share)
    product = timing.product(problem.partitions, height, carrier).times(per_bank)
    bank = product + left + extract
    return bank.times(parts * -(-rows // height) * problem.products / per_bank)


def products(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """Of one batch index."""
    if problem.out.across:
        moving = prod(problem.m) * problem.side_by_side
        each = timing.product(problem.out.across, moving, problem.dtype, flags=problem.flags)
        return each.times(problem.n_tiled // problem.out.across * problem.products * problem.passes)
    rows, wide = min(max(1, problem.m_tiled), timing.sizes.columns), _columns(problem, timing)
    if schedule.swapped and itemsize(problem.dtype) < 4:
        height = timing.sizes.columns
        each = timing.product(height, rows * problem.side_by_side, problem.dtype, flags=problem.flags)
        squares = prod(problem.n) // problem.n_tiled * -(-problem.n_tiled // height)
        return each.times(squares * problem.products * problem.passes)
    each = timing.product(rows, wide, problem.dtype, flags=problem.flags)
    # blocks of less than a tile of rows fill tiles of their own
    tiles = count_row_tiles(problem, timing.sizes) * max(1, prod(problem.n)) / wide
    tiles *= -(-rows // max(1, min(schedule.lhs.rows, rows)))
    return each.times(tiles * problem.products * problem.passes)


def results(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """Of one batch index: the sums leave PSUM, and are stored where they do not stay on chip."""
    rows, columns = (max(1, prod(each)) for each in (problem.m, problem.n))
    work = one_tile(problem, schedule, timing).times(tile_count(problem, schedule, timing))
    work += combined(problem, schedule, timing) + _sums_turned(problem, schedule, timing)
    if schedule.leaves is Leaves.CHIP:
        return work
    width = itemsize(problem.out.dtype)
    if schedule.leaves is Leaves.ROWS:
        return work + timing.transfer(rows * columns * width, run_of(problem.out.n, width))
    block = min(schedule.rhs.rows, problem.n_tiled, schedule.columns)

    def stored(part: float, count: int) -> Work:
        return timing.transfer(rows * columns * width, _run(problem, schedule, problem.out, count)).times(part)

    return work + _with_rest(problem.n_tiled, block, stored)


def _sums_turned(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """Of one batch index: parts of rows that streamed side by side past columns are added up, and all transposed."""
    if problem.out.across or not schedule.swapped or itemsize(problem.dtype) == 4:
        return splitting.sums_work(problem, problem.width(problem.n_tiled), timing)
    columns, wide = timing.sizes.columns, timing.sizes.bank_columns
    square = timing.engine("transpose", Stream.VECTOR, SQUARE, ins=(F32 if problem.side_by_side > 1 else F32_PSUM,))
    tiles, banks = (prod(problem.n) // problem.n_tiled * -(-problem.n_tiled // each) for each in (columns, wide))
    summed = splitting.sums_work(problem, wide // columns * problem.m_tiled, timing)
    return square.times(tiles * -(-columns // SQUARE)) + summed.times(banks)


def _run(problem: Problem, schedule: Schedule, array: Result, columns: int) -> int:
    """Bytes beside each other of a tile of so many columns, with the rows whose sums leave together: of the result, or
    of an array that its epilogue reads.
    """
    atoms = list[Atom]()
    if problem.n_dim >= 0:
        atoms.append(Atom(columns, array.n[problem.n_dim].stride))
    if schedule.beside > 1:
        dim = problem.m_around if schedule.group > 1 else problem.m_dim
        atoms.append(Atom(schedule.beside, array.m[dim].stride))
    return run_of((atom for atom in atoms if atom.stride), itemsize(array.dtype))


def tile_count(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Of one batch index, as wide as a bank."""
    if problem.out.across:
        return 1.0
    return count_row_tiles(problem, timing.sizes) * max(1, prod(problem.n)) / sums_wide(problem, schedule, timing)


def sums_wide(problem: Problem, schedule: Schedule, timing: Timing) -> int:
    """Sums on a partition that leave together: columns of one row, of neighbouring ones, or of all if columns lie on
    partitions.
    """
    if problem.out.across:
        return problem.width(problem.n_tiled)
    return _columns(problem, timing) * schedule.rows_a_bank(problem, timing.sizes)


def _columns(problem: Problem, timing: Timing) -> int:
    """Of one tile of products."""
    return min(max(1, problem.n_tiled), timing.sizes.bank_columns)


def combined(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """What the epilogue of one batch index reads is loaded."""
    work, rows, (m_blocks, _) = NOTHING, max(1, prod(problem.m)), blocks_of(problem, schedule)
    visits = 1 if schedule.stays == "rhs" and schedule.sums is Sums.PSUM else m_blocks
    times = {Kept.TILE: 1.0, Kept.BLOCK: visits, Kept.WHOLE: 1 / prod(problem.b), Kept.COLUMN: 1 / prod(problem.b)}
    for array, kept in zip(problem.arrays, schedule.rows, strict=True):
        if array.on_chip:
            continue
        if array.repeats:
            tiles = tile_count(problem, schedule, timing) / count_row_tiles(problem, timing.sizes)
            count = tiles if kept is Kept.TILE else 1
            loaded = 1 if array.is_row else rows
            work += timing.transfer(loaded * itemsize(array.dtype), itemsize(array.dtype)).times(count * times[kept])
            continue
        width, loaded = itemsize(array.dtype), rows if kept is Kept.TILE else min(rows, timing.sizes.columns)
        run = _run(problem, schedule, array, min(problem.n_tiled, schedule.columns))
        if array.across:
            run = width * (1 if array.apart else problem.n_tiled // array.across)
            loaded = prod(atom.size for atom in array.m if atom.stride)
        moved = timing.transfer(loaded * prod(problem.n) * width, max(width, run))
        work += moved.times(times[kept])
    return work


def one_tile(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """One tile of sums leaves PSUM."""
    columns = sums_wide(problem, schedule, timing)
    return tile_work(problem.epilogue, columns, problem.out.dtype, timing)
