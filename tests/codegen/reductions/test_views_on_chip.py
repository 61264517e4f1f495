"""Reductions over partitions of what is on chip, read through views: elements that lie apart, backwards, or repeat."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

VIEWS: dict[str, Callable[[Any], Any]] = {
    "every second": lambda x: x[:, ::2],
    "backwards": lambda x: x[:, ::-1],
    "a part": lambda x: x[:, 2:5],
    "repeated after": lambda x: jnp.broadcast_to(x[:, :, None], (*x.shape, 3)),
    "repeated ahead": lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], 3, x.shape[1])),
    "one repeated": lambda x: jnp.broadcast_to(x[:, :1], x.shape),
    "transposed": lambda x: x.reshape(x.shape[0], 2, -1).transpose(0, 2, 1),
    "part of transposed": lambda x: x.reshape(x.shape[0], 2, -1)[:, :, 1:].transpose(0, 2, 1),
}


@pytest.mark.parametrize("rows", [2, 57, 128])
@pytest.mark.parametrize("fold", [jnp.max, jnp.min, jnp.sum, jnp.prod, jnp.argmax], ids=lambda fold: fold.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16, np.bool_], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("view", VIEWS)
def test_values(view: str, dtype: type, fold: Callable[..., Any], rows: int) -> None:
    if dtype is np.bool_ and fold is not jnp.max:
        fold = {jnp.min: jnp.all, jnp.prod: jnp.any}.get(fold, jnp.sum)
    if dtype is np.float16 and fold is jnp.prod:  # rounded after each factor, in some order
        fold = jnp.min
    values = np.random.default_rng(rows).uniform(-1.5, 1.5, (rows, 8))
    x = (values > 0 if dtype is np.bool_ else values * (7 if dtype is np.int32 else 1)).astype(dtype)
    made = {np.bool_: lambda x: ~x, np.int32: lambda x: x + 1}.get(dtype, lambda x: 1 + jnp.tanh(x) / 9)
    check_function(lambda x: fold(VIEWS[view](made(x)), axis=0), x, relative=1e-4)


def test_what_was_found() -> None:
    x = np.random.default_rng(0).integers(-99, 99, (57, 8)).astype(np.float32)
    check_function(lambda x: jnp.exp(x / 99)[:, ::2].max(0), x)
    check_function(
        lambda x: jax.lax.switch(1, [lambda: x[0], lambda: jnp.broadcast_to(x[:, :1] * 2, (57, 8)).max(0)]), x
    )
