"""Spellings of one function take about as long: divided or multiplied, in any order."""

import math

import jax
import jax.numpy as jnp
import pytest

import neuronx_cc

C = math.sqrt(2 / math.pi)
SPELLINGS = {
    "scaled": [lambda x, _: x / math.sqrt(80), lambda x, _: x * (1 / math.sqrt(80))],
    "gelu by erf": [
        lambda x, _: 0.5 * x * (1 + jax.lax.erf(x / math.sqrt(2))),
        lambda x, _: 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5))),
        lambda x, _: x * (1 + jax.lax.erf(x / math.sqrt(2))) / 2,
        lambda x, _: (x + x * jax.lax.erf(x / math.sqrt(2))) / 2,
    ],
    "gelu by tanh": [
        lambda x, _: 0.5 * x * (1 + jnp.tanh(C * (x + 0.044715 * x**3))),
        lambda x, _: (x + x * jnp.tanh(C * (x + 0.044715 * x**3))) * 0.5,
        lambda x, _: x / 2 * (jnp.tanh(C * (x + 0.044715 * x * x * x)) + 1),
    ],
    "momentum": [lambda x, y: x - y / 1000, lambda x, y: x - y * 1e-3, lambda x, y: x + y * -1e-3],
    "silu": [lambda x, _: x / (1 + jnp.exp(-x)), lambda x, _: jax.nn.silu(x), lambda x, _: x * (1 / (jnp.exp(-x) + 1))],
}

SLACK = {"gelu by erf": 1.15}
"""Still more than a tenth apart at some sizes."""


def microseconds(function, dims):
    types = [jax.ShapeDtypeStruct(dims, jnp.float32)] * 2
    executable = neuronx_cc.compile(jax.jit(function).lower(*types), auto_cast="none")
    return executable.run([], timing_only=True, check_races=False).report.kernel_ns / 1e3


@pytest.mark.parametrize("dims", [(128, 512), (1024, 4096), (997, 1013)])
@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_take_about_as_long(name, dims):
    times = [microseconds(function, dims) for function in SPELLINGS[name]]
    assert max(times) <= SLACK.get(name, 1.1) * min(times)
