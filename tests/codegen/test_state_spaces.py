"""Models of state spaces: states of few features a channel, step by step or as one scan, and products head by head."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function, compile_text, text_of
from jax import lax

from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime.clock_regions import simulate

EIGHTH = find_machine(Path(__file__).resolve().parents[1] / "machines" / "eighth.toml")
LITTLE = EIGHTH.with_settings(["memory.sbuf_partition_bytes=32768"])


def simulated_us(function, *shapes):
    given = [np.zeros(dims, np.float32) for dims in shapes]
    return simulate(compile_text(text_of(function, *given)).program, TRN1).total / 1e3


def decays(step, matrix, inputs, into):
    """Of each element of the states: what is left of it, and what is added, [batch, length, channels, features]."""
    step = jax.nn.softplus(step)
    return jnp.exp(step[..., None] * -jnp.exp(matrix)), (step * inputs)[..., None] * into[:, :, None, :]


def as_one_scan(step, matrix, inputs, into, out_of):
    def combine(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    states = lax.associative_scan(combine, decays(step, matrix, inputs, into), axis=1)[1]
    return jnp.einsum("bldn,bln->bld", states, out_of)


def step_by_step(step, matrix, inputs, into, out_of):
    def advance(state, given):
        *one, out_of = (each[:, None] for each in given)
        left, added = decays(one[0], matrix, *one[1:])
        state = left[:, 0] * state + added[:, 0]
        return state, (state * out_of).sum(-1)

    along = [jnp.swapaxes(each, 0, 1) for each in (jax.nn.relu(step), inputs, into, out_of)]
    start = jnp.zeros((step.shape[0], *matrix.shape))
    return jnp.swapaxes(lax.scan(advance, start, along)[1], 0, 1)


def shapes(batch, length, channels, features):
    rows, few = (batch, length, channels), (batch, length, features)
    return rows, (channels, features), rows, few, few


@pytest.mark.parametrize("model", [as_one_scan, step_by_step])
@pytest.mark.parametrize("sizes", [(1, 20, 256, 4), (2, 33, 65, 16)], ids=str)
def test_values(model, sizes, random):
    check_function(model, *[random.standard_normal(dims).astype(np.float32) for dims in shapes(*sizes)])


def test_a_scan_stores_its_states_in_runs():
    assert simulated_us(as_one_scan, *shapes(1, 512, 256, 16)) < 700  # 8 MB that pass through HBM a few times
    assert simulated_us(as_one_scan, *shapes(1, 1024, 256, 16)) < 3500


def test_a_step_neither_stores_all_steps_nor_moves_its_state():
    few, many = (simulated_us(step_by_step, *shapes(1, length, 1536, 16)) for length in (64, 128))
    assert many - few < 64 * 12


def head_by_head(x, y, z):
    """Scores with the heads innermost, times values."""
    return jnp.einsum("bijh,bjhd->bihd", jnp.exp(x[..., None] * y[:, None]), z)


def heads_first(x, y, z):
    return jnp.einsum("bhij,bjhd->bihd", jnp.exp(x[:, None] * jnp.moveaxis(y, -1, 1)[:, :, None]), z)


@pytest.mark.parametrize("sizes", [(2, 128, 5, 40), (1, 129, 4, 64)], ids=str)
def test_heads_innermost(sizes, random):
    batch, rows, heads, features = sizes
    dims = (batch, rows, rows), (batch, rows, heads), (batch, rows, heads, features)
    check_function(head_by_head, *[random.standard_normal(each).astype(np.float32) for each in dims])
    assert simulated_us(head_by_head, *dims) < 4 * simulated_us(heads_first, *dims) + 20


def features_innermost(x, w):
    return jnp.einsum("hwc,wv->hvc", x, w)


def test_few_features_innermost(random):
    """As in resized images: rows of a contraction that come three at a time."""
    dims = (256, 112, 3), (112, 128)
    check_function(features_innermost, *[random.standard_normal(each).astype(np.float32) for each in dims])
    assert simulated_us(features_innermost, *dims) < 150


def of_one_projection(projected, inputs, matrix):
    """Steps, and what goes into the states and out of them, side by side in one array; with the last state."""
    count, features = matrix.shape
    step, into, out_of = jnp.split(projected, [count, count + features], -1)

    def advance(state, given):
        step, inputs, into, out_of = given
        state = jnp.exp(-jax.nn.softplus(step)[..., None] * jnp.exp(matrix)) * state
        state += (step * inputs)[..., None] * into[:, None]
        return state, (state * out_of[:, None]).sum(-1)

    along = [jnp.swapaxes(each, 0, 1) for each in (step, inputs, into, out_of)]
    last, made = lax.scan(advance, jnp.zeros((len(projected), *matrix.shape)), along)
    return jnp.swapaxes(made, 0, 1), last


def projected(batch, length, channels, features):
    return (batch, length, channels + 2 * features), (batch, length, channels), (channels, features)


@pytest.mark.parametrize("sizes", [(1, 700, 130, 16), (2, 1030, 64, 8), (1, 515, 129, 32)], ids=str)
def test_ranges_of_steps(sizes, random):
    """A loop hands on the state after each range, of which nothing else is stored."""
    given = [0.3 * random.standard_normal(dims).astype(np.float32) for dims in projected(*sizes)]
    check_function(of_one_projection, *given)


@pytest.mark.parametrize("sizes", [(2, 64, 256, 16), (1, 49, 256, 8), (3, 40, 130, 4)], ids=str)
def test_ranges_of_steps_beside_little_memory(sizes, random):
    """Few states a partition would stay there until all are stored, but for those whose last step alone is."""
    given = [0.3 * random.standard_normal(dims).astype(np.float32) for dims in projected(*sizes)]
    check_function(of_one_projection, *given, machine=LITTLE)


def test_gradients_through_ranges_of_steps(random):
    given = [0.3 * random.standard_normal(dims).astype(np.float32) for dims in projected(1, 600, 64, 16)]
    check_function(jax.grad(lambda *x: (of_one_projection(*x)[0] ** 2).sum(), argnums=(0, 1)), *given, relative=1e-4)


def test_no_array_of_states_is_stored():
    """Microseconds: 6,929 where ranges stored all states, and each partition read rows of 64 bytes step by step."""
    assert simulated_us(of_one_projection, *projected(1, 1024, 1024, 16)) < 2600
