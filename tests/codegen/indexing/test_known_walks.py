"""Gathers at places that are known and advance evenly: biases by differences of positions, diagonals, shifted rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import neuronx_cc

COUNTS = [(1, 9, 5), (3, 40, 33), (12, 130, 257)]
"""Heads, queries and keys."""


def differences(queries, keys, most=None):
    apart = jnp.arange(keys)[None] - jnp.arange(queries)[:, None]
    return apart + queries - 1 if most is None else jnp.clip(apart // 2, -most, most) + most


def window_places(rows, columns):
    at = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")).reshape(2, -1)
    apart = at[:, :, None] - at[:, None]
    return (apart[0] + rows - 1) * (2 * columns - 1) + apart[1] + columns - 1


def programs(heads, queries, keys):
    """Name -> function of a table, and the table's dims."""
    rows, columns = queries % 7 + 2, keys % 5 + 2
    where = window_places(rows, columns)
    both = rows * columns
    return {
        "biases": (lambda t: t[differences(queries, keys)], (queries + keys - 1, heads)),
        "heads first": (lambda t: t[differences(queries, keys)].transpose(2, 0, 1), (queries + keys - 1, heads)),
        "columns": (lambda t: t[:, differences(queries, keys)], (heads, queries + keys - 1)),
        "backwards": (lambda t: jnp.flip(t[differences(queries, keys)], 0), (queries + keys - 1, heads)),
        "sums": (lambda t: t[jnp.arange(queries)[:, None] + jnp.arange(keys)], (queries + keys - 1, heads)),
        "outside": (
            lambda t: jnp.take(t, differences(queries, keys) * 2 - 3, axis=0, mode="clip"),
            (queries + keys - 1, heads),
        ),
        "filled": (
            lambda t: jnp.take(t, differences(queries, keys) - 2, axis=0, mode="fill", fill_value=7.0),
            (queries + keys - 1, heads),
        ),
        "buckets": (lambda t: t[differences(queries, keys, 5)].transpose(2, 0, 1), (11, heads)),
        "shifted rows": (
            lambda t: jnp.take_along_axis(
                t, jnp.broadcast_to(differences(queries, keys), (heads, queries, keys)), 2, mode="clip"
            ),
            (heads, queries, queries + keys - 1),
        ),
        "diagonal": (lambda t: t[jnp.arange(queries), jnp.arange(queries)], (queries, queries, heads)),
        "windows": (
            lambda t: t[where.reshape(-1)].reshape(both, both, heads).transpose(2, 0, 1),
            ((2 * rows - 1) * (2 * columns - 1), heads),
        ),
    }


NAMES = list(programs(1, 1, 1))


def table(dims, dtype):
    """With numbers of all kinds, which are only moved."""
    drawn = np.random.default_rng(sum(dims)).standard_normal(dims) * 100
    drawn.flat[:3] = [np.inf, np.nan, -0.0][: drawn.size]
    return np.asarray(jnp.asarray(drawn, jnp.float32).astype(dtype))


def simulated(function, *inputs):
    return neuronx_cc.compile(jax.jit(function).lower(*inputs), auto_cast="none").run(list(inputs))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", NAMES)
def test_elements_are_moved_as_they_are(name, counts, dtype) -> None:
    function, dims = programs(*counts)[name]
    given = table(dims, dtype)
    found = simulated(function, given).outputs[0]
    wanted = np.asarray(jax.jit(function)(given))
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize("name", NAMES)
def test_inside_of_other_computations(name) -> None:
    """Of a table that is computed, that a loop changes, and with sums beside it."""
    function, dims = programs(4, 37, 50)[name]
    given = np.random.default_rng(len(name)).standard_normal(dims).astype(np.float32)

    def program(t):
        def step(i, pair):
            t, total = pair
            return t.at[0].set(jnp.float32(i)), total + function(t * 2)

        start = jnp.zeros(jax.eval_shape(function, given).shape, jnp.float32)
        return (
            lax.fori_loop(0, 3, step, (t, start)),
            jax.nn.softmax(function(t)),
            jax.grad(lambda t: (function(jnp.sin(t)) ** 2).sum())(t),
        )

    found, wanted = simulated(program, given).outputs, jax.tree.leaves(jax.jit(program)(given))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, 2e-5, 2e-4)


@pytest.mark.parametrize("name", ["heads first", "columns", "buckets", "shifted rows"])
def test_time_is_that_of_the_result(name) -> None:
    """Of an array that is read and written once, at 272 bytes a nanosecond, and of a few transfers."""
    function, dims = programs(12, 257, 384)[name]
    moved = 2 * 4 * np.prod(jax.eval_shape(function, np.zeros(dims, np.float32)).shape) / 272.0
    assert simulated(function, np.zeros(dims, np.float32)).report.kernel_ns < 1.6 * moved + 10_000


def test_windows_are_moved_in_long_runs() -> None:
    """Of 14 x 14 places; one index after the other took 49 us."""
    where = window_places(14, 14)
    given = np.zeros((27 * 27, 4), np.float32)
    moved = simulated(lambda t: t[where.reshape(-1)].reshape(196, 196, 4).transpose(2, 0, 1), given)
    assert moved.report.kernel_ns < 20_000


def test_scores_read_a_table_of_differences_where_it_lies() -> None:
    """An attention's biases cost one more array that is read, however they come about."""
    heads, places = 8, 512
    scores = np.zeros((heads, places, places), np.float32)
    shifted = simulated(
        lambda s, t: jax.nn.softmax(s + t[:, differences(places, places)]), scores, np.zeros((heads, 1023), np.float32)
    )
    given = simulated(lambda s, t: jax.nn.softmax(s + t), scores, scores)
    assert shifted.report.kernel_ns < 1.1 * given.report.kernel_ns + 8_000
