"""Rules of ``canonicalize`` for elementwise ops.

Each rule takes ``(op, scope)`` and returns the value that replaces the op's result, or None. Splat operands move to the
right of commutative ops, so that later rules look in one place.
"""

from math import frexp

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import insert_before, insert_splat
from neuronx_cc.ir.types import INTEGERS, NUMPY_DTYPE, SIGNED, bits, itemsize
from neuronx_cc.passes.analysis.conversions import is_lossless, skips_middle
from neuronx_cc.passes.analysis.values import (
    highest,
    identity_of,
    is_float,
    is_negative_zero,
    is_non_negative,
    is_normal,
    is_positive_zero,
    lowest,
    same_number,
    splat_number,
)
from neuronx_cc.passes.canonical.rule import SPLATS, Rule, Scope, over, result_op

Value = hlo.SSAValue


def build(op: hlo.HloOp, kind: type[hlo.HloOp], *operands: Value) -> Value:
    """An op of the result type of ``op``, above it."""
    return insert_before(op, kind, operands, op.results[0].type, op.loc)


def splat(op: hlo.HloOp, scope: Scope, number: float | int) -> Value:
    """The result type of ``op`` filled with ``number``."""
    shape = op.shape
    scalar = np.array(number).astype(NUMPY_DTYPE[shape.dtype])
    return insert_splat(scope.module, op, scalar, shape.dtype, shape.dims, op.loc)


@over(*SPLATS)
def _splat_right(op: hlo.BinaryOp, scope: Scope) -> Value | None:
    lhs, rhs = op.operands
    if splat_number(lhs, scope.module) is None or splat_number(rhs, scope.module) is not None:
        return None
    return build(op, type(op), rhs, lhs)


@over(*SPLATS)
def _neutral_right(op: hlo.BinaryOp, scope: Scope) -> Value | None:
    """``x op e`` -> ``x`` for the exact neutral element."""
    lhs, rhs = op.operands
    number = splat_number(rhs, scope.module)
    if number is None:
        return None
    kind = "or" if op.opcode == "add" and op.shape.dtype == "pred" else op.opcode
    return lhs if same_number(number, identity_of(kind, op.shape.dtype)) else None


@over(*SPLATS)
def _integer_constants_together(op: hlo.BinaryOp, scope: Scope) -> Value | None:
    """``(x op c) op d`` -> ``x op (c op d)`` for integers, where wrapping arithmetic is associative."""
    inner = result_op(op.operands[0])
    if type(inner) is not type(op) or op.shape.dtype not in INTEGERS:
        return None
    assert isinstance(inner, hlo.BinaryOp)
    outer_number, inner_number = splat_number(op.rhs, scope.module), splat_number(inner.rhs, scope.module)
    if outer_number is None or inner_number is None:
        return None
    combined = outer_number + inner_number if isinstance(op, hlo.AddOp) else outer_number * inner_number
    bits = int(op.shape.dtype[1:])
    wrapped = int(combined) & ((1 << bits) - 1)
    if op.shape.dtype in SIGNED and wrapped >> (bits - 1):
        wrapped -= 1 << bits
    return build(op, type(op), inner.lhs, splat(op, scope, wrapped))


@over(hlo.NegateOp)
def _add_of_negate(op: hlo.AddOp, scope: Scope) -> Value | None:
    lhs, rhs = op.operands
    if type(rhs.owner) is hlo.NegateOp:
        return build(op, hlo.SubtractOp, lhs, rhs.owner.operands[0])
    if type(lhs.owner) is hlo.NegateOp:
        return build(op, hlo.SubtractOp, rhs, lhs.owner.operands[0])
    return None


def _nothing_left(op: hlo.SubtractOp, scope: Scope) -> Value | None:
    """Integer ``x - x``."""
    return splat(op, scope, 0) if op.lhs is op.rhs and op.shape.dtype in INTEGERS else None


@over(*SPLATS, hlo.NegateOp)
def _subtract(op: hlo.SubtractOp, scope: Scope) -> Value | None:
    """``x - 0``, ``-0 - x``, ``x - (-y)``."""
    if is_positive_zero(splat_number(op.rhs, scope.module)):
        return op.lhs
    integer = op.shape.dtype in INTEGERS
    left = splat_number(op.lhs, scope.module)
    if is_negative_zero(left) or (integer and left == 0):
        return build(op, hlo.NegateOp, op.rhs)
    if isinstance(negate := result_op(op.rhs), hlo.NegateOp):
        return build(op, hlo.AddOp, op.lhs, negate.operand)
    return None


@over(*SPLATS, hlo.NegateOp)
def _multiply(op: hlo.MultiplyOp, scope: Scope) -> Value | None:
    """``x * -1``, integer ``x * 0``, ``-x * -y``, ``-x * c``."""
    lhs, rhs = op.operands
    number = splat_number(rhs, scope.module)
    if number is None and type(lhs.owner) is not hlo.NegateOp:
        return None
    dtype = op.shape.dtype
    if number == -1 and (is_float(dtype) or dtype in SIGNED):
        return build(op, hlo.NegateOp, lhs)
    if number == 0 and dtype in INTEGERS:
        return splat(op, scope, 0)
    left, right = result_op(lhs), result_op(rhs)
    if not isinstance(left, hlo.NegateOp):
        return None
    if isinstance(right, hlo.NegateOp):
        return build(op, hlo.MultiplyOp, left.operand, right.operand)
    if number is not None and is_float(dtype):
        return build(op, hlo.MultiplyOp, left.operand, splat(op, scope, -number))
    return None


@over(*SPLATS)
def _divide(op: hlo.DivideOp, scope: Scope) -> Value | None:
    """``x / 1``, ``x / -1``, and division by a power of two, which multiplies exactly."""
    number = splat_number(op.rhs, scope.module)
    dtype = op.shape.dtype
    if number == 1:
        return op.lhs
    if number is None or not is_float(dtype):
        return None
    if number == -1:
        return build(op, hlo.NegateOp, op.lhs)
    if not np.isfinite(number) or abs(frexp(number)[0]) != 0.5:
        return None
    if not is_normal(number, dtype) or not is_normal(1 / number, dtype):
        return None
    return build(op, hlo.MultiplyOp, op.lhs, splat(op, scope, 1 / number))


@over(hlo.NegateOp)
def _negate(op: hlo.NegateOp, scope: Scope) -> Value | None:
    inner = result_op(op.operand)
    return inner.operand if isinstance(inner, hlo.NegateOp) else None


def _abs(op: hlo.AbsOp, scope: Scope) -> Value | None:
    inner = result_op(op.operand)
    if isinstance(inner, hlo.NegateOp) and is_float(op.shape.dtype):
        return build(op, hlo.AbsOp, inner.operand)
    if is_float(op.shape.dtype) and is_non_negative(op.operand, scope.module):
        return op.operand
    return None


MOST_FACTORS = 8
"""Of a power: each adds to the error."""
INVERSE = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}
MIRRORED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


def _not(op: hlo.NotOp, scope: Scope) -> Value | None:
    """``not not x``; ``not (a < b)`` unless a NaN could be there, which is neither below nor not below."""
    inner = result_op(op.operand)
    if isinstance(inner, hlo.NotOp):
        return inner.operand
    if not isinstance(inner, hlo.CompareOp):
        return None
    direction = inner.direction.data
    if is_float(hlo.shape_of(inner.lhs).dtype) and direction not in ("EQ", "NE"):
        return None
    properties = {**inner.properties, "direction": hlo.StrAttr(INVERSE[direction])}
    return insert_before(op, hlo.CompareOp, (inner.lhs, inner.rhs), op.results[0].type, op.loc, properties)


def _idempotent(op: hlo.BinaryOp, scope: Scope) -> Value | None:
    return op.lhs if op.lhs is op.rhs else None


def _absorbing(op: hlo.BinaryOp, scope: Scope) -> Value | None:
    """``x and 0`` -> 0, ``x or ones`` -> ones."""
    number = splat_number(op.rhs, scope.module)
    absorber = 0 if isinstance(op, hlo.AndOp) else identity_of("and", op.shape.dtype)
    return op.rhs if number is not None and number == absorber else None


def _clamp(op: hlo.ClampOp, scope: Scope) -> Value | None:
    """A bound that no value can pass goes away."""
    low, high = splat_number(op.minimum, scope.module), splat_number(op.maximum, scope.module)
    dtype = op.shape.dtype
    no_low, no_high = low is not None and low == lowest(dtype), high is not None and high == highest(dtype)
    if no_low and no_high:
        return op.operand
    if no_low and high is not None and high == high:
        return build(op, hlo.MinimumOp, op.operand, splat(op, scope, high))
    if no_high and low is not None and low == low:
        return build(op, hlo.MaximumOp, op.operand, splat(op, scope, low))
    return None


def _select(op: hlo.SelectOp, scope: Scope) -> Value | None:
    """Known predicate, equal arms, inverted predicate, and arms that are true and false."""
    predicate = splat_number(op.predicate, scope.module)
    if predicate is not None:
        return op.on_true if predicate else op.on_false
    if op.on_true is op.on_false:
        return op.on_true
    inner = result_op(op.predicate)
    if isinstance(inner, hlo.NotOp):
        return build(op, hlo.SelectOp, inner.operand, op.on_false, op.on_true)
    if op.shape.dtype != "pred" or hlo.shape_of(op.predicate).dims != op.shape.dims:
        return None
    match splat_number(op.on_true, scope.module), splat_number(op.on_false, scope.module):
        case True, False:
            return op.predicate
        case False, True:
            return build(op, hlo.NotOp, op.predicate)
    return None


def _compare(op: hlo.CompareOp, scope: Scope) -> Value | None:
    """Integer ``x ? x``; splat to the right; ``convert(pred) != 0`` and its like."""
    direction = op.direction.data
    dtype = hlo.shape_of(op.lhs).dtype
    if op.lhs is op.rhs and not is_float(dtype) and not dtype.startswith("c"):
        return splat(op, scope, direction in ("EQ", "LE", "GE"))
    left, right = splat_number(op.lhs, scope.module), splat_number(op.rhs, scope.module)
    if left is not None and right is None:
        properties = {**op.properties, "direction": hlo.StrAttr(MIRRORED[direction])}
        return insert_before(op, hlo.CompareOp, (op.rhs, op.lhs), op.results[0].type, op.loc, properties)
    inner = result_op(op.lhs)
    if not isinstance(inner, hlo.ConvertOp) or hlo.shape_of(inner.operand).dtype != "pred":
        return None
    if (direction, right) in (("NE", 0), ("EQ", 1), ("GT", 0)):
        return inner.operand
    if (direction, right) in (("EQ", 0), ("NE", 1)):
        return build(op, hlo.NotOp, inner.operand)
    return None


def _convert(op: hlo.ConvertOp, scope: Scope) -> Value | None:
    """Conversion to the same type; a conversion after one that loses nothing."""
    if op.operand.type == op.results[0].type:
        return op.operand
    inner = result_op(op.operand)
    if not isinstance(inner, hlo.ConvertOp):
        return None
    source, middle = hlo.shape_of(inner.operand).dtype, inner.shape.dtype
    if not skips_middle(source, middle, op.shape.dtype):
        return None
    if source == op.shape.dtype:
        return inner.operand
    return build(op, hlo.ConvertOp, inner.operand)


def power_of(op: hlo.HloOp, base: Value, count: int) -> Value:
    """``base`` to the power of ``count``, at least 1, by repeated squaring."""
    if count == 1:
        return base
    half = power_of(op, base, count // 2)
    square = build(op, hlo.MultiplyOp, half, half)
    return build(op, hlo.MultiplyOp, square, base) if count % 2 else square


def rounds_factors(op: hlo.PowerOp, exponent: float) -> bool:
    """Whether ``op`` is computed as a product of several numbers, each of which would be rounded to less than FP32."""
    several = float(exponent * 2).is_integer() and abs(exponent) <= MOST_FACTORS
    return several and exponent not in (2, -1, 0.5, -0.5) and itemsize(op.shape.dtype) < itemsize("f32")


def _power_in_f32(op: hlo.PowerOp, exponent: float, scope: Scope) -> Value:
    """Of narrower floats, rounded once."""
    wide = hlo.array_type("f32", op.shape.dims)
    base = insert_before(op, hlo.ConvertOp, (op.lhs,), wide, op.loc)
    count = insert_splat(scope.module, op, np.array(exponent, np.float32), "f32", op.shape.dims, op.loc)
    return build(op, hlo.ConvertOp, insert_before(op, hlo.PowerOp, (base, count), wide, op.loc))


def _power(op: hlo.PowerOp, scope: Scope) -> Value | None:
    """Constant exponents of floats: 0, 1, 2 and -1 correctly rounded, other integers up to ``MOST_FACTORS``, each of
    which may be half a unit in the last place of FP32 off, and 0.5 and -0.5 where x >= 0.
    """
    number = splat_number(op.rhs, scope.module)
    if not is_float(op.shape.dtype):
        return op.lhs if number == 1 else None
    base = op.lhs
    if number == 0:
        return splat(op, scope, 1)
    if number == 1:
        return base
    if number is not None and rounds_factors(op, number):
        return _power_in_f32(op, number, scope)
    if number is not None and float(number).is_integer() and abs(number) <= MOST_FACTORS:
        whole = power_of(op, base, int(abs(number)))
        return whole if number > 0 else build(op, hlo.DivideOp, splat(op, scope, 1), whole)
    if number in (0.5, -0.5) and is_non_negative(base, scope.module):
        return build(op, hlo.SqrtOp if number == 0.5 else hlo.RsqrtOp, base)
    return None


def _shift(op: hlo.BinaryOp, scope: Scope) -> Value | None:
    """By nothing; by all bits, which leaves none but copies of a sign."""
    count = splat_number(op.rhs, scope.module)
    if count is not None and not isinstance(op, hlo.ShiftRightArithmeticOp) and not 0 <= count < bits(op.shape.dtype):
        return splat(op, scope, 0)
    return op.lhs if count == 0 else None


FORMATS = {"f32": (8, 23), "f16": (5, 10), "bf16": (8, 7), "f64": (11, 52)}


def _reduce_precision(op: hlo.ReducePrecisionOp, scope: Scope) -> Value | None:
    """Rounding to a format that holds every value of the operand's, or that the operand was just rounded to."""
    wanted = op.exponent_bits.data, op.mantissa_bits.data
    exponent, mantissa = FORMATS.get(op.shape.dtype, (99, 99))
    if wanted[0] >= exponent and wanted[1] >= mantissa:
        return op.operand
    inner = result_op(op.operand)
    if isinstance(inner, hlo.ReducePrecisionOp) and inner.properties == op.properties:
        return op.operand
    if isinstance(inner, hlo.ConvertOp):
        source = FORMATS.get(hlo.shape_of(inner.operand).dtype)
        widened = is_lossless(hlo.shape_of(inner.operand).dtype, op.shape.dtype)
        if source and widened and source[0] <= wanted[0] and source[1] <= wanted[1]:
            return op.operand
    return None


def _iota(op: hlo.IotaOp, scope: Scope) -> Value | None:
    return splat(op, scope, 0) if op.shape.dims[op.iota_dimension.data] <= 1 else None


def _round_of_integer(op: hlo.UnaryOp, scope: Scope) -> Value | None:
    """Rounding what is already integral: the result of another rounding, or of an integer converted."""
    inner = result_op(op.operand)
    if isinstance(inner, hlo.RoundingOp):
        return op.operand
    return None


RULES: dict[type, tuple[Rule, ...]] = {
    hlo.CombinerOp: (_splat_right, _neutral_right),
    hlo.IdempotentOp: (_idempotent,),
    hlo.ShiftOp: (_shift,),
    hlo.RoundingOp: (_round_of_integer,),
    hlo.AddOp: (_integer_constants_together, _add_of_negate),
    hlo.SubtractOp: (_subtract, _nothing_left),
    hlo.MultiplyOp: (_integer_constants_together, _multiply),
    hlo.DivideOp: (_divide,),
    hlo.NegateOp: (_negate,),
    hlo.AbsOp: (_abs,),
    hlo.NotOp: (_not,),
    hlo.AndOp: (_absorbing,),
    hlo.OrOp: (_absorbing,),
    hlo.ClampOp: (_clamp,),
    hlo.SelectOp: (_select,),
    hlo.CompareOp: (_compare,),
    hlo.ConvertOp: (_convert,),
    hlo.PowerOp: (_power,),
    hlo.ReducePrecisionOp: (_reduce_precision,),
    hlo.IotaOp: (_iota,),
}
