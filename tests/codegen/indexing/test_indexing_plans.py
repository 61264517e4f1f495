"""Gathers and scatters at the limits of each strategy that their plan may choose, on the simulator, against XLA."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import check_function
from indexing_cases import values

import neuronx_cc

ODD = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, -3e38, 65537.0], np.float32)
"""What a masked sum would spoil."""
OUTSIDE = np.array([-1, -(2**31), 2**31 - 1, 2**24 + 1, 10**9], np.int32)


def _odd(random: np.random.Generator, *dims: int) -> np.ndarray:
    return np.where(
        random.random(dims) < 0.3, random.choice(ODD, dims), random.standard_normal(dims).astype(np.float32)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32, np.int8, np.bool_, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(129, 2), (512, 127), (300, 128)])
def test_label_of_each_row(rows: int, width: int, dtype: Any, random: np.random.Generator) -> None:
    x = values(random, dtype, [rows, width])
    labels = random.integers(-2, width + 2, rows).astype(np.int32)
    labels[:5] = OUTSIDE
    for mode in ("clip", "fill"):
        check_function(lambda x, i: jnp.take_along_axis(x, i[:, None], 1, mode=mode), x, labels)  # noqa: B023


def test_labels_among_values_that_are_not_finite(random: np.random.Generator) -> None:
    x, labels = _odd(random, 520, 40), random.integers(0, 40, 520).astype(np.int32)
    check_function(
        lambda x, i: jax.lax.bitcast_convert_type(jnp.take_along_axis(x + 0, i[:, None], 1), jnp.int32), x, labels
    )
    check_function(lambda x, i: jnp.take_along_axis(jnp.abs(x), i[:, None], 1), x, labels)


@pytest.mark.parametrize("method", ["set", "add", "multiply", "max"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, ml_dtypes.bfloat16])
def test_one_update_of_each_row(method: str, dtype: Any, random: np.random.Generator) -> None:
    x, u = values(random, dtype, [300, 40]), values(random, dtype, [300])
    i = random.integers(-2, 43, 300).astype(np.int32)
    i[:5] = OUTSIDE
    check_function(lambda x, i, u: getattr(x.at[jnp.arange(300), i], method)(u, mode="drop"), x, i, u)


def test_one_update_of_each_row_that_is_not_finite(random: np.random.Generator) -> None:
    x, u, i = _odd(random, 200, 30), _odd(random, 200), random.integers(0, 30, 200).astype(np.int32)
    check_function(lambda x, i, u: x.at[jnp.arange(200), i].add(u), x, i, u)
    check_function(lambda x, i, u: x.at[jnp.arange(200), i].set(u), x, i, u)


def test_cross_entropy(random: np.random.Generator) -> None:
    x, labels = random.standard_normal((150, 40)).astype(np.float32), random.integers(0, 40, 150).astype(np.int32)

    def loss(x: Any, labels: Any) -> Any:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1))

    check_function(jax.value_and_grad(loss), x, labels)


@pytest.mark.parametrize("axes", ["first", "second", "both"])
def test_indices_that_count(axes: str, random: np.random.Generator) -> None:
    """A diagonal is no batch; an index that counts along one dim of the indices is."""
    x, u = random.standard_normal((33, 33, 5)).astype(np.float32), random.standard_normal((33, 5)).astype(np.float32)
    i = random.integers(-3, 36, 33).astype(np.int32)
    count = jnp.arange(33)
    pick = {"first": lambda i: (count, i), "second": lambda i: (i, count), "both": lambda i: (count, count)}[axes]
    check_function(lambda x, i: x.at[pick(i)].get(mode="clip"), x, i)
    check_function(lambda x, i, u: x.at[pick(i)].add(u, mode="drop"), x, i, u)


@pytest.mark.parametrize("tables", [9, 16, 24, 130])
@pytest.mark.parametrize("width", [1, 3])
def test_stacked_tables(tables: int, width: int, random: np.random.Generator) -> None:
    x = random.standard_normal((tables, 50, width)).astype(np.float32)
    i = random.integers(-3, 53, (tables, 70)).astype(np.int32)
    i[:3, :5] = OUTSIDE
    check_function(lambda x, i: jnp.take_along_axis(x, i[..., None], 1, mode="clip"), x, i)
    rows = jnp.arange(tables)[:, None]
    u = random.standard_normal((tables, 70, width)).astype(np.float32)
    check_function(lambda x, i, u: x.at[rows, i].add(u, mode="drop"), x, i, u)
    check_function(lambda x, i, u: x.at[rows, i].set(u, mode="drop"), x, i, u)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, ml_dtypes.bfloat16])
def test_last_of_many_updates(dtype: Any, random: np.random.Generator) -> None:
    x, u = values(random, dtype, [600]), values(random, dtype, [9000])
    i = random.integers(-5, 605, 9000).astype(np.int32)
    i[-5:] = OUTSIDE
    check_function(lambda x, i, u: x.at[i].set(u, mode="drop"), x, i, u)
    check_function(lambda x, i: x.at[i].set(1, mode="drop"), x, i)


@pytest.mark.parametrize("count", [1, 127, 129, 511, 513, 1100, 2049])
def test_rows_by_dma_in_any_number(count: int, random: np.random.Generator) -> None:
    x, i = random.standard_normal((40_000, 6)).astype(np.float32), random.permutation(40_000)[:count].astype(np.int32)
    u = random.standard_normal((count, 6)).astype(np.float32)
    check_function(lambda x, i: x[i], x, i)
    check_function(lambda x, i, u: x.at[i].set(u, unique_indices=True), x, i, u)


@pytest.mark.parametrize("bins", [1, 2, 31, 128, 129, 1000, 2048])
@pytest.mark.parametrize("count", [1500, 5000])
def test_counts(bins: int, count: int, random: np.random.Generator) -> None:
    i = random.integers(-3, bins + 3, count).astype(np.int32)
    i[:5] = OUTSIDE
    check_function(lambda i: jnp.zeros(bins, jnp.int32).at[i].add(1, mode="drop"), i)
    check_function(
        lambda i, x: x.at[i].add(-3, mode="drop"), i, random.integers(-(2**31), 2**31, bins).astype(np.int32)
    )


def test_counts_of_floats_and_of_one_value(random: np.random.Generator) -> None:
    i = np.full(70_001, 77, np.int32)
    check_function(lambda i: jnp.bincount(i, length=100), i)
    check_function(lambda i, x: x.at[i].add(0.5, mode="drop"), i[:5000] + 900, random.random(100).astype(np.float32))
    check_function(lambda i: jnp.zeros(100).at[i].add(0.5, mode="drop"), random.integers(0, 120, 6000).astype(np.int32))


@pytest.mark.parametrize(("rows", "width"), [(1, 768), (16, 64), (129, 130), (300, 96), (40, 1), (1000, 1), (4, 1500)])
@pytest.mark.parametrize("count", [700, 4097])
def test_sums_by_number(rows: int, width: int, count: int, random: np.random.Generator) -> None:
    u = random.standard_normal((count, width) if width > 1 else count).astype(np.float32)
    i = random.integers(-3, rows + 3, count).astype(np.int32)
    i[:5] = OUTSIDE
    x = random.standard_normal((rows, *u.shape[1:])).astype(np.float32)
    check_function(lambda i, u: jax.ops.segment_sum(u, i, num_segments=rows), i, u)
    check_function(lambda x, i, u: x.at[i].add(u, mode="drop"), x, i, u)


@pytest.mark.parametrize("width", [1, 40])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, -3.4e38])
def test_sums_by_number_of_what_is_not_finite(width: int, odd: float, random: np.random.Generator) -> None:
    u = random.standard_normal((5000, width) if width > 1 else 5000).astype(np.float32)
    u[777] = odd
    i = random.integers(0, 20, 5000).astype(np.int32)
    check_function(lambda i, u: jax.ops.segment_sum(u, i, num_segments=20), i, u)


def test_sums_by_number_inside_a_loop(random: np.random.Generator) -> None:
    u, i = random.standard_normal((4096, 16)).astype(np.float32), random.integers(0, 8, (3, 4096)).astype(np.int32)

    def step(x: Any, i: Any) -> Any:
        return x.at[i].add(u * x[0, 0]), x[1]

    check_function(lambda i: jax.lax.scan(step, jnp.ones((8, 16)), i), i)


def test_a_table_beside_values_that_stay_on_chip(random: np.random.Generator) -> None:
    million = 1 << 20
    x, u = random.random(million).astype(np.float32), random.random(million).astype(np.float32)
    i = random.integers(0, million, million).astype(np.int32)
    check_function(lambda x, i, u: x.at[i].set(u, mode="drop"), x, i, u)


def test_numbers_and_counts_are_exact_whatever_is_cast(random: np.random.Generator) -> None:
    x, labels = random.standard_normal((600, 1000)).astype(np.float32), random.integers(0, 1000, 600).astype(np.int32)
    bins = random.integers(0, 20, 20_000).astype(np.int32)

    def function(x: Any, labels: Any, bins: Any) -> Any:
        return jnp.take_along_axis(x, labels[:, None], 1)[:, 0], jnp.bincount(bins, length=20)

    executable = neuronx_cc.compile(jax.jit(function).lower(x, labels, bins), auto_cast="all")
    picked, counts = executable.run([x, labels, bins]).outputs
    np.testing.assert_allclose(picked, x[np.arange(600), labels], rtol=2**-8)
    np.testing.assert_array_equal(counts, np.bincount(bins, minlength=20))
