"""Which attentions become one kernel: those that fit, whatever else stays on chip, and take less time than apart where
little does.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from math import frexp, inf, prod

from neuronx_cc.codegen.attention.arrays import stored_order
from neuronx_cc.codegen.attention.estimate import apart, choose, least
from neuronx_cc.codegen.attention.geometry import by_dim, marked
from neuronx_cc.codegen.attention.pattern import Attention, find
from neuronx_cc.codegen.attention.schedule import Leaf, Problem
from neuronx_cc.codegen.attention.steps import Step, first_with_weight, leaves_of, masks_weigh_nothing
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.problem import order_of, pe_dtype, rounding_of
from neuronx_cc.codegen.dots.schedule import FEW
from neuronx_cc.codegen.emission.tiles import pieces
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.formation.graph import base, is_view
from neuronx_cc.codegen.residents import KEPT_SHARE, RESIDENT_SHARE
from neuronx_cc.codegen.view_ops import apply_view
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.stored import RESIDENT_VALUE_SHARE
from neuronx_cc.passes.analysis.values import is_normal

LEFT = 0.9
"""Of what is free, at least: the rest may lie in pieces."""
FILLING = 3
"""Latencies of transfers until one kernel has work for all engines, where all of it stays on chip: kernels apart
overlap with those around them.
"""
WELL = 0.85
"""Heads of another dim than the innermost are taken together where that takes so much less time by estimate."""


def worthwhile(
    context: Context, computation: hlo.ComputationOp, without: Set[hlo.Operation] = frozenset()
) -> list[Attention]:
    """The attentions of ``computation`` that are a kernel each; none with an op of ``without``, or staged ahead."""
    found = []
    for attention in find(computation, context.combiners, context.splat, context.module):
        operands = {(op, index) for op in (attention.scores, attention.product) for index in (0, 1)}
        taken = attention.scores in context.apart or not without.isdisjoint(attention.ops)
        if taken or not operands.isdisjoint(context.residents.staged):
            continue
        around = [axis for axis in attention.own_dims() if attention.dims[axis] > 1]
        time, best = _time(context, attention), attention
        for way in (replace(attention, inner=axis) for axis in around[:-1]):
            if (other := _time(context, way)) < WELL * time:
                time, best = other, way
        if time < inf:
            found.append(best)
    return found


def _time(context: Context, attention: Attention) -> float:
    """Nanoseconds of one kernel; infinite where it does not fit, or kernels apart take less."""
    problem = problem_of(context, attention, int(context.sizes.sbuf_bytes * LEFT))
    known, posed = context.planner.attentions, (problem, _least_room(context))
    if posed not in known:
        known[posed] = _time_of(*posed, context.timing)
    return known[posed]


def _time_of(problem: Problem, least_room: int, timing: Timing) -> float:
    if choose(replace(problem, room=least_room), timing) is None:
        return inf
    time = least(problem, timing)
    filling = FILLING * timing.transfer_latency if problem.near else 0.0
    return time if time + filling < apart(problem, timing) else inf


def _least_room(context: Context) -> int:
    """Bytes a partition that are free whatever stays on chip; more may in loops, for which operands are staged."""
    share = RESIDENT_SHARE if not context.prefix else KEPT_SHARE
    return int((context.sizes.sbuf_bytes - context.sizes.sbuf_share(share)) * LEFT)


def problem_of(context: Context, attention: Attention, room: int) -> Problem:
    """``room``: bytes a partition."""
    scores, product, dims = attention.scores, attention.product, attention.dims
    own = attention.own_dims()
    heads = prod(dims[axis] for axis in own)
    outer = prod(size for axis, size in enumerate(dims) if axis not in (attention.row, attention.column))
    depth = hlo.shape_of(scores.operands[0]).dims[order_of(scores, 0)[2][0]]
    values_of = product.operands[1 - attention.weights]
    width = hlo.shape_of(values_of).dims[order_of(product, 1 - attention.weights)[1][0]]
    steps = [step for step in attention.steps if step.band is None]
    if steps and steps[0] is attention.steps[0] and factor_of(context, attention) is not None:
        steps = steps[1:]
    leaves = [(step, x) for step in steps for x in leaves_of(step) if context.splat(x) is None]
    leaves = [(step, x) for step, x in leaves if not _repeats(context, attention, step, x, attention.column)]
    rows = [attention.row, *(axis for axis in range(len(dims)) if axis not in (*own, attention.row, attention.column))]

    def same(step: Step, leaf: hlo.SSAValue, axes: Sequence[int]) -> bool:
        return all(_repeats(context, attention, step, leaf, axis) for axis in axes)

    beside = [Leaf(itemsize(hlo.shape_of(x).dtype), same(step, x, own[-1:]), same(step, x, rows)) for step, x in leaves]
    dtype, weight_dtype = pe_dtype(scores), pe_dtype(product)
    operands = scores.operands[attention.queries], scores.operands[1 - attention.queries], values_of
    sizes = [itemsize(hlo.shape_of(context.source_of(base(x))).dtype) for x in operands]
    places = attention.queried, attention.keyed, attention.valued
    lie = queries, keys, values = [place(seen(context, x)) for place, x in zip(places, operands, strict=True)]
    pitches = [least_stride(view.dims[attention.column]) if view else 0 for view in (keys[0], values[0])]
    seen_share = _seen(attention, context.sizes.columns)
    return Problem(
        heads,
        dims[own[-1]] if own else 1,
        dims[own[-2]] if len(own) > 1 else 1,
        outer // heads,
        dims[attention.row],
        dims[attention.column],
        depth,
        width,
        dtype,
        weight_dtype,
        rounding_of(scores),
        rounding_of(product),
        len(steps),
        tuple(beside),
        _direct(context, attention),
        any(step.band is not None for step in attention.steps),
        _computed(attention, context.sizes.columns),
        _masked(attention, context.sizes.columns, seen_share),
        seen_share,
        outer // heads * dims[attention.row] > FEW and _near(context, attention),
        (sizes[0], sizes[1], sizes[2]),
        *_neighbouring(attention, [rows_of for rows_of, _ in lie], (depth, depth, width, width)),
        (_neighbours(queries[1]), _neighbours(keys[1]), _neighbours(values[1])),
        (pitches[0], pitches[1]),
        context.moves_values("bf16"),
        room,
        bare=_bare(context, attention, len(steps)),
    )


def _bare(context: Context, attention: Attention, steps: int) -> bool:
    """Whether exponentials of the products themselves are right, with weights of 0 wherever masks leave scores out."""
    factor = factor_of(context, attention)
    if steps or (factor is not None and factor <= 0):
        return False
    if rounding_of(attention.scores) or rounding_of(attention.product):
        return False
    rows, columns = attention.dims[attention.row], attention.dims[attention.column]
    return masks_weigh_nothing(attention.steps, rows, columns, context.sizes.columns)


def _neighbours(features: View) -> int:
    """How many features of a row lie beside each other."""
    atoms = coalesce(features.dims[0])
    return atoms[-1].size if atoms and atoms[-1].stride == 1 else 1


def _direct(context: Context, attention: Attention) -> bool:
    """Whether Vector reads scores in PSUM beside something, without a factor, or with one that queries are multiplied
    with and stay as exact: a power of two, where they have the exponents of FP32.
    """
    factor = factor_of(context, attention)
    steps = attention.steps[factor is not None :]
    if not steps or steps[0].band is not None or all(context.splat(x) is not None for x in leaves_of(steps[0])):
        return False
    exact = factor is not None and 0 < factor <= 1 and frexp(factor)[0] == 0.5
    return factor is None or (exact and pe_dtype(attention.scores) == "bf16" and context.moves_values("bf16"))


def _computed(attention: Attention, step: int) -> float:
    """The share of the scores that is computed, ``step`` rows after ``step`` rows."""
    rows, columns = attention.dims[attention.row], attention.dims[attention.column]
    ends = [(start, min(start + step, rows)) for start in range(0, rows, step)]
    return sum(attention.columns(start, end - 1) * (end - start) for start, end in ends) / (rows * columns)


def _seen(attention: Attention, step: int) -> float:
    """The share of the scores from the first chunk of columns on that has weight, ``step`` rows after ``step`` rows."""
    rows, columns = attention.dims[attention.row], attention.dims[attention.column]
    seen = 0
    for start, size in pieces(rows, step):
        last = start + size - 1
        begin = first_with_weight(attention.steps, start, last) // step * step
        seen += size * max(0, attention.columns(start, last) - begin)
    return seen / (rows * columns)


def _masked(attention: Attention, step: int, seen: float) -> float:
    """The share of the scores of chunks that masks cut, ``step`` rows and columns, among those ``seen``."""
    bands = [step.band for step in attention.steps if step.band is not None]
    rows, columns, cut = attention.dims[attention.row], attention.dims[attention.column], 0
    for start, size in pieces(rows if bands else 0, step):
        last = start + size - 1
        begin = first_with_weight(attention.steps, start, last) // step * step
        for first, count in pieces(attention.columns(start, last) - begin, step):
            ends = start, last, begin + first, begin + first + count
            cut += size * count * (not all(band.keeps_all(*ends) for band in bands))
    return cut / (rows * columns * seen) if seen else 0.0


def _neighbouring(
    attention: Attention, operands: Sequence[View | None], lengths: Sequence[int]
) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Of queries, keys, values and the result: whether rows of several heads lie beside each other in memory, where
    what they are views of is dense, and whether those of one do. ``operands``: the rows of the first three;
    ``lengths``: elements of a row.
    """
    own = attention.own_dims()
    order, dims = stored_order(attention), hlo.shape_of(attention.result).dims
    made = marked([dims[axis] for axis in order]).transpose([order.index(axis) for axis in range(len(order))])
    views, axes = (*operands, attention.made(made)[0]), (attention.row, *[attention.column] * 2, attention.row)
    strides = [
        (least_stride(view.dims[own[-1]]) if own else 0, least_stride(view.dims[axis])) if view is not None else (0, 0)
        for view, axis in zip(views, axes, strict=True)
    ]
    dense = (row == length for (_, row), length in zip(strides, lengths, strict=True))
    return tuple(0 < head < row for head, row in strides), tuple(dense)


def _repeats(context: Context, attention: Attention, step: Step, leaf: hlo.SSAValue, axis: int) -> bool:
    """Whether ``leaf`` is the same along a dim of the scores."""
    view = by_dim(attention.dims, step.marks, seen(context, leaf))
    return view is not None and not any(atom.stride for atom in view.dims[axis])


def seen(context: Context, value: hlo.SSAValue) -> View:
    """The view that ``value`` is of an array that is dense, which may be cast as it is loaded."""
    op = context.source_of(value).owner
    if isinstance(op, hlo.HloOp) and is_view(op):
        view = apply_view(op, seen(context, op.operands[0]))
        if view is not None:
            return view
    return marked(hlo.shape_of(value).dims)


def least_stride(atoms: Sequence[Atom]) -> int:
    """The stride of the innermost part of a dim."""
    return min((atom.stride for atom in atoms if atom.size > 1), default=0)


def _near(context: Context, attention: Attention) -> bool:
    """Whether kernels apart read what was just computed, and nothing that they read or leave is too large to stay on
    chip: what was moved is in HBM.
    """
    scores, product = attention.scores, attention.product
    read = [*scores.operands, product.operands[1 - attention.weights]]
    most = context.sizes.sbuf_share(RESIDENT_VALUE_SHARE) * context.sizes.partitions
    made = (*read, scores.result)
    kinds = hlo.ElementwiseOp | hlo.ContractionOp
    computed = all(isinstance(base(context.source_of(base(x))).owner, kinds) for x in read)
    return computed and all(hlo.shape_of(x).nbytes <= most for x in made)


def factor_of(context: Context, attention: Attention) -> float | None:
    """What the scores are multiplied with first, if that is a constant."""
    if not attention.steps or attention.steps[0].op.opcode not in ("multiply", "divide"):
        return None
    step = attention.steps[0]
    constant = context.splat(step.op.operands[1 - step.main])
    if constant is None:
        return None
    if step.op.opcode == "multiply":
        return constant
    return 1 / constant if step.main == 0 and is_normal(1 / constant if constant else 0.0, "f32") else None
