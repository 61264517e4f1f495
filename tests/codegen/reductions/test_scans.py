"""Cumulative sums, products, maxima and minima: rows, columns, long rows in blocks, forwards and backwards."""

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import assert_close, check_function, compile_text, text_of
from jax import lax

Array = np.ndarray[Any, Any]

DIMS = [(1,), (5,), (4, 16), (130, 7), (300, 12), (257, 13), (129, 4097), (3, 9001), (2, 3, 50), (20_011,), (5, 1)]


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_last_dim(dims: tuple[int, ...], reverse: bool, random: np.random.Generator) -> None:
    """NumPy is the oracle: it compiles nothing."""
    axis, turn = len(dims) - 1, slice(None, None, -1 if reverse else 1)
    x, n = random.standard_normal(dims).astype(np.float32), random.integers(-1000, 1000, dims).astype(np.int32)

    def function(x: Any, n: Any) -> Any:
        floats = lax.cumsum(x, axis, reverse=reverse), lax.cummax(x, axis, reverse=reverse)
        return *floats, lax.cumsum(n, axis, reverse=reverse), lax.cummin(n, axis, reverse=reverse)

    results = compile_text(text_of(function, x, n)).run([x, n])
    first, second = x[..., turn], n[..., turn]
    want = [np.cumsum(first, axis, np.float64).astype(np.float32), np.maximum.accumulate(first, axis)]
    want += [np.cumsum(second, axis, np.int32), np.minimum.accumulate(second, axis)]
    for index, (result, expected) in enumerate(zip(results, want, strict=True)):
        assert_close(result, expected[..., turn], 1e-5, name=f"result {index}")


@pytest.mark.parametrize("dims", [(7, 130), (40, 3, 5), (2, 1000, 2), (9, 1), (300, 1), (4, 5, 1, 1)], ids=str)
def test_other_dims(dims: tuple[int, ...], random: np.random.Generator) -> None:
    x, n = random.standard_normal(dims).astype(np.float32), random.integers(-9, 9, dims).astype(np.int32)
    check_function(
        lambda x, n: [f(v, axis) for v in (x, n) for axis in range(len(dims)) for f in (lax.cumsum, lax.cummax)], x, n
    )


def test_every_type(random: np.random.Generator) -> None:
    x = random.uniform(0.5, 1.5, (5, 40)).astype(np.float32)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        check_function(
            lambda x: (lax.cummax(x, 1), lax.cumsum(x, 1), lax.cumprod(x, 1)), x.astype(dtype), relative=0.02
        )
    for whole in (np.int8, np.uint8, np.int16, np.uint16, np.uint32):
        n = random.integers(0, 120, (5, 40)).astype(whole)
        check_function(lambda n: (lax.cumsum(n, 1), lax.cumprod(n, 1), lax.cummin(n, 1, reverse=True)), n)
    check_function(lambda x: jnp.cumsum(x > 1, 1), x)


def test_special_values() -> None:
    x = np.array([[1, np.nan, 3, 4], [np.inf, 2, -np.inf, 0], [-0.0, -0.0, 5, -np.inf]], np.float32)
    check_function(lambda x: (lax.cumsum(x, 1), lax.cummax(x, 1), lax.cummin(x, 0), lax.cumprod(x, 1)), x)


def test_blocks_with_infinities(random: np.random.Generator) -> None:
    """What one block adds up to reaches the ones after it and no others."""
    x = random.standard_normal((2, 20_000)).astype(np.float32)
    x[0, 12_345], x[1, 777] = np.inf, np.nan
    check_function(lambda x: (lax.cumsum(x, 1), lax.cummax(x, 1, reverse=True)), x)


@pytest.mark.parametrize("dims", [(13,), (5, 40), (2, 9000)], ids=str)
def test_starts(dims: tuple[int, ...], random: np.random.Generator) -> None:
    """An initial value that is not neutral, known at compile time or not. NumPy is the oracle."""
    n, start = random.integers(-9, 9, dims).astype(np.int32), np.int32(5)
    size, padding = (1,) * (len(dims) - 1) + dims[-1:], [(0, 0)] * (len(dims) - 1) + [(dims[-1] - 1, 0)]
    ones = (1,) * len(dims)

    def function(n: Any, s: Any) -> Any:
        known = lax.reduce_window(n, start, lax.add, size, ones, padding)
        return known, lax.reduce_window(n * 1.0, s * 1.0, lax.max, size, ones, padding)

    known, given = compile_text(text_of(function, n, start)).run([n, start])
    np.testing.assert_array_equal(known, np.cumsum(n, -1, np.int32) + 5)
    np.testing.assert_array_equal(given, np.maximum(np.maximum.accumulate(n, -1), 5).astype(np.float32))


def test_of_their_own_computation(random: np.random.Generator) -> None:
    x = random.standard_normal((11, 13)).astype(np.float32)
    check_function(lambda x: (lax.cumlogsumexp(x, 0), lax.cumlogsumexp(x, 1, reverse=True)), x)


@pytest.mark.parametrize("axis", [0, 1])
def test_associative_scan(axis: int, random: np.random.Generator) -> None:
    """A linear recurrence: what state space models scan."""
    a, b = (random.uniform(0.2, 1, (37, 21)).astype(np.float32) for _ in range(2))

    def compose(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    check_function(lambda a, b: lax.associative_scan(compose, (a, b), axis=axis), a, b)


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize(
    ("name", "dims", "axis", "dtype"),
    [
        ("cumsum", (256, 1030), 0, "float32"),
        ("cummax", (2, 1024, 300), 1, "float32"),
        ("cummin", (320, 9, 100), 0, "int32"),
        ("cumsum", (1280, 257), 0, "uint32"),
        ("cumprod", (512, 520), 0, "float32"),
    ],
    ids=str,
)
def test_leading_dims_in_blocks(
    name: str, dims: tuple[int, ...], axis: int, dtype: str, reverse: bool, random: np.random.Generator
) -> None:
    """Rows that lie one behind the other are scanned as they lie, blocks of them on each partition."""
    x = (random.uniform(0.9, 1.1, dims) if name == "cumprod" else random.integers(0, 100, dims)).astype(dtype)
    if name == "cummax":
        x[0, 700, 5], x[1, 3, 8], x[1, 3, 9] = np.nan, np.inf, -np.inf
    function = {"cumsum": np.add, "cummax": np.maximum, "cummin": np.minimum, "cumprod": np.multiply}[name]
    transposed = np.flip(x, axis) if reverse else x
    wanted = function.accumulate(transposed, axis, np.float64 if dtype == "float32" else dtype).astype(dtype)
    compiled = compile_text(text_of(lambda x: getattr(lax, name)(x, axis=axis, reverse=reverse), x))
    assert_close(compiled.run([x])[0], np.flip(wanted, axis) if reverse else wanted, 1e-5)
    assert sum("map" in kernel for kernel in compiled.program.kernels) == (1 if name == "cumprod" else 2)
