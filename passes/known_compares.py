"""Decides comparisons of integers by bounds: of a loop's count, of ``iota``, of places that ``topk`` finds, of clamps.

Input: ``flatten_control``'s form. Output: a comparison of integers that has one result whatever the program is given is
a constant. Such are those of a loop's counter with zero and with the size of the array it walks through, which JAX
writes around every index: without them the counter places a window itself. So are those of row numbers, as of a
diagonal's elements, of the experts that tokens choose, and of indices that the program has clamped before it takes
elements, as integers or as the floats that they were. A maximum or minimum that always is one of its operands is that
one: such indices need no second clamp.
"""

from collections.abc import Callable

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.passes.analysis import intervals
from neuronx_cc.passes.analysis.intervals import Interval, inside, is_integer, type_range
from neuronx_cc.passes.analysis.spans import span_of
from neuronx_cc.passes.analysis.trip_count import Count, counted_loops, element_of
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.CompareOp, hlo.MaximumOp, hlo.MinimumOp, hlo.ClampOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    bodies = {loop.body.data[0]: counted for loop, counted in counted_loops(module) if counted.trips}
    for computation in module.computations():
        _decide(module, computation, bodies.get(computation.computation_name))


def _decide(module: HloModule, body: hlo.ComputationOp, counted: Count | None) -> None:
    """``counted``: the loop whose body it is."""
    known: dict[hlo.SSAValue, Interval] = {}
    index = None
    if counted is not None:
        last = counted.start + (counted.trips - 1) * counted.step
        index, counts = counted.index, (min(counted.start, last), max(counted.start, last))

    def of(value: hlo.SSAValue) -> Interval:
        return known.get(value) or type_range(hlo.shape_of(value).dtype)

    for op in list(ops_of(body.block)):
        if index is not None and element_of(op.results[0], body) == index:
            known[op.results[0]] = counts
        elif isinstance(op, hlo.GetTupleElementOp) and isinstance(top := op.operand.owner, hlo.TopkOp):
            if op.index.data == 1:
                known[op.result] = 0, hlo.shape_of(top.operands[0]).dims[-1] - 1
        elif isinstance(op, hlo.ConvertOp) and is_integer(op.result) and not is_integer(op.operand):
            known[op.result] = _of_floats(op, module)
        elif isinstance(op, hlo.CompareOp) and is_integer(op.lhs):
            result = decided(op.direction.data, of(op.lhs), of(op.rhs))
            if result is not None:
                replace(op, Build.before(module, op).number(result, "pred", op.shape.dims))
        elif isinstance(op, hlo.SelectOp) and splat_number(op.operands[0], module) is not None:
            chosen = op.operands[1 if splat_number(op.operands[0], module) else 2]
            if is_integer(chosen):
                known[op.result] = of(chosen)
        elif isinstance(op, hlo.ElementwiseOp | hlo.ViewOp | hlo.ConstantOp) and is_integer(op.results[0]):
            found = intervals.bounds(of, op, module)
            same = _same(op, of)
            if same is not None:
                replace(op, same)
            elif found is not None and inside(found, type_range(op.shape.dtype)):
                known[op.results[0]] = found


def _of_floats(op: hlo.ConvertOp, module: HloModule) -> Interval:
    """Of integers that are made of floats: the nearest to zero beside each bound, and the zero that a NaN becomes."""
    least, most = type_range(op.shape.dtype)
    if op.shape.dtype == "pred":
        return least, most
    low, high = (min(max(bound, least), most) for bound in span_of(op.operand, module))
    return min(int(low), 0), max(int(high), 0)


def _same(op: hlo.HloOp, of: Callable[[hlo.SSAValue], Interval]) -> hlo.SSAValue | None:
    """The operand that a maximum, minimum or clamp always is."""
    if isinstance(op, hlo.ClampOp):
        low, value, high = op.operands
        return value if inside(of(value), (of(low)[1], of(high)[0])) else None
    if isinstance(op, hlo.MaximumOp | hlo.MinimumOp):
        for low, high in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            if of(low)[1] <= of(high)[0]:
                return low if isinstance(op, hlo.MinimumOp) else high
    return None


def decided(direction: str, left: Interval, right: Interval) -> bool | None:
    """What a comparison of values within these bounds gives; None where that depends."""
    if direction in ("GT", "GE"):
        direction, left, right = {"GT": "LT", "GE": "LE"}[direction], right, left
    if direction == "LT":
        return True if left[1] < right[0] else False if left[0] >= right[1] else None
    if direction == "LE":
        return True if left[1] <= right[0] else False if left[0] > right[1] else None
    apart = left[1] < right[0] or left[0] > right[1]
    same = left[0] == left[1] == right[0] == right[1]
    equal = False if apart else True if same else None
    return equal if direction == "EQ" or equal is None else not equal
