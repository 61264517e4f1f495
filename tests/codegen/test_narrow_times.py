"""Programs in 16 bits take no longer than in FP32: what once made them slower, by class."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from jax import lax

import neuronx_cc

Function = Callable[..., Any]
Shapes = list[tuple[int, ...]]
MOST = 1.05


def recurrent(x: Any, w: Any, u: Any) -> Any:
    """Its state is FP32, whatever the weights are."""
    return lax.scan(lambda h, row: (jnp.tanh(row @ w + h @ u),) * 2, jnp.zeros((1, len(u))), x)[1]


def trace_of_hessian(w: Any, b: Any, v: Any, points: Any) -> Any:
    def network(x: Any) -> Any:
        return (jnp.tanh(x @ w + b) @ v)[0]

    return jax.vmap(lambda x: jnp.trace(jax.hessian(network)(x)) - network(x))(points)


def standardised(x: Any) -> Any:
    return (x - x.mean(0)) / (x.std(0) + 1e-5)


def advantages(reward: Any, value: Any, done: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        after, total = carry
        reward, value, done = row
        total = reward + 0.99 * after * (1 - done) - value + 0.94 * (1 - done) * total
        return (value, total), total

    first = value[-1], jnp.zeros_like(value[-1])
    return lax.scan(step, first, (reward, value, done), reverse=True)[1]


def newton(a: Any) -> Any:
    eye = jnp.eye(len(a))

    def step(_: Any, state: Any) -> Any:
        x, m = state
        t = (3 * eye - m) / 2
        return x @ t, t @ m

    return lax.fori_loop(0, 4, step, (eye * 0.5, a * 0.25))[0] @ a


def gated(x: Any, w: Any) -> Any:
    return x * jax.nn.sigmoid(x.mean((2, 3)) @ w)[:, :, None, None]


def shifted(x: Any, at: Any) -> Any:
    places = jnp.clip(jnp.floor(at * 30).astype(jnp.int32), 0, 31)
    return jnp.pad(x, ((1, 1), (1, 1), (0, 0)), mode="edge")[places[0], places[1]] * 0.5


WRITTEN: dict[str, tuple[Function, Shapes]] = {
    "recurrent": (recurrent, [(24, 1, 6), (6, 160), (160, 160)]),
    "trace of a hessian": (trace_of_hessian, [(2, 80), (80,), (80, 1), (512, 2)]),
    "standardised": (standardised, [(768, 512)]),
    "advantages": (advantages, [(240, 35)] * 3),
}
CAST: dict[str, tuple[Function, Shapes]] = {
    "newton": (newton, [(160, 160)]),
    "gated": (gated, [(2, 128, 64, 64), (128, 128)]),
    "shifted": (shifted, [(60, 24, 4), (2, 40, 30)]),
    "standardised": (standardised, [(768, 512)]),
}


def microseconds(function: Function, shapes: Shapes, dtype: Any, auto_cast: str) -> float:
    lowered = jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes))
    return neuronx_cc.compile(lowered, auto_cast=auto_cast).run([], timing_only=True).report.time_ns / 1e3


@pytest.mark.parametrize("name", WRITTEN)
def test_written_in_16_bits(name: str) -> None:
    function, shapes = WRITTEN[name]
    wide, narrow = (microseconds(function, shapes, dtype, "none") for dtype in (jnp.float32, jnp.bfloat16))
    assert narrow <= MOST * wide, (narrow, wide)


@pytest.mark.parametrize("name", CAST)
def test_cast(name: str) -> None:
    function, shapes = CAST[name]
    wide, cast = (microseconds(function, shapes, jnp.float32, mode) for mode in ("none", "all"))
    assert cast <= MOST * wide, (cast, wide)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", WRITTEN)
def test_values(name: str, dtype: Any, random: np.random.Generator) -> None:
    function, shapes = WRITTEN[name]
    inputs = [(random.standard_normal(shape) / np.sqrt(shape[-1])).astype(dtype) for shape in shapes]
    check_function(function, *inputs, relative=4e-2)
