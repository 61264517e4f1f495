"""What is copied is read: arrays whose neighbours lie otherwise than a kernel takes them, in drawn sizes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from unread import unread

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def nested_derivatives(random: np.random.Generator) -> Case:
    """Sums over a dim in the middle lie across what the maps after them make of them."""
    points, width = 2 * int(random.integers(65, 128)), int(random.integers(16, 130))

    def network(x: Any, w: Any, b: Any, v: Any) -> Any:
        return (jnp.tanh(x @ w + b) @ v)[0]

    def loss(w: Any, b: Any, v: Any, points: Any) -> Any:
        def residual(x: Any) -> Any:
            return jnp.trace(jax.hessian(network)(x, w, b, v)) - network(x, w, b, v)

        return (jax.vmap(residual)(points) ** 2).mean()

    shapes = (2, width), (width,), (width, 1), (points, 2)
    return jax.grad(loss, (0, 1, 2)), tuple(random.standard_normal(each).astype(np.float32) for each in shapes)


def rows_by_number(random: np.random.Generator) -> Case:
    """A contraction longer than what is staged whole, of what is on chip."""
    rows, numbers, width = 128 * int(random.integers(65, 110)), int(random.integers(3, 40)), int(random.integers(2, 24))

    def sums(x: Any, at: Any) -> Any:
        one = jax.nn.one_hot(at.astype(jnp.int32), numbers)
        return one.T @ x / (one.sum(0)[:, None] + 1)

    x, at = random.standard_normal((rows, width)), random.integers(0, numbers, rows)
    return sums, (x.astype(np.float32), at.astype(np.float32))


def window_of_zeros(random: np.random.Generator) -> Case:
    """An update that lies in another order than the array, at a place that run-time values decide."""
    modes, wide, count = (int(each) for each in random.integers((4, 4, 2), (12, 30, 5)))

    def place(x: Any, y: Any, at: Any) -> Any:
        full = jnp.zeros((count, modes + 9, modes + 7, wide), jnp.float32)
        made = jnp.einsum("bxyi,xyio->bxyo", jnp.exp(1j * x), y).imag
        return jax.lax.dynamic_update_slice(full, made, (0, at, at, 0))

    x, y = random.standard_normal((count, modes, modes, wide)), random.standard_normal((modes, modes, wide, wide))
    return place, (x.astype(np.float32), y.astype(np.float32), np.int32(3))


def products_of_spectra(random: np.random.Generator) -> Case:
    """What a transform leaves in two dims in reverse order is read as one row."""
    rows, length = int(random.integers(2, 90)), 2 ** int(random.integers(8, 12))
    x, y = random.standard_normal((rows, length)), random.standard_normal((1, length))
    return lambda x, y: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(y)), (x.astype(np.float32), y.astype(np.float32))


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("draw", [nested_derivatives, rows_by_number, window_of_zeros, products_of_spectra])
def test_copies_are_read(draw: Callable[[np.random.Generator], Case], number: int) -> None:
    function, inputs = draw(np.random.default_rng(number))
    compiled = check_function(function, *inputs, relative=1e-4)
    assert not unread(compiled.program)
