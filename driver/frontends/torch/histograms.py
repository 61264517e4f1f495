"""Rows that count values in bins."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from neuronx_cc.driver.frontends.torch.registry import row


@row("histc")
def _histc(x: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    if not x.size:
        return jnp.zeros(bins, x.dtype)
    low, high = (jnp.min(x), jnp.max(x)) if min == max else (jnp.asarray(min), jnp.asarray(max))
    level = low == high
    low, high = jnp.where(level, low - 1, low), jnp.where(level, high + 1, high)
    flat = x.reshape(-1)
    place = jnp.clip(jnp.floor((flat - low) / (high - low) * bins), 0, bins - 1).astype(np.int32)
    inside = (flat >= low) & (flat <= high)
    return jnp.zeros(bins, x.dtype).at[place].add(inside.astype(x.dtype))


def _edges(points: Any, bins: Sequence[int], span: Sequence[float] | None) -> list[Any]:
    """Edges of equal bins for each column of ``points`` [n, dims]; from least to largest value without a ``span``."""
    found = []
    for axis, count in enumerate(bins):
        if span is not None:
            low, high = (jnp.asarray(end, points.dtype) for end in span[2 * axis : 2 * axis + 2])
        elif points.shape[0]:
            low, high = jnp.min(points[:, axis]), jnp.max(points[:, axis])
        else:
            low, high = jnp.zeros((), points.dtype), jnp.ones((), points.dtype)
        level = low == high
        found.append(jnp.linspace(jnp.where(level, low - 0.5, low), jnp.where(level, high + 0.5, high), count + 1))
    return found


def _counted(points: Any, edges: Sequence[Any], weight: Any, density: bool) -> Any:
    """The weight of the ``points`` in each bin; the last edge belongs to the last bin."""
    place: Any = 0
    inside: Any = True
    for axis, along in enumerate(edges):
        values = points[:, axis]
        count = along.shape[0] - 1
        below = jnp.sum((along <= values[:, None]).astype(np.int32), -1) - 1
        place = place * count + jnp.clip(below, 0, count - 1)
        inside = inside & (values >= along[0]) & (values <= along[-1])
    shape = tuple(along.shape[0] - 1 for along in edges)
    given = jnp.ones(points.shape[:1], points.dtype) if weight is None else weight.reshape(-1).astype(points.dtype)
    total = jnp.zeros(int(np.prod(shape)), points.dtype).at[place].add(jnp.where(inside, given, 0)).reshape(shape)
    if density:
        total = total / jnp.sum(total)
        for axis, along in enumerate(edges):
            total = total / jnp.diff(along).reshape([-1 if other == axis else 1 for other in range(len(edges))])
    return total


@row("histogram.bin_ct")
def _histogram(x: Any, bins: int = 100, *, range: Any = None, weight: Any = None, density: bool = False) -> Any:
    points = x.reshape(-1, 1)
    edges = _edges(points, [bins], range)
    return _counted(points, edges, weight, density), edges[0]


@row("histogram.bins_tensor")
def _histogram_of(x: Any, bins: Any, *, weight: Any = None, density: bool = False) -> Any:
    return _counted(x.reshape(-1, 1), [bins], weight, density), bins


@row("_histogramdd_bin_edges")
def _bin_edges(x: Any, bins: Sequence[int], *, range: Any = None, weight: Any = None, density: bool = False) -> Any:
    return _edges(x.reshape(-1, x.shape[-1]), bins, range)


@row("_histogramdd_from_bin_cts")
def _counted_by(x: Any, bins: Sequence[int], *, range: Any = None, weight: Any = None, density: bool = False) -> Any:
    points = x.reshape(-1, x.shape[-1])
    return _counted(points, _edges(points, bins, range), weight, density)


@row("_histogramdd_from_bin_tensors")
def _counted_of(x: Any, bins: Sequence[Any], *, weight: Any = None, density: bool = False) -> Any:
    return _counted(x.reshape(-1, x.shape[-1]), bins, weight, density)
