"""Rows of operators that pick and place elements by run-time indices, and that sort."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.torch.registry import axis_of, kind, limits, row


def _wrapped(index: Any, size: int) -> Any:
    """Indices counted from the front."""
    return jnp.where(index < 0, index + size, index)


@row("index_select", "index_select_copy")
def _index_select(x: Any, dim: int, index: Any) -> Any:
    if not x.ndim:
        return x
    result = jnp.take(x, index, axis_of(dim, x.ndim), mode="clip")
    return result if index.ndim else jnp.expand_dims(result, axis_of(dim, x.ndim))


@row("embedding")
def _embedding(table: Any, indices: Any, *_: Any) -> Any:
    return jnp.take(table, indices, axis=0, mode="clip")


@row("embedding_renorm")
def _embedding_renorm(table: Any, indices: Any, most: float, order: float) -> Any:
    """The table with those rows that are looked up no longer than ``most``."""
    lengths = jnp.sum(jnp.abs(table) ** order, -1, keepdims=True) ** (1 / order)
    named = jnp.zeros((table.shape[0], 1), bool).at[indices.reshape(-1)].set(True)
    return jnp.where(named & (lengths > most), table * (most / (lengths + 1e-7)), table)


@row("embedding_dense_backward")
def _embedding_backward(given: Any, indices: Any, count: int, padding: int, by_frequency: bool) -> Any:
    flat, rows = indices.reshape(-1), given.reshape(-1, given.shape[-1])
    if by_frequency:
        counts = jnp.zeros(count, rows.dtype).at[flat].add(1)
        rows = rows / jnp.take(counts, flat)[:, None]
    if padding >= 0:
        rows = jnp.where((flat == padding)[:, None], 0, rows)
    return jnp.zeros((count, given.shape[-1]), given.dtype).at[flat].add(rows, mode="drop")


def _places(x: Any, indices: Sequence[Any]) -> tuple[Any, ...]:
    """NumPy's index for torch's: None takes a dim whole; a mask must have become indices before."""
    for index in indices:
        if index is not None and index.dtype == np.bool_:
            raise NotImplementedError("a mask chooses how many elements there are")
    return tuple(slice(None) if index is None else index for index in indices)


@row("index.Tensor", "_unsafe_index.Tensor")
def _index(x: Any, indices: Sequence[Any]) -> Any:
    return x.at[_places(x, indices)].get(mode="clip")


@row("_unsafe_masked_index")
def _masked_index(x: Any, mask: Any, indices: Sequence[Any], fill: Any) -> Any:
    return jnp.where(mask, x.at[_places(x, indices)].get(mode="clip"), fill)


@row("index_put", "_unsafe_index_put")
def _index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False, *_: Any) -> Any:
    masks = [index for index in indices if index is not None and index.dtype == np.bool_]
    values = values.astype(x.dtype)
    if masks:
        return _put_masked(x, indices, values, accumulate)
    target = x.at[_places(x, indices)]
    return target.add(values) if accumulate else target.set(values)


def _put_masked(x: Any, indices: Sequence[Any], values: Any, accumulate: bool) -> Any:
    """One value, or one of each trailing element, where a leading mask is set."""
    if len([index for index in indices if index is not None]) > 1 or indices[0] is None:
        raise NotImplementedError("a mask among other indices")
    mask = indices[0]
    if values.ndim > x.ndim - mask.ndim and values.shape[: values.ndim - (x.ndim - mask.ndim)] != (1,):
        raise NotImplementedError("a mask chooses how many elements are stored")
    wide = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
    value = jnp.broadcast_to(
        values.reshape(values.shape[-(x.ndim - mask.ndim) :] if x.ndim > mask.ndim else ()), x.shape
    )
    return jnp.where(wide, x + value if accumulate else value, x)


@row("masked_scatter")
def _masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    x, mask = jnp.broadcast_arrays(x, mask)
    places = jnp.cumsum(mask.reshape(-1).astype(np.int32)) - 1
    taken = jnp.take(source.reshape(-1), jnp.maximum(places, 0), mode="clip").reshape(x.shape)
    return jnp.where(mask, taken, x)


@row("masked_scatter_backward")
def _masked_scatter_backward(gradient: Any, mask: Any, sizes: Sequence[int]) -> Any:
    """Elements under the mask, one after the other, and zeros after them."""
    gradient, mask = (each.reshape(-1) for each in jnp.broadcast_arrays(gradient, mask))
    count = int(np.prod(sizes))
    # what is not taken has no place
    places = jnp.where(mask, jnp.cumsum(mask.astype(np.int32)) - 1, count)
    return jnp.zeros(count, gradient.dtype).at[places].set(gradient, mode="drop").reshape(sizes)


@row("gather")
def _gather(x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    if not x.ndim or not index.ndim:
        return jnp.broadcast_to(x.reshape(()), index.shape)
    axis = axis_of(dim, x.ndim)
    within = tuple(slice(0, index.shape[i]) if i != axis else slice(None) for i in range(x.ndim))
    return jnp.take_along_axis(x[within], index, axis, mode="clip")


def _scatter_places(x: Any, dim: int, index: Any) -> Any:
    axis = axis_of(dim, x.ndim)
    grid = [lax.broadcasted_iota(index.dtype, index.shape, i) for i in range(index.ndim)]
    grid[axis] = _wrapped(index, x.shape[axis])
    return x.at[tuple(grid)]


@row("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")
def _scatter(x: Any, dim: int, index: Any, source: Any, reduce: str | None = None) -> Any:
    return _scatter_reduce(x, dim, index, source, {"add": "sum", "multiply": "prod"}.get(reduce or "", "set"))


@row("scatter_add")
def _scatter_add(x: Any, dim: int, index: Any, source: Any) -> Any:
    return _scatter_reduce(x, dim, index, source, "sum")


@row("scatter_reduce.two")
def _scatter_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    if not x.ndim:
        fitted = source.reshape((1,)) if hasattr(source, "reshape") else source
        return _scatter_reduce(x.reshape(1), 0, index.reshape(-1), fitted, reduce, include_self).reshape(())
    source = jnp.asarray(source).astype(x.dtype)
    if x.dtype == np.bool_ and reduce in ("sum", "prod"):
        whole = _scatter_reduce(x.astype(np.int32), dim, index, source.astype(np.int32), reduce, include_self)
        return whole != 0
    values = source[tuple(slice(0, size) for size in index.shape)] if source.ndim else source
    if not include_self and reduce != "set":
        low, high = limits(x.dtype)
        neutral = {"sum": 0, "mean": 0, "prod": 1, "amax": low, "amin": high}[reduce]
        x = _scatter_places(x, dim, index).set(jnp.asarray(neutral, x.dtype))
    target = _scatter_places(x, dim, index)
    if reduce == "mean":
        ones = jnp.zeros(x.shape, np.int32) if not include_self else jnp.ones(x.shape, np.int32)
        counts = jnp.maximum(_scatter_places(ones, dim, index).add(1), 1)
        total = target.add(values)
        return total // counts.astype(x.dtype) if kind(x.dtype) < 2 else total / counts.astype(x.dtype)
    place = {
        "set": target.set,
        "sum": target.add,
        "prod": target.multiply,
        "amax": target.max,
        "amin": target.min,
    }[reduce]
    return place(values)


@row("index_reduce")
def _index_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    if not x.ndim:
        return _scatter_reduce(x, 0, index, source, reduce, include_self)
    shape = [1] * x.ndim
    shape[axis_of(dim, x.ndim)] = -1
    places = jnp.broadcast_to(index.reshape(shape), source.shape)
    return _scatter_reduce(x, dim, places, source, reduce, include_self)


@row("index_add")
def _index_add(x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
    given = source.astype(x.dtype) * jnp.asarray(alpha, x.dtype)
    if not x.ndim:
        return x + given.reshape(-1).sum()
    return x.at[(slice(None),) * axis_of(dim, x.ndim) + (index,)].add(given)


@row("index_copy")
def _index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    if not x.ndim:
        return source.reshape(())
    return x.at[(slice(None),) * axis_of(dim, x.ndim) + (index,)].set(source)


@row("index_fill")
def _index_fill(x: Any, dim: int, index: Any, value: Any) -> Any:
    if not x.ndim:
        return jnp.asarray(value).astype(x.dtype)
    return x.at[(slice(None),) * axis_of(dim, x.ndim) + (index,)].set(jnp.asarray(value).astype(x.dtype))


@row("take")
def _take(x: Any, index: Any) -> Any:
    return jnp.take(x.reshape(-1), index, mode="wrap")


@row("put")
def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    target = x.reshape(-1).at[_wrapped(index.reshape(-1), x.size)]
    given = source.reshape(-1)
    return (target.add(given) if accumulate else target.set(given)).reshape(x.shape)


def sorted_with_places(x: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    """A stable sort along ``dim`` with NaN as the largest, and where each element stood."""
    if not x.ndim:
        return x, jnp.zeros((), np.int64)
    order = jnp.argsort(x, axis_of(dim, x.ndim), stable=True, descending=descending)
    return jnp.take_along_axis(x, order, axis_of(dim, x.ndim)), order.astype(np.int64)


@row("sort.default", "sort.stable")
def _sort(x: Any, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Any:
    return sorted_with_places(x, dim, descending)


@row("argsort")
def _argsort(x: Any, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Any:
    return sorted_with_places(x, dim, descending)[1]


@row("topk")
def _topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not x.ndim:
        return x, jnp.zeros((), np.int64)
    values, places = sorted_with_places(x, dim, largest)
    axis = axis_of(dim, x.ndim)
    return lax.slice_in_dim(values, 0, k, 1, axis), lax.slice_in_dim(places, 0, k, 1, axis)


@row("kthvalue")
def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, jnp.zeros((), np.int64)
    axis = axis_of(dim, x.ndim)
    return tuple(lax.index_in_dim(part, k - 1, axis, keepdim) for part in sorted_with_places(x, axis, False))


@row("median.dim")
def _median(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower of two middle elements; a row with NaN has NaN."""
    if not x.ndim:
        return x, jnp.zeros((), np.int64)
    axis = axis_of(dim, x.ndim)
    values, places = _kthvalue(x, (x.shape[axis] + 1) // 2, axis, True)
    if kind(x.dtype) == 2:
        bad = jnp.isnan(x)
        none = ~jnp.any(bad, axis, keepdims=True)
        values = jnp.where(none, values, jnp.nan)
        places = jnp.where(none, places, jnp.argmax(bad, axis, keepdims=True))
    return (values, places) if keepdim else (jnp.squeeze(values, axis), jnp.squeeze(places, axis))


@row("nanmedian.dim")
def _nanmedian(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The same of what is no NaN, if there is any."""
    if not x.ndim or kind(x.dtype) != 2:
        return _median(x, dim, keepdim)
    axis = axis_of(dim, x.ndim)
    number = jnp.maximum(jnp.sum(~jnp.isnan(x), axis, keepdims=True) - 1, 0) // 2
    found = [jnp.take_along_axis(part, number, axis) for part in sorted_with_places(x, axis, False)]
    return tuple(found) if keepdim else tuple(jnp.squeeze(part, axis) for part in found)


row("median.default")(lambda x: _median(x.reshape(-1), 0)[0])
row("nanmedian.default")(lambda x: _nanmedian(x.reshape(-1), 0)[0])


@row("mode")
def _mode(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The least of the most frequent elements of each row, and its last place."""
    if not x.ndim:
        return x, jnp.zeros((), np.int64)
    axis = axis_of(dim, x.ndim)
    rows = jnp.moveaxis(x, axis, -1)
    ordered = jnp.sort(rows, -1)
    ahead = jnp.concatenate([jnp.ones_like(ordered[..., :1], bool), ordered[..., 1:] != ordered[..., :-1]], -1)
    numbers = np.arange(rows.shape[-1])
    length = numbers - lax.cummax(jnp.where(ahead, numbers, 0), axis=rows.ndim - 1)
    value = jnp.take_along_axis(ordered, jnp.argmax(length, -1, keepdims=True), -1)
    place = jnp.max(jnp.where(rows == value, numbers, 0), -1, keepdims=True)
    found = [jnp.moveaxis(part, -1, axis) for part in (value, place)]
    return tuple(found) if keepdim else tuple(jnp.squeeze(part, axis) for part in found)


@row("nonzero_static")
def _nonzero_static(x: Any, *, size: int, fill_value: int = -1) -> Any:
    if not x.ndim:
        return jnp.zeros((size, 0), np.int64)
    return jnp.stack(jnp.nonzero(x, size=size, fill_value=fill_value), -1)


@row("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    edges: Any, x: Any, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Any = None
) -> Any:
    """The number of edges of the row that lie below each value."""
    ordered = edges if sorter is None else jnp.take_along_axis(edges, sorter, -1)
    values = jnp.asarray(x, edges.dtype) if not hasattr(x, "dtype") else x
    flat = values if values.ndim else values[None]
    if ordered.ndim == 1:
        ordered = ordered.reshape((1,) * (flat.ndim - 1) + ordered.shape)
    below = (
        ordered[..., None, :] <= flat[..., None]
        if right or side == "right"
        else ordered[..., None, :] < flat[..., None]
    )
    return jnp.sum(below.astype(np.int32), -1).reshape(values.shape)


@row("bucketize")
def _bucketize(x: Any, edges: Any, out_int32: bool = False, right: bool = False) -> Any:
    return _searchsorted(edges, jnp.asarray(x).reshape(-1), right=right).reshape(jnp.shape(x))
