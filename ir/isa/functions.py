"""Functions of f32 arrays that NumPy lacks or that the engines define differently, in plain NumPy.

Input and output: f32 arrays of any shape (strided allowed). Each result is within about 2 ulp of the exact value unless
its docstring says otherwise. ``ACTIVATION`` lists what ScalarE evaluates (hardware sheet 4.1), ``UNARY`` and
``BINARY`` what GpSimd programs evaluate, with HLO semantics over the full range.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Function: TypeAlias = Callable[[Array], Array]
F32 = np.float32

_ERF_P: tuple[float, ...] = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_Q: tuple[float, ...] = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
_ERF_ONE = F32(4)
"""From here on erf is 1 in f32."""
_LOWEST = F32(-3.4e38)
"""Stands in for -inf as a factor of 0."""


def polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """Horner's rule in f32, highest power first; a fresh array."""
    total = np.multiply(x, F32(coefficients[0]))
    total += F32(coefficients[1])
    for coefficient in coefficients[2:]:
        total *= x
        total += F32(coefficient)
    return total


def erf(x: Array) -> Array:
    """Error function: the approximation x P(x^2) / Q(x^2) of Eigen and XLA; at most 7 ulp, 1 on average."""
    clipped = np.clip(x, -_ERF_ONE, _ERF_ONE)
    square = clipped * clipped
    result = polynomial(_ERF_P, square)
    result *= clipped
    result /= polynomial(_ERF_Q, square)
    return result


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))``."""
    result = np.negative(x)
    np.exp(result, out=result)
    result += F32(1)
    return np.divide(F32(1), result, out=result)


def gelu(x: Array) -> Array:
    """``x (1 + erf(x / sqrt 2)) / 2``; accurate relative to x."""
    result = erf(x * F32(0.5**0.5))
    result += F32(1)
    result *= np.maximum(x, _LOWEST)
    result *= F32(0.5)
    return result


def gelu_tanh(x: Array) -> Array:
    """``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``; accurate relative to x."""
    result = np.square(x)
    result *= F32(0.044715)
    result += F32(1)
    result *= x
    result *= F32(0.7978845608028654)
    np.tanh(result, out=result)
    result += F32(1)
    result *= np.maximum(x, _LOWEST)
    result *= F32(0.5)
    return result


def silu(x: Array) -> Array:
    """``x sigmoid(x)``; -0 at -inf."""
    result = sigmoid(x)
    result *= np.maximum(x, _LOWEST)
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
    return np.maximum(x, F32(0))


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
    "exp": np.exp,
    "log": np.log,
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
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "exponential-minus-one": np.expm1,
    "log-plus-one": np.log1p,
    "floor": np.floor,
    "ceil": np.ceil,
    "round-nearest-afz": round_half_away,
    "round-nearest-even": np.rint,
    "sign": sign,
    "exponential": np.exp,
    "log": np.log,
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
    "atan2": np.arctan2,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
}
"""Float functions of two arguments of GpSimd programs, named as HLO opcodes."""
