"""One computation in several spellings: how much longer each takes than the fastest, in simulated time.

    python benchmarks/spellings.py [--quick] [--save FILE] [--before FILE] [NAME ...]

A function is a row of ``FUNCTIONS``: arguments, sizes, and its spellings, which are equal but for rounding. Every
spelling is compiled for each size and type without auto-cast; only plans are timed, no values are computed.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import neuronx_cc
from neuronx_cc.ir.errors import NeuronError

GOAL = 1.1
"""Of the fastest spelling's time."""
Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A function: what its arguments are at a size, its sizes and its spellings."""

    arguments: Callable[[Dims], Sequence[Dims]]
    sizes: Sequence[Dims]
    spellings: Mapping[str, Callable[..., Any]]
    types: Sequence[str] = ("float32", "bfloat16")


def one(dims: Dims) -> Sequence[Dims]:
    return [dims]


def with_rows(count: int) -> Callable[[Dims], Sequence[Dims]]:
    return lambda dims: [dims, *([dims[-1:]] * count)]


def alike(count: int) -> Callable[[Dims], Sequence[Dims]]:
    return lambda dims: [dims] * count


ELEMENTS = ((128, 512), (1024, 4096), (4096, 3072), (997, 1013))
WIDE = ((1024, 1024), (2048, 4096), (1024, 8192), (2048, 8192), (512, 16384), (1021, 1021), (640, 8191))

C = math.sqrt(2 / math.pi)


def full(x: Any, value: float) -> Any:
    """A constant as an array."""
    return jnp.full(x.shape, value, x.dtype)


SIGMOID = {
    "jax.nn.sigmoid": jax.nn.sigmoid,
    "1 / (1 + exp(-x))": lambda x: 1 / (1 + jnp.exp(-x)),
    "1 / (exp(-x) + 1)": lambda x: 1 / (jnp.exp(-x) + 1),
    "reciprocal(1 + exp(-x))": lambda x: jnp.reciprocal(1 + jnp.exp(-x)),
    "1 / (1 + exp(x * -1))": lambda x: 1 / (1 + jnp.exp(x * -1)),
    "1 / (1 + exp(0 - x))": lambda x: 1 / (1 + jnp.exp(0 - x)),
    "1 / (1 + 1 / exp(x))": lambda x: 1 / (1 + 1 / jnp.exp(x)),
    "exp(x) / (1 + exp(x))": lambda x: jnp.exp(x) / (1 + jnp.exp(x)),
    "arrays": lambda x: full(x, 1) / (full(x, 1) + jnp.exp(-x)),
    "0.5 * (1 + tanh(x / 2))": lambda x: 0.5 * (1 + jnp.tanh(x / 2)),
    "0.5 * tanh(x * 0.5) + 0.5": lambda x: 0.5 * jnp.tanh(x * 0.5) + 0.5,
    "(1 + exp(-x)) ** -1": lambda x: (1 + jnp.exp(-x)) ** -1.0,
    "in f32": lambda x: (1 / (1 + jnp.exp(-x.astype(jnp.float32)))).astype(x.dtype),
}


def times_sigmoid(spelling: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: x * spelling(x)


SILU = {
    "jax.nn.silu": jax.nn.silu,
    "x / (1 + exp(-x))": lambda x: x / (1 + jnp.exp(-x)),
    "x / (exp(-x) + 1)": lambda x: x / (jnp.exp(-x) + 1),
    "x / (1 + exp(0 - x))": lambda x: x / (1 + jnp.exp(0 - x)),
    "x * reciprocal(1 + exp(-x))": lambda x: x * jnp.reciprocal(1 + jnp.exp(-x)),
    "(1 / (1 + exp(-x))) * x": lambda x: (1 / (1 + jnp.exp(-x))) * x,
    "x / (1 + 1 / exp(x))": lambda x: x / (1 + 1 / jnp.exp(x)),
    "arrays": lambda x: x / (full(x, 1) + jnp.exp(-x)),
    "0.5 * x * (1 + tanh(x / 2))": lambda x: 0.5 * x * (1 + jnp.tanh(x / 2)),
    "in f32": lambda x: (lambda y: (y / (1 + jnp.exp(-y))).astype(x.dtype))(x.astype(jnp.float32)),
}
GELU_TANH = {
    "jax.nn.gelu": lambda x: jax.nn.gelu(x, approximate=True),
    "0.5 x (1 + tanh(c (x + a x^3)))": lambda x: 0.5 * x * (1 + jnp.tanh(C * (x + 0.044715 * x**3))),
    "x * x * x": lambda x: 0.5 * x * (1 + jnp.tanh(C * (x + 0.044715 * x * x * x))),
    "c x (1 + a x^2)": lambda x: 0.5 * x * (1 + jnp.tanh(C * x * (1 + 0.044715 * (x * x)))),
    "x / 2": lambda x: x / 2 * (jnp.tanh(C * (x + 0.044715 * x**3)) + 1),
    "(x + x tanh) * 0.5": lambda x: (x + x * jnp.tanh(C * (x + 0.044715 * x**3))) * 0.5,
    "x sigmoid(2 c (x + a x^3))": lambda x: x * jax.nn.sigmoid(2 * C * (x + 0.044715 * x**3)),
    "x / (1 + exp(-2 c ...))": lambda x: x / (1 + jnp.exp(-2 * C * (x + 0.044715 * x**3))),
    "arrays": lambda x: full(x, 0.5) * x * (full(x, 1) + jnp.tanh(full(x, C) * (x + full(x, 0.044715) * x**3))),
}
GELU_ERF = {
    "jax.nn.gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "0.5 x (1 + erf(x / sqrt 2))": lambda x: 0.5 * x * (1 + jax.lax.erf(x / math.sqrt(2))),
    "0.5 x (1 + erf(x * c))": lambda x: 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5))),
    "x * 0.5 * (erf + 1)": lambda x: x * 0.5 * (jax.lax.erf(x * math.sqrt(0.5)) + 1),
    "x * (0.5 + 0.5 erf)": lambda x: x * (0.5 + 0.5 * jax.lax.erf(x * math.sqrt(0.5))),
    "x * (1 + erf) / 2": lambda x: x * (1 + jax.lax.erf(x / math.sqrt(2))) / 2,
    "0.5 x erfc(-x / sqrt 2)": lambda x: 0.5 * x * jax.lax.erfc(-x / math.sqrt(2)),
    "arrays": lambda x: full(x, 0.5) * x * (full(x, 1) + jax.lax.erf(x / full(x, math.sqrt(2)))),
}
GELU_SIGMOID = {
    "x * sigmoid(1.702 x)": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "x / (1 + exp(-1.702 x))": lambda x: x / (1 + jnp.exp(-1.702 * x)),
    "x / (1 + exp(-(1.702 x)))": lambda x: x / (1 + jnp.exp(-(x * 1.702))),
    "x * (1 / (1 + exp(-1.702 x)))": lambda x: x * (1 / (1 + jnp.exp(-1.702 * x))),
}
SOFTPLUS = {
    "jax.nn.softplus": jax.nn.softplus,
    "logaddexp(x, 0)": lambda x: jnp.logaddexp(x, 0),
    "log(1 + exp(x))": lambda x: jnp.log(1 + jnp.exp(x)),
    "log1p(exp(x))": lambda x: jnp.log1p(jnp.exp(x)),
    "max(x, 0) + log1p(exp(-|x|))": lambda x: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x))),
    "log1p(exp(-|x|)) + max(0, x)": lambda x: jnp.log1p(jnp.exp(-jnp.abs(x))) + jnp.maximum(0, x),
    "relu + log(1 + exp(-|x|))": lambda x: jax.nn.relu(x) + jnp.log(1 + jnp.exp(-jnp.abs(x))),
    "-log_sigmoid(-x)": lambda x: -jax.nn.log_sigmoid(-x),
}
TANH = {
    "jnp.tanh": jnp.tanh,
    "2 sigmoid(2 x) - 1": lambda x: 2 * jax.nn.sigmoid(2 * x) - 1,
    "(1 - e) / (1 + e)": lambda x: (1 - jnp.exp(-2 * x)) / (1 + jnp.exp(-2 * x)),
    "(e^x - e^-x) / (e^x + e^-x)": lambda x: (jnp.exp(x) - jnp.exp(-x)) / (jnp.exp(x) + jnp.exp(-x)),
    "1 - 2 / (exp(2 x) + 1)": lambda x: 1 - 2 / (jnp.exp(2 * x) + 1),
}
SCALE = 1 / math.sqrt(80)
SCALED = {
    "x * c": lambda x: x * SCALE,
    "c * x": lambda x: SCALE * x,
    "x / c": lambda x: x / math.sqrt(80),
    "x / array": lambda x: x / full(x, math.sqrt(80)),
    "x * array": lambda x: x * full(x, SCALE),
    "x / 3": lambda x: x / 3,
}


def softmax(x: Any) -> Any:
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_times(x: Any) -> Any:
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e * (1 / e.sum(-1, keepdims=True))


SOFTMAX = {
    "jax.nn.softmax(x * c)": lambda x: jax.nn.softmax(x * SCALE, -1),
    "jax.nn.softmax(x / c)": lambda x: jax.nn.softmax(x / math.sqrt(80), -1),
    "e / sum(x * c)": lambda x: softmax(x * SCALE),
    "e / sum(x / c)": lambda x: softmax(x / math.sqrt(80)),
    "e * (1 / sum)": lambda x: softmax_times(x * SCALE),
    "e * (1 / sum), x / c": lambda x: softmax_times(x / math.sqrt(80)),
    "exp(log_softmax)": lambda x: jnp.exp(jax.nn.log_softmax(x * SCALE, -1)),
    "exp(x - logsumexp)": lambda x: jnp.exp(x * SCALE - jax.nn.logsumexp(x * SCALE, -1, keepdims=True)),
    "arrays": lambda x: softmax(x / full(x, math.sqrt(80))),
}


def norm(
    mean: Callable[[Any], Any], variance: Callable[[Any, Any], Any], scaled: Callable[[Any, Any], Any]
) -> Callable[..., Any]:
    def function(x: Any, scale: Any, bias: Any) -> Any:
        y = x.astype(jnp.float32)
        centre = mean(y)
        return (scaled(y - centre, variance(y, centre) + 1e-5) * scale + bias).astype(x.dtype)

    return function


MEANS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x.mean(-1, keepdims=True),
    "sum * c": lambda x: x.sum(-1, keepdims=True) * (1 / x.shape[-1]),
}
VARIANCES: dict[str, Callable[[Any, Any], Any]] = {
    "E(x-m)^2": lambda x, m: ((x - m) ** 2).mean(-1, keepdims=True),
    "E x^2 - m^2": lambda x, m: (x * x).mean(-1, keepdims=True) - m * m,
    "var": lambda x, m: x.var(-1, keepdims=True),
    "sum / n": lambda x, m: jnp.sum((x - m) * (x - m), -1, keepdims=True) / x.shape[-1],
}
SCALINGS: dict[str, Callable[[Any, Any], Any]] = {
    "rsqrt": lambda x, v: x * jax.lax.rsqrt(v),
    "1 / sqrt": lambda x, v: x * (1 / jnp.sqrt(v)),
    "/ sqrt": lambda x, v: x / jnp.sqrt(v),
    "** -0.5": lambda x, v: x * v**-0.5,
    "/ ** 0.5": lambda x, v: x / v**0.5,
}
LAYER_NORM = {
    **{f"{a}, {b}, {c}": norm(MEANS[a], VARIANCES[b], SCALINGS[c]) for a, b, c in [
        ("mean", "E(x-m)^2", "rsqrt"),
        ("mean", "E x^2 - m^2", "rsqrt"),
        ("mean", "var", "rsqrt"),
        ("sum * c", "sum / n", "rsqrt"),
        ("mean", "E(x-m)^2", "1 / sqrt"),
        ("mean", "E(x-m)^2", "/ sqrt"),
        ("mean", "var", "** -0.5"),
        ("mean", "var", "/ ** 0.5"),
    ]},
    "x (rstd scale) + bias": lambda x, g, b: (
        (x.astype(jnp.float32) - x.astype(jnp.float32).mean(-1, keepdims=True))
        * (jax.lax.rsqrt(x.astype(jnp.float32).var(-1, keepdims=True) + 1e-5) * g)
        + b
    ).astype(x.dtype),
    "x rstd - m rstd": lambda x, g, b: (
        lambda y, r: ((y * r - y.mean(-1, keepdims=True) * r) * g + b).astype(x.dtype)
    )(x.astype(jnp.float32), jax.lax.rsqrt(x.astype(jnp.float32).var(-1, keepdims=True) + 1e-5)),
}  # fmt: skip


def rms(square: Callable[[Any], Any], scaled: Callable[[Any, Any], Any], last: bool = True) -> Callable[..., Any]:
    def function(x: Any, scale: Any) -> Any:
        y = x.astype(jnp.float32)
        v = square(y) + 1e-6
        result = scaled(y, v) * scale if last else scale * scaled(y, v)
        return result.astype(x.dtype)

    return function


def mean_square(x: Any) -> Any:
    return (x * x).mean(-1, keepdims=True)


RMS_NORM = {
    "rsqrt": rms(mean_square, SCALINGS["rsqrt"]),
    "1 / sqrt": rms(mean_square, SCALINGS["1 / sqrt"]),
    "/ sqrt": rms(mean_square, SCALINGS["/ sqrt"]),
    "** -0.5": rms(mean_square, SCALINGS["** -0.5"]),
    "/ ** 0.5": rms(mean_square, SCALINGS["/ ** 0.5"]),
    "scale first": rms(mean_square, SCALINGS["rsqrt"], False),
    "x ** 2": rms(lambda x: (x**2).mean(-1, keepdims=True), SCALINGS["rsqrt"]),
    "sum / n": rms(lambda x: (x**2).sum(-1, keepdims=True) / x.shape[-1], SCALINGS["rsqrt"]),
    "sum * c": rms(lambda x: jnp.square(x).sum(-1, keepdims=True) * (1 / x.shape[-1]), SCALINGS["/ sqrt"]),
}

# rotary embedding: x [rows, heads, width], cos and sin [rows, width / 2]


def halves(x: Any) -> tuple[Any, Any]:
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def twice(c: Any) -> Any:
    return jnp.concatenate([c, c], -1)[:, None, :]


def rotate_half(x: Any) -> Any:
    a, b = halves(x)
    return jnp.concatenate([-b, a], -1)


def by_slices(x: Any, c: Any, s: Any) -> Any:
    (a, b), c, s = halves(x), c[:, None], s[:, None]
    return jnp.concatenate([a * c - b * s, b * c + a * s], -1)


def by_split(x: Any, c: Any, s: Any) -> Any:
    (a, b), c, s = jnp.split(x, 2, -1), c[:, None], s[:, None]
    return jnp.concatenate([a * c - b * s, a * s + b * c], -1)


def by_reshape(x: Any, c: Any, s: Any) -> Any:
    pairs, c, s = x.reshape(*x.shape[:-1], 2, -1), c[:, None], s[:, None]
    a, b = pairs[..., 0, :], pairs[..., 1, :]
    return jnp.stack([a * c - b * s, b * c + a * s], -2).reshape(x.shape)


def by_roll(x: Any, c: Any, s: Any) -> Any:
    half = x.shape[-1] // 2
    sign = jnp.where(jnp.arange(x.shape[-1]) < half, -1, 1).astype(x.dtype)
    return x * twice(c) + jnp.roll(x, half, -1) * (twice(s) * sign)


def by_flip(x: Any, c: Any, s: Any) -> Any:
    pairs = x.reshape(*x.shape[:-1], 2, -1)
    signs = jnp.array([-1, 1], x.dtype)[:, None]
    c, s = c[:, None, None], s[:, None, None]
    return (pairs * c + pairs[..., ::-1, :] * signs * s).reshape(x.shape)


def by_complex(x: Any, c: Any, s: Any) -> Any:
    a, b = halves(x.astype(jnp.float32))
    rotated = jax.lax.complex(a, b) * jax.lax.complex(c.astype(jnp.float32), s.astype(jnp.float32))[:, None]
    return jnp.concatenate([rotated.real, rotated.imag], -1).astype(x.dtype)


ROTARY = {
    "slices, concat": by_slices,
    "split": by_split,
    "rotate_half": lambda x, c, s: x * twice(c) + rotate_half(x) * twice(s),
    "stack of halves": by_reshape,
    "roll": by_roll,
    "reversed halves": by_flip,
    "complex": by_complex,
    "at[].set": lambda x, c, s: (
        jnp.zeros_like(x)
        .at[..., : x.shape[-1] // 2]
        .set(halves(x)[0] * c[:, None] - halves(x)[1] * s[:, None])
        .at[..., x.shape[-1] // 2 :]
        .set(halves(x)[1] * c[:, None] + halves(x)[0] * s[:, None])
    ),
}


def pairs_strided(x: Any, c: Any, s: Any) -> Any:
    a, b, c, s = x[..., ::2], x[..., 1::2], c[:, None], s[:, None]
    return jnp.stack([a * c - b * s, b * c + a * s], -1).reshape(x.shape)


def pairs_reshape(x: Any, c: Any, s: Any) -> Any:
    pairs, c, s = x.reshape(*x.shape[:-1], -1, 2), c[:, None], s[:, None]
    a, b = pairs[..., 0], pairs[..., 1]
    return jnp.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)


def pairs_concat(x: Any, c: Any, s: Any) -> Any:
    pairs, c, s = x.reshape(*x.shape[:-1], -1, 2), c[:, None, :, None], s[:, None, :, None]
    a, b = pairs[..., :1], pairs[..., 1:]
    return jnp.concatenate([a * c - b * s, b * c + a * s], -1).reshape(x.shape)


def pairs_rotated(x: Any, c: Any, s: Any) -> Any:
    a, b = x[..., ::2], x[..., 1::2]
    turned = jnp.stack([-b, a], -1).reshape(x.shape)
    c, s = jnp.repeat(c, 2, -1)[:, None], jnp.repeat(s, 2, -1)[:, None]
    return x * c + turned * s


def pairs_flipped(x: Any, c: Any, s: Any) -> Any:
    pairs, signs = x.reshape(*x.shape[:-1], -1, 2), jnp.array([-1, 1], x.dtype)
    c, s = c[:, None, :, None], s[:, None, :, None]
    return (pairs * c + pairs[..., ::-1] * signs * s).reshape(x.shape)


def pairs_complex(x: Any, c: Any, s: Any) -> Any:
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    turned = jax.lax.complex(pairs[..., 0], pairs[..., 1])
    turned *= jax.lax.complex(c.astype(jnp.float32), s.astype(jnp.float32))[:, None]
    return jnp.stack([turned.real, turned.imag], -1).reshape(x.shape).astype(x.dtype)


PAIRS = {
    "strided slices, stack": pairs_strided,
    "reshape, stack": pairs_reshape,
    "reshape, concat": pairs_concat,
    "rotated": pairs_rotated,
    "reversed pairs": pairs_flipped,
    "complex": pairs_complex,
}


def turns(dims: Dims) -> Sequence[Dims]:
    return [dims, (dims[0], dims[-1] // 2), (dims[0], dims[-1] // 2)]


RATE, B1, B2, EPS, DECAY, STEP = 1e-3, 0.9, 0.999, 1e-8, 0.01, 10


def adam(update: Callable[[Any, Any], Any], decay: float, moments: str = "plain") -> Callable[..., Any]:
    def function(p: Any, m: Any, v: Any, g: Any) -> Any:
        if moments == "lerp":
            m, v = m + (1 - B1) * (g - m), v + (1 - B2) * (g * g - v)
        elif moments == "swapped":
            m, v = (1 - B1) * g + B1 * m, (1 - B2) * g * g + B2 * v
        else:
            m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
        return p - RATE * (update(m, v) + decay * p), m, v

    return function


C1, C2 = 1 - B1**STEP, 1 - B2**STEP
UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "m/c1 / (sqrt(v/c2) + eps)": lambda m, v: (m / C1) / (jnp.sqrt(v / C2) + EPS),
    "m*c1 / (sqrt(v*c2) + eps)": lambda m, v: (m * (1 / C1)) / (jnp.sqrt(v * (1 / C2)) + EPS),
    "* (1 / (sqrt + eps))": lambda m, v: (m / C1) * (1 / (jnp.sqrt(v / C2) + EPS)),
    "sqrt(v) / sqrt(c2)": lambda m, v: (m / C1) / (jnp.sqrt(v) / math.sqrt(C2) + EPS),
    "v ** 0.5": lambda m, v: (m / C1) / ((v / C2) ** 0.5 + EPS),
    "arrays": lambda m, v: (m / full(m, C1)) / (jnp.sqrt(v / full(v, C2)) + full(v, EPS)),
}
ADAM = {
    **{name: adam(update, 0.0) for name, update in UPDATES.items()},
    "lerp": adam(UPDATES["m*c1 / (sqrt(v*c2) + eps)"], 0.0, "lerp"),
    "swapped": adam(UPDATES["m*c1 / (sqrt(v*c2) + eps)"], 0.0, "swapped"),
}
ADAMW = {
    **{name: adam(update, DECAY) for name, update in UPDATES.items()},
    "lerp": adam(UPDATES["m/c1 / (sqrt(v/c2) + eps)"], DECAY, "lerp"),
    "decay first": lambda p, m, v, g: (
        lambda m, v: (p * (1 - RATE * DECAY) - RATE * (m / C1) / (jnp.sqrt(v / C2) + EPS), m, v)
    )(B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2),
}


def momentum(step: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Callable[..., Any]:
    return step


MOMENTUM = {
    "p - r (b m + g)": lambda p, m, g: (p - RATE * (B1 * m + g), B1 * m + g),
    "p + -r m": lambda p, m, g: (lambda m: (p + -RATE * m, m))(m * B1 + g),
    "p - m * r": lambda p, m, g: (lambda m: (p - m * RATE, m))(g + m * B1),
    "p - m / 1000": lambda p, m, g: (lambda m: (p - m / 1000, m))(g + m * B1),
    "arrays": lambda p, m, g: (lambda m: (p - full(m, RATE) * m, m))(g + m * full(m, B1)),
}

FUNCTIONS: dict[str, Row] = {
    "sigmoid": Row(one, ELEMENTS, SIGMOID),
    "silu": Row(one, ELEMENTS, SILU),
    "gelu-tanh": Row(one, ELEMENTS, GELU_TANH),
    "gelu-erf": Row(one, ELEMENTS, GELU_ERF),
    "gelu-sigmoid": Row(one, ELEMENTS, GELU_SIGMOID),
    "softplus": Row(one, ELEMENTS, SOFTPLUS),
    "tanh": Row(one, ELEMENTS, TANH),
    "scaled": Row(one, ELEMENTS, SCALED),
    "softmax": Row(one, ((128, 128), (1024, 1024), (4096, 2048), (1021, 1021)), SOFTMAX),
    "rms-norm": Row(with_rows(1), WIDE, RMS_NORM),
    "layer-norm": Row(with_rows(2), WIDE, LAYER_NORM),
    "rotary": Row(turns, ((1024, 16, 64), (1024, 32, 128), (128, 12, 64), (997, 8, 64)), ROTARY),
    "rotary-pairs": Row(turns, ((1024, 16, 64), (1024, 32, 128), (128, 12, 64), (997, 8, 64)), PAIRS),
    "adam": Row(alike(4), ((1024, 1024), (3072, 768), (997, 1013)), ADAM),
    "adamw": Row(alike(4), ((1024, 1024), (3072, 768), (997, 1013)), ADAMW),
    "momentum": Row(alike(3), ((1024, 1024), (3072, 768), (997, 1013)), MOMENTUM),
}


def microseconds(function: Callable[..., Any], shapes: Sequence[Dims], dtype: str) -> float:
    """Simulated time of ``function`` without preamble and postamble."""
    arguments = [jax.ShapeDtypeStruct(dims, jnp.dtype(dtype)) for dims in shapes]
    executable = neuronx_cc.compile(jax.jit(function).lower(*arguments), auto_cast="none")
    return float(executable.run([], timing_only=True, check_races=False).report.kernel_ns / 1e3)


def measure(name: str, dims: Dims, dtype: str) -> dict[str, float]:
    """Microseconds of each spelling; infinite where it does not compile."""
    row, found = FUNCTIONS[name], {}
    for spelling, function in row.spellings.items():
        try:
            found[spelling] = microseconds(function, row.arguments(dims), dtype)
        except NeuronError as error:
            print(f"{name} {spelling}: {str(error).splitlines()[0]}")
            found[spelling] = math.inf
    return found


def bound(name: str, dims: Dims, dtype: str) -> float:
    """Microseconds in which the arguments and the results pass HBM."""
    from neuronx_cc.ir.isa.timing import Timing
    from neuronx_cc.ir.targets import find_machine

    row = FUNCTIONS[name]
    arguments = [jax.ShapeDtypeStruct(each, jnp.dtype(dtype)) for each in row.arguments(dims)]
    results = jax.tree.leaves(jax.eval_shape(next(iter(row.spellings.values())), *arguments))
    nbytes = sum(each.size * each.dtype.itemsize for each in (*arguments, *results))
    return float(nbytes / Timing(find_machine("trn1")).dma_rate / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FUNCTIONS))
    parser.add_argument("--quick", action="store_true", help="the first size of each, f32")
    parser.add_argument("--save", type=Path, help="write the times as JSON")
    parser.add_argument("--before", type=Path, help="times of such a file stand beside those of now")
    options = parser.parse_args()
    before = json.loads(options.before.read_text()) if options.before else {}
    times: dict[str, float] = {}
    over = total = 0
    for name in options.names or FUNCTIONS:
        row = FUNCTIONS[name]
        for dtype in row.types[: 1 if options.quick else None]:
            for dims in row.sizes[: 1 if options.quick else None]:
                found = measure(name, dims, dtype)
                best = min(found.values())
                size = "x".join(map(str, dims))
                print(f"\n{name} {dtype} {size}: best {best:.1f} us, {best / bound(name, dims, dtype):.2f} of HBM's")
                for spelling, time in found.items():
                    key = f"{name}/{dtype}/{size}/{spelling}"
                    times[key] = time
                    over, total = over + (time > GOAL * best), total + 1
                    old = f"{before[key]:>9.1f} ->" if key in before else ""
                    note = "  more than the goal" if time > GOAL * best else ""
                    print(f"  {spelling:<36}{old}{time:>9.1f} us{time / best:>7.2f}{note}", flush=True)
    print(f"\n{over} of {total} above {GOAL} of the fastest; geometric mean of the others to it ", end="")
    print(f"{np.exp(np.mean([math.log(t) for t in times.values()])):.1f} us")
    if options.save:
        options.save.write_text(json.dumps(times, indent=1))


if __name__ == "__main__":
    main()
