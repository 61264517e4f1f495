"""The time that a contraction takes with a schedule, as a pure function of the machine's timing.

Work is added up for each resource of the core; the busiest one sets the time. To that comes what nothing hides: the
first blocks of both operands, blocks of a single buffer that are loaded after the work on the one before, the last
tiles of the result, and a part of what the other resources do, for no schedule overlaps perfectly.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from neuronx_cc.codegen.dots import conversion, splitting
from neuronx_cc.codegen.dots.blocks import blocks_of
from neuronx_cc.codegen.dots.problem import Operand, Problem
from neuronx_cc.codegen.dots.schedule import (
    TAKING_TURNS,
    Leaves,
    Schedule,
    Sums,
    row_tiles,
    unconverted_bytes,
)
from neuronx_cc.codegen.dots.work import (
    combined,
    load,
    made_on_chip,
    one_tile,
    products,
    results,
    sums_wide,
    tile_count,
    transfers,
    transposes,
)
from neuronx_cc.codegen.epilogues.work import leave
from neuronx_cc.codegen.movement.halves import HALVES
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32_PSUM, NOTHING, Stage, Tile, Timing, Work, total
from neuronx_cc.ir.types import itemsize

UNDER_WAY = 4
"""Batch indices whose operands are on their way through the engines: these take up work in order, and what waits for
another engine keeps all that follows."""
UNHIDDEN = 0.15
"""Part of the second busiest resource's work that takes time nevertheless."""
EXPOSED = 0.3
"""Part of what is made of few rows that takes time though rhs comes meanwhile."""


def estimate(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Nanoseconds."""
    ways = {Sums.PSUM: _of_whole_k, Sums.SBUF: _of_k_blocks, Sums.BANKS: _of_open_banks}
    time = ways[schedule.sums](problem, schedule, timing)
    if problem.epilogue is None:
        return time
    turns = min(TAKING_TURNS, row_tiles(problem, schedule, timing.sizes))
    columns, tiles = sums_wide(problem, schedule, timing), tile_count(problem, schedule, timing)
    return max(time, problem.epilogue.time(columns, prod(problem.b) * tiles, turns, timing))


def bound(problem: Problem, timing: Timing) -> float:
    """Nanoseconds that no schedule is below, however arrays lie: all products in full tiles, each array moved once in
    long runs.
    """
    outside = [each for each in (problem.lhs, problem.rhs) if not each.on_chip]
    nbytes = sum(problem.elements(each) * itemsize(each.stored) for each in outside)
    if not problem.out.on_chip:
        nbytes += prod(problem.m) * prod(problem.n) * itemsize(problem.out.dtype)
    moved = timing.transfer(nbytes, timing.long_run) if nbytes else NOTHING
    rows, columns = (max(1, prod(each)) for each in (problem.m, problem.n))
    high, wide = min(rows, timing.sizes.columns), min(columns, timing.sizes.bank_columns)
    each = timing.product(high, wide, problem.dtype, flags=problem.flags)
    chunks = -(-prod(problem.k) // timing.sizes.rows) * problem.passes
    multiplied = each.times(-(-rows // high) * columns / wide * chunks)
    return prod(problem.b) * max(multiplied.bound, moved.bound)


def _of_whole_k(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    batches = prod(problem.b)
    m_blocks, n_blocks = blocks_of(problem, schedule)
    outer, inner, passes, others = problem.lhs, problem.rhs, m_blocks, n_blocks
    if schedule.stays == "rhs":
        outer, inner, passes, others = inner, outer, others, passes
    outer_load, inner_load = (load(problem, schedule, each, timing) for each in (outer, inner))
    outer_turn, inner_turn = (transposes(problem, schedule, each, timing) for each in (outer, inner))
    multiplied = products(problem, schedule, timing)
    left = results(problem, schedule, timing)
    work = [outer_load, outer_turn, inner_load, inner_turn, multiplied, left]
    if passes > 1 and schedule.coming(inner).kept:
        kept = timing.transfer(problem.elements(inner) * itemsize(inner.dtype), timing.long_run)
        work += [kept, (kept + splitting.work(problem, inner, timing)).times(passes - 1)]
    else:
        work.append((inner_load + inner_turn).times(passes - 1))
    # TensorE waits for what is loaded, but not while it transposes what has come so far
    outer_wait, inner_wait = (
        max(0.0, moved.dma - transposes.tensor) + splitting.work(problem, operand, timing).bound
        for moved, transposes, operand in ((outer_load, outer_turn, outer), (inner_load, inner_turn, inner))
    )
    # TensorE transposes the first block of one operand while that of the other comes
    outer_turned = _turned(problem, schedule, outer, timing)
    wait = outer_wait / passes + max(0.0, inner_wait / others - outer_turned / passes)
    if schedule.coming(outer).buffers == 1:
        wait += outer_wait / passes * (batches * passes - 1)
    # blocks that are no loop are transposed while those before are multiplied
    turns, outer_turns = (count / schedule.body if count > schedule.blocks else 1 for count in (others, passes))
    turns *= 1 if schedule.coming(inner).kept else passes
    # the first blocks of both pass through the engines one after the other
    outer_shown = outer_turned - outer_turn.bound
    inner_shown = _turned(problem, schedule, inner, timing) - inner_turn.bound
    first = outer_shown + inner_shown if batches > 1 else max(outer_shown, inner_shown)
    shown = first + (turns - 1) * inner_shown + (outer_turns - 1) * outer_shown
    # so do those of each batch index, of which some are under way
    wait += shown * batches / min(UNDER_WAY, prod(schedule.batch_bodies(problem)))
    wait += _shown(problem, schedule, left, timing)
    wait += batches * (conversion.waits(problem, outer, timing) + passes * conversion.waits(problem, inner, timing))
    time = _overlapped(problem, schedule, total(work).times(batches), wait, batches * passes * others, timing)
    waiting = 0.0
    for operand, blocks, pairs in ((outer, passes, passes), (inner, others, passes * others)):
        if not operand.on_chip and not schedule.coming(operand).kept:
            stages = _streams(problem, schedule, operand, blocks, multiplied.times(1 / pairs), timing)
            waiting = max(waiting, _waiting(problem, schedule, operand, stages, batches * pairs, timing))
    return max(time, waiting + _ends(problem, schedule, timing))


def _waiting(
    problem: Problem, schedule: Schedule, operand: Operand, stages: Sequence[Stage], count: int, timing: Timing
) -> float:
    """Time of ``count`` blocks of an operand that go through ``stages``: each waits for a buffer. Rows are transposed
    as they come, in parts of a block.
    """
    coming = schedule.coming(operand)
    if not operand.transposed:
        return timing.pipeline(stages, count, coming.buffers)
    rows = schedule.together if operand is problem.lhs else coming.rows
    height = min(timing.sizes.rows, max(1, coming.rows))
    parts = max(1, rows // (height * coming.beside))
    come, made = (stage._replace(work=stage.work.times(1 / parts)) for stage in stages[:2])
    by_parts = timing.pipeline([come, made], count * parts, schedule.row_buffers)
    first = come.work.bound + come.latency
    return max(by_parts, first + timing.pipeline(stages[1:], count, coming.buffers))


def _streams(
    problem: Problem, schedule: Schedule, operand: Operand, blocks: int, last: Work, timing: Timing
) -> list[Stage]:
    """How each of the ``blocks`` of an operand comes, is converted or transposed, and multiplied, which is ``last``."""
    arrives = Stage(transfers(problem, schedule, operand, timing).times(1 / blocks), timing.transfer_latency)
    multiplied = Stage(last, timing.latency(Stream.TENSOR))
    if operand.transposed:
        transposed = transposes(problem, schedule, operand, timing).times(1 / blocks)
        return [arrives, Stage(transposed, _turnaround(problem, operand, timing)), multiplied]
    converted = made_on_chip(problem, operand, timing)
    if not converted.bound:
        return [arrives, multiplied]
    return [arrives, timing.done(converted.times(1 / blocks), Stream.VECTOR), multiplied]


def _of_k_blocks(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Both operands come anew for each pair of blocks, Vector adds the sums in SBUF."""
    m_blocks, n_blocks = blocks_of(problem, schedule)
    columns = min(max(1, schedule.rhs.rows), timing.sizes.bank_columns)
    add = timing.engine("tensor_tensor", Stream.VECTOR, columns, (Tile(),), (Tile(), F32_PSUM), ("add",))
    rows, all_columns = (max(1, prod(each)) for each in (problem.m, problem.n))
    tiles = -(-rows // min(schedule.lhs.rows, timing.sizes.columns)) * -(-all_columns // columns)
    count = schedule.k_blocks(problem)
    left = results(problem, schedule, timing)
    work = [products(problem, schedule, timing), left, add.times(tiles * (count - 1))]
    moved, split = [], 0.0
    for operand, times in ((problem.lhs, n_blocks), (problem.rhs, m_blocks)):
        work.append(transposes(problem, schedule, operand, timing).times(times))
        moved.append(load(problem, schedule, operand, timing).times(times))
        split += splitting.work(problem, operand, timing).bound * times
    batches = prod(problem.b)
    pairs = batches * m_blocks * n_blocks * count
    loads = total(moved).dma * batches
    wait = loads + pairs * timing.transfer_latency if schedule.lhs.buffers == 1 else loads / pairs
    transposed = [operand for operand in (problem.lhs, problem.rhs) if operand.transposed]
    wait += pairs * sum(_turnaround(problem, operand, timing) + timing.transfer_latency for operand in transposed)
    wait += batches * split  # sums do not leave PSUM as long as Vector splits
    if problem.epilogue is not None:
        # Vector, which adds up, is kept from that, and TensorE waits for the banks
        wide = problem.epilogue.work(columns, timing).bound + problem.epilogue.latency(timing)
        wait += batches * tiles * wide
    wait += _shown(problem, schedule, left, timing)
    return _overlapped(problem, schedule, total([*work, *moved]).times(batches), wait, pairs, timing)


def _of_open_banks(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """lhs comes once, then rhs, which is not transposed, in blocks of columns and of k."""
    batches, (_, n_blocks) = prod(problem.b), blocks_of(problem, schedule)
    lhs = load(problem, schedule, problem.lhs, timing)
    streams = _open_streams(problem, schedule, timing)
    streamed, ready = streams.streamed, streams.ready
    first = streams.until_multiplied(ready)
    left = results(problem, schedule, timing).times(1 / n_blocks)
    # the products of the next block of columns wait for the first bank of these
    waits = (n_blocks - 1) * (one_tile(problem, schedule, timing).bound + timing.latency(Stream.TENSOR))
    moved = transfers(problem, schedule, problem.rhs, timing).dma + (n_blocks - 1) * left.dma
    others = (batches - 1) * (lhs.dma + ready) + batches * max(waits, moved - streamed)
    # the banks of the last block leave as its last products are made
    leaves = max(left.vector, left.scalar, left.psum_port) - one_tile(problem, schedule, timing).bound
    last = max(0.0, leaves - streams.last) + left.dma
    return lhs.dma + first + others + last + _leaving(problem, schedule, timing)


class _OpenStreams(NamedTuple):
    """How both operands come to open banks of PSUM; nanoseconds."""

    streamed: float
    """All of rhs."""
    ahead: float
    """What comes of rhs while lhs is not there and made."""
    multiplied: float
    """All products."""
    last: float
    """The products of the last block."""
    ready: float
    """From the start to lhs, as it is multiplied."""
    made: float
    """What engines make of it until then."""

    def until_multiplied(self, ready: float) -> float:
        """Where lhs is ready by then."""
        return max(self.streamed + max(0.0, ready - self.ahead), ready + self.multiplied)


def _open_streams(problem: Problem, schedule: Schedule, timing: Timing) -> _OpenStreams:
    batches, pairs = prod(problem.b), blocks_of(problem, schedule)[1] * schedule.k_blocks(problem)
    multiplied = products(problem, schedule, timing)
    stages = _streams(problem, schedule, problem.rhs, pairs, multiplied.times(1 / pairs), timing)
    made = made_on_chip(problem, problem.lhs, timing).bound + _turned(problem, schedule, problem.lhs, timing)
    # rhs comes after lhs, as far as it has buffers, while that is not there and made
    ahead = stages[0].latency + min(pairs, schedule.rhs.buffers) * stages[0].work.bound
    streamed = timing.pipeline(stages, batches * pairs, schedule.rhs.buffers)
    if problem.rhs.converted:
        streamed, ahead = _converted(problem, schedule, stages, batches * pairs, timing)
    last, ready = stages[-1].work.bound, timing.transfer_latency + made
    return _OpenStreams(streamed, ahead, multiplied.bound * batches, last, ready, made)


def exposed(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Nanoseconds that a schedule takes more, as a rule, in programs where rhs, which is given, comes while the rows
    are computed: nothing hides what is made of these then.
    """
    if schedule.sums is not Sums.BANKS:
        return 0.0
    streams = _open_streams(problem, schedule, timing)
    without = streams.until_multiplied(streams.ready - streams.made)
    return EXPOSED * (streams.made - streams.until_multiplied(streams.ready) + without)


def _converted(
    problem: Problem, schedule: Schedule, stages: Sequence[Stage], blocks: int, timing: Timing
) -> tuple[float, float]:
    """Time of the blocks of rhs that come, are converted piece by piece and are multiplied, and until the first piece
    is there, which engines convert when lhs is made."""
    if len(stages) < 3:  # TensorE transposes it as it is stored
        return timing.pipeline(stages, blocks, schedule.rhs.buffers), stages[0].work.bound + stages[0].latency
    nbytes = prod(schedule.boxes_of(problem, problem.rhs)[0]) * schedule.rhs.rows * itemsize(problem.rhs.stored)
    pieces = -(-nbytes // unconverted_bytes(problem, timing.sizes))
    arrives, converts, multiplied = stages
    come, made = (stage._replace(work=stage.work.times(1 / pieces)) for stage in (arrives, converts))
    first = come.work.bound + come.latency
    by_pieces = timing.pipeline([come, made], blocks * pieces, conversion.BUFFERS)
    by_blocks = timing.pipeline([converts, multiplied], blocks, schedule.rhs.buffers)
    last = conversion.last(problem.rhs, nbytes, pieces, timing) + multiplied.work.bound + multiplied.latency
    return max(by_pieces + last, first + by_blocks), first


def _overlapped(problem: Problem, schedule: Schedule, work: Work, wait: float, pairs: int, timing: Timing) -> float:
    """Time of all ``work``: that of the engines and what these ``wait`` for transfers, or that of the DMA, after which
    one of ``pairs`` of blocks is left to multiply.
    """
    engines = max(work.tensor, work.vector, work.scalar, work.psum_port, work.sbuf_port)
    others = sorted((work.tensor, work.vector, work.scalar, work.dma))[-2]
    bound = max(engines + wait, work.dma + work.tensor / pairs)
    return bound + UNHIDDEN * others + _ends(problem, schedule, timing)


def _shown(problem: Problem, schedule: Schedule, left: Work, timing: Timing) -> float:
    """Transfers of the first tiles that the epilogue reads, which come after the operands, and of the last stored;
    ``left``: the work of all results.
    """
    high, rows = timing.sizes.columns, max(1, problem.m_tiled)
    rows = min(rows, schedule.beside * high) if schedule.beside > 1 else rows % high or high
    columns = min(schedule.columns, max(1, schedule.rhs.rows), problem.width(problem.n_tiled))
    part = rows * columns / (max(1, prod(problem.m)) * prod(problem.n))
    stored = left.dma if schedule.leaves is Leaves.TILES else 0.0
    return min(1.0, part) * (combined(problem, schedule, timing).dma + stored)


def _turnaround(problem: Problem, operand: Operand, timing: Timing) -> float:
    """What TensorE waits for the last transposes of a block, before it multiplies them: they leave PSUM. Bit patterns
    are taken apart by Vector before.
    """
    last = leave(timing.sizes.bank_columns, problem.dtype, timing).bound
    apart = 0.0 if problem.fast(problem.transposed_as(operand)) else timing.latency(Stream.VECTOR)
    return apart + timing.latency(Stream.TENSOR) + last + timing.latency(Stream.SCALAR)


def _ends(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """From the first load's start to its data, and from the last product to the end of its store."""
    outside = [each for each in (problem.lhs, problem.rhs) if not each.on_chip]
    arrived = timing.transfer_latency * bool(outside)
    return arrived + timing.latency(Stream.TENSOR) + _leaving(problem, schedule, timing)


def _leaving(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """From the end of the last product to the end of its store."""
    stored = timing.transfer_latency if schedule.leaves is not Leaves.CHIP else 0.0
    waits = 0.0 if problem.epilogue is None else problem.epilogue.latency(timing)
    return timing.latency(Stream.SCALAR) + stored + one_tile(problem, schedule, timing).bound + waits


def _turned(problem: Problem, schedule: Schedule, operand: Operand, timing: Timing) -> float:
    """From the arrival of one batch index of an operand until all of it is transposed: bank by bank, of which the first
    passes through all engines one after the other, for each part of its bit patterns."""
    work = transposes(problem, schedule, operand, timing)
    if not operand.transposed:
        return 0.0
    problem, operand = problem.carried(operand)
    rows = prod(problem.m if operand is problem.lhs else problem.n)
    banks = rows * problem.products / timing.sizes.bank_columns
    first = (work.tensor + work.vector + work.scalar) / max(1.0, banks)
    latency, parts = timing.latency(Stream.TENSOR) + timing.latency(Stream.SCALAR), 1
    if not problem.fast(problem.transposed_as(operand)):
        latency += timing.latency(Stream.VECTOR)
        parts = itemsize(operand.dtype) // itemsize(HALVES[itemsize(operand.dtype)][0])
    return work.bound * (1 - 1 / max(1.0, banks)) + first + latency * parts
