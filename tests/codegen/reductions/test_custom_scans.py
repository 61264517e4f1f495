"""Running folds by computations of their own: level by level on chip, in blocks; ``cumlogsumexp``.

XLA's CPU client folds windows of more than 16 elements in another order, which shows where left and right differ.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from jax import lax

Array = np.ndarray[Any, Any]


def running(combine: Any, starts: Any, arrays: Any, axis: int, reverse: bool = False) -> Any:
    """``reduce_window`` over the elements up to each one."""
    dims = (arrays[0] if isinstance(arrays, tuple) else arrays).shape
    size = tuple(n if place == axis else 1 for place, n in enumerate(dims))
    edge = (0, dims[axis] - 1) if reverse else (dims[axis] - 1, 0)
    padding = [edge if place == axis else (0, 0) for place in range(len(dims))]
    return lax.reduce_window(arrays, starts, combine, size, (1,) * len(dims), padding)


CASES = [((5, 40), 1), ((40, 130), 0), ((3, 5, 7), 1), ((2, 9001), 1), ((20_011,), 0), ((1, 4), 1)]


@pytest.mark.parametrize(("dims", "axis"), CASES, ids=str)
def test_log_sum_exp(dims: tuple[int, ...], axis: int, random: np.random.Generator) -> None:
    x = random.standard_normal(dims).astype(np.float32) * 30
    compiled = check_function(lambda x: [lax.cumlogsumexp(x, axis, reverse=turn) for turn in (False, True)], x)
    assert not any(getattr(record, "op", "") == "program_unary" for record in compiled.program.records)


def test_log_sum_exp_of_special_values() -> None:
    low, high, none = -np.inf, np.inf, np.nan
    rows = [
        [low, low, 3, low, 100, -100],
        [low, -200, -3e38, 3e38, 1, low],
        [1, high, 2, low, high, 5],
        [50, low, none, high, low, 1],
        [high, none, 1, 2, 3, 4],
        [88, 89, 90, 1000, -1000, 3e38],
    ]
    x = np.array(rows, np.float32)
    check_function(lambda x: [lax.cumlogsumexp(x, axis, reverse=turn) for axis in (0, 1) for turn in (False, True)], x)


def test_log_sum_exp_with_a_start(random: np.random.Generator) -> None:
    x = random.standard_normal((4, 16)).astype(np.float32)
    check_function(lambda x: running(jnp.logaddexp, np.float32(1), x, 1), x)


@pytest.mark.parametrize(("dims", "axis"), CASES, ids=str)
def test_hypotenuse(dims: tuple[int, ...], axis: int, random: np.random.Generator) -> None:
    x = random.uniform(0, 1, dims).astype(np.float32)
    check_function(lambda x: running(lambda a, b: jnp.sqrt(a * a + b * b), np.float32(0), x, axis, axis == 0), x)


def test_pairs_and_whole_numbers(random: np.random.Generator) -> None:
    """Two arrays at once; a combiner that hands a parameter on; integers and bools."""

    def largest(left: Any, right: Any) -> Any:
        later = right[0] > left[0]
        return jnp.where(later, right[0], left[0]), jnp.where(later, right[1], left[1])

    x, n = random.standard_normal((3, 16)).astype(np.float32), random.integers(-9, 9, (3, 16)).astype(np.int32)
    places = np.broadcast_to(np.arange(16, dtype=np.int32), (3, 16))
    check_function(lambda x, i: running(largest, (np.float32(-np.inf), np.int32(-1)), (x, i), 1), x, places)
    check_function(
        lambda n: [running(lambda a, b: jnp.where(b == 0, a, b), np.int32(0), n, 1, turn) for turn in (False, True)], n
    )
    check_function(lambda n: running(lambda a, b: a * b + a + b, np.int32(0), n, 1), n)


def test_order_matters(random: np.random.Generator) -> None:
    """Complex products, whose combiner swaps nothing and reads every parameter twice."""

    def multiply(left: Any, right: Any) -> Any:
        return left[0] * right[0] - left[1] * right[1], left[0] * right[1] + left[1] * right[0]

    x = random.uniform(-1, 1, (2, 130, 33)).astype(np.float32)
    one, zero = np.float32(1), np.float32(0)
    check_function(lambda x: running(multiply, (one, zero), (x[0], x[1]), 1), x)


def test_recurrence_as_a_window(random: np.random.Generator) -> None:
    def compose(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    a, b = random.uniform(0.5, 1, (5, 16)).astype(np.float32), random.standard_normal((5, 16)).astype(np.float32)
    compiled = check_function(lambda a, b: running(compose, (np.float32(1), np.float32(0)), (a, b), 1), a, b)
    assert any(getattr(record, "op", "") == "tensor_tensor_scan" for record in compiled.program.records)
