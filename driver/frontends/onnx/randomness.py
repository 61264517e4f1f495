"""Random numbers: JAX's generator, seeded by the node's ``seed``. ONNX names no generator, so values are our own."""

from collections.abc import Sequence

import jax
import numpy as np

from neuronx_cc.driver.frontends.onnx.table import Value, op
from neuronx_cc.driver.frontends.onnx.types import checked, dtype_of

_NOTE = "numbers are JAX's, seeded by the attribute, or by 0"


def _key(seed: float | None) -> Value:
    return jax.random.key(int(np.float32(seed or 0).view(np.uint32)))


def _normal(shape: Sequence[int], dtype: Value, mean: float, scale: float, seed: float | None) -> Value:
    return jax.random.normal(_key(seed), checked(shape), dtype) * np.asarray(scale, dtype) + np.asarray(mean, dtype)


def _uniform(shape: Sequence[int], dtype: Value, low: float, high: float, seed: float | None) -> Value:
    return jax.random.uniform(_key(seed), checked(shape), dtype, low, high)


def _like(dtype: int, input: Value) -> Value:
    """The type of the result: that of ``input`` where none is given."""
    return dtype_of(dtype, "the result") if dtype else input.dtype


@op("RandomNormal", note=_NOTE)
def random_normal(
    *, shape: Sequence[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Value:
    return _normal(shape, dtype_of(dtype, "the result"), mean, scale, seed)


@op("RandomNormalLike", note=_NOTE)
def random_normal_like(
    input: Value, *, dtype: int = 0, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Value:
    return _normal(input.shape, _like(dtype, input), mean, scale, seed)


@op("RandomUniform", note=_NOTE)
def random_uniform(
    *, shape: Sequence[int], dtype: int = 1, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Value:
    return _uniform(shape, dtype_of(dtype, "the result"), low, high, seed)


@op("RandomUniformLike", note=_NOTE)
def random_uniform_like(
    input: Value, *, dtype: int = 0, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Value:
    return _uniform(input.shape, _like(dtype, input), low, high, seed)


@op("Bernoulli", note=_NOTE)
def bernoulli(input: Value, *, dtype: int = 0, seed: float | None = None) -> Value:
    drawn = _uniform(input.shape, np.dtype(np.float32), 0, 1, seed) < input
    return drawn.astype(_like(dtype, input))


@op("Multinomial", note=_NOTE)
def multinomial(input: Value, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Value:
    drawn = jax.random.categorical(_key(seed), input[:, None, :], -1, (input.shape[0], sample_size))
    return drawn.astype(dtype_of(dtype, "the result"))
