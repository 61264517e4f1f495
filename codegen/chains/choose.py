"""Which chains become one kernel, and how they are cut: those that fit and take less time than kernels apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import islice
from math import ceil, prod

from neuronx_cc.codegen.attention.choose import least_stride, seen
from neuronx_cc.codegen.chains.bands import weighted_columns
from neuronx_cc.codegen.chains.body import inner_fusion
from neuronx_cc.codegen.chains.estimate import apart, estimate
from neuronx_cc.codegen.chains.linear import simpler
from neuronx_cc.codegen.chains.pattern import Chain, depth_of, find, long_order, made_by, separate
from neuronx_cc.codegen.chains.schedule import Schedule
from neuronx_cc.codegen.chains.widen import widened
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.problem import divisor
from neuronx_cc.codegen.formation.graph import base
from neuronx_cc.codegen.maps.elementwise import ACTIVATION, ARITHMETIC
from neuronx_cc.codegen.maps.lifetimes import Alive, last_uses, tiles_alive
from neuronx_cc.codegen.residents import KEPT_SHARE, RESIDENT_SHARE
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import replace, retype, users
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import NARROW, itemsize

UNROLLED_BLOCKS = 64
"""Blocks of rows in straight-line code."""
LEAST_PARTS = 32
"""Rows of a block and columns of a chunk, at least."""
LEAST_DEALT = 64
"""Partitions that rows and columns are dealt out over, at least: fewer are taken in their order instead."""
WIDEST = 2
"""Times the rows of TensorE, that operands have terms: the longer, the less what lies between counts."""
LEFT = 0.9
"""Of what is free, at least: the rest may lie in pieces."""
READING = frozenset([*ARITHMETIC, *ACTIVATION, "divide", "convert"])
"""Ops that compute in FP32 whatever floats they read."""
UNDER_WAY = (6, 5, 4, 3, 2, 1)
"""Blocks of rows."""
TOGETHER = (16, 8, 4, 2, 1)
"""Heads that are loaded at once."""
WHOLE, PART = 1.0, 0.7
"""Part of the time of kernels apart that a chain may take; of one first contraction, beside scores that were computed
before, which kernels apart may find on chip.
"""
DRAWN = 1.1
"""How much longer a chain takes than its transfers, if these take longest."""
SCRATCH = 2
"""Tiles that ops use besides."""


def worthwhile(
    context: Context, computation: hlo.ComputationOp, without: Set[hlo.Operation] = frozenset()
) -> list[Chain]:
    """The chains of ``computation`` that are a kernel each, with ops of their own; none with an op ``without``."""
    share = RESIDENT_SHARE if not context.prefix else KEPT_SHARE  # in loops, for which operands are staged
    room = int((context.sizes.sbuf_bytes - context.sizes.sbuf_share(share)) * LEFT)
    timing, found = context.timing, []
    for chain in find(computation, context.combiners, without):
        staged = any((op, index) in context.residents.staged for op in chain.ops for index in (0, 1))
        if staged or any(op in context.apart for op in chain.sources):
            continue
        schedule = schedule_of(context, chain, room)
        if schedule is None:
            continue
        part = WHOLE if len(chain.sources) > 1 else PART
        if _time(context, chain, schedule) < part * apart(chain, schedule, timing, room):
            found.append(taken(context, chain))
    return found


def _moved(context: Context, chain: Chain, schedule: Schedule) -> float:
    """Nanoseconds of the transfers of operands, of results, which are taken to lie as these do, and of what is read
    and stored beside the products.
    """
    s, time = schedule, 0.0
    operands = [(op.operands[at], (op, at), bool(at)) for op in chain.sources for at in (0, 1)]
    operands += [(sink.other, (sink.op, 1 - sink.weights), not sink.across) for sink in chain.sinks]
    met: set[hlo.SSAValue] = set()
    for value, (op, index), is_column in operands:
        if base(value) in met:
            continue
        met.add(base(value))
        batch, free, terms = long_order(op, index)
        rows, (last,) = (terms, free) if any(op is sink.op for sink in chain.sinks) else (free, terms)
        view, each = seen(context, value), s.column_chunks if is_column else s.row_blocks
        strides = [least_stride(view.dims[axis]) for axis in (*batch[-1:], *rows, last)]
        width, size = hlo.shape_of(value).dims[last], itemsize(hlo.shape_of(context.source_of(base(value))).dtype)
        run = width
        if strides[0] == width < strides[-2]:
            run *= s.together
        elif strides[-2] == width and not s.in_order:
            run *= each
        copied = 1 if strides[-1] == 1 else 3
        run = run if strides[-1] == 1 else width
        time += copied * context.timing.transfer(prod(hlo.shape_of(value).dims) * size, run * size).bound
    time *= (len(met) + len(chain.sinks)) / len(met)
    beside = [x for x in chain.read if context.splat(x) is None and made_by(x, chain.dims) is x]
    for value in (*beside, *chain.stored):
        size = itemsize(hlo.shape_of(value).dtype)
        time += context.timing.transfer(prod(chain.dims) * size, s.columns * size).bound
    return time


def taken(context: Context, chain: Chain) -> Chain:
    """``chain`` as a kernel: with ops of its own, and the casts of its results."""
    for sink in chain.sinks:
        _take_cast(context, sink.op)
    return simpler(context, widened(context, separate(chain)))


def _take_cast(context: Context, op: hlo.DotOp) -> None:
    """Let ``op`` give what its only reader, a cast to a float of 16 bits, makes of its sums: less is stored."""
    casts = [each for each in users(op.result) if isinstance(each, hlo.ConvertOp) and each.shape.dtype in NARROW]
    if op.shape.dtype == "f32" and casts and op.result.has_one_use():
        context.load_casts.pop(casts[0].result, None)
        retype(op.result, casts[0].result.type)
        replace(casts[0], op.result)


def schedule_of(context: Context, chain: Chain, room: int) -> Schedule | None:
    """The schedule with most under way that fits ``room`` bytes a partition; None where none does."""
    sizes = context.sizes
    rows, columns = chain.dims[-2:]
    cut = _in_order(chain, sizes)
    dealt, weighted = [divisor(size, sizes.rows) for size in (rows, columns)], weighted_columns(context, chain, *cut)
    widths = [sink.width for sink in chain.sinks] + [depth_of(op) for op in chain.sources]
    if min(cut) < LEAST_PARTS or max(widths) > WIDEST * sizes.rows or ceil(rows / cut[0]) > UNROLLED_BLOCKS:
        return None
    alive, found = _alive(context, chain), list[Schedule]()
    if min(dealt) >= LEAST_DEALT:
        found += islice(_fitting(chain, _candidates(chain, dealt, False, None, sizes), alive, sizes, room), 1)
    if min(dealt) < LEAST_DEALT or weighted is not None:
        found += islice(_fitting(chain, _candidates(chain, cut, True, weighted, sizes), alive, sizes, room), 1)
    return min(found, key=lambda each: _time(context, chain, each), default=None)


def _in_order(chain: Chain, sizes: Sizes) -> list[int]:
    """Rows of blocks and columns of chunks, as equal as they can be."""
    return [ceil(size / ceil(size / sizes.rows)) for size in chain.dims[-2:]]


def read_in_part(context: Context, chain: Chain) -> set[hlo.SSAValue]:
    """What lies beside products, of which columns without weight may not be read."""
    weighted = weighted_columns(context, chain, *_in_order(chain, context.sizes))
    return set() if weighted is None else set(chain.read)


def _fitting(chain: Chain, schedules: Iterable[Schedule], alive: Alive, sizes: Sizes, room: int) -> Iterator[Schedule]:
    return (each for each in schedules if footprint(chain, each, alive, sizes) <= room)


def _time(context: Context, chain: Chain, schedule: Schedule) -> float:
    """Nanoseconds."""
    return max(estimate(chain, schedule, context.timing), DRAWN * _moved(context, chain, schedule))


def _alive(context: Context, chain: Chain) -> Alive:
    """Of tiles of a block of rows."""
    kernel, member, fusion, _ = inner_fusion(context, chain)
    given = [*(op.result for op in chain.sources), *(x for x in chain.read if context.splat(x) is None)]
    return tiles_alive(kernel, given, last_uses(kernel, member, fusion.within), {*fusion.within})


def _candidates(
    chain: Chain, parts: list[int], in_order: bool, weighted: Sequence[tuple[int, int]] | None, sizes: Sizes
) -> Iterator[Schedule]:
    rows, columns = chain.dims[-2:]
    blocks, chunks = ceil(rows / parts[0]), ceil(columns / parts[1])
    heads = _heads(chain.dims[:-2], max(1, UNROLLED_BLOCKS // blocks))
    across = [sink for sink in chain.sinks if sink.across]
    banks = sum(ceil(chunks / (sizes.bank_columns // sink.width)) for sink in across)
    one_bank = chunks * sum(sink.width for sink in across) <= sizes.bank_columns
    banks = min(banks, 1) if one_bank else banks
    in_psum = banks <= sizes.banks - 4
    left = sizes.banks - 1 - (banks if in_psum else len(across))
    each, several = ceil(columns / sizes.bank_columns), max(1, sizes.bank_columns // columns)
    stay = min((left - 1) // each, ceil(UNDER_WAY[0] * len(chain.sources) / several)) if _may_stay(chain) else 0
    turning = left - stay * each if stay * several >= max(2, len(chain.sources)) else 1 + (left >= 5)
    stay = stay * several if stay * several >= max(2, len(chain.sources)) else 0
    if left - turning < 1:
        return
    for under_way in UNDER_WAY:
        for together in (size for size in TOGETHER if size <= heads):
            abreast = (
                min(under_way, blocks * heads),
                in_psum,
                in_psum and one_bank,
                left - turning,
                stay,
                turning,
                together,
            )
            seen = None if weighted is None else tuple(weighted)
            yield Schedule(rows, columns, parts[0], parts[1], in_order, seen, heads, *abreast)


def _heads(sizes: Sequence[int], most: int) -> int:
    """Heads of a body: of the innermost dims all that are not too many, of the one around them equal parts."""
    heads = 1
    for size in reversed(sizes):
        parts = ceil(size / (most // heads))
        heads *= ceil(size / parts)
        if parts > 1:
            break
    return heads


def _may_stay(chain: Chain) -> bool:
    """Whether all that read products of contractions read FP32, whatever their type is."""
    made = {op.result for op in chain.sources}
    readers = [op for op in chain.inner if not made.isdisjoint(made_by(x, chain.dims) for x in op.operands)]
    folded = {x for op in readers if isinstance(op, hlo.ReduceOp) for x in op.operands}
    narrow = any(hlo.shape_of(x).dtype != "f32" for x in folded)
    return not narrow and all(op.opcode in READING or isinstance(op, hlo.ReduceOp) for op in readers)


def footprint(chain: Chain, schedule: Schedule, alive: Alive, sizes: Sizes) -> int:
    """Bytes of each partition of SBUF, where tiles of a block of rows are ``alive``."""
    s = schedule
    tiles = alive.aligned(s.columns, 1, sizes.alignment) + SCRATCH * 4 * s.columns
    lengths = s.row_blocks, s.column_chunks
    staged = {
        (base(x), across): 2 * lengths[not across] * width
        for x, across, width in (
            *((op.operands[index], not index, depth_of(op)) for op in chain.sources for index in (0, 1)),
            *((sink.other, sink.across, sink.width) for sink in chain.sinks),
        )
    }
    rows = sum(staged.values())  # of operands and results
    rows += sum(itemsize(sink.op.shape.dtype) * lengths[sink.across] * sink.width for sink in chain.sinks)
    nbytes = sum(2 * ceil(depth_of(op) / sizes.rows) * sum(chain.dims[-2:]) for op in chain.sources)
    if not s.in_psum:
        nbytes += sum(4 * s.column_chunks * sink.width for sink in chain.sinks if sink.across)
    transposed = 2 * 2 * s.column_chunks * s.row_parts
    whole = s.staged * nbytes + max(s.staged, s.groups * s.together) * rows
    return s.under_way * tiles + whole + transposed + 64 * sizes.alignment
