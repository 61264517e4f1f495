"""Long rows that all partitions read stay on few of them, and sections are repeated by TensorE: see ``packed_rows``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

import neuronx_cc


def layer_norm(x, scale, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias


def rms_norm(x, scale, bias):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


def with_residual(x, scale, bias):
    """The sum stays on chip, rather than both of its terms."""
    return layer_norm(x + jnp.flip(x, 0), scale, bias), rms_norm(x * 2, scale, bias)


def softmax(x, scale, bias):
    """Differences from a value of the row are taken as Scalar reads what it takes the exponential of."""
    return jax.nn.softmax(x * scale, -1), jnp.exp(x.min(-1, keepdims=True) - x) + bias


def drawn(rows, columns, dtype):
    random = np.random.default_rng(columns)
    return [random.standard_normal(dims).astype(dtype) for dims in ((rows, columns), columns, columns)]


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("function", [layer_norm, rms_norm, with_residual, softmax])
@pytest.mark.parametrize("columns", [5000, 8192, 8191, 16385])
def test_values(function, columns, dtype):
    check_function(function, *drawn(131, columns, dtype), relative=1e-5 if dtype is np.float32 else 3e-2)


def test_infinite_and_missing_numbers_stay_where_they_are():
    """A product with ones has one term."""
    x, scale, bias = drawn(130, 9001, np.float32)
    scale[[3, 600, 9000]] = np.nan, np.inf, -np.inf
    check_function(lambda x, scale, bias: x * jnp.tanh(x.sum(-1, keepdims=True)) * scale + bias, x, scale, bias)


def test_rows_of_a_stack_that_a_loop_walks_through():
    """They begin at places of the loop."""
    x, scale, _ = drawn(128, 8192, np.float32)
    scales = np.stack([scale, scale + 1, scale - 1])

    def function(x, scales):
        return jax.lax.scan(lambda x, scale: (rms_norm(x, scale, None), x[0, 0]), x, scales)

    check_function(function, x, scales)


@pytest.mark.parametrize(("function", "arrays"), [(layer_norm, 2), (rms_norm, 2)])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("columns", [4096, 6144, 8192, 12288])
def test_rows_are_read_once(function, arrays, columns, dtype):
    """Scale and bias were read again for each tile: layer norm of 8,192 columns took 2.3 times its two passes."""
    types = [jax.ShapeDtypeStruct(dims, dtype) for dims in ((2048, columns), (columns,), (columns,))]
    compiled = neuronx_cc.compile(jax.jit(function).lower(*types), auto_cast="none")
    report = compiled.run([], timing_only=True, check_races=False).report
    passes = report.kernel_ns / (2048 * columns * np.dtype(dtype).itemsize / 272)
    narrow_norm = dtype is jnp.bfloat16 and function is layer_norm  # whose engines have more to do than the DMA
    assert passes < arrays * (2.6 if narrow_norm else 1.4)
