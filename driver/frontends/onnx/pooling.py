"""Pooling: windows folded by maximum, mean or p-norm."""

from collections.abc import Sequence
from itertools import product
from math import prod

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.onnx.linear import Window, window_of
from neuronx_cc.driver.frontends.onnx.shapes import ints
from neuronx_cc.driver.frontends.onnx.table import Value, op
from neuronx_cc.driver.frontends.onnx.types import checked, is_float, limits

Ints = Sequence[int]


def _windows(x: Value, window: Window, initial: Value, fold: Value) -> Value:
    """``x`` [N, C, ...] with each window folded."""
    pads = [(low, high + more) for (low, high), more in zip(window.pads, window.extra, strict=True)]
    ones = (1, 1)
    return lax.reduce_window(
        jnp.asarray(x),
        initial,
        fold,
        (*ones, *window.kernel),
        (*ones, *window.strides),
        ((0, 0), (0, 0), *pads),
        window_dilation=(*ones, *window.dilations),
    )


@op("MaxPool")
def max_pool(
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    pads: Ints | None = None,
    storage_order: int = 0,
    strides: Ints | None = None,
    count: int = 1,
) -> Value:
    window = window_of(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    least = np.asarray(-np.inf if is_float(x.dtype) else limits(x.dtype)[0], x.dtype)
    if count == 1:
        return _windows(x, window, least, lax.max)
    return _with_places(jnp.asarray(x), window, least, storage_order)


def _with_places(x: Value, window: Window, least: Value, columns_first: int) -> tuple[Value, Value]:
    """The maxima, and where in the flat input the first of each lies."""
    widths = [(low, high + more) for (low, high), more in zip(window.pads, window.extra, strict=True)]
    padded = jnp.pad(x, [(0, 0), (0, 0), *widths], constant_values=least)
    spatial = x.shape[2:]
    inner = jnp.arange(prod(spatial)).reshape(spatial, order="F" if columns_first else "C")
    planes = jnp.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * len(spatial)) * prod(spatial)
    places = jnp.pad(planes + inner, [(0, 0), (0, 0), *widths])
    counts = [(n - s) // t + 1 for n, s, t in zip(padded.shape[2:], window.spans, window.strides, strict=True)]
    best: Value = None
    where: Value = None
    for offset in product(*map(range, window.kernel)):
        index = (slice(None), slice(None), *(
            slice(o * d, o * d + (n - 1) * t + 1, t)
            for o, d, n, t in zip(offset, window.dilations, counts, window.strides, strict=True)
        ))  # fmt: skip
        value, place = padded[index], places[index]
        if best is None:
            best, where = value, place
        else:
            better = value > best
            best, where = jnp.where(better, value, best), jnp.where(better, place, where)
    return best, where


@op("AveragePool")
def average_pool(
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    window = window_of(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    total = _windows(x, window, np.zeros((), x.dtype), lax.add)
    if not any(map(any, window.pads)) and not any(window.extra):
        return total / np.asarray(prod(window.kernel), x.dtype)
    ones = np.ones((1, 1, *x.shape[2:]), np.float32)
    if count_include_pad:
        ones = np.pad(ones, [(0, 0), (0, 0), *window.pads], constant_values=1)
        window = Window(window.kernel, window.strides, window.dilations, ((0, 0),) * len(window.pads), window.extra)
    return total / _windows(ones, window, np.float32(0), lax.add).astype(x.dtype)


@op("LpPool")
def lp_pool(
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    p: int = 2,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    window = window_of(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    total = _windows(jnp.abs(x) ** p, window, np.zeros((), x.dtype), lax.add)
    return total ** np.asarray(1 / p, x.dtype)


@op("GlobalAveragePool")
def global_average_pool(x: Value) -> Value:
    return jnp.mean(x, tuple(range(2, x.ndim)), keepdims=True)


@op("GlobalMaxPool")
def global_max_pool(x: Value) -> Value:
    return jnp.max(x, tuple(range(2, x.ndim)), keepdims=True)


@op("GlobalLpPool")
def global_lp_pool(x: Value, *, p: int = 2) -> Value:
    return jnp.sum(jnp.abs(x) ** p, tuple(range(2, x.ndim)), keepdims=True) ** np.asarray(1 / p, x.dtype)


@op("MaxUnpool", static=("output_shape",))
def max_unpool(
    x: Value,
    indices: Value,
    output_shape: Value = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    rank = len(kernel_shape)
    stride, margins = strides or (1,) * rank, pads or (0,) * (2 * rank)
    dims = [(n - 1) * stride[i] + kernel_shape[i] - margins[i] - margins[i + rank] for i, n in enumerate(x.shape[2:])]
    plain = checked((*x.shape[:2], *dims))
    shape = plain if output_shape is None else checked(ints(output_shape))
    place = jnp.unravel_index(jnp.asarray(indices).reshape(-1), plain)
    return jnp.zeros(shape, x.dtype).at[place].set(jnp.asarray(x).reshape(-1))
