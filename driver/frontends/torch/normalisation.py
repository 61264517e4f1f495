"""Rows of normalisation by batch, layer and group, and of softmax, with their gradients."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.torch.registry import axis_of, row, widened


@row("_softmax")
def _softmax(x: Any, dim: int, half_to_float: bool = False) -> Any:
    return jax.nn.softmax(widened(x), axis_of(dim, x.ndim)) if x.ndim else jnp.ones_like(x)


@row("_safe_softmax")
def safe_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    """Zeros where there is nothing but minus infinity along ``dim``."""
    return (
        guarded_softmax(widened(x), axis_of(dim, x.ndim))[0] if x.ndim else jnp.where(x == -jnp.inf, 0, _softmax(x, 0))
    )


def guarded_softmax(scores: Any, axis: int) -> tuple[Any, Any]:
    """Shares along ``axis``, zeros where there is nothing but minus infinity; and logarithms of sums, with dims of 1.

    In the form that code generation knows as part of an attention.
    """
    top = lax.stop_gradient(jnp.max(scores, axis, keepdims=True))
    powers = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0))
    total = jnp.sum(powers, axis, keepdims=True)
    return powers / jnp.where(total == 0, 1, total), jnp.log(total) + top


@row("_log_softmax")
def _log_softmax(x: Any, dim: int, half_to_float: bool = False) -> Any:
    return jax.nn.log_softmax(widened(x), axis_of(dim, x.ndim)) if x.ndim else jnp.zeros_like(x)


def _normalised(x: Any, axes: Sequence[int], epsilon: float) -> tuple[Any, Any, Any]:
    """``x`` with mean 0 and variance 1 over ``axes``, the mean, and one over the standard deviation."""
    given = widened(x)
    mean = jnp.mean(given, tuple(axes), keepdims=True)
    variance = jnp.mean(jnp.square(given - mean), tuple(axes), keepdims=True)
    inverse = lax.rsqrt(variance + epsilon)
    return (given - mean) * inverse, mean, inverse


def _scaled(x: Any, weight: Any, bias: Any, shape: Sequence[int]) -> Any:
    x = x if weight is None else x * widened(weight).reshape(shape)
    return x if bias is None else x + widened(bias).reshape(shape)


@row("native_layer_norm")
def layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, epsilon: float) -> Any:
    """``x`` normalised over its last dims, which have ``shape``, the means, and one over the standard deviations."""
    axes = range(x.ndim - len(shape), x.ndim)
    result, mean, inverse = _normalised(x, axes, epsilon)
    return _scaled(result, weight, bias, shape), mean, inverse


@row("native_group_norm")
def _group_norm(
    x: Any, weight: Any, bias: Any, batch: int, features: int, area: int, groups: int, epsilon: float
) -> Any:
    parts = x.reshape(batch, groups, features // groups * area)
    result, mean, inverse = _normalised(parts, [2], epsilon)
    shape = (1, features, *[1] * (x.ndim - 2))
    return _scaled(result.reshape(x.shape), weight, bias, shape), mean[..., 0], inverse[..., 0]


def _feature_axes(x: Any) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _feature_shape(x: Any) -> tuple[int, ...]:
    return (1, -1, *[1] * (x.ndim - 2))


def _apply(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, epsilon: float) -> Any:
    """One product and one sum an element, as torch's own kernel for CPUs computes it: their factors are of features."""
    factor = lax.rsqrt(widened(variance) + epsilon)
    factor = factor if weight is None else factor * widened(weight)
    shift = -widened(mean) * factor
    shift = shift if bias is None else widened(bias) + shift
    return widened(x) * factor.reshape(_feature_shape(x)) + shift.reshape(_feature_shape(x))


@row("_native_batch_norm_legit_no_training")
def _batch_norm_inference(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> Any:
    nothing = jnp.zeros(0, x.dtype)
    return _apply(x, weight, bias, mean, variance, epsilon), nothing, nothing


@row("_native_batch_norm_legit_functional")
def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, epsilon: float
) -> Any:
    """The result, what its gradient wants, and the running mean and variance."""
    if not training:
        nothing = jnp.zeros(0, x.dtype)
        return _apply(x, weight, bias, mean, variance, epsilon), nothing, nothing, mean, variance
    result, own_mean, inverse, own_variance, count = _batch_moments(x, weight, bias, epsilon)
    if mean is None:
        return result, own_mean, inverse, mean, variance
    unbiased = own_variance * (count / max(count - 1, 1))
    return (
        result,
        own_mean,
        inverse,
        own_mean.astype(mean.dtype) * momentum + mean * (1 - momentum),
        unbiased.astype(variance.dtype) * momentum + variance * (1 - momentum),
    )


def _batch_moments(x: Any, weight: Any, bias: Any, epsilon: float) -> tuple[Any, Any, Any, Any, int]:
    axes = _feature_axes(x)
    result, mean, inverse = _normalised(x, axes, epsilon)
    variance = jnp.mean(jnp.square(widened(x) - mean), axes)
    count = int(np.prod([x.shape[axis] for axis in axes]))
    return (
        _scaled(result, weight, bias, _feature_shape(x)),
        jnp.squeeze(mean, axes),
        jnp.squeeze(inverse, axes),
        variance,
        count,
    )


@row("_native_batch_norm_legit.no_stats")
def _batch_norm_without_running(x: Any, weight: Any, bias: Any, training: bool, momentum: float, epsilon: float) -> Any:
    return _batch_moments(x, weight, bias, epsilon)[:3]


@row("native_batch_norm_backward")
def _batch_norm_backward(
    given: Any,
    x: Any,
    weight: Any,
    running_mean: Any,
    running_variance: Any,
    mean: Any,
    inverse: Any,
    training: bool,
    epsilon: float,
    wanted: Sequence[bool],
) -> Any:
    shape, axes = _feature_shape(x), _feature_axes(x)
    given, wide = widened(given), widened(x)
    if not training:
        mean, inverse = running_mean, lax.rsqrt(widened(running_variance) + epsilon)
    apart = (wide - widened(mean).reshape(shape)) * widened(inverse).reshape(shape)
    for_bias, for_weight = jnp.sum(given, axes), jnp.sum(given * apart, axes)
    scale = widened(inverse) if weight is None else widened(inverse) * widened(weight)
    inner = given
    if training:
        count = wide.size // wide.shape[1]
        inner = given - (for_bias / count).reshape(shape) - apart * (for_weight / count).reshape(shape)
    return inner * scale.reshape(shape), for_weight if wanted[1] else None, for_bias if wanted[2] else None


@row("native_layer_norm_backward")
def _layer_norm_backward(
    given: Any,
    x: Any,
    shape: Sequence[int],
    mean: Any,
    inverse: Any,
    weight: Any,
    bias: Any,
    wanted: Sequence[bool],
) -> Any:
    split = x.ndim - len(shape)
    outer, axes = tuple(range(split)), tuple(range(split, x.ndim))
    given, apart = widened(given), (widened(x) - mean) * inverse
    inner = given if weight is None else given * widened(weight)
    along = jnp.mean(inner * apart, axes, keepdims=True)
    for_x = (inner - jnp.mean(inner, axes, keepdims=True) - apart * along) * inverse
    for_weight = jnp.sum(given * apart, outer) if wanted[1] else None
    return for_x, for_weight, jnp.sum(given, outer) if wanted[2] else None


@row("_weight_norm_interface_backward")
def _weight_norm_backward(given: Any, x: Any, scale: Any, norms: Any, dim: int) -> Any:
    """Gradients of ``x`` and of its lengths ``scale``, for ``x * scale / norms``; norms are over all dims but one."""
    axes = tuple(axis for axis in range(x.ndim) if axis != dim % x.ndim)
    along = jnp.sum(given * x, axes, keepdims=True) / norms
    return scale / norms * (given - x * along / norms), along
