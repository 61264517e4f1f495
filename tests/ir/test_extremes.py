"""Maximum and minimum of signed zeros, and that all else is NumPy's."""

import ml_dtypes
import numpy as np
import pytest

from neuronx_cc.ir.extremes import maximum, minimum

FLOATS = [np.float32, ml_dtypes.bfloat16, np.float16, np.float64]
BOTH = [(maximum, np.maximum), (minimum, np.minimum)]
rng = np.random.default_rng(0)


def numbers(dtype, *dims):
    """Half of them zeros of either sign."""
    return np.where(
        rng.random(dims) < 0.5, np.copysign(0, rng.standard_normal(dims)), rng.integers(-2, 2, dims)
    ).astype(dtype)


def ordered(x):
    """Integers in the order of the numbers, -0 below +0."""
    bits = x.view(f"i{x.dtype.itemsize}").astype(np.int64)
    return np.where(bits < 0, -(bits & np.iinfo(f"i{x.dtype.itemsize}").max) - 1, bits)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("extreme", "ufunc"), BOTH)
def test_of_zeros_minus_zero_is_the_lesser(extreme, ufunc, dtype) -> None:
    a, b = numbers(dtype, 40, 7), numbers(dtype, 40, 7)
    np.testing.assert_array_equal(ordered(extreme(a, b)), ufunc(ordered(a), ordered(b)))
    zero = np.zeros((), dtype)
    for same in (zero, -zero):
        every = np.full_like(a, same)
        np.testing.assert_array_equal(ordered(extreme(a, same)), ufunc(ordered(a), ordered(every)))
    np.testing.assert_array_equal(ordered(extreme.reduce(a, axis=1)), ufunc.reduce(ordered(a), axis=1))
    np.testing.assert_array_equal(ordered(extreme.reduce(a, axis=(0, 1))), ufunc.reduce(ordered(a), axis=(0, 1)))
    np.testing.assert_array_equal(ordered(extreme.accumulate(a, axis=1)), ufunc.accumulate(ordered(a), axis=1))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("extreme", "ufunc"), BOTH)
def test_updates_in_place(extreme, ufunc, dtype) -> None:
    target, updates, places = numbers(dtype, 30), numbers(dtype, 50), rng.integers(0, 30, 50)
    expected = ordered(target)
    ufunc.at(expected, places, ordered(updates))
    table = target.copy()
    extreme.at(table, places, updates)
    np.testing.assert_array_equal(ordered(table), expected)
    square = target.reshape(5, 6).copy()
    extreme.at(square, (places[:, None] // 6, places[:, None] % 6), updates[:, None])
    np.testing.assert_array_equal(ordered(square).reshape(-1), expected)
    a = target.copy()
    assert extreme(a, updates[:30], out=a, where=target > 0) is a
    np.testing.assert_array_equal(a, np.where(target > 0, ufunc(target, updates[:30]), target))


@pytest.mark.parametrize(("extreme", "ufunc"), BOTH)
def test_nan_and_integers_are_as_ever(extreme, ufunc) -> None:
    x, y = np.array([np.nan, 1, 0, np.inf], np.float32), np.array([2, np.nan, -0.0, np.nan], np.float32)
    np.testing.assert_array_equal(extreme(x, y), ufunc(x, y))
    a, b = rng.integers(-3, 3, (2, 9))
    np.testing.assert_array_equal(extreme(a, b), ufunc(a, b))
    np.testing.assert_array_equal(extreme.reduce(a), ufunc.reduce(a))
    small = np.array([0, 1, 0, -2]).astype(ml_dtypes.int4)
    extreme.at(small, np.array([0, 1]), np.array([1, 0]).astype(ml_dtypes.int4))
    assert small.tolist() == ([1, 1, 0, -2] if extreme is maximum else [0, 0, 0, -2])
