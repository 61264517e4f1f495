"""What looks like attention with a causal mask, and is not: masked by another dim than rows, its scores as values."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_schedules import drawn_schedules
from generated import check_function

Array = Any


def scored(q: Array, k: Array, v: Array, mask: Callable[[Array], Array]) -> Array:
    scores = mask(jnp.einsum("bhsd,bhtd->bhst", q, k))
    return jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(scores, -1), v)


def arrays(batch: int, heads: int, rows: int, columns: int = 16) -> list[np.ndarray]:
    random = np.random.default_rng(7)
    sizes = [(batch, heads, size, 16) for size in (rows, columns, columns)]
    return [random.standard_normal(dims).astype(np.float32) for dims in sizes]


@pytest.mark.parametrize("fill", [-jnp.inf, -1e9, float(jnp.finfo(jnp.float32).min)])
@pytest.mark.parametrize(("batch", "heads", "rows"), [(2, 3, 1), (3, 1, 1), (2, 3, 8)])
def test_masks_by_heads_and_batches(batch: int, heads: int, rows: int, fill: float) -> None:
    """With a single row, heads have the stride of rows."""
    for axis, size in ((0, batch), (1, heads), (2, rows)):
        numbers = np.arange(size).reshape([size if at == axis else 1 for at in range(4)])
        with drawn_schedules(None):
            check_function(
                lambda q, k, v, n=numbers: scored(q, k, v, lambda s: jnp.where(n >= jnp.arange(16), s, fill)),
                *arrays(batch, heads, rows),
            )


def test_masks_by_parts_of_rows() -> None:
    def mask(scores: Array) -> Array:
        parts = scores.reshape(2, 2, 4, 4, 16)
        kept = jnp.arange(4)[:, None] >= jnp.arange(16)
        return jnp.where(kept, parts, -jnp.inf).reshape(scores.shape)

    with drawn_schedules(None):
        check_function(lambda q, k, v: scored(q, k, v, mask), *arrays(2, 2, 16))


@pytest.mark.parametrize(
    "values", [lambda weights, logs: weights, lambda weights, logs: logs, lambda weights, logs: logs.swapaxes(2, 3)]
)
def test_values_made_of_the_scores(values: Callable[[Array, Array], Array]) -> None:
    """An entropy, and the square of what attends."""

    def program(q: Array, k: Array) -> Array:
        logs = jax.nn.log_softmax(jnp.einsum("bhsd,bhtd->bhst", q, k), -1)
        weights = jnp.exp(logs)
        return jnp.einsum("bhst,bhtd->bhsd", weights, values(weights, logs))

    with drawn_schedules(None):
        check_function(program, *arrays(2, 2, 16)[:2])
