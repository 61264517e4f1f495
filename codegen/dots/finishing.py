"""What follows from the blocks of a schedule: groups of tiles, rows side by side, and as many buffers as fit."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from math import prod

from neuronx_cc.codegen.dots import groups
from neuronx_cc.codegen.dots.blocks import blocks_of, bytes_of_row, come_beside, fits, has_few_rows
from neuronx_cc.codegen.dots.problem import Home, Operand, Problem, run_of
from neuronx_cc.codegen.dots.schedule import (
    RESULT_BUFFERS,
    RESULT_TILES,
    ROW_BUFFERS,
    UNROLLED_TILES,
    Kept,
    Leaves,
    Schedule,
    count_row_tiles,
    together,
)
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

MOST_BUFFERS = 8
"""Of rows that are loaded to be transposed, and of small blocks."""
SMALL_LOOPS = 8
"""Blocks are small until an iteration has one part in so many of ``UNROLLED_TILES``."""
FEW_BODY = 4
"""Blocks of an iteration, at least, where few rows are multiplied with what is transposed: engines stage the next one
while TensorE makes the sums of one.
"""
MOST_VALUES = 64
"""Values of an array with one of each row that each partition keeps, each of which is loaded by itself."""
SEVERAL_BUFFERS = 2
"""Blocks of fewer buffers do not come while others are multiplied."""


def used_buffers(problem: Problem, schedule: Schedule) -> Schedule:
    """With no more buffers than blocks."""
    lhs_blocks, rhs_blocks = _blocks_loaded(problem, schedule)
    return replace(
        schedule,
        lhs=replace(schedule.lhs, buffers=min(schedule.lhs.buffers, lhs_blocks)),
        rhs=replace(schedule.rhs, buffers=min(schedule.rhs.buffers, rhs_blocks)),
    )


def _blocks_loaded(problem: Problem, schedule: Schedule) -> tuple[int, int]:
    """How many blocks of each operand come, those that come again counted again."""
    m_blocks, n_blocks = (prod(problem.b) * count for count in blocks_of(problem, schedule))
    lhs_blocks = m_blocks * (n_blocks if schedule.stays == "rhs" else 1)
    return lhs_blocks, n_blocks * (m_blocks if schedule.stays == "lhs" else 1)


def finished(problem: Problem, schedule: Schedule, timing: Timing) -> Schedule:
    """With what follows from the blocks, of which there are as many as buffers or more."""
    sizes, blocks = timing.sizes, _blocks_loaded(problem, schedule)
    if Home.STAGED not in (problem.lhs.home, problem.rhs.home):
        streams = problem.lhs if schedule.stays == "rhs" else problem.rhs
        kept = replace(schedule.coming(streams), kept=_keeps_blocks(problem, schedule, streams))
        schedule = schedule.with_coming(streams, kept)
    schedule = replace(schedule, group=_group(problem, schedule, sizes))
    schedule = _side_by_side(problem, schedule, timing)
    schedule = _with_columns(problem, schedule, sizes)
    schedule = replace(schedule, body=_body(problem, schedule, sizes), row_body=_row_body(problem, schedule, sizes))
    schedule = with_more_buffers(problem, schedule, sizes)
    schedule = _more_in_flight(problem, schedule, blocks, sizes)
    schedule = _more_of_arrays(problem, schedule, sizes)
    few = schedule.stays == "lhs" and prod(problem.m) <= sizes.columns and problem.rhs.home is not Home.STAGED
    return ahead(problem, schedule, sizes) if few and not problem.rhs.transposed else schedule


def _body(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Blocks of an iteration of a loop: engines wait for each other between iterations, longest for small blocks."""
    rows, columns = -(-schedule.together // sizes.columns), -(-schedule.rhs.rows // sizes.bank_columns)
    tiles = problem.products * rows * columns
    few = problem.rhs.transposed and has_few_rows(problem, sizes)
    least = FEW_BODY if few or (problem.rhs.converted and not problem.rhs.transposed) else 1
    return max(least, min(MOST_BUFFERS, UNROLLED_TILES // SMALL_LOOPS // max(1, tiles)))


def _row_body(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """The same of the tiles of rows of a block."""
    tiles = problem.products * schedule.beside * -(-schedule.rhs.rows // sizes.bank_columns)
    return max(1, min(MOST_BUFFERS, UNROLLED_TILES // SMALL_LOOPS // max(1, tiles)))


def _side_by_side(problem: Problem, schedule: Schedule, timing: Timing) -> Schedule:
    """With rows of lhs that come side by side, and whose sums leave so: a bank holds those of several, and runs in HBM
    are longer.
    """
    out, lhs, sizes, columns = problem.out, schedule.lhs, timing.sizes, problem.n_tiled
    whole = columns <= min(schedule.rhs.rows, schedule.columns, sizes.bank_columns)
    if problem.bias or schedule.swapped or schedule.leaves is Leaves.ROWS or not whole:
        return schedule
    if any(array.across for array in problem.arrays):
        return schedule
    if schedule.group > 1:
        more = _tiles_side_by_side(problem, schedule, sizes)
    else:
        if not come_beside(problem, problem.lhs) or out.on_chip or any(array.on_chip for array in problem.arrays):
            return schedule
        width, tiles = itemsize(out.dtype), lhs.rows // sizes.rows
        if not run_of(out.n, width) == prod(problem.n) * width == columns * width == out.m[problem.m_dim].stride:
            return schedule
        counts = max(lhs.beside, min(tiles, -(-timing.long_run // (columns * width)))), lhs.beside
        more = [(each, each) for each in counts]
    several = (replace(schedule, lhs=replace(lhs, beside=come), beside=leave) for come, leave in more if leave > 1)
    return _first_fitting(problem, several, schedule, sizes)


def _with_columns(problem: Problem, schedule: Schedule, sizes: Sizes) -> Schedule:
    """With one value of each row, where an array has no more, kept for all blocks of columns."""
    whole = schedule.lhs.rows % sizes.columns == 0 or schedule.lhs.rows >= problem.m_tiled
    if problem.m_dim < 0 or schedule.beside > 1 or schedule.swapped or not whole:
        return schedule
    once = prod(problem.n) <= min(schedule.columns, max(1, schedule.rhs.rows))  # a tile has all columns of a row
    if once or count_row_tiles(problem, sizes) > MOST_VALUES:
        return schedule
    kept = tuple(
        Kept.COLUMN if each.repeats and not each.on_chip and not any(atom.stride for atom in each.batch) else how
        for each, how in zip(problem.arrays, schedule.rows, strict=True)
    )
    return _first_fitting(problem, [replace(schedule, rows=kept)], schedule, sizes)


def _tiles_side_by_side(problem: Problem, schedule: Schedule, sizes: Sizes) -> list[tuple[int, int]]:
    """Of tiles that are staged together, those that are transposed in one bank, and those whose sums leave together:
    all where columns then follow each other in memory, else as many as are stored together.
    """
    most = min(schedule.group, max(1, RESULT_TILES * sizes.bank_columns // max(1, problem.n_tiled)))
    counts = [-(-schedule.group // -(-schedule.group // most))]
    if problem.out.n[problem.n_dim : problem.n_dim + 1] and not problem.out.on_chip:
        around, width = problem.out.m[problem.m_around], itemsize(problem.out.dtype)
        if around.stride == width and problem.out.n[problem.n_dim].stride == schedule.group * width:
            counts.insert(0, schedule.group)
    come, row = 1, schedule.rows_of(problem, problem.lhs)[0]
    if problem.lhs.transposed and tuple(together(problem, row, schedule.row_bytes)) == row:
        come = min(schedule.group, max(1, sizes.bank_columns // (problem.m_tiled * problem.products)))
    return [pair for leave in dict.fromkeys(counts) for pair in ((come, leave), (1, leave))]


def with_more_buffers(problem: Problem, schedule: Schedule, sizes: Sizes) -> Schedule:
    """With as many buffers as fit and are used: of results, and of rows to be transposed by TensorE, which is busy
    with products for long times.
    """
    loads = [_row_tiles(problem, schedule, each, sizes) for each in (problem.lhs, problem.rhs)]
    columns = max(1, min(schedule.columns, schedule.rhs.rows))
    stores = prod(problem.b) * -(-prod(problem.m) // sizes.columns) * -(-prod(problem.n) // columns)
    width = problem.width(min(columns, problem.n_tiled)) * schedule.beside * itemsize(problem.out.dtype)
    many = (MOST_BUFFERS,) if width <= sizes.bank_bytes else ()  # a store takes long to end, however small it is
    results = dict.fromkeys(min(count, stores) for count in (*many, *RESULT_BUFFERS))
    most = min(MOST_BUFFERS, max(loads))
    counts = list(product(results, range(most, min(most, ROW_BUFFERS) - 1, -1)))
    if problem.rhs.converted and problem.rhs.transposed and has_few_rows(problem, sizes):
        counts.sort(key=lambda pair: -pair[1])  # transfers of rows that are cast keep all that follow
    more = (replace(schedule, result_buffers=result, row_buffers=max(1, rows)) for result, rows in counts)
    return _first_fitting(problem, more, schedule, sizes)


def _first_fitting(problem: Problem, found: Iterable[Schedule], other: Schedule, sizes: Sizes) -> Schedule:
    """The first of those ``found`` that fits, or the other one."""
    return next((each for each in found if fits(problem, each, sizes)), other)


def _more_in_flight(problem: Problem, schedule: Schedule, blocks: tuple[int, int], sizes: Sizes) -> Schedule:
    """With more buffers for small blocks that are loaded, of which there are so many: transfers take long to arrive."""
    for operand, count in zip((problem.lhs, problem.rhs), blocks, strict=True):
        coming = schedule.coming(operand)
        rows = schedule.together if operand is problem.lhs else coming.rows
        small = rows * bytes_of_row(problem, operand) <= sizes.bank_bytes
        if coming.buffers < SEVERAL_BUFFERS or operand.on_chip or operand.transposed or not small:
            continue
        counts = range(min(count, MOST_BUFFERS), coming.buffers, -1)
        several = (schedule.with_coming(operand, replace(coming, buffers=each)) for each in counts)
        schedule = _first_fitting(problem, several, schedule, sizes)
    return schedule


def _more_of_arrays(problem: Problem, schedule: Schedule, sizes: Sizes) -> Schedule:
    """With more buffers for small tiles of what the epilogue reads, as far as there are tiles."""
    loaded = [each.loaded for each in problem.arrays if not each.on_chip]
    columns = min(problem.n_tiled, schedule.columns)
    width = problem.width(columns) * schedule.beside * max(map(itemsize, loaded), default=0)
    if not 0 < width <= sizes.bank_bytes:
        return schedule
    tiles = prod(problem.b) * -(-prod(problem.m) // sizes.columns) * -(-prod(problem.n) // max(1, columns))
    counts = range(min(MOST_BUFFERS, tiles), schedule.array_tiles, -1)
    more = (replace(schedule, array_tiles=count) for count in counts)
    return _first_fitting(problem, more, schedule, sizes)


def _row_tiles(problem: Problem, schedule: Schedule, operand: Operand, sizes: Sizes) -> int:
    """How many tiles of rows of an operand are loaded to be transposed."""
    if not operand.transposed or operand.on_chip:
        return 0
    problem, operand = problem.carried(operand)
    rows = prod(problem.m if operand is problem.lhs else problem.n)
    pieces = sum(
        prod(-(-size // count) for size, count in zip(box, together(problem, box, schedule.row_bytes), strict=True))
        for box in schedule.rows_of(problem, operand)
    )
    return prod(problem.b) * pieces * -(-rows // (sizes.rows * schedule.coming(operand).beside))


def _keeps_blocks(problem: Problem, schedule: Schedule, streams: Operand) -> bool:
    """Whether blocks that are transposed are wanted once more, and no other dims are between them."""
    if not streams.transposed or streams.on_chip:
        return False
    stays = problem.other(streams)
    size = problem.m_tiled if stays is problem.lhs else problem.n_tiled
    return prod(problem.m if stays is problem.lhs else problem.n) == size > schedule.coming(stays).rows


def _group(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Tiles of m that are staged together, the most that fit."""
    if schedule.group > 1:
        return schedule.group
    counts = groups.runs(problem, schedule.lhs.rows, sizes)
    return next((count for count in counts if fits(problem, replace(schedule, group=count), sizes)), 1)


def ahead(problem: Problem, schedule: Schedule, sizes: Sizes) -> Schedule:
    """With as many buffers for blocks of rhs as find room: they arrive while lhs is still being computed."""
    _, n_blocks = blocks_of(problem, schedule)
    blocks = schedule.k_blocks(problem) * (n_blocks if n_blocks <= schedule.blocks else 1)
    counts = range(blocks, schedule.rhs.buffers, -1)
    more = (replace(schedule, rhs=replace(schedule.rhs, buffers=count)) for count in counts)
    return _first_fitting(problem, more, schedule, sizes)
