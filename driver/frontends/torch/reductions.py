"""Rows of operators that fold dims: sums, extrema, moments, cumulative sums."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.torch.registry import axes_of, axis_of, kind, row, widened

Dims = int | Sequence[int] | None


@row("nansum")
def _sum_of_numbers(x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return _sum(jnp.where(jnp.isnan(x), 0, x), dim, keepdim, dtype)


@row("sum")
def _sum(x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    wanted = dtype or (np.int64 if kind(x.dtype) < 2 else x.dtype)
    return jnp.sum(x.astype(wanted), axes_of(dim, x.ndim), keepdims=keepdim)


@row("mean")
def _mean(x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return jnp.mean(x if dtype is None else x.astype(dtype), axes_of(dim, x.ndim), keepdims=keepdim)


@row("prod")
def _prod(x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    wanted = dtype or (np.int64 if kind(x.dtype) < 2 else x.dtype)
    return jnp.prod(x.astype(wanted), axes_of(dim, x.ndim), keepdims=keepdim)


row("amax")(lambda x, dim=None, keepdim=False: jnp.max(x, axes_of(dim, x.ndim), keepdims=keepdim))
row("amin")(lambda x, dim=None, keepdim=False: jnp.min(x, axes_of(dim, x.ndim), keepdims=keepdim))
row("any", "_is_any_true")(lambda x, dim=None, keepdim=False: jnp.any(x, axes_of(dim, x.ndim), keepdims=keepdim))
row("all", "_is_all_true")(lambda x, dim=None, keepdim=False: jnp.all(x, axes_of(dim, x.ndim), keepdims=keepdim))
row("max.default")(jnp.max)
row("min.default")(jnp.min)
row("max.other")(jnp.maximum)
row("min.other")(jnp.minimum)
row("argmax")(lambda x, dim=None, keepdim=False: _argument(jnp.argmax, x, dim, keepdim))
row("argmin")(lambda x, dim=None, keepdim=False: _argument(jnp.argmin, x, dim, keepdim))
row("aminmax")(lambda x, dim=None, keepdim=False: (_whole(jnp.min, x, dim, keepdim), _whole(jnp.max, x, dim, keepdim)))
row("count_nonzero")(lambda x, dim=None: jnp.sum((x != 0).astype(np.int64), axes_of(dim, x.ndim)))


def _whole(function: Any, x: Any, dim: int | None, keepdim: bool) -> Any:
    return function(x, axes_of(dim, x.ndim), keepdims=keepdim)


def _argument(function: Any, x: Any, dim: int | None, keepdim: bool) -> Any:
    if not x.ndim:
        return jnp.zeros((), np.int64)
    if kind(x.dtype) == 0:
        x = x.astype(np.int8)
    return function(x, axis=None if dim is None else axis_of(dim, x.ndim), keepdims=keepdim)


@row("max.dim")
def _max_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    return _whole(jnp.max, x, dim, keepdim), _argument(jnp.argmax, x, dim, keepdim)


@row("min.dim")
def _min_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    return _whole(jnp.min, x, dim, keepdim), _argument(jnp.argmin, x, dim, keepdim)


@row("var_mean")
def var_mean(x: Any, dim: Dims = None, correction: Any = 1, keepdim: bool = False) -> Any:
    """Variance and mean; ``correction``, any number, is taken off that of elements, or is a flag for one."""
    axes = axes_of(dim, x.ndim)
    mean = jnp.mean(x, axes, keepdims=True)
    apart = x - mean
    squares = jnp.square(jnp.abs(apart)) if kind(x.dtype) == 3 else jnp.square(apart)
    total = jnp.sum(squares, axes, keepdims=keepdim)
    count = int(np.prod([x.shape[axis] for axis in axes]))
    less = 1 if correction is None else correction
    variance = total / count if not less else total / max(count - less, 0)
    return variance, mean if keepdim else jnp.squeeze(mean, axes)


row("var")(lambda x, dim=None, correction=1, keepdim=False: var_mean(x, dim, correction, keepdim)[0])
row("std")(lambda x, dim=None, correction=1, keepdim=False: jnp.sqrt(var_mean(x, dim, correction, keepdim)[0]))


def _running(function: Any, x: Any, dim: int, dtype: Any = None) -> Any:
    wanted = dtype or (np.int64 if kind(x.dtype) < 2 else x.dtype)
    return function(x.astype(wanted), axis=axis_of(dim, x.ndim)) if x.ndim else x.astype(wanted)


row("cumsum")(lambda x, dim, dtype=None: _running(jnp.cumsum, x, dim, dtype))
row("cumprod")(lambda x, dim, dtype=None: _running(jnp.cumprod, x, dim, dtype))
row("logcumsumexp")(lambda x, dim: lax.cumlogsumexp(x, axis=axis_of(dim, x.ndim)) if x.ndim else x)


def _running_extreme(function: Any, x: Any, dim: int) -> Any:
    """Running extrema and where each stands last."""
    if not x.ndim:
        return x, jnp.zeros((), np.int64)
    axis = axis_of(dim, x.ndim)
    values = function(x.astype(np.int32) if kind(x.dtype) == 0 else x, axis=axis)
    places = lax.broadcasted_iota(np.int64, x.shape, axis)
    here = (x == values) | ((x != x) & (values != values) if kind(x.dtype) == 2 else False)
    return values, lax.cummax(jnp.where(here, places, 0), axis=axis)


row("cummax")(lambda x, dim: _running_extreme(lax.cummax, x, dim))
row("cummin")(lambda x, dim: _running_extreme(lax.cummin, x, dim))


@row("linalg_vector_norm")
def _norm(x: Any, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    x = jnp.abs(x if dtype is None else x.astype(dtype))
    axes = axes_of(dim, x.ndim)
    if ord == 0:
        return jnp.sum((x != 0).astype(x.dtype), axes, keepdims=keepdim)
    if abs(ord) == np.inf:
        return (jnp.max if ord > 0 else jnp.min)(x, axes, keepdims=keepdim)
    if ord == 1:
        return jnp.sum(x, axes, keepdims=keepdim)
    if ord == 2:
        return jnp.sqrt(jnp.sum(jnp.square(widened(x)), axes, keepdims=keepdim)).astype(x.dtype)
    return jnp.power(jnp.sum(jnp.power(widened(x), ord), axes, keepdims=keepdim), 1 / ord).astype(x.dtype)
