"""Times of attentions by their schedules, and of the same in kernels apart; the schedule that takes least.

Blocks of rows follow each other in the time of the engine that has most to do, or of their transfers; engines hand
blocks to each other, wait for keys and values that are not there yet, and for the first and the last block.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from math import ceil, inf, prod

from neuronx_cc.codegen.attention.schedule import (
    PARTS,
    UNDER_WAY,
    UNROLLED_BLOCKS,
    Problem,
    Schedule,
    at_once,
    by_room,
    heads_at_once,
    multiplied_at_once,
    schedules,
    unrolled,
)
from neuronx_cc.codegen.dots.schedule import FEW
from neuronx_cc.codegen.movement.halves import HALVES, transposing
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, F32_PSUM, NOTHING, Tile, Timing, Work, total
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.stored import RESIDENT_VALUE_SHARE

ENGAGED, HANDED = 1.15, 2.3
"""How much longer a block of rows takes than its busiest engine, which others keep waiting now and then; and the times
that engines wait for each other."""
ENGAGED_TWICE, TWICE_HANDED, MASKED_HANDED = 1.0, 6, 3
"""The same where scores are computed twice, and more of the latter where masks cut what is computed of a block."""
DRAWN = 1.15
"""How much longer a block takes than its transfers, which wait for buffers now and then."""
FILLED, FILLED_TWICE = 0.3, 0.8
"""Part of the steps until all engines have work that the blocks ahead of them, of another iteration, do not fill; where
scores are computed twice."""
FILLED_ON, FILLED_ON_TWICE = 0.45, 0.12
"""The same where iterations go on with the keys and values of one head."""
AWAITED = 0.55
"""Times that a block waits for the latency of transfers for each of the blocks that are to be under way, of as many
heads as have theirs on the way."""
LATE = 0.5
"""Part of the latency of transfers that engines wait for in a block whose operands are asked for a block ahead."""
PAUSED = 0.2
"""Part of the time of a block that engines pause for keys and values as many times as are there."""
UNHIDDEN = 0.6
"""Part of the engines' work in kernels of their own that takes time beside the transfers of scores."""
NEAR_BUSY, NEAR_HANDED = 0.6, 0.45
"""Parts of the engines' work in kernels apart, and of what they wait for each other there, that take time where all
that they hand over is on chip.
"""
HANDOVERS = 3
"""Times that engines wait for each other in a block of kernels apart, whatever its size."""
FEW_HANDOVERS, ROW_HANDOVERS = 1.1, 0.1
"""Times that engines wait for each other there in a chunk of columns, and more of them for each row."""
FEW_PASSES = 2
"""Over the scores, rows on the partitions, for each step between the products."""
MASKED_ON = 2
"""Columns for each that a mask cuts: those after it within a bank are looked at as well."""
UPRIGHT_PASSES = 4
"""Passes of Vector over the scores of such a block, whatever is made of them before the softmax."""
UPRIGHT_HANDOVERS = 13
"""Times that engines wait for each other in one."""
UPRIGHT_OVERLAP = 1.15
"""How much longer its busiest engine takes than it works."""
SECTION_HANDOVERS = 2
"""Times that engines wait for each other in a section of the columns, beside those of others under way."""
SMALL_OPS = 10
"""Instructions of Vector on a few numbers a row of a block whose scores are computed twice."""
NEAR = 1.02
"""Times as long as the quickest that a schedule may take which leaves more room."""


def block_work(problem: Problem, timing: Timing, rows: int, columns: int) -> Work:
    """Of one block of ``rows``."""
    p, sizes = problem, timing.sizes
    bank = min(columns, sizes.bank_columns)
    banks, chunks, deep = columns / bank, ceil(columns / sizes.rows), ceil(p.depth / sizes.rows)
    weights = Tile(p.weight_dtype)
    left = timing.engine("tensor_copy", Stream.VECTOR, bank, (F32,), (F32_PSUM,))
    most = timing.engine("tensor_reduce", Stream.VECTOR, columns, (F32,), (F32,), ("max",))
    exponentials = timing.engine("activation", Stream.SCALAR, columns, (weights,), (F32,), ("exp",))
    step = timing.engine("tensor_tensor", Stream.VECTOR, columns)
    return total(
        [
            timing.product(rows, bank, p.dtype, flags=p.flags).times(banks * deep),
            left.times(banks),
            most,
            exponentials,
            transposing(timing, rows, sizes.columns, p.weight_dtype, _moves(p, p.weight_dtype)).times(chunks),
            timing.product(rows, p.width, p.weight_dtype, flags=p.weight_flags).times(chunks),
            step.times(p.steps),
            timing.transfer(rows * columns * p.read, columns * p.read) if p.read else Work(),
        ]
    )


def staging_work(problem: Problem, heads: int, columns: int, timing: Timing, ones: bool = False) -> Work:
    """Of bringing the keys and values of so many columns of heads that are taken together to SBUF, for TensorE; with
    ``ones`` after each value.
    """
    p, (_, keys, values) = problem, _sizes(problem)
    if p.runs[1] == p.depth:
        work = _transposed_rows(p, heads, columns, p.depth, p.dtype, keys, 1, timing)
    else:
        run = columns if p.pitches[0] == 1 else 1
        work = timing.transfer(heads * columns * p.depth * keys, run * keys)
    if p.pitches[1] == 1 < p.width:
        return work + _transposed_rows(p, heads, p.width, columns, p.weight_dtype, values, -1, timing)
    if p.banded or ones:
        run = heads if p.abreast[2] and not ones else 1
        return work + timing.transfer(heads * columns * p.width * values, run * p.width * values)
    return work + _columns_beside(p, 1, heads, columns, timing)


def _sizes(problem: Problem) -> list[int]:
    """Bytes of an element of queries, keys and values as they are loaded, which casts them."""
    dtypes = problem.dtype, problem.dtype, problem.weight_dtype
    return [max(stored, itemsize(dtype)) for stored, dtype in zip(problem.stored, dtypes, strict=True)]


def _transposed_rows(
    problem: Problem, heads: int, count: int, length: int, dtype: str, size: int, which: int, timing: Timing
) -> Work:
    """Of ``count`` rows of each head that are loaded and transposed: queries (0), keys (1), or what is dense (-1)."""
    p, sizes = problem, timing.sizes
    beside, dense = (False, True) if which < 0 else (p.abreast[which], p.dense[which])
    several = heads * ceil(count / sizes.rows) if beside else ceil(heads * count / sizes.rows)
    if beside:
        run = heads * (at_once(heads * length, sizes) if heads == p.beside and count > sizes.rows else 1)
    else:
        run = min(at_once(length, sizes), max(1, heads * count // sizes.rows)) if dense else 1
    transposed = _turned(timing, min(count, sizes.rows), min(length, sizes.columns), dtype, _moves(p, dtype))
    moved = timing.transfer(heads * count * length * size, run * length * size)
    return moved + transposed.times(several * ceil(length / sizes.columns))


def _columns_beside(problem: Problem, which: int, heads: int, columns: int, timing: Timing) -> Work:
    """Of keys, or of values (1), neighbouring columns on each partition: in runs of features, of heads that lie beside
    each other, and of columns, as far as they lie dense.
    """
    p, size, run = problem, _sizes(problem)[1 + which], problem.runs[1 + which]
    terms = (p.depth, p.width)[which]
    if run == terms:
        run *= min(heads, p.beside) if p.abreast[1 + which] else 1
        run *= max(1, columns // timing.sizes.rows) if p.pitches[which] == run else 1
    return timing.transfer(heads * columns * terms * size, run * size)


def _moves(problem: Problem, dtype: str) -> bool:
    """Whether TensorE transposes values as such."""
    return problem.moves_values and itemsize(dtype) < 4


def rows_work(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """Of a block of rows of the heads that are taken together, and a section of their columns: all but its loads."""
    if schedule.twice:
        return rows_work_twice(problem, schedule, timing)
    p, sizes, heads = problem, timing.sizes, schedule.together
    rows, columns = min(p.rows, sizes.columns), min(schedule.section, p.columns)
    bank = min(columns, sizes.bank_columns)
    several = max(1, min(heads, sizes.bank_columns // columns))
    chunks, deep = ceil(columns / sizes.rows), ceil(p.depth / sizes.rows)
    weights, banks = Tile(p.weight_dtype), heads * columns / (several * bank)
    left = (
        timing.engine("tensor_copy", Stream.VECTOR, several * bank, (F32,), (F32_PSUM,)),
        timing.engine("activation", Stream.SCALAR, several * bank, (F32,), (F32_PSUM,), ("copy",)),
    )
    most = timing.engine("tensor_reduce", Stream.VECTOR, several * bank, (F32,), (F32,), ("max",))
    exponentials = timing.engine(
        "activation", Stream.SCALAR, columns, (weights,), (F32,), ("exp",), flags=("accumulate",)
    )
    turned = transposing(timing, rows, min(columns, sizes.columns), p.weight_dtype, _moves(p, p.weight_dtype))
    divided = timing.engine("activation", Stream.SCALAR, p.width, (F32,), (F32_PSUM,), ("copy",))
    masked = timing.engine("affine_select", Stream.GPSIMD, several * bank)
    work = total(
        [
            timing.product(rows, bank, p.dtype, flags=p.flags).times(heads * columns / bank * deep),
            most.times(banks),
            exponentials.times(heads),
            turned.times(heads * chunks),
            timing.product(rows, p.width, p.weight_dtype, flags=p.weight_flags).times(heads * chunks),
            divided.times(heads),
            timing.engine("tensor_tensor", Stream.VECTOR, several * bank, (F32,), (F32, F32_PSUM)).times(
                p.steps * banks
            ),
            masked.times(banks * min(1.0, p.masked * MASKED_ON)),
        ]
    )
    if p.direct:
        return work
    first, second = (each.times(banks) for each in left)
    if p.steps:
        return work + second
    # Vector takes what makes both as busy as each other
    share = (work.scalar + second.scalar - work.vector) / (first.vector + second.scalar)
    share = min(1.0, max(0.0, share))
    return work + first.times(share) + second.times(1 - share)


def rows_work_twice(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """The same where scores are computed twice."""
    p, sizes, heads = problem, timing.sizes, schedule.together
    rows, columns = min(p.rows, sizes.columns), p.columns
    bank, chunk = min(columns, sizes.bank_columns), min(columns, sizes.rows)
    chunks, deep, several = columns / chunk, ceil(p.depth / sizes.rows), max(1, sizes.bank_columns // rows)
    weights, each = Tile(p.weight_dtype), timing.engine("tensor_scalar", Stream.VECTOR, heads)
    most = timing.engine("tensor_reduce", Stream.VECTOR, bank, (F32,), (F32_PSUM,), ("max",))
    exponentials = timing.engine("activation", Stream.SCALAR, several * rows, (weights,), (F32_PSUM,), ("exp",))
    divided = timing.engine("activation", Stream.SCALAR, p.width, (F32,), (F32_PSUM,), ("copy",))
    shifts = timing.engine("activation", Stream.SCALAR, rows * heads, (Tile("bf16"),), (F32_PSUM,), ("copy",))
    return total(
        [
            timing.product(rows, bank, p.dtype).times(heads * columns / bank * deep),
            most.times(heads * columns / bank),
            each.times(SMALL_OPS),
            timing.product(PARTS, rows, "bf16").times(heads),
            shifts,
            timing.product(chunk, rows, p.dtype).times(heads * chunks * deep),
            timing.product(chunk, several * rows, "bf16").times(heads * chunks / several),
            exponentials.times(heads * chunks / several),
            timing.product(rows, p.width + 1, p.weight_dtype).times(heads * chunks),
            divided.times(heads),
            _cut_by_masks(rows, timing).times(heads * chunks * p.masked),
        ]
    )


def _cut_by_masks(rows: int, timing: Timing) -> Work:
    """Of a chunk of columns that masks leave some rows of: in SBUF for the greatest, and once more as weights."""
    columns = timing.sizes.rows
    left = timing.engine("activation", Stream.SCALAR, columns, (F32,), (F32_PSUM,), ("copy",))
    most = timing.engine("tensor_reduce", Stream.VECTOR, columns, alu=("max",))
    masked = [timing.engine("affine_select", Stream.GPSIMD, size) for size in (columns, rows)]
    return total([left, most, *masked])


def _turned(timing: Timing, rows: int, columns: int, dtype: str, fast: bool) -> Work:
    """Of a transpose of [``rows``, ``columns``]: Vector takes bit patterns apart, Scalar copies what leaves PSUM."""
    work = transposing(timing, rows, columns, dtype, fast)
    if fast:
        return work
    left = timing.engine("activation", Stream.SCALAR, rows, (F32,), (F32_PSUM,), ("copy",)).times(2)
    return work._replace(vector=work.vector / 2, scalar=left.scalar, psum_port=left.psum_port)


def loads_of(problem: Problem, schedule: Schedule, timing: Timing) -> tuple[Work, Work]:
    """Of keys and values, and of queries and result of a block of rows, of the heads that are taken together."""
    p, sizes, heads = problem, timing.sizes, schedule.together
    columns, rows = min(schedule.section, p.columns), min(p.rows, sizes.columns)
    result = p.abreast[3]
    staged = staging_work(p, heads, columns, timing, schedule.twice)
    span = min(p.rows, schedule.span * sizes.columns)
    made = NOTHING
    if not p.stays:
        run = schedule.alternating * (heads if result else 1) * p.width * 4
        made = timing.transfer(heads * rows * p.width * 4, run, "write")
    beside = [((1 if leaf.shared else heads) * rows, columns * leaf.size) for leaf in p.leaves]
    read = total([timing.transfer(count * run, run) for count, run in beside])
    brought = _transposed_rows(p, heads, span, p.depth, p.dtype, _sizes(p)[0], 0, timing).times(rows / span)
    return staged, brought + made + read


def estimate(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Nanoseconds."""
    if schedule.pack:
        return _estimate_upright(problem, schedule, timing)
    p, sections = problem, schedule.sections(problem)
    blocks = ceil(p.rows / timing.sizes.columns)
    work, (staged, loads) = rows_work(p, schedule, timing), loads_of(p, schedule, timing)
    sharing = p.groups * blocks
    if sections > 1:
        sharing = min(schedule.bunch, blocks)
        work += timing.engine("scalar_tensor_tensor", Stream.VECTOR, p.width, (F32,), (F32, F32_PSUM), ("add", "add"))
    share = p.seen if schedule.twice else p.computed
    each = work.times(share) + staged.times(1 / sharing) + loads.times(1 / sections)
    waits = TWICE_HANDED + MASKED_HANDED * (p.masked > 0) if schedule.twice else HANDED
    handed = waits * timing.latency(Stream.VECTOR)
    alone = work.tensor + work.vector + work.scalar + handed + staged.bound + loads.bound
    engines = each._replace(dma=0.0, hbm_read=0.0, hbm_write=0.0)
    bunches = p.heads // schedule.together
    wanted = min(UNDER_WAY, 1 + ceil((UNDER_WAY - 1) / sharing), bunches * sections)
    slower = 1 + PAUSED * max(0.0, wanted / schedule.staged - 1)
    if p.groups * blocks * sections <= UNROLLED_BLOCKS:
        filled = FILLED_TWICE if schedule.twice else FILLED
    else:
        filled = FILLED_ON_TWICE if schedule.twice else FILLED_ON
    slower *= 1 + filled * (UNDER_WAY - 1) / unrolled(p, schedule, timing.sizes)
    moved = DRAWN * each.bound + AWAITED * wanted * timing.transfer_latency / schedule.staged
    engaged = ENGAGED_TWICE if schedule.twice else ENGAGED
    late = LATE * timing.transfer_latency / max(1, schedule.staged - wanted + 1)
    spent = max((engaged * engines.bound + handed) * slower + late, moved)
    if schedule.scores == 1:  # one engine after the other
        busy = share * (work.tensor + work.vector + work.scalar)
        spent = busy + handed + staged.bound / sharing + loads.bound / sections
    total_blocks = bunches * p.groups * blocks * sections
    began = (ceil(bunches / heads_at_once(p, schedule, timing.sizes)) - 1) * staged.bound  # iterations, each anew
    return alone + 2 * timing.transfer_latency + (total_blocks - 1) * spent + began + _stored(problem, timing)


def least(problem: Problem, timing: Timing) -> float:
    """Nanoseconds with the schedule that is chosen; infinite where nothing fits."""
    schedule = choose(problem, timing)
    return inf if schedule is None else estimate(problem, schedule, timing)


def _stored(problem: Problem, timing: Timing) -> float:
    """Nanoseconds until what is on chip is in HBM, from where queries, keys and values come."""
    p = problem
    if not p.near:
        return 0.0
    run, terms = p.depth * max(p.stored), p.groups * p.rows + 2 * p.columns
    return 2 * timing.transfer_latency + timing.transfer(p.heads * terms * run, timing.long_run, "write").bound


def _estimate_upright(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Blocks of heads follow each other in the time of the engine that has most to do; the first and the last one wait
    for every engine in turn.
    """
    p, sizes, heads, own = problem, timing.sizes, schedule.pack, problem.groups * problem.rows
    chunks, sections = ceil(p.columns / sizes.rows), ceil(p.columns / schedule.streamed)
    scores = heads * own * chunks
    step = timing.engine("tensor_tensor", Stream.VECTOR, scores)
    folded = timing.engine("partition_reduce", Stream.GPSIMD, heads * own, alu=("max",))
    repeated = timing.engine("partition_broadcast", Stream.GPSIMD, heads * own)
    exponentials = timing.engine("activation", Stream.SCALAR, scores, alu=("exp",))
    left = timing.engine("activation", Stream.SCALAR, heads * p.width, (F32,), (F32_PSUM,), ("copy",))
    added = timing.engine("tensor_tensor", Stream.VECTOR, heads * p.width, (F32,), (F32, F32_PSUM), ("add",))
    beside = [((1 if x.shared else heads) * (1 if x.repeated else own), x.size) for x in p.leaves]
    run = ceil(schedule.streamed / sizes.rows)
    work = total(
        [
            _contracted(p, schedule, timing) if schedule.contracted else _multiplied(p, schedule, timing),
            step.times(UPRIGHT_PASSES + 2 * p.steps),
            (folded + repeated).times(2),
            exponentials,
            left,
            added.times(sections - 1),
            timing.product(own, p.width, p.weight_dtype, flags=p.weight_flags).times(heads * chunks),
            *(_columns_beside(p, which, heads, schedule.streamed, timing).times(sections) for which in (0, 1)),
            *(timing.transfer(count * p.columns * size, run * size) for count, size in beside),
        ]
    )
    handed = UPRIGHT_HANDOVERS * timing.latency(Stream.VECTOR) + 2 * timing.transfer_latency
    engines = UPRIGHT_OVERLAP * work.vector + work.tensor + work.scalar * schedule.contracted
    of_sections = sections * SECTION_HANDOVERS * timing.latency(Stream.VECTOR)
    alone = handed + of_sections + max(work.dma, work.dma / (2 * sections) + engines)
    waited = max(handed / UNDER_WAY, of_sections)
    return alone + (p.heads // heads - 1) * max(UPRIGHT_OVERLAP * work.bound, waited)


def _multiplied(p: Problem, schedule: Schedule, timing: Timing) -> Work:
    """Of Vector's products of keys and queries, and their sums."""
    most = prod(multiplied_at_once(p, schedule, timing.sizes)) * p.depth
    instructions = schedule.pack * p.groups * p.rows * ceil(p.columns / timing.sizes.rows) * p.depth / most
    products = timing.engine("tensor_tensor", Stream.VECTOR, most, (F32,), (Tile(p.dtype), F32_PSUM), ("multiply",))
    sums = timing.engine("tensor_reduce", Stream.VECTOR, most, (F32,), (F32,), ("add",))
    return (products + sums).times(instructions)


def _contracted(p: Problem, schedule: Schedule, timing: Timing) -> Work:
    """Of TensorE's products of queries and keys, which are transposed; a bank of PSUM at a time leaves it."""
    sizes, own, columns = timing.sizes, p.groups * p.rows, min(p.columns, timing.sizes.rows)
    deep, chunks = ceil(p.depth / sizes.rows), ceil(schedule.streamed / sizes.rows)
    sections, depth = ceil(p.columns / schedule.streamed), min(p.depth, sizes.columns)
    at_once = min(chunks, sizes.bank_columns // columns)
    times = schedule.pack * deep * sections
    if not p.moves_keys:  # Vector takes the bit patterns of all chunks apart
        part, carrier = HALVES[itemsize(p.dtype)]
        plane = Tile(part, stride=itemsize(p.dtype))
        taken = timing.engine("tensor_copy", Stream.VECTOR, depth * chunks, (Tile(carrier),), (plane,)).times(2)
        banked = timing.engine("tensor_copy", Stream.VECTOR, at_once * columns, (plane,), (F32_PSUM,)).times(2)
        tensor = timing.product(depth, columns, carrier).tensor * 2 * at_once
        each = banked._replace(tensor=tensor).times(chunks / at_once) + taken
    else:
        left = timing.engine("activation", Stream.SCALAR, at_once * columns, (Tile(p.dtype),), (F32_PSUM,), ("copy",))
        each = left._replace(tensor=timing.product(depth, columns, p.dtype).tensor * at_once).times(chunks / at_once)
    multiplied = timing.product(columns, own, p.dtype, flags=p.flags).times(chunks)
    scores = schedule.pack * own * chunks
    banks = ceil(scores / sizes.bank_columns)
    stepped = timing.engine("tensor_tensor", Stream.VECTOR, ceil(scores / banks), (F32,), (F32_PSUM,)).times(banks)
    queries = transposing(timing, schedule.pack * own, depth, p.dtype, p.moves_keys)
    return (each + multiplied).times(times) + stepped.times(sections) + queries.times(deep)


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
    blocks = p.groups * ceil(p.rows / sizes.columns)
    handed = chunks * blocks * (HANDOVERS + p.steps + p.banded) * timing.latency(Stream.VECTOR)
    if p.near:
        staged = _transposed_operands(p, timing)
        return NEAR_BUSY * (engines + staged.tensor + staged.vector + staged.scalar) + NEAR_HANDED * handed
    scores = p.heads * p.groups * p.rows * p.columns * 4
    spilled = scores > sizes.sbuf_share(RESIDENT_VALUE_SHARE) * sizes.partitions
    return max(handed + moved * spilled, moved + UNHIDDEN * engines) + ends


def _transposed_operands(p: Problem, timing: Timing) -> Work:
    """Of transposes of queries and keys that lie on chip, rows on the partitions."""
    rows, columns = min(p.rows, timing.sizes.rows), min(p.columns, timing.sizes.rows)
    deep, fast = ceil(p.depth / timing.sizes.columns), _moves(p, p.dtype)
    depth = min(p.depth, timing.sizes.columns)
    queries = _turned(timing, rows, depth, p.dtype, fast).times(p.heads * p.groups * ceil(p.rows / rows) * deep)
    return queries + _turned(timing, columns, depth, p.dtype, fast).times(p.heads * ceil(p.columns / columns) * deep)


def _few_apart(p: Problem, chunks: int, timing: Timing) -> float:
    """Nanoseconds of the engines in kernels apart with few rows, where each waits for the one before."""
    own = p.groups * p.rows
    spread = ceil(p.heads * own / timing.sizes.partitions) * p.columns
    stepped = timing.engine("tensor_tensor", Stream.VECTOR, spread).times(FEW_PASSES * p.steps)
    staged = staging_work(p, 1, p.columns, timing).times(p.heads)
    waits = chunks * (FEW_HANDOVERS + own * ROW_HANDOVERS) * timing.latency(Stream.VECTOR)
    multiplied = timing.product(own, timing.sizes.columns, p.dtype).times(chunks)
    return waits + staged.tensor + multiplied.tensor + stepped.vector


def choose(problem: Problem, timing: Timing) -> Schedule | None:
    """Of those that take least by estimate, or hardly more, the one that leaves most room to what comes after it; None
    where nothing fits.
    """
    found: list[tuple[int, float, Schedule]] = []
    for time, forms in _estimated(replace(problem, room=0), timing):
        fitting = ((nbytes, time, schedule) for schedule, nbytes in forms if nbytes <= problem.room)
        found += islice(fitting, 1)
    least = min((time for _, time, _ in found), default=0.0)
    quick = [each for each in found if each[1] <= least * NEAR]
    return min(quick, key=lambda each: each[0])[2] if quick else None


@lru_cache(maxsize=256)
def _estimated(problem: Problem, timing: Timing) -> list[tuple[float, list[tuple[Schedule, int]]]]:
    """Nanoseconds of each schedule, and what it takes of each partition, whatever room ``problem`` has: layers differ
    in nothing else.
    """
    sizes = timing.sizes
    return [(estimate(problem, each, timing), by_room(problem, each, sizes)) for each in schedules(problem, sizes)]
