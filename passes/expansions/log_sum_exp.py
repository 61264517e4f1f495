"""Running ``log(exp(a) + exp(b))`` by scan instructions: the sum of what is scaled by the maximum so far.

With ``m`` the running maximum, ``s[t] = exp(m[t-1] - m[t]) s[t-1] + exp(x[t] - m[t])`` is a recurrence, and the result
is ``m + log s``. Infinite maxima are replaced by the largest finite numbers: sums then come out as 0 or infinity, and
the result as the infinity that it is. NaNs spread as in the original.
"""

from collections.abc import Callable, Sequence

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.passes.expansions.build import Build, Value

LARGEST = float(np.finfo(np.float32).max)


def matches(body: hlo.ComputationOp) -> bool:
    """Whether ``body`` is ``max(a, b) + log1p(exp(-|a - b|))`` of FP32, or ``a + b`` where ``a - b`` is NaN."""
    args = list(body.block.args)
    if len(args) != 2 or not isinstance(body.root.type, hlo.ArrayType) or hlo.shape_of(args[0]).dtype != "f32":
        return False
    select = defining_op(body.root)
    if not isinstance(select, hlo.SelectOp):
        return False
    compare, both, total = (defining_op(operand) for operand in select.operands)
    if not isinstance(compare, hlo.CompareOp) or compare.direction.data != "NE" or not _joins(both, hlo.AddOp, args):
        return False
    difference = compare.operands[0]
    if compare.operands[1] is not difference or not _joins(defining_op(difference), hlo.SubtractOp, args):
        return False
    if not isinstance(total, hlo.AddOp):
        return False
    largest, scaled = (defining_op(operand) for operand in total.operands)
    if not _joins(largest, hlo.MaximumOp, args):
        return False
    for kind in (hlo.LogPlusOneOp, hlo.ExponentialOp, hlo.NegateOp, hlo.AbsOp):
        if not isinstance(scaled, kind):
            return False
        value = scaled.operands[0]
        scaled = defining_op(value)
    return value is difference


def _joins(op: hlo.Operation | None, kind: type[hlo.HloOp], args: Sequence[Value]) -> bool:
    return isinstance(op, kind) and set(op.operands) == set(args)


def both(build: Build, a: Value, b: Value) -> Value:
    """``log(exp(a) + exp(b))`` as ``running`` rounds it."""
    scale = _clamped(build, build.each(hlo.MaximumOp, a, b))
    parts = [build.each(hlo.ExponentialOp, build.sub(value, scale)) for value in (a, b)]
    return build.add(scale, build.each(hlo.LogOp, build.add(*parts)))


def _clamped(build: Build, value: Value) -> Value:
    bounds = [build.number_like(number, value) for number in (-LARGEST, LARGEST)]
    return build.typed(hlo.ClampOp, (bounds[0], value, bounds[1]), value.type)


def running(
    build: Build,
    x: Value,
    largest: Callable[[Value], Value],
    previous: Callable[[Value], Value],
    recurrence: Callable[[Value, Value], Value],
) -> Value:
    """The running fold of ``x``, of a running maximum, a shift by one element, and ``recurrence(factors, terms)``."""
    scale = _clamped(build, largest(x))
    factors = build.each(hlo.ExponentialOp, build.sub(previous(scale), scale))
    terms = build.each(hlo.ExponentialOp, build.sub(x, scale))
    return build.add(scale, build.each(hlo.LogOp, recurrence(factors, terms)))
