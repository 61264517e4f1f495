"""Rules of ``canonicalize`` for selects between values that their condition compares: extremes, and known arms.

A select takes a comparison and a copy beside the select itself, where an extreme is one instruction, often part of
another. Zeros may get the other sign.
"""

import math

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import has_one_use, insert_before
from neuronx_cc.passes.analysis.values import is_float, splat_number
from neuronx_cc.passes.canonical.arithmetic import build, splat
from neuronx_cc.passes.canonical.products import scaled
from neuronx_cc.passes.canonical.rule import Rule, Scope, over, result_op

Value = hlo.SSAValue

ABOVE, BELOW = ("GT", "GE"), ("LT", "LE")


def _compared(op: hlo.SelectOp, scope: Scope) -> tuple[Value, float, str] | None:
    """``x``, the number that the condition compares it with, and the direction: of floats."""
    compare = result_op(op.predicate)
    if not isinstance(compare, hlo.CompareOp) or not is_float(hlo.shape_of(compare.lhs).dtype):
        return None
    number = splat_number(compare.rhs, scope.module)
    same = compare.lhs.type == op.results[0].type and compare.comparison_type.data != "TOTALORDER"
    return (compare.lhs, float(number), compare.direction.data) if same and number is not None else None


@over(hlo.CompareOp)
def _bounded(op: hlo.SelectOp, scope: Scope) -> Value | None:
    """``x > c ? c : x`` -> ``min(x, c)``, ``x < c ? c : x`` -> ``max(x, c)``: a NaN is ``x`` in both."""
    found = _compared(op, scope)
    if found is None or op.on_false is not found[0] or splat_number(op.on_true, scope.module) != found[1]:
        return None
    if found[2] not in (*ABOVE, *BELOW):
        return None
    return build(op, hlo.MinimumOp if found[2] in ABOVE else hlo.MaximumOp, found[0], op.on_true)


@over(hlo.CompareOp)
def _positive_part(op: hlo.SelectOp, scope: Scope) -> Value | None:
    """``x > 0 ? x : c x`` -> ``max(x, c x)`` for ``0 < c <= 1``, and ``x > 0 ? x : c expm1(x)`` as a sum."""
    found = _compared(op, scope)
    if found is None or found[1] != 0 or found[2] not in (*ABOVE, *BELOW):
        return None
    value, arms = found[0], (op.on_true, op.on_false)
    positive, negative = arms if found[2] in ABOVE else arms[::-1]
    if positive is not value:
        return None
    inner = result_op(negative)
    parts = scaled(inner, scope) if isinstance(inner, hlo.MultiplyOp) else None
    start, factor = parts if parts is not None else (negative, 1.0)
    if start is value and parts is not None and 0 < factor <= 1:
        return build(op, hlo.MaximumOp, value, negative)
    function = result_op(start)
    if not isinstance(function, hlo.ExponentialMinusOneOp) or not math.isfinite(factor):
        return None
    zero = splat(op, scope, 0)
    if not _is_below(function.operand, value, scope):
        if function.operand is not value or not has_one_use(negative) or not has_one_use(start):
            return None
        negative = build(op, hlo.ExponentialMinusOneOp, build(op, hlo.MinimumOp, value, zero))
        negative = negative if parts is None else build(op, hlo.MultiplyOp, negative, splat(op, scope, factor))
    return build(op, hlo.AddOp, build(op, hlo.MaximumOp, value, zero), negative)


def _is_below(value: Value, start: Value, scope: Scope) -> bool:
    """Whether ``value`` is ``min(start, 0)``."""
    least = result_op(value)
    return isinstance(least, hlo.MinimumOp) and least.lhs is start and splat_number(least.rhs, scope.module) == 0


@over(hlo.CompareOp)
def _power_of_negative_part(op: hlo.SelectOp, scope: Scope) -> Value | None:
    """``x > 0 ? 1 : exp(min(x, 0))`` -> ``exp(min(x, 0))``."""
    found, power = _compared(op, scope), result_op(op.on_false)
    if found is None or found[1] != 0 or found[2] not in ABOVE or splat_number(op.on_true, scope.module) != 1:
        return None
    below = isinstance(power, hlo.ExponentialOp) and _is_below(power.operand, found[0], scope)
    return op.on_false if below else None


@over(hlo.ElementwiseBinaryOp)
def _known_arm(op: hlo.SelectOp, scope: Scope) -> Value | None:
    """``p ? f(p ? a : b, y) : z`` -> ``p ? f(a, y) : z``, and of the other arm, element by element."""
    del scope
    for place, arm in enumerate((op.on_true, op.on_false)):
        inner = result_op(arm)
        if not isinstance(inner, hlo.ElementwiseBinaryOp) or not has_one_use(arm):
            continue
        choices = [result_op(operand) for operand in inner.operands]
        taken = [
            choice.operands[1 + place]
            if isinstance(choice, hlo.SelectOp) and choice.predicate is op.predicate
            else operand
            for choice, operand in zip(choices, inner.operands, strict=True)
        ]
        if taken != [*inner.operands]:
            made = insert_before(op, type(inner), taken, arm.type, inner.loc, dict(inner.properties))
            arms = (op.on_true, made) if place else (made, op.on_false)
            return build(op, hlo.SelectOp, op.predicate, *arms)
    return None


@over(hlo.SelectOp)
def _sum_of_choices(op: hlo.AddOp, scope: Scope) -> Value | None:
    """``(p ? a : 0) + (p ? 0 : b)`` -> ``p ? a : b``, and wherever one of each arm is 0."""
    left, right = result_op(op.lhs), result_op(op.rhs)
    if not isinstance(left, hlo.SelectOp) or not isinstance(right, hlo.SelectOp):
        return None
    if left.predicate is not right.predicate or not has_one_use(op.lhs) or not has_one_use(op.rhs):
        return None
    arms = list[Value]()
    for first, second in ((left.on_true, right.on_true), (left.on_false, right.on_false)):
        zeros = [splat_number(value, scope.module) == 0 for value in (first, second)]
        if not any(zeros):
            return None
        arms.append(second if zeros[0] else first)
    return build(op, hlo.SelectOp, left.predicate, *arms)


@over(hlo.ExponentialMinusOneOp)
def _exponential(op: hlo.AddOp, scope: Scope) -> Value | None:
    """``expm1(x) + 1`` -> ``exp(x)``."""
    inner = result_op(op.lhs)
    if not isinstance(inner, hlo.ExponentialMinusOneOp) or splat_number(op.rhs, scope.module) != 1:
        return None
    return build(op, hlo.ExponentialOp, inner.operand)


RULES: dict[type, tuple[Rule, ...]] = {
    hlo.SelectOp: (_bounded, _positive_part, _power_of_negative_part, _known_arm),
    hlo.AddOp: (_sum_of_choices, _exponential),
}
