"""A causal mask beside another one: where the other leaves no column of a row, all columns have equal weight."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from jax import lax

RNG = np.random.default_rng(0)


def normal(*dims: int) -> Any:
    return RNG.standard_normal(dims).astype(np.float32)


@pytest.mark.parametrize("first", ["causal", "other"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 256), (64, 64), (130, 256)])
def test_rows_without_columns(first: str, rows: int, columns: int) -> None:
    """Heads 0 and 2 are masked as a whole, of head 1 some columns are."""

    def attention(query: Any, keys: Any, values: Any, masked: Any) -> Any:
        scores = query @ keys.swapaxes(-1, -2) * 0.125
        least = jnp.finfo(scores.dtype).min
        causal = lax.broadcasted_iota(jnp.int32, (rows, columns), 0) >= lax.broadcasted_iota(
            jnp.int32, (rows, columns), 1
        )
        for mask in (causal, ~masked) if first == "causal" else (~masked, causal):
            scores = jnp.where(mask, scores, least)
        return jax.nn.softmax(scores, -1) @ values

    masked = np.zeros((1, 3, 1, columns), bool)
    masked[:, [0, 2]] = True
    masked[:, 1, :, 1::3] = True
    check_function(attention, *(normal(1, 3, size, 64) for size in (rows, columns, columns)), masked)
