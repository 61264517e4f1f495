"""One step of attention, in every spelling of its row and of heads that share keys: the same values, as fast."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

import neuronx_cc


def with_row(q, k, v, mask):
    """Queries [batch, groups, heads of each, features], keys and values [batch, groups, columns, features]."""
    batch, groups, heads, size = q.shape
    rows = q.reshape(batch, groups * heads, 1, size)
    k, v = (jnp.repeat(each, heads, 1) for each in (k, v))
    scores = rows @ k.transpose(0, 1, 3, 2) * size**-0.5
    return (jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1) @ v).reshape(q.shape)


def without_row(q, k, v, mask):
    batch, groups, heads, size = q.shape
    rows = q.reshape(batch, groups * heads, size)
    k, v = (jnp.repeat(each, heads, 1) for each in (k, v))
    scores = jnp.einsum("bhf,bhpf->bhp", rows, k) * size**-0.5
    return jnp.einsum("bhp,bhpf->bhf", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1), v).reshape(q.shape)


def grouped(q, k, v, mask):
    scores = jnp.einsum("bgqf,bgpf->bgqp", q, k) * q.shape[-1] ** -0.5
    return jnp.einsum("bgqp,bgpf->bgqf", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1), v)


def broadcast(q, k, v, mask):
    wide = (*q.shape[:3], *k.shape[2:])
    k, v = (jnp.broadcast_to(each[:, :, None], wide) for each in (k, v))
    scores = jnp.einsum("bgqf,bgqpf->bgqp", q, k) * q.shape[-1] ** -0.5
    return jnp.einsum("bgqp,bgqpf->bgqf", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1), v)


def values_first(q, k, v, mask):
    """Both products with their operands the other way around."""
    batch, groups, heads, size = q.shape
    k, v = (jnp.repeat(each, heads, 1) for each in (k, v))
    rows = q.reshape(batch, groups * heads, size)
    scores = jnp.einsum("bhpf,bhf->bhp", k, rows) * size**-0.5
    return jnp.einsum("bhpf,bhp->bhf", v, jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)).reshape(q.shape)


SPELLINGS = (with_row, without_row, grouped, broadcast, values_first)
SHAPES = [(2, 4, 1, 256, 64), (1, 2, 4, 129, 32), (3, 1, 6, 200, 80), (2, 3, 2, 64, 128)]


def operands(shape: tuple[int, ...]) -> list[np.ndarray]:
    batch, groups, heads, columns, size = shape
    random = np.random.default_rng(sum(shape))
    dims = (batch, groups, heads, size), (batch, groups, columns, size), (batch, groups, columns, size)
    return [*(random.standard_normal(each).astype(np.float32) for each in dims), np.arange(columns) <= columns // 2]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_values(spelling, shape: tuple[int, ...]) -> None:
    check_function(spelling, *operands(shape), relative=3e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_spellings_take_the_same_time(shape: tuple[int, ...]) -> None:
    times = {}
    for spelling in SPELLINGS:
        lowered = jax.jit(spelling).lower(*operands(shape))
        report = neuronx_cc.compile(lowered, auto_cast="none").run([], timing_only=True).report
        times[spelling.__name__] = report.kernel_ns
    assert max(times.values()) < 1.05 * min(times.values()), times
