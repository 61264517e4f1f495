"""Operators on single elements: arithmetic, comparisons, functions, bits, casts."""

from functools import reduce
from math import erf as exact_erf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.onnx.table import Value, namespace, op, refusal
from neuronx_cc.driver.frontends.onnx.types import checked, dtype_of, is_float, is_integer, limits

_UNARY = {
    "Abs": "abs", "Acos": "arccos", "Acosh": "arccosh", "Asin": "arcsin", "Asinh": "arcsinh", "Atan": "arctan",
    "Atanh": "arctanh", "BitwiseNot": "invert", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Exp": "exp",
    "Floor": "floor", "IsNaN": "isnan", "Log": "log", "Neg": "negative", "Not": "logical_not",
    "Reciprocal": "reciprocal", "Round": "round", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt",
    "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
"""Operator -> its name in NumPy and ``jax.numpy``."""
_BINARY = {
    "And": "logical_and", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
    "Equal": "equal", "Greater": "greater", "GreaterOrEqual": "greater_equal", "Less": "less",
    "LessOrEqual": "less_equal", "Or": "logical_or", "Xor": "logical_xor", "Add": "add", "Mul": "multiply",
    "Sub": "subtract",
}  # fmt: skip


def _make_unary(name: str, function: str) -> None:
    def meaning(x: Value) -> Value:
        return getattr(namespace(x), function)(x)

    op(name)(meaning)


def _make_binary(name: str, function: str) -> None:
    def meaning(a: Value, b: Value) -> Value:
        return getattr(namespace(a, b), function)(a, b)

    op(name)(meaning)


for _name, _function in _UNARY.items():
    _make_unary(_name, _function)
for _name, _function in _BINARY.items():
    _make_binary(_name, _function)


@op("Div")
def div(a: Value, b: Value) -> Value:
    """Integers are truncated towards zero."""
    if not is_integer(a.dtype):
        return namespace(a, b).divide(a, b)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and b.all():
        quotient = np.abs(a) // np.abs(b) if np.dtype(a.dtype).kind == "i" else a // b
        return np.where((a < 0) != (b < 0), -quotient, quotient).astype(a.dtype) if a.dtype.kind == "i" else quotient
    return lax.div(*jnp.broadcast_arrays(a, b))


@op("Mod")
def mod(a: Value, b: Value, *, fmod: int = 0) -> Value:
    return (jnp.fmod if fmod else jnp.mod)(a, b)


@op("Pow")
def power(x: Value, y: Value) -> Value:
    """The result has the type of the base."""
    if is_integer(x.dtype) and not is_integer(y.dtype):
        return jnp.power(x.astype(y.dtype), y).astype(x.dtype)
    if is_integer(x.dtype) or not is_integer(y.dtype):
        return jnp.power(x, y.astype(x.dtype)).astype(x.dtype)
    if isinstance(y, np.ndarray) and y.size == 1 and abs(int(y.reshape(()))) < 1 << 30:
        return jnp.broadcast_to(lax.integer_pow(x, int(y.reshape(()))), jnp.broadcast_shapes(x.shape, y.shape))
    return jnp.power(x, y.astype(x.dtype))


def _folded(function: str) -> Any:
    def meaning(*values: Value) -> Value:
        return reduce(getattr(namespace(*values), function), values)

    return meaning


op("Max")(_folded("maximum"))
op("Min")(_folded("minimum"))
op("Sum")(_folded("add"))


@op("Mean")
def mean(*values: Value) -> Value:
    return reduce(jnp.add, values) / np.asarray(len(values), values[0].dtype)


@op("Where")
def where(condition: Value, x: Value, y: Value) -> Value:
    return namespace(condition, x, y).where(condition, x, y)


@op("Identity")
def identity(x: Value) -> Value:
    return x


@op("IsInf")
def is_inf(x: Value, *, detect_negative: int = 1, detect_positive: int = 1) -> Value:
    found = jnp.isinf(x)
    if not detect_negative:
        found &= x > 0
    return found if detect_positive else found & (x < 0)


@op("BitShift")
def bit_shift(x: Value, y: Value, *, direction: str) -> Value:
    return (jnp.left_shift if direction == "LEFT" else jnp.right_shift)(x, y)


@op("Erf")
def erf(x: Value) -> Value:
    if isinstance(x, np.ndarray):
        return np.vectorize(exact_erf, [np.float64])(x).astype(x.dtype)
    return lax.erf(x) if is_float(x.dtype) else lax.erf(x.astype(np.float32)).astype(x.dtype)


@op("Relu")
def relu(x: Value) -> Value:
    return jnp.maximum(x, np.zeros((), x.dtype))


@op("LeakyRelu")
def leaky_relu(x: Value, *, alpha: float = 0.01) -> Value:
    return jnp.where(x < 0, x * np.asarray(alpha, x.dtype), x)


@op("PRelu")
def prelu(x: Value, slope: Value) -> Value:
    return jnp.where(x < 0, x * slope, x)


@op("Elu")
def elu(x: Value, *, alpha: float = 1.0) -> Value:
    return jnp.where(x > 0, x, np.asarray(alpha, x.dtype) * jnp.expm1(jnp.minimum(x, np.zeros((), x.dtype))))


@op("Sigmoid")
def sigmoid(x: Value) -> Value:
    return lax.logistic(x)


@op("Softplus")
def softplus(x: Value) -> Value:
    return jax.nn.softplus(x)


@op("HardSigmoid")
def hard_sigmoid(x: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Value:
    kind = x.dtype.type
    return jnp.clip(x * kind(alpha) + kind(beta), kind(0), kind(1))


@op("Gelu")
def gelu(x: Value, *, approximate: str = "none") -> Value:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@op("Clip")
def clip(x: Value, min: Value = None, max: Value = None) -> Value:
    if min is not None:
        x = namespace(x, min).maximum(x, np.asarray(min, x.dtype) if isinstance(min, float) else min)
    if max is not None:
        x = namespace(x, max).minimum(x, np.asarray(max, x.dtype) if isinstance(max, float) else max)
    return x


_E8M0 = "float8_e8m0fnu"


@op("Cast")
def cast(x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    return convert(x, dtype_of(to, "the result"), bool(saturate), round_mode)


@op("CastLike")
def cast_like(x: Value, target: Value, *, saturate: int = 1, round_mode: str = "up") -> Value:
    return convert(x, np.dtype(target.dtype), bool(saturate), round_mode)


def convert(x: Value, dtype: Any, saturate: bool = True, round_mode: str = "up") -> Value:
    """``x`` in another type: floats to integers truncate, 8-bit floats and narrower saturate if asked."""
    source = np.dtype(x.dtype)
    if source == dtype:
        return x
    if dtype == np.bool_:
        return x != np.zeros((), source)
    if dtype.name == _E8M0:
        return _powers_of_two(x, dtype, saturate, round_mode)
    if dtype.name.startswith(("float8", "float4")) and saturate and source != np.bool_:
        return _saturated(x, dtype)
    if dtype.name.startswith("float8"):
        return _unsaturated(x, dtype)
    if dtype.name in ("int4", "uint4", "int2", "uint2"):
        # elements are integers modulo their range, as the wider types are; jax rounds to the nearest representable
        wide = jnp.asarray(x).astype(np.int32)
        bits = 4 if "4" in dtype.name else 2
        low = wide & ((1 << bits) - 1)
        return (low if dtype.name[0] == "u" else (low ^ (1 << bits - 1)) - (1 << bits - 1)).astype(dtype)
    if isinstance(x, np.ndarray | np.generic) and source.kind in "iufb" and dtype.kind in "iufb":
        with np.errstate(all="ignore"):
            return np.asarray(x).astype(dtype)
    return jnp.asarray(x).astype(dtype)


def _saturated(x: Value, dtype: Any) -> Value:
    """NaN stays; infinities and what is too large become the largest element."""
    least, most = limits(dtype)
    wide = jnp.asarray(x)
    if not np.dtype(wide.dtype).name.startswith("float") or np.dtype(wide.dtype).itemsize < 2:
        wide = wide.astype(np.float32)
    low, high = np.asarray(least, wide.dtype), np.asarray(most, wide.dtype)
    return jnp.where(jnp.isnan(wide), wide, jnp.clip(wide, low, high)).astype(dtype)


def _unsaturated(x: Value, dtype: Any) -> Value:
    """What is too large becomes infinity, or NaN in types without infinities."""
    return jnp.asarray(x).astype(dtype)


def _powers_of_two(x: Value, dtype: Any, saturate: bool, round_mode: str) -> Value:
    """Exponents alone: ``up`` rounds away from zero, ``down`` towards it, ``nearest`` half up."""
    wide = jnp.asarray(x).astype(np.float32)
    bits = lax.bitcast_convert_type(wide, np.uint32)
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    up = {"up": fraction > 0, "nearest": fraction >= 0x400000, "down": fraction < 0}[round_mode]
    if round_mode == "up":
        up = jnp.where(exponent == 0, fraction > 0x400000, up)
    exponent = exponent + up.astype(np.uint32)
    exponent = jnp.minimum(exponent, 0xFE) if saturate else exponent
    exponent = jnp.where(jnp.isnan(wide), 0xFF, exponent)
    return lax.bitcast_convert_type(exponent.astype(np.uint8), dtype)


@op("BitCast")
def bit_cast(x: Value, *, to: int) -> Value:
    dtype = dtype_of(to, "the result")
    if dtype == np.bool_ or x.dtype == np.bool_:
        byte = np.dtype(np.uint8)
        bits = x.astype(byte) if x.dtype == np.bool_ else lax.bitcast_convert_type(x, byte)
        return bits.astype(dtype) if dtype in (np.bool_, byte) else lax.bitcast_convert_type(bits, dtype)
    if np.dtype(dtype).itemsize != np.dtype(x.dtype).itemsize:
        raise refusal(f"bits of {x.dtype} are not those of {dtype}", code="EVRF064")
    return lax.bitcast_convert_type(x, dtype)


@op("ConstantOfShape", static=("input",))
def constant_of_shape(input: Value, *, value: Value = None) -> Value:
    filled = np.zeros(1, np.float32) if value is None else value
    dims = checked(input.reshape(-1))
    make = np.full if np.prod(dims, dtype=np.float64) <= 1024 else jnp.full
    return make(dims, filled.reshape(()), filled.dtype)


@op("Constant", note="no strings")
def constant(
    *,
    value: Value = None,
    sparse_value: Value = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
) -> Value:
    for given, dtype in ((value_float, np.float32), (value_floats, np.float32), (value_int, np.int64),
                         (value_ints, np.int64)):  # fmt: skip
        if given is not None:
            return np.asarray(given, dtype)
    return value if value is not None else sparse_value
