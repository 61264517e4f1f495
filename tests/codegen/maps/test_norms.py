"""Normalisations over dims that are no trailing rows: one pass for the statistics, all partitions, beside XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

import neuronx_cc


def batch_norm(x, scale, bias):
    """[batch, features, positions]"""
    y = x.astype(jnp.float32)
    mean, var = y.mean((0, 2), keepdims=True), y.var((0, 2), keepdims=True)
    return ((y - mean) * jax.lax.rsqrt(var + 1e-5) * scale[:, None] + bias[:, None]).astype(x.dtype)


def group_norm(x, scale, bias):
    """Eight features a group."""
    y = x.astype(jnp.float32).reshape(x.shape[0], -1, 8, x.shape[2])
    mean, var = y.mean((2, 3), keepdims=True), y.var((2, 3), keepdims=True)
    normal = ((y - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(x.shape)
    return (normal * scale[:, None] + bias[:, None]).astype(x.dtype)


NORMS = [batch_norm, group_norm]


def microseconds(function, dims, dtype):
    types = [jax.ShapeDtypeStruct(each, dtype) for each in (dims, dims[1:2], dims[1:2])]
    executable = neuronx_cc.compile(jax.jit(function).lower(*types), auto_cast="none")
    return executable.run([], timing_only=True, check_races=False).report.kernel_ns / 1e3


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize(("norm", "most"), [(batch_norm, 3.0), (group_norm, 3.0)])
@pytest.mark.parametrize("dims", [(8, 320, 3136), (8, 512, 4096)])
def test_statistics_take_one_pass(norm, most, dims, dtype):
    """The array is read twice and written once, on all partitions; twice the least that it may take, and some slack."""
    least = 2 * np.prod(dims) * jnp.dtype(dtype).itemsize / 272e3
    assert microseconds(norm, dims, dtype) <= most * least


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dims", [(8, 24, 4096), (6, 40, 3137), (4, 129 * 8, 16), (5, 8, 3)])
def test_values(norm, dims, dtype):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(dims) * 3 + 2).astype(dtype)
    scale, bias = (rng.standard_normal(dims[1:2]).astype(dtype) for _ in range(2))
    check_function(norm, x, scale, bias)


@pytest.mark.parametrize("norm", NORMS)
def test_gradients(norm):
    rng = np.random.default_rng(1)
    x, weights = (rng.standard_normal((4, 48, 4096)).astype(np.float32) for _ in range(2))
    scale, bias = (rng.standard_normal(48).astype(np.float32) for _ in range(2))

    def gradients(x, scale, bias, weights):
        return jax.grad(lambda *args: (norm(*args) * weights).sum(), argnums=(0, 1, 2))(x, scale, bias)

    check_function(gradients, x, scale, bias, weights, relative=3e-5)
