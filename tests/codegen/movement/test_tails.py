"""Arrays whose last columns are a number, made by a contraction and read by others: any size, however they are read."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

READERS: dict[str, Callable[[Any, Any], Any]] = {
    "rows": lambda g, x: g @ x,
    "columns": lambda g, x: g.T @ x,
    "both": lambda g, x: g @ (g.T @ x) / 64,
    "sums": lambda g, x: g.sum(0)[:, None] + g.max(1)[:, None] + x,
    "transposed": lambda g, x: jnp.tanh(g.T + 1) @ x,
    "self": lambda g, x: g @ g,
}


@pytest.mark.parametrize("rows", [64, 126, 128, 130, 132, 194, 258])
@pytest.mark.parametrize("reader", READERS)
def test_last_columns(rows: int, reader: str) -> None:
    random = np.random.default_rng(rows)
    v, w = (random.standard_normal(dims).astype(np.float32) for dims in ((rows, 24), (24, 24)))
    end = rows - 1 - rows % 3

    def function(v: Any, w: Any) -> Any:
        x = jnp.tanh(v @ w)
        x = x - x.mean(1, keepdims=True)
        g = jnp.where((jnp.arange(rows) < end)[None, :], x @ x.T * 0.1, 0.5)
        return jnp.tanh(READERS[reader](g, x) / 16)

    check_function(function, v, w, relative=3e-5)
