"""Reference semantics of elementwise hlo operations.

``ELEMENTWISE[opcode](op, *arrays) -> array``. Only the element type of ``op``'s result is read, never its dims, so
a scalar computation can be applied to whole arrays at once. Integers wrap in two's complement; small floats are
computed in f32 and rounded once (what XLA's CPU back end does). Subnormals are kept, as IEEE 754 has it; jaxlib's
CPU client flushes those of f32, bf16 and f64 to zero.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from neuronx_cc.ir import extremes, hlo
from neuronx_cc.ir.reference.values import Array, is_float, narrow, widen
from neuronx_cc.ir.types import FLOATS, INTEGERS, NUMPY_DTYPE

Elementwise = Callable[..., Array]


def _unary(function: Callable[[Array], Any]) -> Elementwise:
    def apply(op: hlo.HloOp, x: Array) -> Array:
        return narrow(function(widen(x)), op.shape.dtype)

    return apply


def _binary(function: Callable[[Array, Array], Any]) -> Elementwise:
    def apply(op: hlo.HloOp, lhs: Array, rhs: Array) -> Array:
        return narrow(function(widen(lhs), widen(rhs)), op.shape.dtype)

    return apply


def _bits(x: Array) -> int:
    return 4 if x.dtype.name in ("int4", "uint4") else x.dtype.itemsize * 8


def _unsigned(x: Array) -> Array:
    """Same bits as an unsigned integer array."""
    if x.dtype.name == "int4":
        return x.astype(np.uint8) & np.uint8(15)
    return x if x.dtype.kind in "ub" else x.view(f"u{x.dtype.itemsize}")


def total_order_key(x: Array) -> Array:
    """Integers that sort as IEEE total order sorts ``x`` (-NaN < -inf < ... < -0 < +0 < ... < inf < NaN)."""
    bits = np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}").reshape(x.shape)
    flip = np.array(np.iinfo(bits.dtype).max, bits.dtype)
    return np.where(bits < 0, bits ^ flip, bits)


def clamp(op: hlo.ClampOp, minimum: Array, operand: Array, maximum: Array) -> Array:
    """``min(max(operand, minimum), maximum)``; NaN wins."""
    return narrow(extremes.minimum(extremes.maximum(widen(operand), widen(minimum)), widen(maximum)), op.shape.dtype)


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}


def compare(op: hlo.CompareOp, lhs: Array, rhs: Array) -> Array:
    """``lhs <direction> rhs``; ``TOTALORDER`` orders NaNs and signed zeros too."""
    if op.comparison_type.data == "TOTALORDER" and is_float(lhs):
        lhs, rhs = total_order_key(lhs), total_order_key(rhs)
    return np.asarray(COMPARISONS[op.direction.data](widen(lhs), widen(rhs)))


def convert(op: hlo.HloOp, x: Array) -> Array:
    """Value conversion; float to integer truncates, saturates, and NaN becomes 0."""
    dtype = op.shape.dtype
    target = NUMPY_DTYPE[dtype]
    if x.dtype == target:
        return x
    if x.dtype.kind == "c" and target.kind != "c":
        x = x.real
    if dtype == "pred":
        return np.asarray(widen(x) != 0)
    if dtype in INTEGERS and is_float(x):
        return _truncate(x, dtype)
    if dtype in FLOATS and target.itemsize < 4 and not is_float(x):
        x = x.astype(np.float32)  # XLA goes through f32
    return (x if is_float(x) else widen(x)).astype(target)


def _truncate(x: Array, dtype: str) -> Array:
    bits, signed = int(dtype[1:]), dtype[0] == "s"
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    whole = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
    wide = np.dtype(np.int64 if signed else np.uint64)
    # float(high) of a 64-bit type is one too large, so values at or over it are set apart
    inside = np.where((whole >= low) & (whole < float(high)), whole, 0).astype(wide)
    result = np.where(whole >= float(high), np.array(high, wide), inside)
    return np.where(whole < low, np.array(low, wide), result).astype(NUMPY_DTYPE[dtype])


def count_leading_zeros(op: hlo.HloOp, x: Array) -> Array:
    """Number of leading zero bits."""
    bits = _unsigned(x).astype(np.uint64)
    width = _bits(x)
    count = np.full(x.shape, width, np.int64)
    for position in range(width):
        count = np.where((bits >> np.uint64(position)) & np.uint64(1), width - 1 - position, count)
    return narrow(count, op.shape.dtype)


def divide(op: hlo.HloOp, lhs: Array, rhs: Array) -> Array:
    """``lhs / rhs``; integers truncate, x / 0 has all bits set, INT_MIN / -1 is INT_MIN."""
    dtype = op.shape.dtype
    if dtype not in INTEGERS:
        return narrow(widen(lhs) / widen(rhs), dtype)
    lhs, rhs = widen(lhs), widen(rhs)
    if lhs.dtype.kind == "u":
        quotient = lhs // np.where(rhs == 0, 1, rhs).astype(rhs.dtype)
        return narrow(np.where(rhs == 0, np.array(np.iinfo(lhs.dtype).max, lhs.dtype), quotient), dtype)
    safe = np.where((rhs == 0) | (rhs == -1), 1, rhs).astype(rhs.dtype)
    quotient = (lhs - np.fmod(lhs, safe)) // safe
    quotient = np.where(rhs == -1, (0 - lhs).astype(lhs.dtype), quotient)
    return narrow(np.where(rhs == 0, -1, quotient), dtype)


# Rational approximation x * P(x^2) / Q(x^2) on [-4, 4] with f32 accuracy, as Eigen and XLA use for f32.
_ERF_P = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_Q = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)


def _erf(x: Array) -> Array:
    if x.dtype == np.float64:
        from math import erf

        return np.asarray(np.vectorize(erf, otypes=[np.float64])(x)) if x.size else x
    clipped = np.clip(x, -4.0, 4.0).astype(np.float64)
    square = clipped * clipped
    return np.asarray(clipped * np.polyval(_ERF_P, square) / np.polyval(_ERF_Q, square))


def _logistic(x: Array) -> Any:
    return 1 / (1 + np.exp(-x))


def mulhi(op: hlo.HloOp, lhs: Array, rhs: Array) -> Array:
    """High half of the double-width product."""
    bits = _bits(lhs)
    product = lhs.astype(object) * rhs.astype(object)
    return narrow(np.asarray(product >> bits), op.shape.dtype) if lhs.size else lhs


def _negate(x: Array) -> Any:
    return np.subtract(0, x, dtype=x.dtype) if x.dtype.kind in "iu" else -x


def popcnt(op: hlo.HloOp, x: Array) -> Array:
    """Number of set bits."""
    return narrow(np.bitwise_count(_unsigned(x)), op.shape.dtype)


def power(op: hlo.HloOp, lhs: Array, rhs: Array) -> Array:
    """``lhs ** rhs``; integer powers wrap, and negative exponents give 0 unless the base is 1 or -1.

    XLA's CPU back end reads only six bits of an integer exponent (0 ** 64 is 1 there); here all bits count.
    """
    dtype = op.shape.dtype
    if dtype not in INTEGERS:
        return narrow(np.power(widen(lhs), widen(rhs)), dtype)
    base, exponent = widen(lhs), widen(rhs)
    result = np.ones(np.broadcast_shapes(base.shape, exponent.shape), base.dtype)
    square, left = base, np.maximum(exponent, 0)
    while np.any(left > 0):
        result = np.where(left & 1, result * square, result).astype(base.dtype)
        square, left = square * square, left >> 1
    if exponent.dtype.kind == "i":
        odd = np.where(exponent & 1, base, base * base)
        unit = (base == 1) | (base == -1)
        result = np.where(exponent < 0, np.where(unit, odd, 0), result)
    return narrow(result, dtype)


def reduce_precision(op: hlo.ReducePrecisionOp, x: Array) -> Array:
    """Rounds to nearest even in a format of the given exponent and mantissa bits; underflow gives signed zero."""
    # XLA rounds 8-bit floats in f16
    wide = x.astype(np.float16) if x.dtype.itemsize == 1 else x
    return narrow(round_to_format(wide, op.exponent_bits.data, op.mantissa_bits.data), op.shape.dtype)


def round_to_format(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """Floats rounded as HLO's reduce-precision defines, on the bits of their own format; tf32 is (8, 10)."""
    mantissa = int(ml_dtypes.finfo(x.dtype).nmant)  # type: ignore[no-untyped-call]
    exponent = 8 * x.dtype.itemsize - 1 - mantissa
    word = np.dtype(f"u{x.dtype.itemsize}").type
    bits = np.ascontiguousarray(x).view(word).reshape(x.shape)
    sign = bits & word(1 << (mantissa + exponent))
    rounded = bits
    if mantissa_bits < mantissa:
        drop = mantissa - mantissa_bits
        bias = ((bits >> word(drop)) & word(1)) + word((1 << (drop - 1)) - 1)
        rounded = (bits + bias) & ~word((1 << drop) - 1)
    if exponent_bits < exponent:
        field = word(((1 << exponent) - 1) << mantissa)
        centre, reach = (1 << (exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        magnitude = rounded & field
        rounded = np.where(magnitude > word((centre + reach) << mantissa), sign | field, rounded)
        rounded = np.where(magnitude <= word((centre - reach) << mantissa), sign, rounded)
    result = np.asarray(rounded).astype(word).view(x.dtype).reshape(x.shape)
    not_a_number = x if mantissa_bits else np.array(np.nan, x.dtype)
    return np.where(np.isnan(x), not_a_number, result)


def remainder(op: hlo.HloOp, lhs: Array, rhs: Array) -> Array:
    """``lhs - rhs * trunc(lhs / rhs)``, with the sign of lhs; integer x % 0 is x."""
    dtype = op.shape.dtype
    if dtype not in INTEGERS:
        return narrow(np.fmod(widen(lhs), widen(rhs)), dtype)
    lhs, rhs = widen(lhs), widen(rhs)
    safe = np.where(rhs == 0, 1, rhs).astype(rhs.dtype)
    if lhs.dtype.kind == "i":
        safe = np.where(rhs == -1, 1, safe).astype(rhs.dtype)  # avoids INT_MIN % -1; the remainder is 0 either way
    return narrow(np.where(rhs == 0, lhs, np.fmod(lhs, safe)), dtype)


def _round_afz(x: Array) -> Any:
    # adding 0.5 would round 0.49999997 up
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(1, x), np.copysign(0, x)).astype(x.dtype)


def _rsqrt(x: Array) -> Any:
    return 1 / np.sqrt(x)


def select(op: hlo.HloOp, predicate: Array, on_true: Array, on_false: Array) -> Array:
    """``predicate ? on_true : on_false``; a scalar predicate chooses whole arrays."""
    return np.where(predicate, on_true, on_false)


def _shift_amount(lhs: Array, rhs: Array) -> tuple[Array, Array]:
    """The amount reduced to a legal one, and whether it was legal (as an unsigned number below the width)."""
    amount = _unsigned(rhs)
    legal = np.asarray(amount < _bits(lhs))
    return np.where(legal, amount, 0).astype(np.uint8), legal


def shift_left(op: hlo.HloOp, lhs: Array, rhs: Array) -> Array:
    """``lhs << rhs``; 0 when rhs is out of range."""
    amount, legal = _shift_amount(lhs, rhs)
    bits = _unsigned(lhs)
    shifted = np.left_shift(bits, amount.astype(bits.dtype))
    return np.where(legal, shifted, 0).astype(bits.dtype).astype(op.shape.numpy_dtype)


def shift_right_arithmetic(op: hlo.HloOp, lhs: Array, rhs: Array) -> Array:
    """Signed ``lhs >> rhs``; all sign bits when rhs is out of range."""
    amount, legal = _shift_amount(lhs, rhs)
    amount = np.where(legal, amount, _bits(lhs) - 1)
    signed = widen(lhs) if lhs.dtype.kind in "iV" else lhs.view(f"i{lhs.dtype.itemsize}")
    return narrow(np.right_shift(signed, amount.astype(signed.dtype)), op.shape.dtype)


def shift_right_logical(op: hlo.HloOp, lhs: Array, rhs: Array) -> Array:
    """Unsigned ``lhs >> rhs``; 0 when rhs is out of range."""
    amount, legal = _shift_amount(lhs, rhs)
    bits = _unsigned(lhs)
    shifted = np.right_shift(bits, amount.astype(bits.dtype))
    return np.where(legal, shifted, 0).astype(bits.dtype).astype(op.shape.numpy_dtype)


def _sign(x: Array) -> Any:
    if x.dtype.kind == "c":
        size = np.abs(x)
        return np.where(size == 0, 0, x / np.where(size == 0, 1, size))
    return np.where(x == 0, x, np.sign(x)).astype(x.dtype)


def stochastic_convert(op: hlo.HloOp, x: Array, random: Array) -> Array:
    """Away from zero where the random bits, as a fraction, lie below the part of the magnitude that is cut off."""
    value, dtype = widen(x).astype(np.float64), NUMPY_DTYPE[op.shape.dtype]
    size = np.abs(value)
    if op.shape.dtype in INTEGERS:
        low = np.floor(size)
        step = np.ones_like(size)
    else:
        nearest = size.astype(dtype)
        bits = nearest.view(f"u{dtype.itemsize}") - (nearest.astype(np.float64) > size)
        low, above = (pattern.astype(bits.dtype).view(dtype).astype(np.float64) for pattern in (bits, bits + 1))
        step = np.where(np.isfinite(above) & np.isfinite(size), above - low, np.inf)
    cut = np.floor(np.where(np.isfinite(size), (size - low) / step, 0) * 2.0 ** (random.dtype.itemsize * 8))
    result = np.copysign(np.where(random.astype(np.float64) < cut, low + step, low), value)
    if op.shape.dtype in INTEGERS:
        info = np.iinfo(dtype)
        whole = np.clip(np.nan_to_num(result, nan=0), float(info.min), float(info.max))
        return np.asarray(whole.astype(np.int64).astype(dtype))
    return np.asarray(np.where(np.isfinite(size), result, value)).astype(dtype)


def _is_finite(x: Array) -> Any:
    return np.isfinite(x)


def _complex(lhs: Array, rhs: Array) -> Any:
    result = np.empty(np.broadcast_shapes(lhs.shape, rhs.shape), np.result_type(lhs.dtype, np.complex64))
    result.real, result.imag = lhs, rhs
    return result


def _not(x: Array) -> Any:
    return ~x


ELEMENTWISE: dict[str, Elementwise] = {
    "abs": _unary(np.abs),
    "acos": _unary(np.arccos),
    "acosh": _unary(np.arccosh),
    "add": _binary(np.add),
    "and": _binary(np.bitwise_and),
    "asin": _unary(np.arcsin),
    "asinh": _unary(np.arcsinh),
    "atan": _unary(np.arctan),
    "atan2": _binary(np.arctan2),
    "atanh": _unary(np.arctanh),
    "cbrt": _unary(np.cbrt),
    "ceil": _unary(np.ceil),
    "clamp": clamp,
    "compare": compare,
    "complex": _binary(_complex),
    "convert": convert,
    "copy": _unary(np.asarray),
    "cosh": _unary(np.cosh),
    "cosine": _unary(np.cos),
    "count-leading-zeros": count_leading_zeros,
    "divide": divide,
    "erf": _unary(_erf),
    "exponential": _unary(np.exp),
    "exponential-minus-one": _unary(np.expm1),
    "floor": _unary(np.floor),
    "imag": _unary(np.imag),
    "is-finite": _unary(_is_finite),
    "log": _unary(np.log),
    "log-plus-one": _unary(np.log1p),
    "logistic": _unary(_logistic),
    "maximum": _binary(extremes.maximum),
    "minimum": _binary(extremes.minimum),
    "mulhi": mulhi,
    "multiply": _binary(np.multiply),
    "negate": _unary(_negate),
    "not": _unary(_not),
    "or": _binary(np.bitwise_or),
    "popcnt": popcnt,
    "power": power,
    "real": _unary(np.real),
    "reduce-precision": reduce_precision,
    "remainder": remainder,
    "round-nearest-afz": _unary(_round_afz),
    "round-nearest-even": _unary(np.rint),
    "rsqrt": _unary(_rsqrt),
    "select": select,
    "shift-left": shift_left,
    "shift-right-arithmetic": shift_right_arithmetic,
    "shift-right-logical": shift_right_logical,
    "sign": _unary(_sign),
    "sine": _unary(np.sin),
    "sinh": _unary(np.sinh),
    "sqrt": _unary(np.sqrt),
    "stochastic-convert": stochastic_convert,
    "subtract": _binary(np.subtract),
    "tan": _unary(np.tan),
    "tanh": _unary(np.tanh),
    "xor": _binary(np.bitwise_xor),
}
