"""Sums of squared differences from a mean need no pass over the array of their own: means of rows first.

Input: canonical hlo, images features first, sums in FP32. Output: where an array is added up over dims, and then the
squares of what it differs from a number that was made of that sum (a variance), and no row of a map kernel holds these
dims, both sums come from each row as it is visited once: its sum, and the sum of squared differences from its own mean
r. With n elements a row, the sum of (x - m)^2 is that of the rows' own sums plus n (r - m)^2, whatever m is. What is
left folds few elements. No value changes but for rounding, and that of a variance becomes more exact.
"""

from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.values import combiner_kind, splat_number
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.split_long_rows import LEAST_FOLDED, longest_row

LATENCIES = 8
"""Of transfers, that what folds the rows takes besides: a pass over the array must take longer."""
MOST_STEPS = 8
"""Ops between a sum and what is subtracted for it."""


@only_for(hlo.ReduceOp)
def run(module: HloModule, context: PassContext) -> None:
    timing = context.timing
    for computation in module.computations():
        for op in ops_of(computation.block):
            if not isinstance(op, hlo.ReduceOp) or not _adds(op, module):
                continue
            differences = _squared(op.operands[0])
            first = _first(op, timing)
            total = _sum_behind(differences.rhs, differences.lhs, op) if differences is not None and first else None
            if differences is not None and total is not None and _adds(total, module):
                _split(module, op, total, differences, first)


def _adds(op: hlo.ReduceOp, module: HloModule) -> bool:
    """Whether ``op`` is a plain sum in FP32."""
    if len(op.operands) != 2 or op.shape.dtype != "f32":
        return False
    return combiner_kind(op, module) == "add" and splat_number(op.operands[1], module) == 0


def _squared(value: Value) -> hlo.SubtractOp | None:
    """The difference whose square ``value`` is."""
    op = defining_op(value)
    if not isinstance(op, hlo.MultiplyOp) or op.lhs is not op.rhs:
        return None
    difference = defining_op(op.lhs)
    return difference if isinstance(difference, hlo.SubtractOp) else None


def _first(op: hlo.ReduceOp, timing: Timing) -> int:
    """The first of the trailing dims that are a row; 0 where rows are all that is folded, or worth nothing."""
    folded, dims, longest = set(op.dimensions.data), hlo.shape_of(op.operands[0]).dims, longest_row(timing.sizes)
    first = len(dims)
    while first and first - 1 in folded and prod(dims[first - 1 :]) <= longest:
        first -= 1
    few = prod(dims[first:]) < LEAST_FOLDED or prod(dims[:first]) < timing.sizes.partitions
    short = timing.transfer(prod(dims) * itemsize("f32"), timing.long_run).bound < LATENCIES * timing.transfer_latency
    return 0 if len(dims) - first == len(folded) or few or short else first


def _sum_behind(value: Value, array: Value, op: hlo.ReduceOp) -> hlo.ReduceOp | None:
    """The sum of ``array`` over the dims of ``op`` that ``value``, one number for each result, was made of."""
    shape, folded = hlo.shape_of(value), op.dimensions.data
    kept = [dim for dim in range(shape.rank) if dim not in folded]
    spread = defining_op(value)
    if not isinstance(spread, hlo.BroadcastOp) or list(spread.dimensions.data) != kept:
        return None
    value = spread.operand
    for _ in range(MOST_STEPS):
        made = defining_op(value)
        if isinstance(made, hlo.ReduceOp):
            same = made.operands[0] is array and made.dimensions.data == folded
            return made if same else None
        if not isinstance(made, hlo.MultiplyOp | hlo.DivideOp):
            return None
        value = made.lhs
    return None


def _split(module: HloModule, op: hlo.ReduceOp, total: hlo.ReduceOp, differences: hlo.SubtractOp, first: int) -> None:
    """``op`` and ``total`` by the rows that the dims from ``first`` on are."""
    array, spread = differences.lhs, defining_op(differences.rhs)
    assert isinstance(spread, hlo.BroadcastOp), "one number for each result"
    dims = hlo.shape_of(array).dims
    row, lead = range(first, len(dims)), range(first)
    length, others = prod(dims[first:]), [dim for dim in op.dimensions.data if dim < first]
    b = Build.before(module, total)
    sums = b.sum(array, row)
    means = b.mul(sums, b.number(1 / length, dims=dims[:first]))
    apart = b.sub(array, b.broadcast(means, dims, lead))
    squares = b.sum(b.mul(apart, apart), row)
    replace(total, b.sum(sums, others))
    b = Build.before(module, op)
    away = b.sub(means, b.broadcast(spread.operand, dims[:first], [dim for dim in lead if dim not in others]))
    away = b.mul(b.mul(away, away), b.number(length, dims=dims[:first]))
    replace(op, b.sum(b.add(squares, away), others))
