"""The last elements along a dim that are one number are written where the others lie."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function


def rows_and_weights(rows: int, columns: int, dtype: Any = np.float32) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return tuple(random.standard_normal(dims).astype(dtype) for dims in ((rows, 64), (64, columns)))  # type: ignore[return-value]


def kept(s: Any, end: int, number: float) -> Any:
    return jnp.where(jnp.arange(s.shape[-1]) < end, s, number)


@pytest.mark.parametrize(("rows", "columns", "end"), [(126, 252, 251), (256, 130, 1), (96, 300, 100)])
@pytest.mark.parametrize("number", [-np.inf, 0.5])
def test_values(rows: int, columns: int, end: int, number: float) -> None:
    def function(x: Any, w: Any) -> Any:
        s = kept(x @ w, end, number)
        e = jnp.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    compiled = check_function(function, *rows_and_weights(rows, columns))
    assert any("select" in name for name in compiled.program.kernels), compiled.program.kernels


def test_other_readers_keep_what_they_read() -> None:
    def function(x: Any, w: Any) -> Any:
        s = x @ w
        return kept(s, 100, 3.0).sum(-1), s.sum(-1)

    compiled = check_function(function, *rows_and_weights(126, 252))
    assert not any("select" in name for name in compiled.program.kernels), compiled.program.kernels


def test_results() -> None:
    """What is a result of the program has a home of its own."""
    check_function(lambda x, w: kept(x @ w, 100, 3.0), *rows_and_weights(126, 252))
    check_function(lambda x, w: kept(x @ w, 100, 3.0)[:, :64], *rows_and_weights(126, 252))
