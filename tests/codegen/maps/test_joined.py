"""Maps whose rows are several dims: as fast as with one, and right whatever lies between their dims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

import neuronx_cc


def norm(x, scale, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias


def gelu(x, *_):
    return jax.nn.gelu(x)


def softmax(x, *_):
    return jax.nn.softmax(x, -1)


def total(x, *_):
    return x.sum(-1)


def microseconds(function, dims, dtype):
    types = [jax.ShapeDtypeStruct(each, dtype) for each in (dims, dims[-1:], dims[-1:])]
    executable = neuronx_cc.compile(jax.jit(function).lower(*types), auto_cast="none")
    return executable.run([], timing_only=True, check_races=False).report.kernel_ns / 1e3


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("function", [norm, gelu, softmax, total])
@pytest.mark.parametrize("dims", [(4, 4, 1024), (2, 3, 7, 640), (10, 10, 10, 257), (25, 40, 768)])
def test_leading_dims_cost_nothing(function, dims, dtype):
    flat = microseconds(function, (np.prod(dims[:-1]), dims[-1]), dtype)
    assert microseconds(function, dims, dtype) <= 1.1 * flat


def rows_behind_products(q, k):
    """Few scores, which lie on few partitions."""
    return jax.nn.softmax(q @ k.swapaxes(-1, -2), -1).argmax(-1), q @ k.swapaxes(-1, -2)


def masked(x, mask):
    """A mask that all heads share."""
    return jax.nn.softmax(x + mask[:, None, None, :], -1)


def counted(x, scale):
    """Dims that are counted along."""
    rows = jax.lax.broadcasted_iota(jnp.float32, x.shape, 1)
    columns = jax.lax.broadcasted_iota(jnp.float32, x.shape, 3)
    return jnp.where(rows * 3 > columns, x, -x).sum(-1) * scale


def turned(x, y):
    return jnp.tanh(x.swapaxes(0, 1)) + y


def stays(x, scale):
    """Results that later kernels read, whole and a part of them."""
    y = jax.nn.softmax(x, -1)
    z = jnp.flip(y * scale, 1)
    return z.max((0, 2)), jnp.cumsum(y[:, 1:3], -1)


CASES = [
    (rows_behind_products, (2, 3, 4, 16), (2, 3, 70, 16)),
    (masked, (3, 5, 2, 130), (3, 130)),
    (counted, (2, 5, 3, 40), (3,)),
    (turned, (6, 5, 33), (5, 6, 33)),
    (stays, (3, 6, 200), (200,)),
    (stays, (5, 26, 129), (129,)),
]


@pytest.mark.parametrize(("function", "first", "second"), CASES)
def test_values(function, first, second):
    random = np.random.default_rng(len(first))
    check_function(function, *(random.standard_normal(dims).astype(np.float32) for dims in (first, second)))
