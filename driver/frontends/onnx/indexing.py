"""Gathers, scatters and selections by index. Results whose sizes depend on values need known inputs."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.onnx.shapes import normal
from neuronx_cc.driver.frontends.onnx.table import Value, namespace, op, refusal
from neuronx_cc.driver.frontends.onnx.types import checked


def _positive(indices: Value, length: int) -> Value:
    """Indices from the front."""
    if isinstance(indices, np.ndarray):
        if indices.size and not (-length <= indices.min() and indices.max() < length):
            raise refusal(f"indices reach from {indices.min()} to {indices.max()}, there are {length}", code="EVRF056")
        return np.where(indices < 0, indices + length, indices)
    if np.dtype(indices.dtype).kind == "u":
        return indices
    return jnp.where(indices < 0, indices + np.asarray(length, indices.dtype), indices)


@op("Gather")
def gather(data: Value, indices: Value, *, axis: int = 0) -> Value:
    axis = normal(axis, data.ndim)
    chosen = _positive(indices, data.shape[axis])
    if namespace(data, indices) is np:
        return np.take(data, chosen, axis)
    return jnp.take(data, chosen, axis, mode="clip")


@op("GatherElements")
def gather_elements(data: Value, indices: Value, *, axis: int = 0) -> Value:
    axis = normal(axis, data.ndim)
    index = [
        jnp.arange(n).reshape([-1 if i == j else 1 for j in range(data.ndim)]) for i, n in enumerate(indices.shape)
    ]
    index[axis] = _positive(indices, data.shape[axis])
    return jnp.asarray(data)[tuple(index)]


@op("GatherND")
def gather_nd(data: Value, indices: Value, *, batch_dims: int = 0) -> Value:
    index = [
        jnp.arange(n).reshape([-1 if i == j else 1 for j in range(indices.ndim - 1)])
        for i, n in enumerate(indices.shape[:batch_dims])
    ]
    index += [_positive(indices[..., i], data.shape[batch_dims + i]) for i in range(indices.shape[-1])]
    return jnp.asarray(data)[tuple(index)]


_REDUCTIONS = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}


def _reduced(data: Value, index: tuple[Value, ...], updates: Value, reduction: str) -> Value:
    return getattr(jnp.asarray(data).at[index], _REDUCTIONS[reduction])(updates)


@op("Scatter", "ScatterElements")
def scatter_elements(data: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = "none") -> Value:
    axis = normal(axis, data.ndim)
    index = [
        jnp.arange(n).reshape([-1 if i == j else 1 for j in range(data.ndim)]) for i, n in enumerate(indices.shape)
    ]
    index[axis] = _positive(indices, data.shape[axis])
    return _reduced(data, tuple(index), updates, reduction)


@op("ScatterND")
def scatter_nd(data: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Value:
    index = tuple(_positive(indices[..., i], data.shape[i]) for i in range(indices.shape[-1]))
    return _reduced(data, index, updates, reduction)


@op("TensorScatter")
def tensor_scatter(
    past_cache: Value, update: Value, write_indices: Value = None, *, axis: int = -2, mode: str = "linear"
) -> Value:
    axis = normal(axis, past_cache.ndim)
    batch, length, steps = past_cache.shape[0], past_cache.shape[axis], update.shape[axis]
    first = jnp.zeros(batch, np.int32) if write_indices is None else jnp.asarray(write_indices)
    rows = first[:, None] + jnp.arange(steps, dtype=first.dtype)[None, :]
    rows = rows % length if mode == "circular" else rows
    moved = jnp.moveaxis(jnp.asarray(past_cache), axis, 1)
    written = moved.at[jnp.arange(batch)[:, None], rows].set(jnp.moveaxis(jnp.asarray(update), axis, 1))
    return jnp.moveaxis(written, 1, axis)


@op("OneHot", static=("depth",))
def one_hot(indices: Value, depth: Value, values: Value, *, axis: int = -1) -> Value:
    count = int(depth.reshape(-1)[0])
    checked([*indices.shape, count])
    axis = normal(axis, indices.ndim + 1)
    whole = jnp.asarray(indices)
    chosen = jnp.where(whole < 0, whole + np.asarray(count, whole.dtype), whole)
    places = jnp.arange(count).reshape([-1 if i == axis else 1 for i in range(indices.ndim + 1)])
    return jnp.where(jnp.expand_dims(chosen, axis) == places, values[1], values[0])


@op("Compress", static=("condition",))
def compress(input: Value, condition: Value, *, axis: int | None = None) -> Value:
    flat = input.reshape(-1) if axis is None else input
    return namespace(flat).take(flat, np.flatnonzero(condition), 0 if axis is None else axis)


@op("NonZero", static=("X",), note="of known arrays, for the size of the result depends on the values")
def non_zero(X: Value) -> Value:
    return np.asarray(np.nonzero(X), np.int64)


@op("Unique", static=("X",), note="of known arrays, for the size of the result depends on the values")
def unique(X: Value, *, axis: int | None = None, sorted: int = 1) -> Value:
    found, first, inverse, counts = np.unique(X, True, True, True, axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        found = np.take(found, order, 0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return found, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@op("NonMaxSuppression", static=("boxes", "scores", "max_output_boxes_per_class", "iou_threshold", "score_threshold"),
    note="of known arrays, for the number of boxes depends on the values")  # fmt: skip
def non_max_suppression(
    boxes: Value,
    scores: Value,
    max_output_boxes_per_class: Value = None,
    iou_threshold: Value = None,
    score_threshold: Value = None,
    *,
    center_point_box: int = 0,
) -> Value:
    most = 0 if max_output_boxes_per_class is None else int(max_output_boxes_per_class.reshape(()))
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.reshape(()))
    rows = []
    for batch, kind in np.ndindex(*scores.shape[:2]):
        points = boxes[batch].astype(np.float64)
        if center_point_box:
            points = np.concatenate([points[:, :2] - points[:, 2:] / 2, points[:, :2] + points[:, 2:] / 2], 1)
        low, high = np.minimum(points[:, :2], points[:, 2:]), np.maximum(points[:, :2], points[:, 2:])
        area = np.prod(high - low, 1)
        kept: list[int] = []
        for box in np.argsort(-scores[batch, kind], kind="stable"):
            if len(kept) >= most or (score_threshold is not None and scores[batch, kind, box] <= score_threshold):
                break
            shared = np.prod(np.maximum(np.minimum(high[kept], high[box]) - np.maximum(low[kept], low[box]), 0), 1)
            if not np.any(shared > overlap * (area[kept] + area[box] - shared)):
                kept.append(int(box))
        rows += [(batch, kind, box) for box in kept]
    return np.asarray(rows, np.int64).reshape(-1, 3)


@op("TopK", static=("k",))
def top_k(x: Value, k: Value, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Value:
    """Of equal elements the first ones."""
    axis = normal(axis, x.ndim)
    count = int(np.asarray(k).reshape(()))
    if not 0 <= count <= x.shape[axis]:
        raise refusal(f"the {count} largest of {x.shape[axis]}", code="EVRF064")
    rows = jnp.moveaxis(jnp.asarray(x), axis, -1)
    if largest:
        values, places = lax.top_k(rows, count)
    else:
        places = jnp.argsort(rows, -1, stable=True)[..., :count]
        values = jnp.take_along_axis(rows, places, -1)
    return jnp.moveaxis(values, -1, axis), jnp.moveaxis(places.astype(np.int64), -1, axis)


@op("TfIdfVectorizer", note="of integers")
def tf_idf(
    x: Value,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    weights: Sequence[float] = (),
) -> Value:
    """How often each n-gram of the pool is in each row; its items may lie up to ``max_skip_count + 1`` apart."""
    if not pool_int64s:
        raise refusal("its pool is of strings, which no device computes with", code="ESPP004")
    rows = jnp.asarray(x).reshape(-1, x.shape[-1])
    width = max(ngram_indexes) + 1
    checked([width])
    made = [jnp.zeros(rows.shape[0], np.float32)] * width
    ends = [*ngram_counts[1:], len(pool_int64s)]
    number = 0
    for length, (first, last) in enumerate(zip(ngram_counts, ends, strict=True), 1):
        for at in range(first, last, length):
            gram = pool_int64s[at : at + length]
            if min_gram_length <= length <= max_gram_length:
                made[ngram_indexes[number]] = made[ngram_indexes[number]] + _gram_count(rows, gram, max_skip_count)
            number += 1
    counts = jnp.stack(made, -1).reshape(*x.shape[:-1], width)
    factors = np.ones(width, np.float32)
    if weights:
        factors[list(ngram_indexes)] = weights
    return counts if mode == "TF" else (counts > 0) * factors if mode == "IDF" else counts * factors


def _gram_count(rows: Value, gram: Sequence[int], skips: int) -> Value:
    total = jnp.zeros(rows.shape[0], np.float32)
    for step in range(1, skips + 2 if len(gram) > 1 else 2):
        count = rows.shape[1] - step * (len(gram) - 1)
        if count > 0:
            found = [rows[:, i * step : i * step + count] == item for i, item in enumerate(gram)]
            total = total + jnp.sum(jnp.stack(found).all(0), 1, dtype=np.float32)
    return total
