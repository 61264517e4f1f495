"""Heads that share keys, values or neither, each in its own way: rows of one kernel have the same values."""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

GROUPS = ("own", "neighbours", "every fourth", "all", "by einsum")
B, H, D = 2, 12, 16
COUNT = {"own": H, "neighbours": 3, "every fourth": 4, "all": 1, "by einsum": 3}
"""Of the arrays that heads share."""


def spread(x: Any, sharing: str) -> Any:
    """[B, heads of their own, T, D] of ``x`` [B, COUNT, T, D]."""
    if sharing == "every fourth":
        return jnp.concatenate([x] * (H // 4), 1)
    return jnp.repeat(x, H // COUNT[sharing], axis=1)


@pytest.mark.parametrize(("keys", "values"), list(product(GROUPS, GROUPS)))
@pytest.mark.parametrize(("rows", "columns"), [(1, 197), (3, 40), (33, 130), (130, 600)])
@pytest.mark.parametrize("made", [False, True])
def test_sharing(keys: str, values: str, rows: int, columns: int, made: bool) -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        q = jnp.sin(q) if made else q
        if keys == "by einsum":
            grouped = q.reshape(B, 3, H // 3, rows, D)
            scores = jnp.einsum("bgnsd,bgtd->bgnst", grouped, k).reshape(B, H, rows, columns)
        else:
            scores = jnp.einsum("bhsd,bhtd->bhst", q, spread(k, keys))
        weights = jax.nn.softmax(scores * 0.25, -1)
        if values == "by einsum":
            grouped = weights.reshape(B, 3, H // 3, rows, columns)
            return jnp.einsum("bgnst,bgtd->bsgnd", grouped, v).reshape(B, rows, H * D)
        return jnp.einsum("bhst,bhtd->bshd", weights, spread(v, values)).reshape(B, rows, H * D)

    random = np.random.default_rng(rows)
    shapes = [(B, H, rows, D), (B, COUNT[keys], columns, D), (B, COUNT[values], columns, D)]
    check_function(attention, *(random.standard_normal(shape).astype(np.float32) for shape in shapes))
