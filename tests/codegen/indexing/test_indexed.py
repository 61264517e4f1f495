"""Reads and writes at run-time positions, and 64-bit parameters and results."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import check_function, check_text, text_of
from jax import lax

Array = np.ndarray[Any, Any]


def normal(random: np.random.Generator, *dims: int) -> Array:
    return random.standard_normal(dims).astype(np.float32)


def indices(random: np.random.Generator, size: int, *dims: int) -> Array:
    """In range and a little outside."""
    return random.integers(-3, size + 3, dims).astype(np.int32)


# gather ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(1000, 768), (10, 3), (7, 1), (5, 40_000), (300,)], ids=str)
@pytest.mark.parametrize("mode", ["clip", "fill", None])
def test_rows(dims: tuple[int, ...], mode: str | None, random: np.random.Generator) -> None:
    def function(w: Any, i: Any) -> Any:
        found = w[i] if mode is None else jnp.take(w, i, axis=0, mode=mode)
        return found, jnp.take(w * 2, i + 1, axis=0, mode="clip") + 1

    wanted = random.integers(-dims[0], dims[0], (3, 50)) if mode is None else indices(random, dims[0], 150)
    check_function(function, normal(random, *dims), wanted.astype(np.int32))


@pytest.mark.parametrize("index", [np.int8, np.uint8, np.int16, np.uint32])
@pytest.mark.parametrize("dtype", [np.bool_, np.int16, np.int32, ml_dtypes.bfloat16])
def test_row_types(index: Any, dtype: Any, random: np.random.Generator) -> None:
    w = random.integers(0, 100, (20, 33)).astype(dtype)
    i = np.abs(indices(random, 20, 130)).astype(index)
    check_function(lambda w, i: jnp.take(w, i, axis=0, mode="clip"), w, i)


@pytest.mark.parametrize(("axis", "dims"), [(1, (150,)), (1, (2, 9)), (2, (130,)), (0, (0,)), (0, ())])
def test_along_other_axes(axis: int, dims: tuple[int, ...], random: np.random.Generator) -> None:
    w = normal(random, 5, 30, 7)
    i = indices(random, w.shape[axis], *dims)
    check_function(lambda w, i: jnp.take(w, i, axis=axis, mode="clip") * 2, w, i)


@pytest.mark.parametrize(
    "pick",
    [
        lambda w, i, j, k: w[i, j],
        lambda w, i, j, k: w[i, :, k],
        lambda w, i, j, k: w[:, j, k],
        lambda w, i, j, k: w[i, j, k],
        lambda w, i, j, k: w[i[:10, None], j[None, 10:]],
    ],
)
def test_several_indices(pick: Any, random: np.random.Generator) -> None:
    w = normal(random, 50, 30, 7)
    given = [random.integers(0, size, 20).astype(np.int32) for size in w.shape]
    check_function(pick, w, *given)


@pytest.mark.parametrize(
    "view",
    [
        lambda w: w[::-1],
        lambda w: w.T,
        lambda w: w.T.reshape(100, 6),
        lambda w: jnp.broadcast_to(w[0], (20, 30)),
        lambda w: w[3:, 5:9],
        lambda w: w[:1],
    ],
)
def test_rows_of_views(view: Any, random: np.random.Generator) -> None:
    check_function(
        lambda w, i: jnp.take(view(w), i, axis=0, mode="clip"), normal(random, 20, 30), indices(random, 25, 140)
    )


@pytest.mark.parametrize(
    ("dims", "slices", "shape"),
    [
        (lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 10), (9, 1)),
        (lax.GatherDimensionNumbers((0,), (0,), (0,)), (1, 30), (9, 1)),
        (lax.GatherDimensionNumbers((1, 2), (), (0,)), (1, 30), (9, 1)),
        (lax.GatherDimensionNumbers((2,), (0,), (0,)), (1, 30), (9, 4, 1)),
        (lax.GatherDimensionNumbers((), (0, 1), (1, 0)), (1, 1), (9, 2)),
    ],
)
def test_layouts(dims: Any, slices: Any, shape: Any, random: np.random.Generator) -> None:
    check_function(
        lambda w, i: lax.gather(w, i, dims, slices, mode="clip"), normal(random, 20, 30), indices(random, 20, *shape)
    )


# dynamic slices ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [-5, 0, 3, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("dims", "part"),
    [
        ((100, 50), (10, 20)),
        ((7,), (3,)),
        ((5, 4, 3), (2, 4, 1)),
        ((2000, 3), (1000, 3)),
        ((129, 257), (128, 256)),
        ((6,), (0,)),
    ],
    ids=str,
)
def test_dynamic_slice_and_update(
    dims: tuple[int, ...], part: tuple[int, ...], dtype: Any, start: int, random: np.random.Generator
) -> None:
    def function(x: Any, y: Any, i: Any) -> Any:
        at, fixed = (i,) * len(dims), (start,) * len(dims)
        reads = lax.dynamic_slice(x, at, part), lax.dynamic_slice(x + x, at, part), lax.dynamic_slice(x, fixed, part)
        writes = lax.dynamic_update_slice(x, y, at), lax.dynamic_update_slice(x + x, y + y, at)
        return *reads, *writes, lax.dynamic_update_slice(x, y, fixed)

    x, y = (np.asarray(normal(random, *sizes) * 10).astype(dtype) for sizes in (dims, part))
    check_function(function, x, y, np.int32(start))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32])
def test_types_of_starts(dtype: Any, random: np.random.Generator) -> None:
    x, y = normal(random, 200, 3), normal(random, 5, 3)
    for start in (7, 120):
        check_function(
            lambda x, y, i: (lax.dynamic_slice(x, (i, i), (9, 2)), lax.dynamic_update_slice(x, y, (i, i))),
            x,
            y,
            dtype(start),
        )


def test_updates_in_place_and_beside_readers(random: np.random.Generator) -> None:
    def function(x: Any, y: Any, i: Any, j: Any) -> Any:
        chain = lax.dynamic_update_slice(lax.dynamic_update_slice(x * 2, y, (i, j)), y * 2, (j, i)) + 1
        kept = x * 3
        beside = lax.dynamic_update_slice(kept, y, (i, j)), kept + 1, lax.dynamic_update_slice(kept, y * 3, (j, i))
        transposed = lax.dynamic_slice(x.T, (i, i), (3, 4)) + lax.dynamic_slice(x.T[::-1], (j, i), (3, 4))
        return chain, *beside, transposed, jnp.roll(x, i, 0), lax.dynamic_slice(x, (i * 2 + 1, j), (3, 4))

    check_function(function, normal(random, 30, 40), normal(random, 5, 6), np.int32(3), np.int32(27))


# 64 bits -----------------------------------------------------------------------------------------------------------


def check_wide(function: Any, *inputs: Any) -> None:
    with jax.enable_x64(True):
        text = text_of(function, *inputs)
    check_text(text, *inputs)


def test_window_of_a_window_that_is_read_when_the_array_is_dead(random: np.random.Generator) -> None:
    def function(x: Any, y: Any) -> Any:
        def body(i: Any, state: Any) -> Any:
            array = jnp.sort(state)
            window = lax.dynamic_slice(lax.dynamic_slice(array, (i * 30,), (3000,)), (i * 10,), (2500,))
            last = jnp.sort(array - jnp.sort(y + array))
            return state.at[:2500].set(jnp.sort(window + last[:2500]))

        return lax.fori_loop(0, 30, body, x)

    check_function(function, normal(random, 4000), normal(random, 4000))


LARGE = np.array([[1, -2, 3], [2**31 - 2, -(2**31), 0]], np.int64)


def test_wide_signed() -> None:
    check_wide(lambda x: (x, x + 1, x.astype(jnp.int32) - 1, x > 1, x.T, x[::-1], (x + 1).T, x.reshape(-1)), LARGE)
    check_wide(lambda x: x.sum(1), LARGE[:1])


def test_wide_unsigned() -> None:
    check_wide(lambda x: (x, x // 2, x.astype(jnp.float32), x.reshape(3, 1)), np.array([1, 2**32 - 1, 7], np.uint64))


def test_wide_results(random: np.random.Generator) -> None:
    def function(x: Any) -> Any:
        tripled = x.astype(jnp.int64) * 3
        unsigned = x.astype(jnp.uint32).astype(jnp.uint64)
        return (
            tripled,
            unsigned,
            jnp.argmax(x, axis=0).astype(jnp.int64),
            tripled,
            tripled + 1,
            (x > 0).astype(jnp.int64),
        )

    check_wide(function, random.integers(-1000, 1000, (5, 130)).astype(np.int32))


def test_wide_constants_and_scalars() -> None:
    check_wide(lambda x: (jnp.arange(5, dtype=jnp.int64), x + jnp.int64(5), jnp.int64(-3), x), np.int64(3))


def test_wide_indices(random: np.random.Generator) -> None:
    def function(w: Any, i: Any) -> Any:
        return w[i], lax.dynamic_slice(w, (i[0], i[1]), (2, 3)), jnp.take(w, i, axis=0, mode="clip")

    check_wide(function, normal(random, 10, 20), np.array([1, -2, 3], np.int64))
