"""Functions of complex numbers as functions of their real and imaginary parts.

``FUNCTIONS[opcode](build, *operands)`` takes and gives pairs of equal f32 arrays. They avoid overflow and cancellation
where the plain formula would lose what the result can hold; sources: W. Kahan, "Branch cuts for complex elementary
functions" (square root, hyperbolic tangent), R. L. Smith's scaling of quotients, ISO C99 annex G for special values.
"""

from collections.abc import Callable

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.passes.expansions.build import Build, Value

Pair = tuple[Value, Value]

LARGE_TANH = 9.0
"""From here on tanh of a real number is 1 in f32."""


# real helpers


def like(b: Build, number: float, value: Value) -> Value:
    return b.number_like(number, value)


def _abs(b: Build, x: Value) -> Value:
    return b.each(hlo.AbsOp, x)


def _is(b: Build, x: Value, number: float) -> Value:
    return b.compare(x, like(b, number, x), "EQ")


def _scaled(b: Build, x: Value, factor: float) -> Value:
    return b.mul(x, like(b, factor, x))


def _plus(b: Build, x: Value, number: float) -> Value:
    return b.add(x, like(b, number, x))


def with_sign(b: Build, magnitude: Value, sign: Value) -> Value:
    """``magnitude`` (not negative) with the sign bit of ``sign``."""
    dims = hlo.shape_of(sign).dims
    words = [b.op(hlo.BitcastConvertOp, (x,), "u32", dims) for x in (magnitude, sign)]
    bit = b.each(hlo.AndOp, words[1], like(b, 0x80000000, words[1]))
    return b.op(hlo.BitcastConvertOp, (b.each(hlo.OrOp, words[0], bit),), "f32", dims)


def _product(b: Build, factor: Value, other: Value) -> Value:
    """``factor * other``, but a zero factor gives zero when the other is infinite."""
    return b.select(_is(b, factor, 0), factor, b.mul(factor, other))


def _ordered(b: Build, z: Pair) -> tuple[Value, Value, Value]:
    """The larger and the smaller magnitude of the parts, and their quotient (1 when equal)."""
    x, y = _abs(b, z[0]), _abs(b, z[1])
    big, small = b.each(hlo.MaximumOp, x, y), b.each(hlo.MinimumOp, x, y)
    return big, small, b.select(b.compare(big, small, "EQ"), like(b, 1, big), b.div(small, big))


def _root_of_one_plus_square(b: Build, ratio: Value) -> Value:
    return b.each(hlo.SqrtOp, _plus(b, b.mul(ratio, ratio), 1))


# functions


def magnitude(b: Build, z: Pair) -> Value:
    """``|z|`` without overflow; a single array."""
    big, _, ratio = _ordered(b, z)
    return b.mul(big, _root_of_one_plus_square(b, ratio))


def angle(b: Build, z: Pair) -> Value:
    """``atan2(im, re)``; a single array."""
    return b.each(hlo.Atan2Op, z[1], z[0])


def add(b: Build, z: Pair, w: Pair) -> Pair:
    return b.add(z[0], w[0]), b.add(z[1], w[1])


def subtract(b: Build, z: Pair, w: Pair) -> Pair:
    return b.sub(z[0], w[0]), b.sub(z[1], w[1])


def negate(b: Build, z: Pair) -> Pair:
    return b.neg(z[0]), b.neg(z[1])


def multiply(b: Build, z: Pair, w: Pair) -> Pair:
    return b.sub(b.mul(z[0], w[0]), b.mul(z[1], w[1])), b.add(b.mul(z[0], w[1]), b.mul(z[1], w[0]))


def divide(b: Build, z: Pair, w: Pair) -> Pair:
    """With the divisor scaled by its larger part; division by zero gives infinities, by infinity zeros."""
    big = b.each(hlo.MaximumOp, _abs(b, w[0]), _abs(b, w[1]))
    zero, infinite = _is(b, big, 0), _is(b, big, np.inf)
    parts = []
    for part, at_zero in zip(w, (with_sign(b, like(b, 1, big), w[0]), like(b, 0, big)), strict=True):
        whole = b.select(_is(b, _abs(b, part), np.inf), b.each(hlo.SignOp, part), like(b, 0, part))
        parts.append(b.select(zero, at_zero, b.select(infinite, whole, b.div(part, big))))
    square = b.add(b.mul(parts[0], parts[0]), b.mul(parts[1], parts[1]))
    product = multiply(b, z, (parts[0], b.neg(parts[1])))
    return b.div(b.div(product[0], square), big), b.div(b.div(product[1], square), big)


def exponential(b: Build, z: Pair) -> Pair:
    """``exp(re) (cos im + i sin im)``; the exponential in two factors, so that it overflows no sooner."""
    half = b.each(hlo.ExponentialOp, _scaled(b, z[0], 0.5))
    real = b.mul(b.mul(half, b.each(hlo.CosineOp, z[1])), half)
    imag = b.mul(b.mul(half, b.each(hlo.SineOp, z[1])), half)
    return real, b.select(_is(b, z[1], 0), z[1], imag)


def log(b: Build, z: Pair) -> Pair:
    big, _, ratio = _ordered(b, z)
    rest = b.each(hlo.LogPlusOneOp, b.mul(ratio, ratio))
    return b.add(b.each(hlo.LogOp, big), _scaled(b, rest, 0.5)), angle(b, z)


def log_plus_one(b: Build, z: Pair) -> Pair:
    """``log(1 + z)``; near zero from ``|1 + z|^2 - 1``, which does not cancel there."""
    real, imag = log(b, (_plus(b, z[0], 1), z[1]))
    excess = b.add(b.mul(z[0], _plus(b, z[0], 2)), b.mul(z[1], z[1]))
    near = _scaled(b, b.each(hlo.LogPlusOneOp, excess), 0.5)
    big = b.each(hlo.MaximumOp, _abs(b, z[0]), _abs(b, z[1]))
    return b.select(b.compare(big, like(b, 0.5, big), "LT"), near, real), imag


def exponential_minus_one(b: Build, z: Pair) -> Pair:
    """``expm1(re) cos im - 2 sin(im / 2)^2 + i exp(re) sin im``."""
    half = b.each(hlo.SineOp, _scaled(b, z[1], 0.5))
    drop = _scaled(b, b.mul(half, half), 2)
    real = b.sub(b.mul(b.each(hlo.ExponentialMinusOneOp, z[0]), b.each(hlo.CosineOp, z[1])), drop)
    return real, exponential(b, z)[1]


def sqrt(b: Build, z: Pair) -> Pair:
    """The root with a real part that is not negative; the imaginary part has the sign of ``im``."""
    x, y = _abs(b, z[0]), _abs(b, z[1])
    big, _, ratio = _ordered(b, z)
    share = b.select(b.compare(x, big, "EQ"), like(b, 1, x), b.div(x, big))
    mean = _scaled(b, b.add(share, _root_of_one_plus_square(b, ratio)), 0.5)
    major = b.mul(b.each(hlo.SqrtOp, big), b.each(hlo.SqrtOp, mean))
    exact = b.each(hlo.OrOp, _is(b, big, 0), _is(b, y, np.inf))
    minor = b.select(exact, y, b.div(y, _scaled(b, major, 2)))
    right = b.compare(z[0], like(b, 0, x), "GE")
    return b.select(right, major, minor), with_sign(b, b.select(right, minor, major), z[1])


def rsqrt(b: Build, z: Pair) -> Pair:
    """``conj(sqrt z) / |z|``."""
    root, size = sqrt(b, z), magnitude(b, z)
    infinite = _is(b, size, np.inf)
    real, imag = b.div(root[0], size), b.neg(b.div(root[1], size))
    real = b.select(_is(b, size, 0), like(b, np.inf, real), real)
    return b.select(infinite, like(b, 0, real), real), b.select(infinite, like(b, 0, imag), imag)


def sign(b: Build, z: Pair) -> Pair:
    """``z / |z|``; zero stays zero."""
    size = magnitude(b, z)
    zero = _is(b, size, 0)
    return b.select(zero, z[0], b.div(z[0], size)), b.select(zero, z[1], b.div(z[1], size))


def sine(b: Build, z: Pair) -> Pair:
    wave = b.each(hlo.SineOp, z[0]), b.each(hlo.CosineOp, z[0])
    cosh, sinh = hyperbolic(b, z[1])
    return _product(b, wave[0], cosh), _product(b, sinh, wave[1])


def cosine(b: Build, z: Pair) -> Pair:
    wave = b.each(hlo.SineOp, z[0]), b.each(hlo.CosineOp, z[0])
    cosh, sinh = hyperbolic(b, z[1])
    return b.mul(wave[1], cosh), b.neg(_product(b, wave[0], sinh))


def hyperbolic(b: Build, x: Value) -> Pair:
    """``(cosh x, sinh x)``."""
    return b.each(hlo.CoshOp, x), b.each(hlo.SinhOp, x)


def tanh(b: Build, z: Pair) -> Pair:
    """Kahan's form in ``tan im`` and ``sinh re``; far from the imaginary axis 1 and a decaying wave."""
    t, s = b.each(hlo.TanOp, z[1]), b.each(hlo.SinhOp, z[0])
    beta, squared = _plus(b, b.mul(t, t), 1), b.mul(s, s)
    below = _plus(b, b.mul(beta, squared), 1)
    rho = b.each(hlo.SqrtOp, _plus(b, squared, 1))
    near = b.div(b.mul(b.mul(beta, rho), s), below), b.div(t, below)
    far = b.compare(_abs(b, z[0]), like(b, LARGE_TANH, t), "GT")
    decay = b.each(hlo.ExponentialOp, _scaled(b, _abs(b, z[0]), -2))
    wave = b.mul(b.each(hlo.SineOp, z[1]), b.each(hlo.CosineOp, z[1]))
    ripple = b.select(_is(b, decay, 0), with_sign(b, decay, wave), _scaled(b, b.mul(wave, decay), 4))
    return b.select(far, b.each(hlo.SignOp, z[0]), near[0]), b.select(far, ripple, near[1])


def tan(b: Build, z: Pair) -> Pair:
    """``-i tanh(i z)``."""
    real, imag = tanh(b, (b.neg(z[1]), z[0]))
    return imag, b.neg(real)


def power(b: Build, z: Pair, w: Pair) -> Pair:
    """Length and angle apart; ``0^0`` is 1, and 0 to a positive real exponent is 0."""
    size, turn = magnitude(b, z), angle(b, z)
    length = b.mul(b.each(hlo.PowerOp, size, w[0]), b.each(hlo.ExponentialOp, b.neg(b.mul(w[1], turn))))
    phase = b.add(_product(b, w[1], log(b, z)[0]), b.mul(w[0], turn))
    real, imag = b.mul(length, b.each(hlo.CosineOp, phase)), b.mul(length, b.each(hlo.SineOp, phase))
    zero, one = like(b, 0, size), like(b, 1, size)
    special = b.each(hlo.AndOp, _is(b, w[1], 0), b.each(hlo.OrOp, _is(b, size, 0), _is(b, w[0], 0)))
    special = b.each(hlo.AndOp, special, b.compare(w[0], zero, "GE"))
    at_special = b.select(_is(b, w[0], 0), one, zero)
    return b.select(special, at_special, real), b.select(special, zero, imag)


def logistic(b: Build, z: Pair) -> Pair:
    """``(1 + tanh(z / 2)) / 2``, which does not overflow; left of -1 ``exp z / (1 + exp z)``, which does not cancel."""
    real, imag = tanh(b, (_scaled(b, z[0], 0.5), _scaled(b, z[1], 0.5)))
    right = _scaled(b, _plus(b, real, 1), 0.5), _scaled(b, imag, 0.5)
    small = b.each(hlo.MinimumOp, z[0], like(b, 0, real))
    e = exponential(b, (small, z[1]))
    left = divide(b, e, (_plus(b, e[0], 1), e[1]))
    is_left = b.compare(z[0], like(b, -1, real), "LT")
    return b.select(is_left, left[0], right[0]), b.select(is_left, left[1], right[1])


def atan2(b: Build, y: Pair, x: Pair) -> Pair:
    """``-i log((x + i y) / sqrt(x^2 + y^2))``."""
    rotated = b.sub(x[0], y[1]), b.add(x[1], y[0])
    length = sqrt(b, add(b, multiply(b, x, x), multiply(b, y, y)))
    real, imag = log(b, divide(b, rotated, length))
    return imag, b.neg(real)


FUNCTIONS: dict[str, Callable[..., Pair]] = {
    "add": add,
    "atan2": atan2,
    "cosine": cosine,
    "divide": divide,
    "exponential": exponential,
    "exponential-minus-one": exponential_minus_one,
    "log": log,
    "log-plus-one": log_plus_one,
    "logistic": logistic,
    "multiply": multiply,
    "negate": negate,
    "power": power,
    "rsqrt": rsqrt,
    "sign": sign,
    "sine": sine,
    "sqrt": sqrt,
    "subtract": subtract,
    "tan": tan,
    "tanh": tanh,
}
"""Opcode -> function of pairs that gives a pair."""
