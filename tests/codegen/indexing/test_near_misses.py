"""Indices that only look as if they counted, and updates that only look as if they could be counted."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

ROWS = 300


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "bfloat16", "float16", "float32"])
def test_counts_in_narrow_types(dtype: str) -> None:
    """Row numbers that wrap or round in a type that they pass through are no row numbers any more."""
    random = np.random.default_rng(3)
    x, columns = random.standard_normal((ROWS, 5)).astype(np.float32), random.integers(0, 5, ROWS).astype(np.int32)
    numbers = lambda: jnp.arange(ROWS).astype(dtype).astype(jnp.int32)  # noqa: E731
    check_function(lambda x, i: (x[numbers(), i], x.at[numbers(), i].add(x[:, 0])), x, columns)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("most", [17.7, 299.7, 2051.0, 70000.0])
def test_limits_round_as_elements_do(dtype: str, most: float) -> None:
    """What was clamped lies beyond the limit once it is rounded: comparisons with it, and clamps, are still made."""
    x = np.random.default_rng(5).uniform(-2 * most, 2 * most, (130, 3)).astype(np.float32)

    def function(x: Any) -> Any:
        y = jnp.clip(x, -most, most).astype(dtype).astype(jnp.float32)
        return y > most, y < -most, jnp.minimum(y, most), jnp.clip(y.astype(jnp.int32), -int(most), int(most))

    check_function(function, x)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 2.5])
def test_one_number_added_at_many_places(number: float) -> None:
    """Bins to which nothing is added keep what they have, whatever is added to others."""
    places = np.random.default_rng(4).integers(0, 100, 5000).astype(np.int32)
    check_function(lambda i: jnp.zeros(128).at[i].add(np.float32(number)), places)
