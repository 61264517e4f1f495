"""Arrays that contractions add as sums leave PSUM, computed on chip before and read through views."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

COLUMNS = 48
VIEWS: dict[str, tuple[Callable[[int], tuple[int, ...]], Callable[[Any], Any]]] = {
    "a row of one partition": (lambda rows: (4, 82), lambda a: a[:1, 31:79]),
    "the same turned": (lambda rows: (4, 82), lambda a: a.T[31:79, 2:3].T),
    "one element": (lambda rows: (4, 82), lambda a: a[3:4, 5:6]),
    "a column": (lambda rows: (rows, 3), lambda a: a[:, 1:2]),
    "rows further down": (lambda rows: (rows + 5, COLUMNS), lambda a: a[5:]),
    "every second row": (lambda rows: (2 * rows, COLUMNS), lambda a: a[::2]),
    "every second column": (lambda rows: (rows, 2 * COLUMNS), lambda a: a[:, ::2]),
    "backwards": (lambda rows: (rows, COLUMNS), lambda a: a[:, ::-1]),
    "upside down": (lambda rows: (rows, COLUMNS), lambda a: a[::-1]),
    "turned": (lambda rows: (COLUMNS, rows), lambda a: a.T),
    "rows repeated": (lambda rows: (rows, 1, COLUMNS), lambda a: a[:1, 0]),
}
"""Dims of the array for so many rows, and the view."""


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("rows", [1, 2, 64, 128, 129])
def test_values(view: str, rows: int) -> None:
    dims, seen = VIEWS[view]
    random = np.random.default_rng(rows)
    x, w, a, b = (
        random.integers(-3, 4, dims).astype(np.float32) for dims in ((rows, 16), (16, COLUMNS), dims(rows), dims(rows))
    )
    check_function(lambda x, w, a, b: x @ w + seen(a + b), x, w, a, b, relative=0.0)
    check_function(lambda x, w, a, b: (x @ w + seen(a + b), jnp.maximum(a + b, 0)), x, w, a, b, relative=0.0)
