"""What is computed of a reduction's result in cast programs is rounded where something else is computed with it."""

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


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("program", [power, log_sum, several])
def test_cast_programs(program: Any, dtype: str) -> None:
    """Every value within 2 units of 16 bits of what FP32 gives."""
    x = np.random.default_rng(3).standard_normal((40, 130), np.float32)
    found = compile_text(text_of(program, x), TRN1, auto_cast="all", auto_cast_type=dtype).run([x])
    error = {"bf16": 2.0**-7, "fp16": 2.0**-10}[dtype]
    for result, want in zip(found, jax.tree.leaves(program(jnp.asarray(x))), strict=True):
        scale = np.maximum(np.abs(want), 1)
        assert (np.abs(result - want) / scale).max() <= 2 * error


@pytest.mark.parametrize("auto_cast", ["none", "matmult"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("program", [log_sum, jax.nn.log_softmax])
def test_programs_in_16_bits(program: Any, dtype: Any, auto_cast: str) -> None:
    """Each op rounds where XLA rounds: an attention's bias was 4 units off its result."""
    x = np.random.default_rng(3).standard_normal((40, 130)).astype(dtype)
    (found,) = compile_text(text_of(program, x), TRN1, auto_cast=auto_cast).run([x])
    want = np.asarray(jax.jit(program)(x))
    off = np.abs(found.astype(np.float64) - want.astype(np.float64))
    unit = float(jnp.finfo(dtype).eps) * np.maximum(np.abs(want.astype(np.float64)), 2.0**-6)
    assert (off > 0).mean() <= 0.02
    assert (off / unit).max() <= 1.01
