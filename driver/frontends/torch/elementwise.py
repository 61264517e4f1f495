"""Rows of operators that work element by element: arithmetic, comparisons, functions, conversions."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.torch.registry import ROWS, Cast, Function, Row, is_array, kind, row
from neuronx_cc.ir.errors import CompileError


def _sign(x: Any) -> Any:
    """Of NaN, as torch has it, 0."""
    if kind(x.dtype) == 3:
        return jnp.sign(x)
    return x if x.dtype == bool else (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def _complex(real: Any, imaginary: Any) -> Any:
    """Raises CompileError ESPP004 for parts of 16 bits, of which torch alone makes complex numbers."""
    if real.dtype.itemsize < 4:
        raise CompileError("ESPP004", "element type torch.complex32 is not supported")
    return lax.complex(*jnp.broadcast_arrays(real, imaginary))


def _digamma(x: Any) -> Any:
    """Infinite at 0, of the other sign, as in torch; JAX has NaN there."""
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), special.digamma(x))


UNARY: dict[str, Function] = {
    "abs": jnp.abs,
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "angle": jnp.angle,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "bitwise_not": jnp.invert,
    "ceil": jnp.ceil,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "deg2rad": jnp.deg2rad,
    "digamma": _digamma,
    "erf": special.erf,
    "erfc": special.erfc,
    "erfinv": special.erfinv,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "floor": jnp.floor,
    "i0": special.i0,
    "lgamma": special.gammaln,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "log_sigmoid": jax.nn.log_sigmoid,
    "_neg_view": jnp.negative,
    "_neg_view_copy": jnp.negative,
    "neg": jnp.negative,
    "positive": jnp.positive,
    "rad2deg": jnp.rad2deg,
    "reciprocal": jnp.reciprocal,
    "relu": lambda x: jnp.maximum(x, 0),
    "round": jnp.round,
    "rsqrt": lax.rsqrt,
    "sgn": _sign,
    "sigmoid": jax.nn.sigmoid,
    "sign": _sign,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "special_entr": special.entr,
    "special_erfcx": special.erfcx,
    "special_i0e": special.i0e,
    "special_i1": special.i1,
    "special_i1e": special.i1e,
    "special_log_ndtr": special.log_ndtr,
    "special_modified_bessel_i0": special.i0,
    "special_modified_bessel_i1": special.i1,
    "special_ndtri": special.ndtri,
    "special_spherical_bessel_j0": lambda x: jnp.sinc(x / np.pi),
    "sqrt": jnp.sqrt,
    "square": jnp.square,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "trunc": jnp.trunc,
}
"""Computed in the result's type, so that integers become floats first where torch makes them floats."""

PREDICATES: dict[str, Function] = {
    "isfinite": jnp.isfinite,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "isneginf": jnp.isneginf,
    "isposinf": jnp.isposinf,
    "logical_not": lambda x: jnp.logical_not(x),
    "signbit": jnp.signbit,
    "conj": jnp.conj,
    "_conj": jnp.conj,
    "_conj_copy": jnp.conj,
    "_conj_physical": jnp.conj,
    "imag": jnp.imag,
    "real": jnp.real,
}

COMPARISONS: dict[str, Function] = {
    "eq": jnp.equal,
    "ge": jnp.greater_equal,
    "gt": jnp.greater,
    "le": jnp.less_equal,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "lt": jnp.less,
    "ne": jnp.not_equal,
}

BINARY: dict[str, Function] = {
    "atan2": jnp.arctan2,
    "__lshift__": jnp.left_shift,
    "__rshift__": jnp.right_shift,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_left_shift": jnp.left_shift,
    "bitwise_or": jnp.bitwise_or,
    "bitwise_right_shift": jnp.right_shift,
    "bitwise_xor": jnp.bitwise_xor,
    "complex": lax.complex,
    "copysign": jnp.copysign,
    "floor_divide": jnp.floor_divide,
    "fmax": jnp.fmax,
    "fmin": jnp.fmin,
    "gcd": jnp.gcd,
    "heaviside": jnp.heaviside,
    "hypot": jnp.hypot,
    "lcm": jnp.lcm,
    "logaddexp": jnp.logaddexp,
    "logaddexp2": jnp.logaddexp2,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "mul": jnp.multiply,
    "nextafter": jnp.nextafter,
    "remainder": jnp.remainder,
    "special_xlog1py": special.xlog1py,
    "special_zeta": special.zeta,
    "xlogy": special.xlogy,
    "igamma": special.gammainc,
    "igammac": special.gammaincc,
}

ROWS.update({name: Row(function, Cast.RESULT) for table in (UNARY, BINARY) for name, function in table.items()})
ROWS.update({name: Row(function) for name, function in PREDICATES.items()})
ROWS.update({name: Row(function, Cast.COMMON) for name, function in COMPARISONS.items()})
del ROWS["complex"], ROWS["abs"], ROWS["angle"], ROWS["round"]
row("complex")(_complex)
row("abs")(jnp.abs)
row("angle")(jnp.angle)


@row("round")
def _round(x: Any, decimals: int = 0) -> Any:
    return x if kind(x.dtype) < 2 else jnp.round(x, decimals)


@row("add", cast=Cast.RESULT)
def _add(x: Any, y: Any, alpha: Any = 1) -> Any:
    return jnp.add(x, y if alpha == 1 else jnp.multiply(y, alpha))


@row("sub", cast=Cast.RESULT)
def _sub(x: Any, y: Any, alpha: Any = 1) -> Any:
    return jnp.subtract(x, y if alpha == 1 else jnp.multiply(y, alpha))


@row("rsub", cast=Cast.RESULT)
def _rsub(x: Any, y: Any, alpha: Any = 1) -> Any:
    return jnp.subtract(y, x if alpha == 1 else jnp.multiply(x, alpha))


@row("div", "true_divide", cast=Cast.RESULT)
def _div(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    if rounding_mode == "trunc":
        x, y = jnp.broadcast_arrays(x, jnp.asarray(y, x.dtype))
        return lax.div(x, y) if kind(x.dtype) < 2 else jnp.trunc(x / y)
    return jnp.true_divide(x, y)


row("prims.fma", cast=Cast.RESULT)(lambda x, y, z: x * y + z)


@row("fmod", cast=Cast.RESULT)
def _fmod(x: Any, y: Any) -> Any:
    return lax.rem(*jnp.broadcast_arrays(x, jnp.asarray(y, x.dtype)))


WHOLE_EXPONENT = 16
"""Up to here, powers are products."""


@row("pow", cast=Cast.RESULT)
def _pow(x: Any, y: Any) -> Any:
    if is_array(y):
        return jnp.power(x, y)
    if isinstance(y, int | float) and float(y).is_integer() and abs(y) <= WHOLE_EXPONENT:
        return lax.integer_pow(x, int(y))
    if y == 0.5:
        return jnp.sqrt(x)
    return jnp.power(x, y)


@row("clamp", cast=Cast.RESULT)
def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    low = x if min is None else jnp.maximum(x, min)
    return low if max is None else jnp.minimum(low, max)


row("clamp_min", cast=Cast.RESULT)(jnp.maximum)
row("clamp_max", cast=Cast.RESULT)(jnp.minimum)
row("hardtanh", cast=Cast.RESULT)(lambda x, low=-1, high=1: jnp.clip(x, low, high))
row("leaky_relu", cast=Cast.RESULT)(lambda x, slope=0.01: jnp.where(x > 0, x, x * slope))
row("gelu")(lambda x, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"))


@row("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def _where(condition: Any, x: Any, y: Any) -> Any:
    return jnp.where(condition.astype(bool), x, y)


@row("masked_fill")
def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return jnp.where(mask, jnp.asarray(value).astype(x.dtype), x)


@row("_to_copy", "to.dtype", "prims.convert_element_type")
def _to_copy(x: Any, dtype: Any = None, **_: Any) -> Any:
    return x if dtype is None else converted(x, dtype)


def converted(x: Any, dtype: Any) -> Any:
    """``x`` in ``dtype``, complex numbers by their real part."""
    if kind(x.dtype) == 3 and kind(dtype) < 3:
        x = jnp.imag(x) != 0 if kind(dtype) == 0 else jnp.real(x)
    return x.astype(dtype)


@row("view.dtype")
def _bits(x: Any, dtype: Any) -> Any:
    wide, narrow = x.dtype.itemsize, np.dtype(dtype).itemsize
    if wide < narrow:
        x = x.reshape(*x.shape[:-1], x.shape[-1] * wide // narrow, narrow // wide)
    result = lax.bitcast_convert_type(x, dtype)
    return result.reshape(*x.shape[:-1], -1) if wide > narrow else result


row("clone", "alias", "detach", "detach_copy", "lift", "lift_fresh", "lift_fresh_copy", "contiguous")(lambda x, **_: x)
row("copy")(lambda x, source, *_: jnp.broadcast_to(source, x.shape))
row("view_as_real", "view_as_real_copy")(lambda x: jnp.stack([jnp.real(x), jnp.imag(x)], -1))
row("view_as_complex", "view_as_complex_copy")(lambda x: _complex(x[..., 0], x[..., 1]))
row("polar")(lambda r, angle: _complex(r * jnp.cos(angle), r * jnp.sin(angle)))
row("frexp")(jnp.frexp)
row("ldexp", cast=Cast.RESULT)(lambda x, y: x * jnp.exp2(y))


@row("polygamma", cast=Cast.RESULT)
def _polygamma(n: int, x: Any) -> Any:
    """Derivative ``n`` of digamma; below 1/2 by that of 1 - x and of the cotangent, a polynomial in it."""
    if not n:
        return _digamma(x)
    slopes = np.polynomial.Polynomial([0, 1])
    for _ in range(n):
        slopes = -np.pi * slopes.deriv() * np.polynomial.Polynomial([1, 0, 1])
    mirrored = x < 0.5
    beside = x - jnp.round(x)
    across = jnp.sign(beside) * jnp.tan(np.pi * (0.5 - jnp.abs(beside)))
    cotangent = jnp.where(jnp.abs(beside) < 0.25, 1 / jnp.tan(np.pi * beside), across)
    poles = np.pi * jnp.polyval(jnp.asarray(slopes.coef[::-1], x.dtype), cotangent)
    found = special.polygamma(n, jnp.where(mirrored, 1 - x, x))
    below = jnp.where(beside == 0, (-1) ** (n + 1) * np.inf, (-1) ** n * found - poles)
    return jnp.where(mirrored, below, found)


row("mvlgamma", cast=Cast.RESULT)(lambda x, p: special.multigammaln(x, p))
