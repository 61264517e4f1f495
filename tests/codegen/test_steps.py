"""Operands read with a step along their minor dim: loaded with what lies between, forwards and backwards."""

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import check_function
from jax import lax

DIMS = [(40,), (100_003,), (7, 130), (300, 257), (3, 5, 64), (4, 30_000)]


@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_steps(dims: tuple[int, ...], random: np.random.Generator) -> None:
    def function(x: Any) -> Any:
        backwards = jnp.abs(x[..., ::-2]).sum(-1), x[..., ::-1] * 2 + x
        return x[..., ::2] + 1, x[..., 1::3] * 2, x[..., ::9] - 1, *backwards, x[..., ::2].max(-1), x.T[::2] + 1

    check_function(function, random.standard_normal(dims).astype(np.float32))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.int8], ids=lambda t: np.dtype(t).name)
def test_narrow_types(dtype: Any, random: np.random.Generator) -> None:
    x = random.integers(0, 9, (64, 66)).astype(dtype)
    check_function(lambda x: (x[::2, ::2] + x[::2, ::-2], x[:, ::-1] + x[:, ::-1] * 2), x)


@pytest.mark.parametrize("dims", [(64, 5), (3, 43, 64), (300, 7), (4, 2000), (40, 4000)], ids=str)
@pytest.mark.parametrize("interior", [1, 3, 5])
def test_gaps(dims: tuple[int, ...], interior: int, random: np.random.Generator) -> None:
    x = random.integers(-9, 9, dims).astype(np.float32)
    padding = [(0, 0, 0)] * (len(dims) - 1) + [(2, 1, interior)]

    def function(x: Any) -> Any:
        return lax.pad(x, np.float32(-1), padding), lax.pad(x.astype(np.int16), np.int16(7), padding)

    check_function(function, x)
