"""Normalisations of wide rows, and their gradients: as often over HBM as they must, at every width."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

import neuronx_cc

ROWS = 1024


def rms_norm(x, gain):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain


def residual(x, y, gain):
    return rms_norm(x + y, gain)


def gradient(x, y, gain):
    """Two chains that fold rows, which meet in what is made of both, and a sum over the rows."""
    return jax.vjp(rms_norm, x, gain)[1](y)


def cross_entropy(x, y, gain):
    """Three folds of the same rows, of which two do not wait for each other."""
    return jax.grad(lambda x: (jax.nn.log_softmax(x * gain, -1) * y).mean())(x)


def compiled(function, columns, rows=ROWS):
    types = [jax.ShapeDtypeStruct(dims, jnp.float32) for dims in ((rows, columns), (rows, columns), (columns,))]
    return neuronx_cc.compile(jax.jit(function).lower(*types), auto_cast="none")


def passes(function, columns):
    """Simulated time as a multiple of that of one pass of an array over HBM."""
    report = compiled(function, columns).run([], timing_only=True, check_races=False).report
    return report.kernel_ns / (4 * ROWS * columns / 272)


@pytest.mark.parametrize("columns", [2048, 3584, 4096, 5120, 6144, 8192])
def test_rows_are_read_once(columns):
    """5,120 columns took six passes, one row a partition in turn."""
    assert passes(residual, columns) < 4.0


@pytest.mark.parametrize("columns", [1024, 2048, 4096])
def test_chains_of_rows_that_meet_are_one_kernel(columns):
    """Each chain read its arrays again: 9.4 passes at 2,048 columns."""
    assert passes(gradient, columns) < 8.0
    assert [name for name in compiled(cross_entropy, columns).program.kernels if "map" in name] == ["0.map"]


@pytest.mark.parametrize("function", [residual, gradient, cross_entropy])
@pytest.mark.parametrize("dims", [(129, 8192), (257, 5120), (1030, 1024)])
def test_values(function, dims):
    random = np.random.default_rng(0)
    x, y = (random.standard_normal(dims).astype(np.float32) for _ in range(2))
    check_function(function, x, y, random.standard_normal(dims[1:]).astype(np.float32), relative=1e-4)
