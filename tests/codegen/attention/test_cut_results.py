"""What is cut from the result of an attention before it is cast or divided is no result of that kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_schedules import drawn_schedules
from generated import check_function


def cast(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bhsd,bhtd->bhst", q, k) * 0.1, -1)
    return jnp.einsum("bhst,bhtd->bhsd", weights, v)[..., :63].astype(jnp.bfloat16)


def divided(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhsd,bhtd->bhst", q, k) * 0.1
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return jnp.einsum("bhst,bhtd->bhsd", weights, v)[..., :63] / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("function", [cast, divided])
def test_values(function: Callable[..., Any]) -> None:
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, 4, rows, 64)).astype(np.float32) for rows in (96, 256, 256))
    with drawn_schedules(None):
        check_function(function, q, k, v, relative=1e-2)
