"""Rows that are added up at places that a sort's order says, as mixtures of experts do."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import check_function

PLACES = {
    "each": lambda order, top: order,
    "halves": lambda order, top: order // top,
    "remainders": lambda order, top: order % (order.shape[0] // top),
    "shifted": lambda order, top: (order + 1) // top,
    "backwards": lambda order, top: (order.shape[0] - 1 - order) // top,
    "keys": lambda order, top: order[::-1] // top,
}


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize(("tokens", "top", "width"), [(64, 2, 96), (130, 3, 64), (200, 1, 129), (33, 4, 130)])
def test_scatter(tokens: int, top: int, width: int, places: str, dtype: type) -> None:
    draw = np.random.default_rng(0)
    keys = draw.integers(0, 8, tokens * top).astype(np.int32)
    x = draw.standard_normal((tokens * top, width)).astype(dtype)

    def function(keys, x):
        order = jnp.argsort(keys)
        rows = x[order] * 2
        at = PLACES[places](order, 1 if places == "each" else top)
        height = tokens * top if places == "each" else tokens + (places == "shifted")
        return jnp.zeros((height, width), x.dtype).at[at].add(rows), order

    check_function(function, keys, x, relative=1e-2 if dtype != np.float32 else 2e-5)
