"""Results whose neighbours lie on neighbouring partitions, stored: in order, whatever their sizes and types."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text, text_of

SHAPES = [(24, 32, 1), (7, 33, 1), (128, 128, 1), (1, 64, 1), (12, 31, 2), (129, 16, 1), (3, 127, 5), (40, 2, 4)]
"""Rows, features and copies."""


def stored(w: Any, x: Any, cache: Any, position: Any, copies: int) -> Any:
    """Features of few rows, which TensorE leaves on the partitions, into a window, and as they are."""
    made = jnp.tanh((w @ x).T.astype(cache.dtype))
    part = jnp.stack([made * (number + 1) for number in range(copies)], axis=1)
    return jax.lax.dynamic_update_slice(cache, part[:, :, None], (0, 0, position, 0)), made


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(shape: tuple[int, int, int], dtype: str) -> None:
    rows, features, copies = shape
    draw = np.random.default_rng(rows)
    w, x = (draw.integers(-2, 3, size).astype(np.float32) for size in ((features, 8), (8, rows)))
    cache = jnp.asarray(draw.standard_normal((rows, copies, 9, features)), dtype)

    def function(w: Any, x: Any, cache: Any, position: Any) -> Any:
        return stored(w, x, cache, position, copies)

    inputs = [w, x, np.asarray(cache), np.int32(4)]
    found = compile_text(text_of(function, *inputs)).run(inputs)
    for own, wanted in zip(found, jax.jit(function)(*inputs), strict=True):
        eps = float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(own.astype(np.float32), np.asarray(wanted, np.float32), rtol=4 * eps, atol=eps)


def test_what_is_not_finite_is_moved_as_it_is() -> None:
    w = np.eye(32, dtype=np.float32)
    x = np.tile(np.array([np.nan, np.inf, -np.inf, -0.0], np.float32), (32, 6))

    def function(w: Any, x: Any, cache: Any) -> Any:
        return jax.lax.dynamic_update_slice(cache, jnp.abs(x * w[:, :1] + x).T[:, None], (0, 3, 0))

    inputs = [w, x, np.zeros((24, 9, 32), np.float32)]
    (found,) = compile_text(text_of(function, *inputs)).run(inputs)
    np.testing.assert_array_equal(found, np.asarray(jax.jit(function)(*inputs)))


def rotated(x: Any, w: Any, cache: Any, position: Any) -> Any:
    """Keys of a token, whose halves turn by angles that lie on the partitions."""
    angles = position.astype(jnp.float32) * jnp.exp(jnp.arange(32, dtype=jnp.float32) * -0.3)
    halves = (x @ w).reshape(12, 2, 32)
    turned = halves * jnp.cos(angles) + halves[:, ::-1] * jnp.sin(angles)
    return jax.lax.dynamic_update_slice(cache, turned.reshape(12, 1, 64), (0, position, 0))


def test_they_are_put_in_order_on_chip() -> None:
    draw = np.random.default_rng(0)
    inputs = [draw.standard_normal(shape).astype(np.float32) for shape in ((1, 128), (128, 768), (12, 100, 64))]
    compiled = compile_text(text_of(rotated, *inputs, np.int32(7)))
    (found,) = compiled.run([*inputs, np.int32(7)])
    np.testing.assert_allclose(found, np.asarray(jax.jit(rotated)(*inputs, np.int32(7))), rtol=2e-5, atol=2e-5)
    assert any(getattr(record, "op", "") == "transpose" for record in compiled.program.records)
