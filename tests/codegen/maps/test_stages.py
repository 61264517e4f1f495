"""Rows of which tiles hold sections: as many passes over HBM as they need, and the same values."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

from neuronx_cc.ir.targets import find_machine

QUARTER = find_machine(Path(__file__).resolve().parents[2] / "machines" / "quarter.toml")


def layer_norm(x, scale, bias, _):
    y = x.astype(jnp.float32)
    centred = y - y.mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias).astype(x.dtype)


def cross_entropy(x, scale, bias, labels):
    """With its gradient, of labels as comparisons of each column's number."""

    def loss(x):
        return -(jax.nn.one_hot(labels, x.shape[1]) * jax.nn.log_softmax(x.astype(jnp.float32))).sum(-1).mean()

    return jax.value_and_grad(loss)(x)


def picked(x, scale, bias, labels):
    """The same of labels as indices."""

    def loss(x):
        y = x.astype(jnp.float32)
        return (jax.nn.logsumexp(y, -1) - jnp.take_along_axis(y, labels[:, None], -1)[:, 0]).mean()

    return jax.value_and_grad(loss)(x)


def several(x, scale, bias, labels):
    """Three stages; results of the first that later ones read; arithmetic with a start; integers."""
    y = jnp.tanh(x.astype(jnp.float32)) * scale
    z = y - y.max(-1, keepdims=True)
    e = jnp.exp(z) + bias
    counts = jnp.where(x > 0, 1, 0).sum(-1)
    return y, z.min(-1), e / e.sum(-1, keepdims=True), counts + labels, jax.lax.reduce(e, 3.0, jax.lax.add, (1,))


def arguments(rows, columns, dtype):
    random = np.random.default_rng(columns)
    arrays = [np.asarray(random.standard_normal(dims)).astype(dtype) for dims in ((rows, columns), columns, columns)]
    return [*arrays, random.integers(0, columns, rows).astype(np.int32)]


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("function", [layer_norm, cross_entropy, picked, several])
@pytest.mark.parametrize(("rows", "columns"), [(132, 6000), (33, 12007), (40, 40000)])
def test_values(function, rows, columns, dtype):
    check_function(function, *arguments(rows, columns, dtype), machine=QUARTER)


@pytest.mark.parametrize("columns", [2000, 3000])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_elements_of_the_first_stage_that_stay_on_chip(columns, dtype):
    """Later stages read them where they lie, as the kernel does that they stay for."""

    def function(x, scale):
        y = jnp.tanh(x.astype(jnp.float32)) * scale
        centred = y - y.mean(-1, keepdims=True)
        normed = (y - y.max(-1, keepdims=True)) / (1e-2 + (centred**2).sum(-1, keepdims=True))
        return y.mean(0), normed, (centred**2).sum(-1)

    x, scale, _, _ = arguments(64, columns, dtype)
    check_function(function, x, scale, machine=QUARTER)


@pytest.mark.parametrize("rows", [(2, 70, 90), (130, 65, 61)])
def test_rows_of_two_dims(rows):
    def function(x):
        y = jnp.swapaxes(x, 1, 2)
        return jax.nn.softmax(y, (1, 2)), (jnp.arange(y.shape[2]) * y).max((1, 2))

    random = np.random.default_rng(1)
    check_function(function, random.standard_normal((40, *rows[1:])).astype(np.float32), machine=QUARTER)
