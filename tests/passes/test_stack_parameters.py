"""What layers make of their small parameters is made once for all: by value, and what is left alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from jax import lax

SIZES = (12, 130, 5)


def norm(x: Any, mean: Any, var: Any, scale: Any, shift: Any) -> Any:
    factor = lax.rsqrt(var + 1e-5) * scale
    return x * factor[:, None] + (shift - mean * factor)[:, None]


def other(x: Any, mean: Any, var: Any, scale: Any, shift: Any) -> Any:
    factor = lax.rsqrt(var + 1e-3) * scale
    return x * factor[:, None] + (shift - mean * factor)[:, None]


def returned(x: Any, mean: Any, var: Any, scale: Any, shift: Any) -> Any:
    return x * scale[:, None], lax.rsqrt(var + 1e-5) * shift - mean


def plain(x: Any, mean: Any, var: Any, scale: Any, shift: Any) -> Any:
    return x * (scale * 2)[:, None] + jnp.tanh(var * x[:, 0] + mean)[:, None] * shift[:, None]


@pytest.mark.parametrize(
    ("layers", "stacked"),
    [
        ((norm, norm, norm), 4),
        ((norm, other, norm), 4),
        ((norm, other, plain), 0),
        ((returned, returned, returned), 0),
        ((plain, plain, plain), 0),
    ],
)
def test_values(layers: tuple[Callable[..., Any], ...], stacked: int) -> None:
    random = np.random.default_rng(0)
    given = [np.abs(random.standard_normal(dims)) for size in SIZES for dims in ((size, 9), *[(size,)] * 4)]

    def function(*given: Any) -> Any:
        return [layer(*given[5 * at : 5 * at + 5]) for at, layer in enumerate(layers)]

    program = check_function(function, *(array.astype(np.float32) for array in given)).program
    assert sum(kernel.endswith("concatenate") for kernel in program.kernels) == stacked


def test_lengths_may_be_equal_and_parameters_the_same() -> None:
    random = np.random.default_rng(0)
    x, shared, *rows = (random.standard_normal(dims).astype(np.float32) for dims in ((7, 3), 7, 7, 7, 7))

    def function(x: Any, shared: Any, first: Any, second: Any, third: Any) -> Any:
        for row in (first, second, third):
            x = jax.nn.relu(x * jnp.exp(row * shared)[:, None]) - (row + shared * 3)[:, None]
        return x

    check_function(function, x, shared, *rows)
