"""What is computed of a reduction's result in 16 bits is rounded where something else is computed with it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, compile_text, text_of


def power(x: Any) -> Any:
    return x / jnp.sqrt((x * x).sum(-1, keepdims=True) / 3 + 0.5)


def log_sum(x: Any) -> Any:
    return x - (jnp.log(jnp.exp(x).sum(-1)) * 0.5)[:, None]


def several(x: Any) -> tuple[Any, Any, Any]:
    total = x.sum(0)
    return total * total + 1, jnp.where(total > 0, total, -total), x + total.reshape(1, -1) * 0.25


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("program", [power, log_sum, several])
def test_values(program: Any, dtype: Any) -> None:
    x = np.random.default_rng(3).standard_normal((40, 130)).astype(dtype)
    found = compile_text(text_of(program, x), TRN1).run([x])
    exact = jax.tree.leaves(program(jnp.asarray(x, jnp.float32)))
    error = {jnp.bfloat16: 2.0**-7, jnp.float16: 2.0**-10}[dtype]
    for result, want in zip(found, exact, strict=True):
        assert result.dtype == dtype
        scale = np.maximum(np.abs(want), 1)
        assert (np.abs(result.astype(np.float32) - want) / scale).max() <= 2 * error
