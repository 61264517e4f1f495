"""Rules of ``canonicalize`` for functions that arrive spelled out of others: one form for all spellings.

The forms aimed at are those that engines compute in the fewest passes: ``logistic`` and ``tanh`` instead of quotients
of exponentials, ``rsqrt`` instead of division by a root. None is less accurate by more than a unit in the last place,
but where a docstring says so; most are more accurate, as ``2 logistic(2 x)`` is where ``1 + tanh(x)`` cancels, and
reach further, where exponentials overflow.
"""

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import insert_before
from neuronx_cc.passes.analysis.values import (
    is_float,
    is_non_negative,
    is_normal,
    is_positive_zero,
    splat_number,
    tells_last_bit,
)
from neuronx_cc.passes.canonical.arithmetic import MOST_FACTORS, build, power_of, rounds_factors, splat
from neuronx_cc.passes.canonical.products import is_modest, scaled
from neuronx_cc.passes.canonical.rule import SPLATS, Rule, Scope, over, result_op

Value = hlo.SSAValue

SAME_DEPTH = 5
"""Ops below two expressions that are compared."""


def is_same(left: Value, right: Value, depth: int = SAME_DEPTH) -> bool:
    """Whether both are the same function of the same values, as far as ``depth`` ops show."""
    if left is right:
        return True
    a, b = result_op(left), result_op(right)
    if a is None or b is None or type(a) is not type(b) or not depth or left.type != right.type:
        return False
    if isinstance(a, hlo.ConstantOp) or not a.operands or a.properties != b.properties:
        return isinstance(a, hlo.ConstantOp) and a.properties == b.properties
    return all(is_same(x, y, depth - 1) for x, y in zip(a.operands, b.operands, strict=True))


def times(op: hlo.HloOp, value: Value, factor: float, scope: Scope) -> Value:
    """``value * factor`` above ``op``, one constant with the sign and the constant that ``value`` has already.

    Zeros may get the other sign.
    """
    inner = result_op(value)
    if isinstance(inner, hlo.NegateOp):
        return times(op, inner.operand, -factor, scope)
    if isinstance(inner, hlo.SubtractOp) and splat_number(inner.lhs, scope.module) == 0:
        return times(op, inner.rhs, -factor, scope)
    if factor == 1:
        return value
    if isinstance(inner, hlo.MultiplyOp) and (made := _times_product(op, inner, factor, scope)) is not None:
        return made
    kind = hlo.array_type(op.shape.dtype, op.shape.dims)
    if factor == -1:
        return insert_before(op, hlo.NegateOp, (value,), kind, op.loc)
    return insert_before(op, hlo.MultiplyOp, (value, splat(op, scope, factor)), kind, op.loc)


def _times_product(op: hlo.HloOp, product: hlo.MultiplyOp, factor: float, scope: Scope) -> Value | None:
    """``product * factor`` where the product, or one of its factors, has a constant already."""
    parts = scaled(product, scope)
    if parts is not None:
        together = is_normal(parts[1] * factor, op.shape.dtype)
        return times(op, parts[0], parts[1] * factor, scope) if together else None
    for value, other in ((product.lhs, product.rhs), (product.rhs, product.lhs)):
        inner = result_op(value)
        if isinstance(inner, hlo.MultiplyOp) and scaled(inner, scope) is not None and is_modest(factor):
            rescaled = times(op, value, factor, scope)
            operands = (rescaled, other) if value is product.lhs else (other, rescaled)
            return insert_before(op, hlo.MultiplyOp, operands, product.results[0].type, op.loc)
    return None


def _constant_and(op: hlo.BinaryOp, scope: Scope) -> tuple[float, Value] | None:
    """The constant operand of a commutative op, and the other one."""
    for constant, other in ((op.rhs, op.lhs), (op.lhs, op.rhs)):
        number = splat_number(constant, scope.module)
        if number is not None:
            return float(number), other
    return None


def _one_plus(value: Value, scope: Scope) -> Value | None:
    """``x`` of ``1 + x``."""
    inner = result_op(value)
    found = _constant_and(inner, scope) if isinstance(inner, hlo.AddOp) else None
    return found[1] if found is not None and found[0] == 1 else None


def _power(value: Value, scope: Scope) -> Value | float | None:
    """``t`` of ``exp(t)``; 0 of 1."""
    inner = result_op(value)
    if isinstance(inner, hlo.ExponentialOp):
        return inner.operand
    return 0.0 if splat_number(value, scope.module) == 1 else None


# quotients


@over(hlo.AddOp, hlo.ExponentialOp)
def _by_exponentials(op: hlo.DivideOp, scope: Scope) -> Value | None:
    """Quotients of exponentials as ``tanh``, ``logistic`` and ``exp``: see the cases."""
    if not is_float(op.shape.dtype):
        return None
    value = _as_tanh(op, scope)
    if value is not None:
        return value
    added = _one_plus(op.rhs, scope)
    power = result_op(added) if added is not None else None
    if isinstance(power, hlo.ExponentialOp):
        if added is not None and is_same(op.lhs, added):
            return build(op, hlo.LogisticOp, power.operand)
        value = build(op, hlo.LogisticOp, times(op, power.operand, -1, scope))
        return value if splat_number(op.lhs, scope.module) == 1 else build(op, hlo.MultiplyOp, op.lhs, value)
    below, above = result_op(op.rhs), splat_number(op.lhs, scope.module)
    if not isinstance(below, hlo.ExponentialOp) or above is None or not abs(above) >= 1:
        return None
    value = build(op, hlo.ExponentialOp, times(op, below.operand, -1, scope))
    return value if above == 1 else build(op, hlo.MultiplyOp, value, op.lhs)


def _as_tanh(op: hlo.DivideOp, scope: Scope) -> Value | None:
    """``(exp(a) - exp(b)) / (exp(a) + exp(b))`` -> ``tanh((a - b) / 2)``, 1 being ``exp(0)``."""
    above, below = result_op(op.lhs), result_op(op.rhs)
    if not isinstance(below, hlo.AddOp):
        return None
    if isinstance(above, hlo.SubtractOp):
        terms = [above.lhs, above.rhs]
    elif isinstance(above, hlo.AddOp) and splat_number(above.rhs, scope.module) == -1:
        terms = [above.lhs, splat(op, scope, 1)]
    else:
        return None
    sums = ((below.lhs, below.rhs), (below.rhs, below.lhs))
    if not any(all(_is_equal(x, y, scope) for x, y in zip(terms, pair, strict=True)) for pair in sums):
        return None
    match [_power(term, scope) for term in terms]:
        case [hlo.SSAValue() as first, hlo.SSAValue() as second]:
            opposite = is_same(times(op, first, 1, scope), times(op, second, -1, scope))
            half = first if opposite else times(op, build(op, hlo.SubtractOp, first, second), 0.5, scope)
        case [hlo.SSAValue() as first, 0.0]:
            half = times(op, first, 0.5, scope)
        case [0.0, hlo.SSAValue() as second]:
            half = times(op, second, -0.5, scope)
        case _:
            return None
    return build(op, hlo.TanhOp, half)


def _is_equal(left: Value, right: Value, scope: Scope) -> bool:
    number = splat_number(left, scope.module)
    return is_same(left, right) or (number is not None and number == splat_number(right, scope.module))


@over(hlo.SqrtOp, hlo.BroadcastOp, hlo.ReshapeOp)
def _by_root(op: hlo.DivideOp, scope: Scope) -> Value | None:
    """``x / sqrt(y)`` -> ``x * rsqrt(y)``, also of repeated rows: within 2 units in the last place."""
    if op.shape.dtype != "f32" or tells_last_bit(op.results[0]):
        return None
    value = _inverse_root(op, op.rhs)
    if value is None:
        return None
    return value if splat_number(op.lhs, scope.module) == 1 else build(op, hlo.MultiplyOp, op.lhs, value)


def _inverse_root(op: hlo.HloOp, value: Value) -> Value | None:
    """``rsqrt(y)`` above ``op`` for the ``value`` ``sqrt(y)``, with the reshapes and repetitions after it."""
    inner = result_op(value)
    if isinstance(inner, hlo.SqrtOp):
        return insert_before(op, hlo.RsqrtOp, (inner.operand,), value.type, op.loc)
    if not isinstance(inner, hlo.BroadcastOp | hlo.ReshapeOp):
        return None
    made = _inverse_root(op, inner.operand)
    return made and insert_before(op, type(inner), (made,), value.type, op.loc, dict(inner.properties))


# affine functions of logistic and tanh


def _affine(value: Value, scope: Scope) -> tuple[Value, float] | None:
    """``x`` and ``c`` of ``x * c``, or of ``x`` with 1, where nothing else reads the product."""
    if not value.has_one_use():
        return None
    inner = result_op(value)
    parts = scaled(inner, scope) if isinstance(inner, hlo.MultiplyOp) else None
    if parts is not None and parts[0].has_one_use():
        return parts
    return value, 1.0


@over(*SPLATS)
def _of_sigmoid(op: hlo.AddOp | hlo.SubtractOp, scope: Scope) -> Value | None:
    """``c + c tanh(x)`` -> ``2 c logistic(2 x)``, ``2 c logistic(x) - c`` -> ``c tanh(x / 2)``, ``1 - logistic(x)``."""
    if not is_float(op.shape.dtype):
        return None
    sign = 1.0
    if isinstance(op, hlo.AddOp):
        found = _constant_and(op, scope)
    elif (number := splat_number(op.rhs, scope.module)) is not None:
        found = -float(number), op.lhs
    else:
        number, sign = splat_number(op.lhs, scope.module), -1.0
        found = None if number is None else (float(number), op.rhs)
    parts = _affine(found[1], scope) if found is not None else None
    if found is None or parts is None:
        return None
    constant, (value, factor) = found[0], parts
    factor *= sign
    function = result_op(value)
    if isinstance(function, hlo.TanhOp) and constant and abs(factor) == abs(constant):
        rescaled = times(op, function.operand, 2.0 if factor == constant else -2.0, scope)
        return times(op, build(op, hlo.LogisticOp, rescaled), 2 * constant, scope)
    if isinstance(function, hlo.LogisticOp) and constant and factor == -2 * constant:
        half = times(op, function.operand, -0.5 if constant > 0 else 0.5, scope)
        return times(op, build(op, hlo.TanhOp, half), abs(constant), scope)
    if isinstance(function, hlo.LogisticOp) and constant == 1 and factor == -1:
        return build(op, hlo.LogisticOp, times(op, function.operand, -1, scope))
    return None


def _common_factor(op: hlo.AddOp, scope: Scope) -> Value | None:
    """``x + x f(y)`` -> ``x (f(y) + 1)`` for functions from -1 to 1: the error relative to ``x`` stays the same."""
    for value, product in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        inner = result_op(product)
        if not isinstance(inner, hlo.MultiplyOp) or not product.has_one_use() or not is_float(op.shape.dtype):
            continue
        for factor, other in ((inner.lhs, inner.rhs), (inner.rhs, inner.lhs)):
            if factor is value and isinstance(result_op(other), hlo.TanhOp | hlo.ErfOp):
                return build(op, hlo.MultiplyOp, value, build(op, hlo.AddOp, other, splat(op, scope, 1)))
    return None


# signs, exponentials and logarithms


@over(hlo.SubtractOp)
def _sign_inside(op: hlo.UnaryOp, scope: Scope) -> Value | None:
    """``exp(0 - x)`` -> ``exp(-x)``, and of other functions that do not tell zeros apart."""
    inner = result_op(op.operand)
    if not isinstance(inner, hlo.SubtractOp) or not is_positive_zero(splat_number(inner.lhs, scope.module)):
        return None
    return build(op, type(op), build(op, hlo.NegateOp, inner.rhs))


@over(hlo.AddOp)
def _logarithm(op: hlo.LogOp, scope: Scope) -> Value | None:
    """``log(1 + exp(x))`` -> ``log1p(exp(x))``: more accurate, and the beginning of softplus."""
    added = _one_plus(op.operand, scope)
    if not is_float(op.shape.dtype) or added is None or not isinstance(added.owner, hlo.ExponentialOp):
        return None
    return build(op, hlo.LogPlusOneOp, added)


@over(hlo.ExponentialOp)
def _softplus(op: hlo.LogPlusOneOp, scope: Scope) -> Value | None:
    """``log1p(exp(x))`` -> ``max(x, 0) + log1p(exp(-abs(x)))``, which does not overflow."""
    power = result_op(op.operand)
    if not isinstance(power, hlo.ExponentialOp) or not is_float(op.shape.dtype):
        return None
    value = power.operand
    if isinstance(negated := result_op(value), hlo.NegateOp) and isinstance(negated.operand.owner, hlo.AbsOp):
        return None
    small = build(op, hlo.NegateOp, build(op, hlo.AbsOp, value))
    logarithm = build(op, hlo.LogPlusOneOp, build(op, hlo.ExponentialOp, small))
    return build(op, hlo.AddOp, build(op, hlo.MaximumOp, value, splat(op, scope, 0)), logarithm)


@over(*SPLATS)
def _root(op: hlo.PowerOp, scope: Scope) -> Value | None:
    """``x ** (n + 0.5)`` of any sign: of -0 as of 0, and of minus infinity as of infinity."""
    number = splat_number(op.rhs, scope.module)
    if number is None or not is_float(op.shape.dtype) or float(number * 2) % 2 != 1 or abs(number) > MOST_FACTORS:
        return None
    if rounds_factors(op, number):
        return None
    base = op.lhs if is_non_negative(op.lhs, scope.module) else build(op, hlo.AddOp, op.lhs, splat(op, scope, 0))
    root = build(op, hlo.SqrtOp if number > 0 else hlo.RsqrtOp, base)
    if count := int(abs(number)):  # of negative exponents 1 / x is the square of the root
        whole = power_of(op, base, count) if number > 0 else power_of(op, root, 2 * count)
        root = build(op, hlo.MultiplyOp, whole, root)
    if base is op.lhs:
        return root
    properties: dict[str, hlo.Attribute] = {"direction": hlo.StrAttr("EQ"), "comparison_type": hlo.StrAttr("FLOAT")}
    predicate = hlo.array_type("pred", op.shape.dims)
    lowest = insert_before(op, hlo.CompareOp, (op.lhs, splat(op, scope, -np.inf)), predicate, op.loc, properties)
    return build(op, hlo.SelectOp, lowest, splat(op, scope, np.inf if number > 0 else 0.0), root)


RULES: dict[type, tuple[Rule, ...]] = {
    hlo.DivideOp: (_by_exponentials, _by_root),
    hlo.AddOp: (_of_sigmoid, _common_factor),
    hlo.SubtractOp: (_of_sigmoid,),
    hlo.ExponentialOp: (_sign_inside,),
    hlo.LogisticOp: (_sign_inside,),
    hlo.LogOp: (_logarithm,),
    hlo.LogPlusOneOp: (_softplus,),
    hlo.PowerOp: (_root,),
}
