"""Normalisation by statistics of batch, instance or layer; dropout, which does nothing in inference."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.onnx.shapes import normal
from neuronx_cc.driver.frontends.onnx.table import Value, op, refusal


def _channels(vector: Value, rank: int) -> Value:
    return vector.reshape(1, -1, *(1,) * (rank - 2))


@op("BatchNormalization")
def batch_normalization(
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    var: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Value:
    running: tuple[Value, ...] = ()
    if training_mode:
        axes = (0, *range(2, x.ndim))
        now_mean, now_var = jnp.mean(x, axes), jnp.var(x, axes)
        running = (
            (mean * momentum + now_mean * (1 - momentum)).astype(mean.dtype),
            (var * momentum + now_var * (1 - momentum)).astype(var.dtype),
        )
        mean, var = now_mean, now_var
    factor = scale.astype(np.float32) * lax.rsqrt(var.astype(np.float32) + np.float32(epsilon))
    if x.dtype == np.float64:
        factor = scale.astype(x.dtype) * lax.rsqrt(var.astype(x.dtype) + epsilon)
    shift = bias.astype(factor.dtype) - mean.astype(factor.dtype) * factor
    made = (x * _channels(factor, x.ndim) + _channels(shift, x.ndim)).astype(x.dtype)
    return (made, *running)


@op("InstanceNormalization")
def instance_normalization(input: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5) -> Value:
    axes = tuple(range(2, input.ndim))
    mean = jnp.mean(input, axes, keepdims=True)
    var = jnp.var(input, axes, keepdims=True)
    normal_ = (input - mean) * lax.rsqrt(var + np.asarray(epsilon, input.dtype))
    return normal_ * _channels(scale, input.ndim) + _channels(bias, input.ndim)


@op("LayerNormalization")
def layer_normalization(
    x: Value, scale: Value, bias: Value = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Value:
    axes = tuple(range(normal(axis, x.ndim), x.ndim))
    wide = x.astype(np.float32) if stash_type == 1 else x
    mean = jnp.mean(wide, axes, keepdims=True)
    inverse = lax.rsqrt(jnp.mean(jnp.square(wide - mean), axes, keepdims=True) + np.asarray(epsilon, wide.dtype))
    made = ((wide - mean) * inverse).astype(x.dtype) * scale
    return made if bias is None else made + bias, mean, inverse


@op("LRN")
def local_response(x: Value, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int) -> Value:
    low = (size - 1) // 2
    window, pads = (1, size, *(1,) * (x.ndim - 2)), ((0, 0), (low, size - 1 - low), *((0, 0),) * (x.ndim - 2))
    squares = lax.reduce_window(jnp.square(x), np.zeros((), x.dtype), lax.add, window, (1,) * x.ndim, pads)
    return x / (bias + alpha / size * squares) ** beta


@op("Dropout", static=("ratio", "training_mode"))
def dropout(
    data: Value, ratio: Value = None, training_mode: Value = None, *, seed: int | None = None, count: int = 1
) -> Value:
    part = 0.5 if ratio is None else float(np.asarray(ratio).reshape(()))
    if training_mode is None or not bool(np.asarray(training_mode).reshape(())) or part == 0:
        return data, np.ones(data.shape, bool) if count > 1 else None
    if part >= 1:
        raise refusal("a ratio of 1 leaves nothing", code="EVRF064")
    kept = jax.random.bernoulli(jax.random.key(0 if seed is None else seed), 1 - part, data.shape)
    return jnp.where(kept, data / np.asarray(1 - part, data.dtype), np.zeros((), data.dtype)), kept
