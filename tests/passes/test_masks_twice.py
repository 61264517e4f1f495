"""What is masked by the same mask before and after something that reads other elements: these stay hidden from it."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from jax import lax

SIZE = 6
MASKS = {
    "given": lambda p: p,
    "triangle": lambda p: jnp.tri(SIZE, dtype=bool),
    "opposite": lambda p: ~p,
    "rows": lambda p: jnp.broadcast_to(p[:1], p.shape),
}
BETWEEN = {
    "matrices": lambda x, y: x @ y,
    "matrices the other way": lambda x, y: y @ x,
    "square": lambda x, y: x @ x,
    "convolution": lambda x, y: jnp.convolve(x[0], y[0, :3], "same")[None] + lax.conv(
        x[None, None], y[None, None, :3, :3], (1, 1), "SAME"
    )[0, 0],
    "gather": lambda x, y: x[jnp.argsort(y[0])],
    "columns": lambda x, y: jnp.take_along_axis(x, jnp.argsort(y, 1), 1),
    "pad": lambda x, y: jnp.pad(x, ((1, 0), (0, 0)))[:-1] + y,
    "reverse": lambda x, y: x[::-1] * y,
    "transpose": lambda x, y: x.T * y,
    "roll": lambda x, y: jnp.roll(x, 1, 0) - y,
    "running sum": lambda x, y: jnp.cumsum(x, 1) + y,
    "sort": lambda x, y: jnp.sort(x, 0) + y,
    "sum of rows": lambda x, y: x.sum(1, keepdims=True) * y,
    "window": lambda x, y: lax.reduce_window(x, 0.0, lax.add, (3, 3), (1, 1), "SAME") + y,
    "update": lambda x, y: lax.dynamic_update_slice(y, x[1:3], (jnp.argmax(y[0]), 0)),
    "scatter": lambda x, y: y.at[jnp.argsort(y[0])].add(x),
    "triangular solve": lambda x, y: lax.linalg.triangular_solve(y + 9 * jnp.eye(SIZE), x, left_side=True, lower=True),
    "elements": lambda x, y: jnp.tanh(x * y) - x,
}  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("between", BETWEEN)
def test_masked_twice(between: str, mask: str) -> None:
    step: Callable[..., Any] = BETWEEN[between]

    def function(x: Any, y: Any, p: Any) -> Any:
        p = MASKS[mask](p)
        once = jnp.where(p, step(jnp.where(p, x, 0), y), 0)
        other = jnp.where(p, 1, step(jnp.where(p, 0, x), y))
        return once, other, jnp.where(p, step(x * p, y), -1), p * step(jnp.where(p, x, 2), y)

    random = np.random.default_rng(0)
    x, y = (random.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(2))
    check_function(function, x, y, random.random((SIZE, SIZE)) < 0.5)
