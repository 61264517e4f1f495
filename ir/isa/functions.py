"""Functions of f32 arrays that NumPy lacks or that the engines define differently, in plain NumPy.

Input and output: f32 arrays of any shape (strided allowed). Each result is within 2 ulp of the exact value over the
whole range (``benchmarks/accuracy.py`` measures it) unless its docstring says otherwise. ``ACTIVATION`` lists what
ScalarE evaluates (hardware sheet 4.1), ``UNARY`` and ``BINARY`` what GpSimd programs evaluate, with HLO semantics over
the full range.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from neuronx_cc.ir.extremes import maximum, minimum

Array: TypeAlias = np.ndarray[Any, Any]
Function: TypeAlias = Callable[[Array], Array]
F32 = np.float32

_ERF_SMALL: tuple[float, ...] = (
    8.393791e-05,
    -0.00081655016,
    0.0052048871,
    -0.026861811,
    0.11283755,
    -0.37612638,
)
"""``(erf(x) / x - 2 / sqrt(pi)) / x^2`` as a polynomial in x^2, for |x| <= 1."""
_ERFC_LARGE: tuple[float, ...] = (
    *(-0.000265765, -9.7651486e-05, 0.0020599302, -0.0015341142, -0.0047043134),
    *(0.010400716, -0.0066124415, -0.009572532, 0.03185954, -0.046391595),
    *(0.043652967, -0.02818715, 0.012252737, -0.0032672798, 0.00040695298),
)
"""``1 - erf(x)`` as a polynomial in (x - 2.5) / 1.5, for 1 <= x <= 4."""
_ERF_SLOPE = F32(0.12837917)
"""``2 / sqrt(pi) - 1``."""
_ERF_ONE = F32(4)
"""From here on erf is 1 in f32."""


def polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """Horner's rule in f32, highest power first; a fresh array."""
    total = np.multiply(x, F32(coefficients[0]))
    total += F32(coefficients[1])
    for coefficient in coefficients[2:]:
        total *= x
        total += F32(coefficient)
    return total


def erf(x: Array) -> Array:
    """Error function by two minimax polynomials, within 1.5 ulp."""
    magnitude = np.minimum(np.abs(x), _ERF_ONE)
    square = magnitude * magnitude
    small = polynomial(_ERF_SMALL, square)
    small *= square
    small += _ERF_SLOPE
    small *= magnitude
    small += magnitude
    place = magnitude - F32(2.5)
    place *= F32(1 / 1.5)
    large = np.subtract(F32(1), polynomial(_ERFC_LARGE, place))
    return np.copysign(np.where(magnitude < 1, small, large), x)


def in_f64(function: Function) -> Function:
    """``function`` computed in f64 and rounded once: where NumPy's own f32 function is off by more than 2 ulp."""

    def computed(x: Array) -> Array:
        return np.asarray(function(x.astype(np.float64)).astype(F32))

    return computed


exp = in_f64(np.exp)


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))``; exact down to the smallest results."""
    result = np.negative(x, dtype=np.float64)
    np.exp(result, out=result)
    result += 1
    return np.divide(1, result, out=result).astype(F32)


def atan2(y: Array, x: Array) -> Array:
    """Angle of (x, y)."""
    return np.asarray(np.arctan2(y.astype(np.float64), x.astype(np.float64)).astype(F32))


def gelu(x: Array) -> Array:
    """``x (1 + erf(x / sqrt 2)) / 2``; accurate relative to x, NaN at -inf."""
    result = erf(x * F32(0.5**0.5))
    result += F32(1)
    result *= x
    result *= F32(0.5)
    return result


def gelu_tanh(x: Array) -> Array:
    """``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``; accurate relative to x, NaN at -inf."""
    result = np.square(x)
    result *= F32(0.044715)
    result += F32(1)
    result *= x
    result *= F32(0.7978845608028654)
    np.tanh(result, out=result)
    result += F32(1)
    result *= x
    result *= F32(0.5)
    return result


def silu(x: Array) -> Array:
    """``x sigmoid(x)``; NaN at -inf."""
    result = sigmoid(x)
    result *= x
    return result


def softplus(x: Array) -> Array:
    """``log(1 + exp(x))``."""
    result = np.exp(-np.abs(x))
    np.log1p(result, out=result)
    result += np.maximum(x, F32(0))
    return result


def rsqrt(x: Array) -> Array:
    """``1 / sqrt(x)``."""
    return np.divide(F32(1), np.sqrt(x))


def reciprocal(x: Array) -> Array:
    """``1 / x``, correctly rounded."""
    return np.divide(F32(1), x)


def sign(x: Array) -> Array:
    """-1, 0 or 1; keeps the sign of zero and NaN."""
    return np.where(x == 0, x, np.sign(x))


def relu(x: Array) -> Array:
    """``max(x, 0)``; NaN stays NaN."""
    return maximum(x, F32(0))


def sine_unreduced(x: Array) -> Array:
    """Sine on [-pi, pi]; beyond it, the cubic that ScalarE extrapolates (hardware sheet 4.1: sin(9) is 27.65)."""
    inside = np.sin(np.clip(x, F32(-np.pi), F32(np.pi)))
    beyond = np.abs(x) - F32(np.pi)
    cubic: Array = np.copysign(beyond * beyond * beyond / F32(6) - beyond, x)
    return np.where(beyond > 0, cubic, inside)


def round_half_away(x: Array) -> Array:
    """To the nearest integer, halves away from zero."""
    whole: Array = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= F32(0.5), np.copysign(F32(1), x), np.copysign(F32(0), x))


def round_mantissa(x: Array, bits: int) -> Array:
    """f32 rounded to ``bits`` mantissa bits, ties to even; NaN and infinity unchanged."""
    word = np.ascontiguousarray(x).view(np.uint32)
    drop = 23 - bits
    bias = ((word >> np.uint32(drop)) & np.uint32(1)) + np.uint32((1 << (drop - 1)) - 1)
    rounded: Array = (word + bias) & np.uint32((0xFFFFFFFF << drop) & 0xFFFFFFFF)
    return np.where(np.isfinite(x), rounded.view(F32).reshape(x.shape), x)


def reduce_precision(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """HLO reduce-precision: round to nearest even; overflow to infinity, underflow to signed zero."""
    rounded = round_mantissa(x, mantissa_bits) if mantissa_bits < 23 else x
    if exponent_bits >= 8:
        return rounded
    reach = (1 << (exponent_bits - 1)) - 1
    magnitude = np.ascontiguousarray(rounded).view(np.uint32).reshape(x.shape) & np.uint32(0x7F800000)
    rounded = np.where(magnitude > np.uint32((127 + reach) << 23), np.copysign(F32(np.inf), x), rounded)
    rounded = np.where(magnitude <= np.uint32((127 - reach) << 23), np.copysign(F32(0), x), rounded)
    return np.where(np.isnan(x), x, rounded)


ACTIVATION: dict[str, Function] = {
    "copy": np.positive,
    "square": np.square,
    "sigmoid": sigmoid,
    "relu": relu,
    "gelu": gelu,
    "gelu_apprx_tanh": gelu_tanh,
    "silu": silu,
    "tanh": np.tanh,
    "exp": exp,
    "log": in_f64(np.log),
    "sqrt": np.sqrt,
    "rsqrt": rsqrt,
    "reciprocal": reciprocal,
    "sign": sign,
    "abs": np.abs,
    "erf": erf,
    "softplus": softplus,
    "arctan": np.arctan,
    "sin": sine_unreduced,
}
"""Functions of ScalarE. Outside a function's documented range the exact function is used (except ``sin``)."""

UNARY: dict[str, Function] = {
    "sine": np.sin,
    "cosine": np.cos,
    "tan": in_f64(np.tan),
    "sinh": in_f64(np.sinh),
    "cosh": in_f64(np.cosh),
    "asin": in_f64(np.arcsin),
    "acos": in_f64(np.arccos),
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "cbrt": in_f64(np.cbrt),
    "exponential-minus-one": in_f64(np.expm1),
    "log-plus-one": np.log1p,
    "floor": np.floor,
    "ceil": np.ceil,
    "round-nearest-afz": round_half_away,
    "round-nearest-even": np.rint,
    "sign": sign,
    "exponential": exp,
    "log": in_f64(np.log),
    "tanh": np.tanh,
    "logistic": sigmoid,
    "erf": erf,
    "sqrt": np.sqrt,
    "rsqrt": rsqrt,
    "negate": np.negative,
    "abs": np.abs,
}
"""Float functions of GpSimd programs, named as HLO opcodes."""

BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "power": np.power,
    "remainder": np.fmod,
    "atan2": atan2,
    "divide": np.divide,
    "maximum": maximum,
    "minimum": minimum,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
}
"""Float functions of two arguments of GpSimd programs, named as HLO opcodes."""
