"""Problems, schedules and their times: the scores of a block of rows and a section of columns are in SBUF.

The scores of a block, [rows, columns], leave PSUM a bank at a time; Vector finds the greatest of each row, Scalar makes
exponentials and their sums of them, TensorE transposes these and multiplies them with the values. Where one section has
all columns, keys and values stay in SBUF for all blocks of rows that share them. Else a bunch of blocks goes over one
section after the other, and what it has of earlier ones is scaled whenever the greatest score of a row grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod

from neuronx_cc.codegen.dots.problem import divisor
from neuronx_cc.codegen.dots.schedule import FEW
from neuronx_cc.codegen.dots.schedule import ROW_BUFFERS as BITS_BUFFERS
from neuronx_cc.codegen.movement.halves import transposing
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, F32_PSUM, Tile, Timing, Work, total
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

PIECES = 4
"""Times as many rows as there are partitions that are loaded at once to be transposed."""
ROW_BUFFERS = (4, 2)
"""Of rows that are loaded to be transposed: the more, the less DMA waits for TensorE."""
PRODUCT_BUFFERS = 3
"""Of products of keys and queries that Vector makes."""
QUERY_BUFFERS = 2
"""Of queries that are loaded to be transposed."""
UNDER_WAY = 4
"""Steps from the scores of a block to what is made of them."""
STAGED = UNDER_WAY
"""Heads, or sections, whose keys and values are there, where blocks of several are under way at once."""
BUNCH = 4
"""Blocks of rows that an iteration takes, where one section has all columns."""
BUNCHES = (4, 8, 16)
"""Blocks of rows that go over a section while its keys and values are there."""
SECTIONS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Into how many the columns are cut."""
MOST_CHUNKS = 16384
"""Chunks of columns of all blocks of rows that are written out one by one, each with products of its own."""
SMALL_TILES = 64
"""Tiles of a few numbers, at most."""
OVERLAP = 1.5
"""How much longer a block takes than its busiest engine, which others keep waiting now and then."""
UNHIDDEN = 0.6
"""Part of the engines' work in kernels of their own that takes time beside the transfers of scores."""
HANDOVERS = 3
"""Times that engines wait for each other in a block, whatever its size."""
MULTIPLIED = 2048
"""Products of keys and queries on a partition that an instruction makes, if that many: enough that its start does not
count, few enough that other work comes between.
"""
TAKEN_AT_ONCE = 4
"""Banks of scores that Vector and Scalar go over at once."""
HEADS_UNDER_WAY = 4
"""Whose scores are on their way to the partitions of a block of several heads."""
FEW_HANDOVERS, ROW_HANDOVERS = 1.1, 0.1
"""Times that engines wait for each other there in a chunk of columns, and more of them for each row."""
FEW_PASSES = 2
"""Over the scores, rows on the partitions, for each step between the products."""
UPRIGHT_PASSES = 4
"""Passes of Vector over the scores of such a block, whatever is made of them before the softmax."""
UPRIGHT_HANDOVERS = 13
"""Times that engines wait for each other in one."""
UPRIGHT_OVERLAP = 1.15
"""How much longer its busiest engine takes than it works."""
NEAR = 1.02
"""Times as long as the quickest that a schedule may take which leaves more room."""
SCRATCH = 4
"""Tiles that a step and its rule use besides, at most."""


@dataclass(frozen=True, slots=True)
class Problem:
    """All that plans depend on, but the machine."""

    heads: int
    """Pairs of keys and values."""
    beside: int
    """How many of them the innermost dim around has."""
    groups: int
    """Queries of each."""
    rows: int
    columns: int
    depth: int
    """Contracted terms of a score."""
    width: int
    """Of the values."""
    dtype: str
    """Of queries and keys on TensorE."""
    weight_dtype: str
    """Of exponentials and values there."""
    flags: tuple[str, ...]
    """``tf32``, where TensorE rounds queries and keys."""
    weight_flags: tuple[str, ...]
    """The same of exponentials and values."""
    steps: int
    """Passes over the scores between the two products, beside those of the softmax and a first factor."""
    read: int
    """Bytes that are read for each score."""
    banded: bool
    """Whether row numbers decide what is computed."""
    near: bool
    """Whether kernels apart find queries, keys and values on chip, and leave the scores there; not of few rows."""
    moves_values: bool
    """Whether TensorE may transpose 16-bit values as such."""
    room: int
    """Bytes of each partition of SBUF."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is decided."""

    scores: int
    """Blocks of rows whose scores are under way."""
    staged: int
    """Heads, or sections, whose keys and values are there."""
    section: int
    """Columns whose scores are there at once."""
    bunch: int
    """Blocks of rows that an iteration takes."""
    pack: int = 0
    """Heads, all queries of each, whose few rows are a block; 0: a block has rows of one query."""
    upright: bool = False
    """Whether the columns of such a block lie on the partitions, and Vector multiplies keys with queries."""
    loaded: int = ROW_BUFFERS[0]
    """Buffers of rows that are loaded to be transposed."""

    def sections(self, problem: Problem) -> int:
        """Into how many the columns are cut."""
        return ceil(problem.columns / self.section)

    def line(self, problem: Problem) -> str:
        """For people."""
        p, cut = problem, self.sections(problem) > 1
        return (
            f"attention of {p.heads} x {p.groups} x {p.rows} rows, {p.columns} columns, depth {p.depth}, width "
            f"{p.width}, {p.dtype}: scores of {self.scores} blocks of rows in SBUF, keys and values of {self.staged}"
            + (f", {self.bunch} blocks by sections of {self.section} columns" if cut else "")
            + (f", {self.pack} heads to a block" if self.pack else "")
            + (", columns on the partitions" if self.upright else "")
        )


def tiles_of(problem: Problem, schedule: Schedule, sizes: Sizes) -> dict[tuple[str, int], int]:
    """(name, buffers) -> bytes a partition of each buffer, of the tiles that grow with the problem."""
    if schedule.upright:
        return _upright_tiles(problem, schedule, sizes)
    p, size, weight = problem, itemsize(problem.dtype), itemsize(problem.weight_dtype)
    columns, cut, heads = schedule.section, schedule.sections(problem) > 1, max(1, schedule.pack)
    chunks, deep = ceil(columns / sizes.rows), ceil(p.depth / sizes.rows)
    tiles = {
        ("keys", schedule.staged): heads * deep * columns * size,
        ("values", schedule.staged): heads * chunks * p.width * weight,
        ("queries", query_buffers(p, schedule)): deep * sizes.columns * size,
        ("scores", schedule.scores): columns * 4,
        ("exponentials", schedule.scores): columns * (4 if schedule.pack else weight),
        ("transposed", schedule.scores): chunks * sizes.columns * weight,
        ("result", schedule.scores): heads * p.width * 4,
    }
    if schedule.pack:
        tiles["shares", schedule.scores] = columns * weight
        tiles["rows of queries", QUERY_BUFFERS] = p.depth * size
        tiles["scores of a head", HEADS_UNDER_WAY] = min(columns, taken_columns(p, sizes)) * 4
    if cut:
        tiles["running greatest", schedule.bunch + UNDER_WAY] = 4
        tiles["running sums", schedule.bunch] = 4
        tiles["running result", schedule.bunch] = p.width * 4
    return tiles


def _upright_tiles(problem: Problem, schedule: Schedule, sizes: Sizes) -> dict[tuple[str, int], int]:
    p, heads, own, chunks = problem, schedule.pack, problem.groups * problem.rows, ceil(problem.columns / sizes.rows)
    size, weight, each = itemsize(p.dtype), itemsize(p.weight_dtype), heads * own * chunks
    products = prod(multiplied_at_once(p, schedule, sizes)) * p.depth * 4
    tiles = {
        ("keys", schedule.staged): heads * chunks * p.depth * size,
        ("values", schedule.staged): heads * chunks * p.width * weight,
        ("queries", QUERY_BUFFERS): heads * own * p.depth * size,
        ("products", PRODUCT_BUFFERS): products,
        ("shares", schedule.scores): each * weight,
        ("result", schedule.scores): heads * p.width * 4,
    }
    tiles |= {(name, schedule.scores): each * 4 for name in ("scores", "shifted", "exponentials")}
    return tiles | {("raw scores", 2): each * 4}


def spread_at_once(problem: Problem, schedule: Schedule, sizes: Sizes) -> tuple[int, int]:
    """Heads, and rows of each, whose queries are a bank of PSUM on each partition."""
    own, terms = problem.groups * problem.rows, sizes.bank_columns // problem.depth
    return min(schedule.pack, max(1, terms // own)), min(own, terms)


def multiplied_at_once(problem: Problem, schedule: Schedule, sizes: Sizes) -> tuple[int, int, int]:
    """Heads, rows and chunks of columns whose products Vector makes in one instruction."""
    heads, rows = spread_at_once(problem, schedule, sizes)
    chunks = max(1, problem.columns // sizes.rows)
    each = chunks * problem.depth
    return (
        min(heads, max(1, MULTIPLIED // (rows * each))),
        min(rows, max(1, MULTIPLIED // each)),
        min(chunks, max(1, MULTIPLIED // problem.depth)),
    )


def taken_columns(problem: Problem, sizes: Sizes) -> int:
    """Columns that Vector and Scalar take at once: long enough for few instructions, short enough to alternate; those
    of a bank where other ops follow, which have tiles of their own.
    """
    return sizes.bank_columns * (1 if problem.steps else TAKEN_AT_ONCE)


def query_buffers(problem: Problem, schedule: Schedule) -> int:
    """Blocks of rows whose queries are there: all those of a bunch, which sections want again."""
    return schedule.scores if schedule.sections(problem) == 1 else schedule.bunch + schedule.scores


def footprint(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Bytes of each partition of SBUF."""
    p, size, weight = problem, itemsize(problem.dtype), itemsize(problem.weight_dtype)
    planned = sum(count * sizes.aligned(nbytes) for (_, count), nbytes in tiles_of(p, schedule, sizes).items())
    if schedule.upright:
        scores = schedule.pack * p.groups * p.rows * ceil(p.columns / sizes.rows)
        return planned + (2 * p.steps + SCRATCH + 2 * (p.read > 0)) * scores * 4 + SMALL_TILES * sizes.alignment
    loaded = schedule.loaded * PIECES * (2 * p.depth * size + p.width * weight)
    exact = p.moves_values and max(size, weight) < 4
    bits = 0 if exact else 8 * BITS_BUFFERS * (PIECES * max(p.depth, p.width) + sizes.bank_columns)
    pieces = (2 * p.steps + SCRATCH + 2 * (p.read > 0)) * min(p.columns, sizes.bank_columns) * 4 if p.steps else 0
    return planned + loaded + bits + pieces + SMALL_TILES * sizes.alignment


def candidates(problem: Problem, sizes: Sizes) -> Iterator[Schedule]:
    """Schedules that fit."""
    p, blocks = problem, problem.groups * ceil(problem.rows / sizes.columns)
    ahead = 2 if blocks > 2 else STAGED
    whole = ((2, ahead), (1, 1)) if p.heads > 1 else ((2, 1), (1, 1))
    found = [Schedule(scores, staged, p.columns, BUNCH) for scores, staged in whole]
    for count in SECTIONS:
        section = sizes.bank_columns * ceil(p.columns / (count * sizes.bank_columns))
        if section < p.columns and found[-1].section != section:
            for bunch in BUNCHES:
                found += [
                    Schedule(2, 2 if min(bunch, blocks) > 2 else STAGED, section, bunch),
                    Schedule(1, 1, section, bunch),
                ]
    own = p.groups * p.rows
    packs = [heads for heads in range(1, p.beside + 1) if not p.beside % heads and heads * own <= sizes.columns]
    if not p.banded:
        under = (2, STAGED), (2, 3), (2, 2), (1, 1)
        found += [Schedule(scores, staged, p.columns, BUNCH, pack) for pack in packs for scores, staged in under]
        if p.depth <= sizes.bank_columns:
            found += [Schedule(2, STAGED, p.columns, BUNCH, pack, upright=True) for pack in packs]
    for schedule in found:
        written = blocks if p.banded else min(blocks, schedule.bunch)
        chunks = written * ceil(p.columns / sizes.rows)
        fitting = (replace(schedule, loaded=loaded) for loaded in ROW_BUFFERS)
        found_room = next((each for each in fitting if footprint(p, each, sizes) <= p.room), None)
        if chunks <= MOST_CHUNKS and found_room is not None:
            yield found_room


def block_work(problem: Problem, timing: Timing, rows: int, columns: int, pack: int = 0) -> Work:
    """Of one block of ``rows``, of ``pack`` heads if that is not 0."""
    p, sizes, heads = problem, timing.sizes, max(1, pack)
    own = rows // heads
    bank = min(columns, sizes.bank_columns)
    banks, chunks, deep = columns / bank, ceil(columns / sizes.rows), ceil(p.depth / sizes.rows)
    weights = Tile(p.weight_dtype)
    left = timing.engine("tensor_copy", Stream.VECTOR, bank, (F32,), (F32_PSUM,))
    most = timing.engine("tensor_reduce", Stream.VECTOR, columns, (F32,), (F32,), ("max",))
    exponentials = timing.engine("activation", Stream.SCALAR, columns, (weights,), (F32,), ("exp",))
    step = timing.engine("tensor_tensor", Stream.VECTOR, columns)
    return total(
        [
            timing.product(own, bank, p.dtype, flags=p.flags).times(heads * banks * deep),
            left.times(heads * banks),
            most,
            exponentials,
            transposing(timing, rows, sizes.columns, p.weight_dtype, _moves(p, p.weight_dtype)).times(chunks),
            timing.product(own, p.width, p.weight_dtype, flags=p.weight_flags).times(heads * chunks),
            step.times(p.steps),
            _packing(problem, timing, rows, columns) if pack else Work(),
            timing.transfer(rows * columns * p.read, columns * p.read) if p.read else Work(),
        ]
    )


def _packing(problem: Problem, timing: Timing, rows: int, columns: int) -> Work:
    """What a block of several heads takes besides: scores to their partitions, exponentials divided, results as they
    leave PSUM.
    """
    divided = timing.engine("activation", Stream.SCALAR, columns, (Tile(problem.weight_dtype),), (F32,), ("copy",))
    left = timing.engine("tensor_copy", Stream.VECTOR, problem.width, (F32,), (F32_PSUM,))
    return total([timing.transfer(rows * columns * 4, columns * 4), divided, left])


def staging_work(problem: Problem, columns: int, timing: Timing) -> Work:
    """Of bringing the keys and values of so many columns to SBUF, as rows that lie dense in HBM."""
    p, sizes = problem, timing.sizes
    chunks, deep = ceil(columns / sizes.rows), ceil(p.depth / sizes.rows)
    turned = transposing(timing, sizes.rows, min(p.depth, sizes.columns), p.dtype, _moves(p, p.dtype))
    key, value = p.depth * itemsize(p.dtype), p.width * itemsize(p.weight_dtype)
    keys = timing.transfer(columns * key, PIECES * key)
    return turned.times(chunks * deep) + keys + timing.transfer(columns * value, (1 if p.banded else chunks) * value)


def _moves(problem: Problem, dtype: str) -> bool:
    """Whether TensorE transposes values as such."""
    return problem.moves_values and itemsize(dtype) < 4


def estimate(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Nanoseconds."""
    if schedule.upright:
        return _estimate_upright(problem, schedule, timing)
    if schedule.pack:
        return _estimate_packed(problem, schedule, timing)
    p, rows, sections = problem, min(problem.rows, timing.sizes.columns), schedule.sections(problem)
    work, blocks = block_work(p, timing, rows, schedule.section), ceil(p.rows / rows)
    sharing = p.groups * blocks
    if sections > 1:
        sharing = min(schedule.bunch, blocks)
        work += timing.engine("scalar_tensor_tensor", Stream.VECTOR, p.width, (F32,), (F32, F32_PSUM), ("add", "add"))
    work += staging_work(p, schedule.section, timing).times(1 / sharing)
    handed = HANDOVERS * timing.latency(Stream.VECTOR)
    alone = work.tensor + work.vector + work.scalar + handed
    each = alone if schedule.scores == 1 else OVERLAP * work.bound + handed
    staged = timing.transfer_latency * (1 if schedule.staged > 1 else 3)
    return alone + p.heads * (p.groups * blocks * sections * each + staged) + _stored(problem, timing)


def _stored(problem: Problem, timing: Timing) -> float:
    """Nanoseconds until what is on chip is in HBM, from where queries, keys and values come."""
    p = problem
    if not p.near:
        return 0.0
    run, terms = p.depth * itemsize(p.dtype), p.groups * p.rows + 2 * p.columns
    return 2 * timing.transfer_latency + timing.transfer(p.heads * terms * run, run).bound


def _estimate_packed(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """A block by itself takes its operands as they come, and then one engine after the other."""
    p, rows = problem, schedule.pack * problem.groups * problem.rows
    staging = staging_work(p, p.columns, timing).times(schedule.pack)
    work = block_work(p, timing, rows, p.columns, schedule.pack)
    handed = HANDOVERS * timing.latency(Stream.VECTOR) + timing.transfer_latency
    brought = schedule.pack / HEADS_UNDER_WAY * timing.transfer_latency
    alone = staging.bound + work.tensor + work.vector + work.scalar + handed + brought
    each = OVERLAP * UNDER_WAY / schedule.staged * (work + staging).bound + handed / UNDER_WAY
    if schedule.scores == 1:
        each = alone
    return alone + (p.heads // schedule.pack - 1) * each + timing.transfer_latency


def _estimate_upright(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Blocks of heads follow each other in the time of the engine that has most to do; the first and the last one wait
    for every engine in turn.
    """
    p, sizes, heads, own = problem, timing.sizes, schedule.pack, problem.groups * problem.rows
    chunks = ceil(p.columns / sizes.rows)
    most = prod(multiplied_at_once(p, schedule, sizes)) * p.depth
    instructions = heads * own * chunks * p.depth / most
    products = timing.engine("tensor_tensor", Stream.VECTOR, most, (F32,), (Tile(p.dtype), F32_PSUM), ("multiply",))
    sums = timing.engine("tensor_reduce", Stream.VECTOR, most, (F32,), (F32,), ("add",))
    scores = heads * own * chunks
    step = timing.engine("tensor_tensor", Stream.VECTOR, scores)
    folded = timing.engine("partition_reduce", Stream.GPSIMD, heads * own, alu=("max",))
    repeated = timing.engine("partition_broadcast", Stream.GPSIMD, heads * own)
    exponentials = timing.engine("activation", Stream.SCALAR, scores, alu=("exp",))
    left = timing.engine("activation", Stream.SCALAR, heads * p.width, (F32,), (F32_PSUM,), ("copy",))
    runs = p.depth * itemsize(p.dtype), p.width * itemsize(p.weight_dtype)
    work = total(
        [
            (products + sums).times(instructions),
            step.times(UPRIGHT_PASSES + 2 * p.steps),
            (folded + repeated).times(2),
            exponentials,
            left,
            timing.product(own, p.width, p.weight_dtype, flags=p.weight_flags).times(heads * chunks),
            *(timing.transfer(heads * p.columns * run, chunks * run) for run in runs),
        ]
    )
    handed = UPRIGHT_HANDOVERS * timing.latency(Stream.VECTOR) + 2 * timing.transfer_latency
    alone = UPRIGHT_OVERLAP * work.vector + work.tensor + work.dma / 2 + handed
    return alone + (p.heads // heads - 1) * max(UPRIGHT_OVERLAP * work.bound, handed / UNDER_WAY)


def apart(problem: Problem, timing: Timing) -> float:
    """Nanoseconds of the same in kernels of its own for each product, and for what is between.

    Engines hand each chunk of columns of each block of rows to each other there, and its results, however few they are,
    and once more for each pass over the scores; these go to HBM and come back, three times.
    """
    p, sizes = problem, timing.sizes
    chunks = p.heads * (ceil(p.columns / sizes.rows) + 1)
    passes = 2 * 4 + 2 * itemsize(p.weight_dtype)
    moved = timing.transfer(p.heads * p.groups * p.rows * p.columns * passes, timing.long_run).bound
    ends = 2 * 3 * timing.transfer_latency
    if p.groups * p.rows <= FEW:
        return max(_few_apart(p, chunks, timing), moved) + ends
    rows = min(p.rows, sizes.columns)
    work = block_work(p, timing, rows, p.columns).times(p.heads * p.groups * ceil(p.rows / rows))
    engines = work.tensor + work.vector + work.scalar
    if p.near:
        return engines + 2 * 3 * HANDOVERS * timing.latency(Stream.VECTOR)
    blocks = p.groups * p.rows // divisor(p.rows, sizes.columns)  # what stays on chip fills equal blocks
    handed = chunks * blocks * (HANDOVERS + p.steps + p.banded) * timing.latency(Stream.VECTOR)
    return max(handed, moved + UNHIDDEN * engines) + ends


def _few_apart(p: Problem, chunks: int, timing: Timing) -> float:
    """Nanoseconds of the engines in kernels apart with few rows, where each waits for the one before."""
    own = p.groups * p.rows
    spread = ceil(p.heads * own / timing.sizes.partitions) * p.columns
    stepped = timing.engine("tensor_tensor", Stream.VECTOR, spread).times(FEW_PASSES * p.steps)
    staged = staging_work(p, p.columns, timing).times(p.heads)
    waits = chunks * (FEW_HANDOVERS + own * ROW_HANDOVERS) * timing.latency(Stream.VECTOR)
    multiplied = timing.product(own, timing.sizes.columns, p.dtype).times(chunks)
    return waits + staged.tensor + multiplied.tensor + stepped.vector


def choose(problem: Problem, timing: Timing) -> Schedule | None:
    """Of those that take least by estimate, or hardly more, the one that leaves most room to what comes after it; None
    where nothing fits.
    """
    found = [(estimate(problem, schedule, timing), schedule) for schedule in candidates(problem, timing.sizes)]
    least = min((each for each, _ in found), default=0.0)
    quick = [schedule for each, schedule in found if each <= least * NEAR]
    return min(quick, key=lambda schedule: footprint(problem, schedule, timing.sizes), default=None)
