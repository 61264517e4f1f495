"""Schedules of a contraction that fit the machine: pure functions of problem and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from neuronx_cc.codegen.dots import groups, scaled
from neuronx_cc.codegen.dots.blocks import (
    block,
    box_of,
    bytes_of_row,
    come_beside,
    fits,
    halves,
    room_for,
    whole_rows,
)
from neuronx_cc.codegen.dots.finishing import ahead, finished, used_buffers, with_more_buffers
from neuronx_cc.codegen.dots.problem import Home, Operand, Problem, Result
from neuronx_cc.codegen.dots.schedule import (
    EPILOGUE_BUFFERS,
    RESULT_BUFFERS,
    RESULT_TILES,
    ROW_BUFFERS,
    UNROLLED_BLOCKS,
    UNROLLED_TILES,
    Coming,
    Kept,
    Leaves,
    Schedule,
    Sums,
    Way,
    footprint,
    row_run,
)
from neuronx_cc.codegen.emission.tiles import room_of
from neuronx_cc.codegen.movement.transpose_kernel import SQUARE
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32_PSUM, Timing
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

COLLECTED = 11
"""A row of the result that is collected on chip takes at most one part in so many of SBUF."""
ROW_TILE_SHARE = 20
"""A tile of rows that are to be transposed takes at most one part in so many of the room."""
ROW_SHARE = 16
"""A row of which all is kept on every partition takes at most one part in so many of the room."""
STREAMED = 4
"""Chunks of k from which on a block of them is worth its transfer."""
SEVERAL = 2
"""Sums of a tile of rows that are open at a time, at least: runs of the columns of one are short."""
MOST_STREAMED = 8
"""Blocks of k that are no loop, beside the rest of k: those of a loop wait for each other."""
UNROLLED_CONVERTED, MOST_PRODUCTS = 16, 8192
"""Blocks of codes that are no loop, in which they would be converted, or scaled, when those before are multiplied; and
tiles of the products of these.
"""
UNROLLED_BATCHES = 16
"""Products of a batch that are unrolled, of all its dims together."""
UNROLLED_TRANSPOSES = 8
"""Banks of transposes of one tile that are unrolled."""


def candidates(problem: Problem, timing: Timing) -> Iterator[Schedule]:
    """Schedules that fit; none where not even the smallest tiles do.

    First k whole, as many rows of each operand as fit; then rhs in blocks of k past one tile of rows; then, unless
    blocks of all of k are large, k of both in blocks.
    """
    sizes = timing.sizes
    frame = _frame(problem, timing)
    if problem.out.across:
        yield from dict.fromkeys(_across(problem, frame, sizes))
        return
    streams = _may_stream_rows(problem, frame, sizes)
    if problem.side_by_side == 1 and problem.rhs.transposed and problem.rhs.widened:
        streams = streams and _waits_for_columns(problem, timing)
        turned = streams
    else:
        turned = problem.side_by_side > 1
    if not turned:
        yield from _in_rows(problem, frame, timing)
    if streams:
        yield from _turned(problem, replace(frame, swapped=SQUARE), timing)


def _in_rows(problem: Problem, frame: Schedule, timing: Timing) -> Iterator[Schedule]:
    """Where columns stream past rows."""
    sizes = timing.sizes
    whole = _fitting(problem, frame, sizes)
    yield from dict.fromkeys(finished(problem, each, timing) for each in whole)
    if problem.comes_in_pairs:
        return
    most = max(map(prod, problem.all_chunks))
    yield from dict.fromkeys(_streamed(problem, frame, most, sizes))
    if not whole:
        yield from dict.fromkeys(_cut(problem, frame, most, sizes))
    elif most > 1 and all(_is_small(problem, each, sizes) for each in whole):
        yield from dict.fromkeys(_cut(problem, frame, -(-most // 2), sizes))


def _turned(problem: Problem, frame: Schedule, timing: Timing) -> Iterator[Schedule]:
    """Where few rows stream past columns."""
    sizes = timing.sizes
    whole = _fitting(problem, frame, sizes)
    yield from dict.fromkeys(finished(problem, each, timing) for each in whole)
    if not problem.comes_in_pairs:
        yield from dict.fromkeys(_streamed(problem, frame, max(map(prod, problem.all_chunks)), sizes))


def _fitting(problem: Problem, frame: Schedule, sizes: Sizes) -> list[Schedule]:
    """Those with k whole that fit, with no more buffers than blocks: many are the same then."""
    whole = (each for each in dict.fromkeys(_whole(problem, frame, sizes)) if fits(problem, each, sizes))
    return list(dict.fromkeys(used_buffers(problem, each) for each in whole))


def _frame(problem: Problem, timing: Timing) -> Schedule:
    """What all schedules of a problem have in common, with blocks of nothing."""
    room, sizes = room_for(problem), timing.sizes
    width = itemsize(problem.dtype)
    kept = tuple(_kept(problem, each, sizes) for each in problem.arrays)
    loaded = sum(not each.on_chip and how is Kept.TILE for each, how in zip(problem.arrays, kept, strict=True))
    stored = loaded + (not problem.out.on_chip)
    columns = RESULT_TILES * sizes.bank_columns
    leaves = Leaves.CHIP if problem.out.on_chip else Leaves.TILES
    if _collects_rows(problem, sizes):
        leaves = Leaves.ROWS
    lhs, rhs = (
        Coming(
            0,
            1,
            tuple(way_of(operand, chunks) for chunks in problem.all_chunks),
            beside=rows_beside(problem, operand, timing),
        )
        for operand in (problem.lhs, problem.rhs)
    )
    schedule = Schedule(
        stays="lhs",
        lhs=lhs,
        rhs=rhs,
        group=1,
        boxes=problem.all_chunks,
        sums=Sums.PSUM,
        leaves=leaves,
        columns=columns
        if 2 * stored * min(RESULT_BUFFERS) * min(columns, problem.n_tiled) * 4 <= room
        else sizes.bank_columns,
        row_bytes=max(width * sizes.rows, min(2 * sizes.bank_bytes, room // ROW_TILE_SHARE)),
        row_buffers=ROW_BUFFERS,
        result_buffers=min(RESULT_BUFFERS),
        swapped=SQUARE if _streams_short_rows(problem, timing) else 0,
        bias_whole=4 * prod(problem.n) <= room // 4,
        rows=kept,
        batches=_unrolled_batches(problem, sizes),
        blocks=_unrolled_blocks(problem, sizes),
        body=1,
        row_body=1,
        transposes=UNROLLED_TRANSPOSES,
    )
    return _with_long_rows(problem, schedule, timing)


def _with_long_rows(problem: Problem, schedule: Schedule, timing: Timing) -> Schedule:
    """With whole rows loaded to be transposed where parts of them are shorter runs: terms lie in another order than
    chunks, of which a part has some.
    """
    for operand in (problem.lhs, problem.rhs):
        if not operand.transposed or operand.on_chip:
            continue
        whole = replace(schedule, row_bytes=prod(problem.k) * itemsize(problem.dtype))
        run, longest = (row_run(problem, each, operand) for each in (schedule, whole))
        if run < min(longest, timing.long_run) and ROW_TILE_SHARE * whole.row_bytes <= 2 * room_for(problem):
            schedule = max(schedule, whole, key=lambda each: each.row_bytes)
    return schedule


def way_of(operand: Operand, chunks: Sequence[int]) -> Way:
    """How blocks of ``chunks`` of an operand come."""
    if operand.home is Home.STAGED:
        return Way.STAGED
    if operand.home is Home.CONSTANT:
        return Way.LAID_OUT
    if operand.transposed:
        return Way.TRANSPOSED
    one_dim = sum(size > 1 for size in chunks) <= 1
    return Way.IN_PLACE if operand.on_chip and operand.stored == operand.dtype and one_dim else Way.LOADED


def _kept(problem: Problem, array: Result, sizes: Sizes) -> Kept:
    """How long what is loaded of an array for the epilogue stays."""
    if array.on_chip or not array.is_row or array.repeats or array.across:
        return Kept.TILE
    count = sum(each.is_row for each in problem.arrays)
    little = ROW_SHARE * count * itemsize(array.dtype) * prod(problem.n) <= problem.room
    return Kept.WHOLE if little else Kept.BLOCK


def _collects_rows(problem: Problem, sizes: Sizes) -> bool:
    """Whether the columns that are computed together are no neighbours in HBM: then whole rows are stored.

    Only where one tile of rows is all there is, and the columns of a row fill its memory.
    """
    out, rows = problem.out, prod(problem.m)
    if out.on_chip or rows != problem.m_tiled or rows > sizes.columns or len(problem.n) < 2:
        return False
    width = itemsize(out.dtype)
    if prod(problem.n) * width > min(sizes.sbuf_bytes // COLLECTED, problem.room // 8):
        return False
    strides = sorted((atom.stride, atom.size) for atom in out.n)
    filled = all(stride == width * prod(size for _, size in strides[:at]) for at, (stride, _) in enumerate(strides))
    return filled and out.n[problem.n_dim].stride > width


def _streams_short_rows(problem: Problem, timing: Timing) -> bool:
    """Whether few rows should stream past the columns, and Vector transpose the sums: in FP32, which TensorE then
    multiplies in half the time. Where the columns are not on chip already, they take longer to arrive.
    """
    alike = problem.dtype == problem.out.dtype == "f32" and not problem.flags
    if not alike or problem.bias or problem.rhs.home is not Home.STAGED:
        return False
    columns, height = timing.sizes.bank_columns, timing.sizes.columns
    straight = timing.product(SQUARE, columns, "f32").tensor * problem.products
    swapped = timing.product(height, SQUARE, "f32").tensor * problem.products * (columns // height)
    square = timing.engine("transpose", Stream.VECTOR, SQUARE, ins=(F32_PSUM,)).vector
    return swapped + square * (columns // SQUARE) < straight


def _may_stream_rows(problem: Problem, frame: Schedule, sizes: Sizes) -> bool:
    """Whether few rows may stream past columns that come in 8 bits, and Vector transpose the sums: TensorE takes half
    the time for these, and parts of the rows stream side by side.
    """
    rows, weights = prod(problem.m), problem.rhs
    if weights.home is not Home.HBM or itemsize(weights.stored) > 1 or itemsize(problem.dtype) > 2:
        return False
    if rows != problem.m_tiled or rows > SQUARE or problem.bias or frame.swapped or frame.leaves is Leaves.ROWS:
        return False
    tiles = -(-problem.n_tiled // (sizes.columns * problem.columns_a_bank(sizes)))
    if not weights.transposed and (weights.decoded or problem.compared) and tiles <= sizes.banks // 2:
        return False  # Vector, which decodes, is what sums wait for; columns on partitions take less of it
    return rows * problem.side_by_side * -(-sizes.bank_columns // sizes.columns) <= sizes.bank_columns


def _waits_for_columns(problem: Problem, timing: Timing) -> bool:
    """Whether TensorE, which transposes what other engines convert, takes as long as these where columns stream past
    rows, by more than Vector takes to transpose the sums of rows.
    """
    columns, height, rows = timing.sizes.bank_columns, timing.sizes.columns, problem.m_tiled
    straight = timing.product(rows, columns, problem.dtype).tensor * height / columns
    turned = timing.product(height, rows, problem.dtype).tensor
    square = timing.engine("transpose", Stream.VECTOR, SQUARE, ins=(F32_PSUM,)).vector
    return square * (height // SQUARE) < (straight - turned) * problem.products


def _unrolled_batches(problem: Problem, sizes: Sizes) -> int:
    """Products of a batch that are no loop: all of a small one, else so many that they are worth an iteration."""
    if prod(problem.b) <= UNROLLED_BATCHES:
        return UNROLLED_BATCHES
    chunks, rows, columns = (-(-prod(each) // sizes.rows) for each in (problem.k, problem.m, problem.n))
    products = rows * -(-columns * sizes.rows // sizes.bank_columns)
    transposed = rows * problem.lhs.transposed + columns * problem.rhs.transposed
    return max(1, min(UNROLLED_BATCHES, UNROLLED_TILES // max(1, chunks * (products + transposed))))


def _unrolled_blocks(problem: Problem, sizes: Sizes) -> int:
    """Blocks along one dim that are no loop: more where each has few products."""
    tiles = sum(map(prod, problem.all_chunks)) * -(-prod(problem.m) // sizes.rows)
    found = max(UNROLLED_BLOCKS, UNROLLED_TILES // tiles)
    if problem.rhs.converted and not problem.rhs.transposed:
        found = max(found, min(UNROLLED_CONVERTED, MOST_PRODUCTS // tiles))
    return found


def _with(frame: Schedule, stays: str, m: int, n: int, buffers: tuple[int, int], sizes: Sizes) -> Schedule:
    """``frame`` with blocks of these rows, in so many buffers."""
    lhs, rhs = (
        replace(each, rows=rows, buffers=count, beside=max(1, min(each.beside, rows // sizes.rows)))
        for each, rows, count in zip((frame.lhs, frame.rhs), (m, n), buffers, strict=True)
    )
    return replace(frame, stays=stays, lhs=lhs, rhs=rhs)


def rows_beside(problem: Problem, operand: Operand, timing: Timing) -> int:
    """How many rows of an operand make a long run, where they are neighbours in memory and come to be transposed."""
    row = prod(problem.k) * itemsize(operand.stored)
    return -(-timing.long_run // row) if come_beside(*problem.carried(operand)) else 1


def _is_small(problem: Problem, schedule: Schedule, sizes: Sizes) -> bool:
    """Whether blocks of all of k are so small that shorter ones may move less."""
    enough = sizes.bank_columns
    cut = schedule.lhs.rows < min(problem.m_tiled, enough) or schedule.rhs.rows < min(problem.n_tiled, enough)
    return cut and Home.STAGED not in (problem.lhs.home, problem.rhs.home)


# ---- k whole --------------------------------------------------------------------------------------------------


def _whole(problem: Problem, frame: Schedule, sizes: Sizes) -> Iterator[Schedule]:
    """Blocks of one operand stay while those of the other stream by, through two or three buffers."""
    row, column = (bytes_of_row(problem, each) for each in (problem.lhs, problem.rhs))
    room = room_for(problem) - room_of(footprint(problem, frame, sizes)) - 32 * sizes.alignment
    if room <= 0:
        return
    beside = sum(
        EPILOGUE_BUFFERS * itemsize(array.loaded)
        for array, kept in zip(problem.arrays, frame.rows, strict=True)
        if kept is Kept.BLOCK and not array.on_chip
    )
    """Bytes a partition of what the epilogue reads with one column of a block."""

    def rows(count: int) -> int:
        return problem.m_tiled if whole_rows(problem, frame) else block(problem.m_tiled, count, sizes.columns)

    def columns(count: int) -> int:
        return problem.n_tiled if problem.n_whole else block(problem.n_tiled, count, sizes.bank_columns)

    turned = frame.swapped > 0 and problem.rhs.widened and prod(problem.m) == problem.m_tiled <= frame.swapped
    """Few rows, which would come again for each block of columns."""
    if problem.lhs.home is Home.STAGED:
        for buffers in (2, 1):
            n = columns(room // (buffers * column + beside))
            yield _with(frame, "rhs", problem.m_tiled, n, (1, buffers), sizes)
        return
    if problem.rhs.home is Home.STAGED:
        for buffers in (2, 1):
            yield _with(frame, "lhs", rows(room // (buffers * row)), problem.n_tiled, (buffers, 1), sizes)
        return
    for tiles in groups.counts(problem, frame, sizes):
        m, whole = tiles * problem.m_tiled, tiles * problem.m_tiled == prod(problem.m)
        for streaming, staying in product((3, 2), (1,) if whole else (2, 1)):
            n = columns((room - staying * m * row) // (streaming * column + beside))
            if n >= min(problem.n_tiled, sizes.columns):
                grouped = _with(frame, "lhs", problem.m_tiled, n, (staying, streaming), sizes)
                yield replace(grouped, group=tiles)
    wide = max((room - rows(sizes.columns) * row) // 3, column)
    n = columns(min(wide, max(room // 5, sizes.bank_columns * column)) // (column + beside))
    for buffers in (2, 1):
        m = rows((room - n * (3 * column + beside)) // (buffers * row))
        yield _with(frame, "lhs", m, n, (buffers, 3), sizes)
    for n in (sizes.columns, 2 * sizes.columns) if turned else ():
        for buffers in (3, 2):
            yield _with(frame, "lhs", problem.m_tiled, columns(n), (1, buffers), sizes)
    some = full = False
    for m in () if turned else dict.fromkeys(rows(sizes.columns * tiles) for tiles in (4, 2, 1)):
        if (some and m == rows(2 * sizes.columns) > rows(sizes.columns)) or (full and problem.lhs.transposed):
            continue  # as many tiles as there are buffers of results are better than fewer
        for streaming, staying in product((3, 2), (2, 1)):
            n = columns((room - streaming * m * row) // (staying * column + beside))
            if n >= min(problem.n_tiled, sizes.columns):
                some, full = True, full or n == problem.n_tiled
                yield _with(frame, "rhs", m, n, (streaming, staying), sizes)
    smallest = sizes.bank_columns >> (1 if frame.swapped else 0)
    for n in sorted({columns(size) for size in (smallest, sizes.bank_columns, 2 * sizes.bank_columns)}):
        for streaming, staying in product((3, 2), (2, 1)):
            m = rows((room - n * (streaming * column + beside)) // (staying * row))
            if m >= min(problem.m_tiled, sizes.columns):
                yield _with(frame, "lhs", m, n, (staying, streaming), sizes)


# ---- k in blocks ----------------------------------------------------------------------------------------------


def _cut(problem: Problem, frame: Schedule, most: int, sizes: Sizes) -> Iterator[Schedule]:
    """Blocks of rows and columns whose products over blocks of k add up in SBUF, each with as much of k as fits.

    ``most``: chunks of a block.
    """
    leaves = Leaves.CHIP if problem.out.on_chip else Leaves.TILES
    frame = replace(frame, leaves=leaves, sums=Sums.SBUF, blocks=1, transposes=8, swapped=0)
    some, counts = False, groups.counts(problem, frame, sizes)
    for rows, columns in _shapes(sizes):
        if some and rows < sizes.columns:
            return  # smaller blocks are for where nothing else fits
        m = problem.m_tiled if problem.m_whole else min(problem.m_tiled, rows)
        n = problem.n_tiled if problem.n_whole else min(problem.n_tiled, columns)
        most_tiles = next((count for count in counts if count * problem.m_tiled <= rows), 1)
        for buffers, group in product((2, 1), dict.fromkeys([most_tiles, 1])):
            blocks = replace(_with(frame, "", m, n, (buffers, buffers), sizes), group=group)
            cut = next(_boxed(problem, blocks, most, sizes), None)
            some = some or cut is not None
            if cut is not None:
                yield with_more_buffers(problem, cut, sizes)


def _streamed(problem: Problem, frame: Schedule, most: int, sizes: Sizes) -> Iterator[Schedule]:
    """Few tiles of rows stay with all of k, while rhs streams past in blocks of long runs, soon there and soon
    multiplied: products of few rows are bound by how rhs arrives.

    ``most``: chunks of a block.
    """
    rows = problem.m_tiled
    group = prod(problem.m) // max(1, rows)  # all tiles are staged together
    tiles = max(1, group * -(-rows // sizes.columns))
    if (group > 1 and group not in groups.counts(problem, frame, sizes)) or problem.lhs.home is Home.STAGED:
        return
    if frame.leaves is Leaves.ROWS or problem.rhs.home is Home.STAGED or most < STREAMED:
        return
    if problem.rhs.transposed:
        return  # blocks of k are short runs of its rows
    few: list[Schedule] = []
    many: list[Schedule] = []
    for banks in (sizes.banks // 2 // tiles, sizes.banks // 4 // tiles):
        columns = banks * sizes.bank_columns
        if banks < SEVERAL:
            break
        n = problem.n_tiled if problem.n_whole else block(problem.n_tiled, columns, sizes.bank_columns)
        if n > columns:
            continue
        whole = _with(frame, "lhs", rows, n, (1, 2), sizes)
        whole = replace(whole, sums=Sums.BANKS, columns=n, group=max(1, group))
        counts = [count for count in halves(most) if count < most]
        boxed = (replace(whole, boxes=_boxes(problem, count)) for count in counts)
        fitting = [with_more_buffers(problem, each, sizes) for each in boxed if fits(problem, each, sizes)]
        few += _straight(problem, fitting)
        many += fitting[:1]
    yield from (ahead(problem, each, sizes) for each in few or many)


def _boxes(problem: Problem, count: int) -> tuple[tuple[int, ...], ...]:
    """About so many chunks of each segment; of codes that are scaled all that share a partition's scales."""
    return tuple(box_of(each, max(count, scaled.near(problem))) for each in problem.all_chunks)


def _across(problem: Problem, frame: Schedule, sizes: Sizes) -> Iterator[Schedule]:
    """Few rows stay with all of k, while whole rows of rhs stream past in blocks of k; the sums of all columns lie in a
    bank.
    """
    rows = prod(problem.m)
    if rows != problem.m_tiled or problem.width(problem.n_tiled) > sizes.bank_columns:
        return
    beside = problem.columns_a_bank(sizes)
    if not beside or -(-problem.n_tiled // (problem.out.across * beside)) > sizes.banks // 2:
        return
    if Home.STAGED in (problem.lhs.home, problem.rhs.home):
        return
    whole = _with(frame, "lhs", rows, problem.n_tiled, (1, 2), sizes)
    whole = replace(whole, sums=Sums.BANKS, columns=problem.n_tiled)
    most = max(map(prod, problem.all_chunks))
    boxed = (replace(whole, boxes=_boxes(problem, count)) for count in halves(most))
    fitting = [each for each in boxed if fits(problem, each, sizes)]
    yield from (ahead(problem, each, sizes) for each in _straight(problem, fitting) or fitting[:1])


def _straight(problem: Problem, schedules: Sequence[Schedule]) -> list[Schedule]:
    """Those with few blocks of k, which are no loop then."""
    few = (each for each in schedules if each.k_blocks(problem) < MOST_STREAMED + len(problem.segments))
    return [replace(each, straight=True) for each in few]


def _boxed(problem: Problem, frame: Schedule, most: int, sizes: Sizes) -> Iterator[Schedule]:
    """With blocks of k that fit, the largest first."""
    for count in halves(most):
        boxes = _boxes(problem, count)
        lhs, rhs = (
            replace(frame.coming(operand), ways=tuple(way_of(operand, box) for box in boxes))
            for operand in (problem.lhs, problem.rhs)
        )
        cut = replace(frame, boxes=boxes, lhs=lhs, rhs=rhs)
        if fits(problem, cut, sizes):
            yield cut


def _shapes(sizes: Sizes) -> Iterator[tuple[int, int]]:
    """Rows and columns of blocks: from eight tiles by two banks down to a single element."""
    rows, columns = sizes.columns, sizes.bank_columns
    yield from product((8 * rows, 4 * rows), (2 * columns, columns))
    yield from ((2 * rows, columns), (rows, columns), (rows, columns // 2))
    yield from ((side, side) for side in halves(min(rows, columns)))
