"""Rules of ``canonicalize`` for float products and quotients: one form wherever constants and reciprocals stand.

The forms aimed at take the fewest passes of an engine: a quotient instead of a product with a reciprocal, one constant
in a product, which stands where the instruction of the next op takes it in. They round as often as what they replace or
less. Quotients by constants stay: auto-cast would round the constant's reciprocal, an error that all elements share.
"""

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import insert_before
from neuronx_cc.passes.analysis.values import constant_of, is_float, is_normal, splat_number
from neuronx_cc.passes.canonical.arithmetic import build, splat
from neuronx_cc.passes.canonical.rule import Rule, Scope, over, result_op

Value = hlo.SSAValue

MODEST = 2.0**16
"""Constants up to this, and down to its reciprocal, change places in a product: what over- or underflows by that is
within this factor of doing so anyway."""


@over(hlo.DivideOp, hlo.BroadcastOp, hlo.ReshapeOp)
def _by_inverse(op: hlo.MultiplyOp, scope: Scope) -> Value | None:
    """``x * (1 / y)`` -> ``x / y``, which is the more accurate, where nothing else wants the reciprocal."""
    if not is_float(op.shape.dtype):
        return None
    for inverse, other in ((op.rhs, op.lhs), (op.lhs, op.rhs)):
        source = inverse
        while source.has_one_use() and isinstance(move := result_op(source), hlo.BroadcastOp | hlo.ReshapeOp):
            source = move.operand
        quotient = result_op(source)
        if not isinstance(quotient, hlo.DivideOp) or not source.has_one_use():
            continue
        if splat_number(quotient.lhs, scope.module) == 1:
            return build(op, hlo.DivideOp, other, _after(inverse, source, quotient.rhs))
    return None


def _after(value: Value, source: Value, other: Value) -> Value:
    """The reshapes and repetitions that make ``value`` of ``source``, of ``other``."""
    if value is source:
        return other
    move = result_op(value)
    assert isinstance(move, hlo.BroadcastOp | hlo.ReshapeOp)
    made = _after(move.operands[0], source, other)
    return insert_before(move, type(move), (made,), move.results[0].type, move.loc, dict(move.properties))


def scaled(op: hlo.MultiplyOp, scope: Scope) -> tuple[Value, float] | None:
    """``x`` and ``c`` of ``x * c``, which a float product may be taken apart to."""
    number = splat_number(op.rhs, scope.module)
    return None if number is None else (op.lhs, float(number))


@over(hlo.MultiplyOp)
def _constants_together(op: hlo.MultiplyOp, scope: Scope) -> Value | None:
    """``(x * c) * d`` -> ``x * (c d)``, ``(x * c) * (y * d)`` -> ``(x * y) * (c d)``: as many roundings, or fewer.

    The constants are modest, or one of them is what the product is left with; nothing overflows then that did not.
    """
    if not is_float(op.shape.dtype):
        return None
    left, right = result_op(op.lhs), result_op(op.rhs)
    number = splat_number(op.rhs, scope.module)
    inner = scaled(left, scope) if isinstance(left, hlo.MultiplyOp) else None
    if inner is None:
        return None
    value, factor = inner
    if number is not None:
        product = factor * number
        return (
            build(op, hlo.MultiplyOp, value, splat(op, scope, product)) if is_normal(product, op.shape.dtype) else None
        )
    other = scaled(right, scope) if isinstance(right, hlo.MultiplyOp) else None
    if other is None or not (is_modest(factor) and is_modest(other[1])) or not op.rhs.has_one_use():
        return None
    if not op.lhs.has_one_use():
        return None
    product = factor * other[1]
    return build(op, hlo.MultiplyOp, build(op, hlo.MultiplyOp, value, splat(op, scope, product)), other[0])


@over(hlo.MultiplyOp)
def _constant_inside(op: hlo.MultiplyOp, scope: Scope) -> Value | None:
    """``(x * y) * c`` -> ``(x * c) * y``, whose inner product is part of the outer one's instruction."""
    number, inner = splat_number(op.rhs, scope.module), result_op(op.lhs)
    if number is None or op.shape.dtype != "f32" or not isinstance(inner, hlo.MultiplyOp) or not is_modest(number):
        return None
    if not op.lhs.has_one_use() or inner.lhs is inner.rhs or splat_number(inner.rhs, scope.module) is not None:
        return None
    if isinstance(inner.lhs.owner, hlo.BroadcastOp) or isinstance(inner.rhs.owner, hlo.BroadcastOp):
        return None
    return build(op, hlo.MultiplyOp, build(op, hlo.MultiplyOp, inner.lhs, op.rhs), inner.rhs)


@over(hlo.MultiplyOp)
def _cube(op: hlo.MultiplyOp, scope: Scope) -> Value | None:
    """``((x * c) * x) * x`` -> ``(x * x) * (x * c)``: Scalar squares."""
    for square, base in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        inner = result_op(square)
        if not isinstance(inner, hlo.MultiplyOp) or not square.has_one_use() or not is_float(op.shape.dtype):
            continue
        for multiple, other in ((inner.lhs, inner.rhs), (inner.rhs, inner.lhs)):
            factor = result_op(multiple)
            parts = scaled(factor, scope) if isinstance(factor, hlo.MultiplyOp) else None
            if other is base and parts is not None and parts[0] is base and is_modest(parts[1]):
                return build(op, hlo.MultiplyOp, build(op, hlo.MultiplyOp, base, base), multiple)
    return None


@over(hlo.MultiplyOp)
def _rows_together(op: hlo.MultiplyOp, scope: Scope) -> Value | None:
    """``(x * r) * s`` -> ``x * (r * s)`` for repeated ``r`` and ``s``, one a constant, whose product repeats, too."""
    rank, found = op.shape.rank, []
    for product, row in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        inner, outer = result_op(product), result_op(row)
        if not isinstance(inner, hlo.MultiplyOp) or not isinstance(outer, hlo.BroadcastOp) or not product.has_one_use():
            continue
        for value, other in ((inner.lhs, inner.rhs), (inner.rhs, inner.lhs)):
            repeated = result_op(other)
            if isinstance(repeated, hlo.BroadcastOp) and not isinstance(value.owner, hlo.BroadcastOp):
                found.append((value, other, row, {*repeated.dimensions.data, *outer.dimensions.data}))
    for value, row, other, varying in found:
        constant = _is_modest_row(row, scope) or _is_modest_row(other, scope)
        if constant and len(varying) < rank and is_float(op.shape.dtype):
            return build(op, hlo.MultiplyOp, value, build(op, hlo.MultiplyOp, row, other))
    return None


def _is_modest_row(value: Value, scope: Scope) -> bool:
    """Whether a repeated ``value`` repeats a known array of modest numbers."""
    move = result_op(value)
    array = constant_of(move.operand, scope.module) if isinstance(move, hlo.BroadcastOp) else None
    if array is None or not array.ndim:
        return False
    magnitudes = np.abs(array.astype(np.float64))
    return bool(((magnitudes >= 1 / MODEST) & (magnitudes <= MODEST)).all())


def is_modest(number: float) -> bool:
    return 1 / MODEST <= abs(number) <= MODEST


@over(hlo.MultiplyOp)
def _negated_product(op: hlo.NegateOp, scope: Scope) -> Value | None:
    """``-(x * c)`` -> ``x * -c``."""
    inner = result_op(op.operand)
    parts = scaled(inner, scope) if isinstance(inner, hlo.MultiplyOp) else None
    if parts is None or not op.operand.has_one_use() or not is_float(op.shape.dtype):
        return None
    return build(op, hlo.MultiplyOp, parts[0], splat(op, scope, -parts[1]))


RULES: dict[type, tuple[Rule, ...]] = {
    hlo.MultiplyOp: (_by_inverse, _constants_together, _cube, _constant_inside, _rows_together),
    hlo.NegateOp: (_negated_product,),
}
