"""Bounds of 64-bit integer values, good enough to prove that index arithmetic fits 32 bits.

Parameters and results of control flow are taken to hold 32-bit values: the narrowing truncates them at the boundary,
and says so. Intervals are exact Python integers, inclusive.
"""

from collections.abc import Callable, Sequence
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.types import INTEGERS, SIGNED
from neuronx_cc.passes.analysis.values import combiner_kind, splat_number

Interval = tuple[int, int]

NARROW = {"s64": "s32", "u64": "u32"}
"""64-bit integer type -> the type that takes its place."""


def type_range(dtype: str) -> Interval:
    """Smallest and largest value of an integer type or pred."""
    if dtype == "pred":
        return 0, 1
    bits = int(dtype[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype in SIGNED else (0, (1 << bits) - 1)


def narrow_range(dtype: str) -> Interval:
    """Range of ``dtype`` after narrowing."""
    return type_range(NARROW.get(dtype, dtype))


def is_integer(value: hlo.SSAValue) -> bool:
    return isinstance(value.type, hlo.ArrayType) and (
        value.type.data.dtype in INTEGERS or value.type.data.dtype == "pred"
    )


class Intervals:
    """Intervals of the integer values of one computation; ``of`` a value not yet seen is its narrowed type's range."""

    def __init__(self, module: HloModule):
        self.module = module
        self._known: dict[hlo.SSAValue, Interval] = {}

    def of(self, value: hlo.SSAValue) -> Interval:
        return self._known.get(value) or narrow_range(hlo.shape_of(value).dtype)

    def visit(self, op: hlo.HloOp) -> Interval:
        """Computes, records and returns the interval of ``op``'s integer result, before any wrapping."""
        rule = RULES.get(type(op))
        dtype = op.shape.dtype
        interval = rule(self, op) if rule is not None and op.shape.size else narrow_range(dtype)
        low, high = narrow_range(dtype)
        fits = low <= interval[0] and interval[1] <= high
        self._known[op.results[0]] = interval if fits else (low, high)
        return interval

    def union(self, values: Sequence[hlo.SSAValue]) -> Interval:
        parts = [self.of(value) for value in values]
        return min(part[0] for part in parts), max(part[1] for part in parts)


Rule = Callable[[Intervals, hlo.HloOp], Interval]


def _operand(intervals: Intervals, op: hlo.HloOp) -> Interval:
    return intervals.of(op.operands[0])


def _constant(intervals: Intervals, op: hlo.HloOp) -> Interval:
    assert isinstance(op, hlo.ConstantOp)
    array = intervals.module.constants[op.value.data]
    return int(array.min()), int(array.max())


def _iota(intervals: Intervals, op: hlo.HloOp) -> Interval:
    assert isinstance(op, hlo.IotaOp)
    return 0, op.shape.dims[op.iota_dimension.data] - 1


def _convert(intervals: Intervals, op: hlo.HloOp) -> Interval:
    if not is_integer(op.operands[0]):
        return narrow_range(op.shape.dtype)
    return intervals.of(op.operands[0])


def _select(intervals: Intervals, op: hlo.HloOp) -> Interval:
    return intervals.union(op.operands[1:])


def _pad(intervals: Intervals, op: hlo.HloOp) -> Interval:
    return intervals.union(op.operands[:2])


def _join(intervals: Intervals, op: hlo.HloOp) -> Interval:
    return intervals.union(op.operands)


def _add(intervals: Intervals, op: hlo.HloOp) -> Interval:
    a, b = intervals.of(op.operands[0]), intervals.of(op.operands[1])
    if _is_wrapped_index(op, intervals.module):
        a = min(a[0], -1), min(a[1], -1)
    return a[0] + b[0], a[1] + b[1]


def _is_wrapped_index(op: hlo.HloOp, module: HloModule) -> bool:
    """``add(i, n)`` in ``select(i < 0, i + n, i)``: the sum counts only for negative i."""
    index = op.operands[0]
    for use in op.results[0].uses:
        user = use.operation
        if not isinstance(user, hlo.SelectOp) or user.on_true is not op.results[0]:
            return False
        test = defining_op(user.predicate)
        if not isinstance(test, hlo.CompareOp) or test.lhs is not index or test.direction.data != "LT":
            return False
        if splat_number(test.rhs, module) != 0:
            return False
    return True


def _subtract(intervals: Intervals, op: hlo.HloOp) -> Interval:
    a, b = intervals.of(op.operands[0]), intervals.of(op.operands[1])
    return a[0] - b[1], a[1] - b[0]


def _multiply(intervals: Intervals, op: hlo.HloOp) -> Interval:
    a, b = intervals.of(op.operands[0]), intervals.of(op.operands[1])
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def _negate(intervals: Intervals, op: hlo.HloOp) -> Interval:
    low, high = intervals.of(op.operands[0])
    return -high, -low


def _abs(intervals: Intervals, op: hlo.HloOp) -> Interval:
    low, high = intervals.of(op.operands[0])
    return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _maximum(intervals: Intervals, op: hlo.HloOp) -> Interval:
    a, b = intervals.of(op.operands[0]), intervals.of(op.operands[1])
    return max(a[0], b[0]), max(a[1], b[1])


def _minimum(intervals: Intervals, op: hlo.HloOp) -> Interval:
    a, b = intervals.of(op.operands[0]), intervals.of(op.operands[1])
    return min(a[0], b[0]), min(a[1], b[1])


def _clamp(intervals: Intervals, op: hlo.HloOp) -> Interval:
    low, value, high = (intervals.of(operand) for operand in op.operands)
    return min(max(value[0], low[0]), high[0]), min(max(value[1], low[1]), high[1])


def _remainder(intervals: Intervals, op: hlo.HloOp) -> Interval:
    a, b = intervals.of(op.operands[0]), intervals.of(op.operands[1])
    largest = max(abs(b[0]), abs(b[1])) - 1
    return (max(a[0], -largest) if a[0] < 0 else 0), (min(a[1], largest) if a[1] > 0 else 0)


def _divide(intervals: Intervals, op: hlo.HloOp) -> Interval:
    a, b = intervals.of(op.operands[0]), intervals.of(op.operands[1])
    if b[0] < 1:
        largest = max(abs(a[0]), abs(a[1]))
        return -largest if b[0] < 0 or a[0] < 0 else 0, largest
    return min(a[0], 0), max(a[1], 0)


def _and(intervals: Intervals, op: hlo.HloOp) -> Interval:
    a, b = intervals.of(op.operands[0]), intervals.of(op.operands[1])
    bounds = [high for low, high in (a, b) if low >= 0]
    return (0, min(bounds)) if bounds else narrow_range(op.shape.dtype)


def _shift_left(intervals: Intervals, op: hlo.HloOp) -> Interval:
    a, b = intervals.of(op.operands[0]), intervals.of(op.operands[1])
    most = 1 << min(max(b[1], 0), 64)
    return min(a[0] * most, a[0]), max(a[1] * most, a[1])


def _reduce(intervals: Intervals, op: hlo.HloOp) -> Interval:
    assert isinstance(op, hlo.ReduceOp)
    value, initial = intervals.of(op.operands[0]), intervals.of(op.operands[1])
    kind = combiner_kind(op, intervals.module)
    if kind in ("maximum", "minimum"):
        # the initial value is the neutral element, or bounds one end
        return min(value[0], initial[0]), max(value[1], initial[1])
    if kind == "add":
        terms = prod(hlo.shape_of(op.operands[0]).dims[i] for i in op.dimensions.data)
        return terms * min(value[0], 0) + initial[0], terms * max(value[1], 0) + initial[1]
    return narrow_range(op.shape.dtype)


_SAME = (
    hlo.BroadcastOp,
    hlo.ReshapeOp,
    hlo.TransposeOp,
    hlo.SliceOp,
    hlo.ReverseOp,
    hlo.GatherOp,
    hlo.DynamicSliceOp,
    hlo.CopyOp,
    hlo.OptBarrierOp,
)

RULES: dict[type, Rule] = {
    **dict.fromkeys(_SAME, _operand),
    hlo.ConstantOp: _constant,
    hlo.IotaOp: _iota,
    hlo.ConvertOp: _convert,
    hlo.SelectOp: _select,
    hlo.PadOp: _pad,
    hlo.DynamicUpdateSliceOp: _pad,
    hlo.ConcatenateOp: _join,
    hlo.AddOp: _add,
    hlo.SubtractOp: _subtract,
    hlo.MultiplyOp: _multiply,
    hlo.NegateOp: _negate,
    hlo.AbsOp: _abs,
    hlo.MaximumOp: _maximum,
    hlo.MinimumOp: _minimum,
    hlo.ClampOp: _clamp,
    hlo.RemainderOp: _remainder,
    hlo.DivideOp: _divide,
    hlo.AndOp: _and,
    hlo.ShiftLeftOp: _shift_left,
    hlo.ReduceOp: _reduce,
}
