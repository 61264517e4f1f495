"""Rows of operators that make arrays, and that view, cut, join and repeat them."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.torch.registry import axes_of, axis_of, is_array, row

Sizes = Sequence[int]


@row("view", "_unsafe_view", "reshape", "view_copy", "_reshape_alias", "resize")
def _view(x: Any, size: Sizes, *_: Any) -> Any:
    return jnp.reshape(x, tuple(size))


@row("expand", "expand_copy")
def _expand(x: Any, size: Sizes, implicit: bool = False) -> Any:
    ahead = len(size) - x.ndim
    dims = [x.shape[i - ahead] if given == -1 else given for i, given in enumerate(size)]
    return jnp.broadcast_to(x, dims)


@row("permute", "permute_copy")
def _permute(x: Any, dims: Sizes) -> Any:
    return jnp.transpose(x, [axis_of(dim, x.ndim) for dim in dims])


@row("transpose.int", "transpose_copy")
def _transpose(x: Any, first: int, second: int) -> Any:
    return jnp.swapaxes(x, first, second) if x.ndim else x


row("t", "t_copy")(lambda x: x.T)


@row("unsqueeze", "unsqueeze_copy")
def _unsqueeze(x: Any, dim: int) -> Any:
    return jnp.expand_dims(x, dim)


@row("squeeze", "squeeze_copy")
def _squeeze(x: Any, dim: int | Sizes | None = None) -> Any:
    axes = range(x.ndim) if dim is None else axes_of(dim, x.ndim) if not isinstance(dim, Sequence) or dim else ()
    return jnp.squeeze(x, tuple(axis for axis in axes if x.shape[axis] == 1))


def bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """A slice's ends within a dim of ``size``, as Python cuts them."""
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


@row("slice.Tensor", "slice_copy")
def _slice(x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    axis = axis_of(dim, x.ndim)
    first, last = bounds(x.shape[axis], start, end)
    return lax.slice_in_dim(x, first, last, step, axis)


@row("select.int", "select_copy")
def _select(x: Any, dim: int, index: Any) -> Any:
    axis = axis_of(dim, x.ndim)
    if is_array(index):
        return lax.dynamic_index_in_dim(x, index, axis, keepdims=False)
    return lax.index_in_dim(x, index, axis, keepdims=False)


def _at(x: Any, axis: int, index: Any) -> Any:
    return x.at[(slice(None),) * axis + (index,)]


@row("slice_scatter")
def _slice_scatter(x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    axis = axis_of(dim, x.ndim)
    first, last = bounds(x.shape[axis], start, end)
    if step == 1:
        return lax.dynamic_update_slice_in_dim(x, source.astype(x.dtype), first, axis)
    return _at(x, axis, slice(first, last, step)).set(source.astype(x.dtype))


@row("select_scatter")
def _select_scatter(x: Any, source: Any, dim: int, index: int) -> Any:
    axis = axis_of(dim, x.ndim)
    return lax.dynamic_update_index_in_dim(x, source.astype(x.dtype), index % x.shape[axis], axis)


@row("diagonal_scatter")
def _diagonal_scatter(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    first, second = axis_of(dim1, x.ndim), axis_of(dim2, x.ndim)
    whole = jnp.moveaxis(x, (first, second), (-2, -1))
    steps = np.arange(source.shape[-1])
    rows, columns = steps + max(-offset, 0), steps + max(offset, 0)
    return jnp.moveaxis(whole.at[..., rows, columns].set(source.astype(x.dtype)), (-2, -1), (first, second))


@row("slice_backward")
def _slice_backward(given: Any, sizes: Sizes, dim: int, start: int, end: int, step: int) -> Any:
    return _slice_scatter(jnp.zeros(sizes, given.dtype), given, dim, start, end, step)


@row("select_backward")
def _select_backward(given: Any, sizes: Sizes, dim: int, index: int) -> Any:
    return _select_scatter(jnp.zeros(sizes, given.dtype), given, dim, index)


@row("split_with_sizes", "split_with_sizes_copy")
def _split_with_sizes(x: Any, sizes: Sizes, dim: int = 0) -> Any:
    axis = axis_of(dim, x.ndim)
    ends = list(accumulate(sizes))
    return [lax.slice_in_dim(x, end - size, end, 1, axis) for size, end in zip(sizes, ends, strict=True)]


@row("split.Tensor")
def _split(x: Any, size: int, dim: int = 0) -> Any:
    length = x.shape[axis_of(dim, x.ndim)]
    return _split_with_sizes(x, [min(size, length - start) for start in range(0, length, size or 1)] or [0], dim)


@row("unbind", "unbind_copy")
def _unbind(x: Any, dim: int = 0) -> Any:
    return [lax.index_in_dim(x, i, axis_of(dim, x.ndim), False) for i in range(x.shape[axis_of(dim, x.ndim)])]


@row("cat")
def _cat(parts: Sequence[Any], dim: int = 0) -> Any:
    kept = [part for part in parts if part.shape != (0,)] or list(parts[:1])
    dtype = kept[0].dtype
    for part in kept:
        dtype = jnp.promote_types(dtype, part.dtype)
    return jnp.concatenate([part.astype(dtype) for part in kept], axis_of(dim, kept[0].ndim))


row("stack")(lambda parts, dim=0: jnp.stack(parts, dim))
row("flip")(lambda x, dims: jnp.flip(x, axes_of(dims, x.ndim)) if len(dims) else x)
row("roll")(lambda x, shifts, dims=(): jnp.roll(x, tuple(shifts), tuple(dims)) if dims else _rolled(x, shifts))
row("rot90")(lambda x, k=1, dims=(0, 1): jnp.rot90(x, k, tuple(dims)))


def _rolled(x: Any, shifts: int | Sizes) -> Any:
    return jnp.roll(x, shifts if isinstance(shifts, int) else sum(shifts))


@row("repeat")
def _repeat(x: Any, times: Sizes) -> Any:
    return jnp.tile(x.reshape((1,) * (len(times) - x.ndim) + x.shape), tuple(times))


@row("diagonal", "diagonal_copy")
def _diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return jnp.diagonal(x, offset, dim1, dim2)


@row("tril")
def _tril(x: Any, diagonal: int = 0) -> Any:
    return jnp.tril(x, diagonal)


@row("triu")
def _triu(x: Any, diagonal: int = 0) -> Any:
    return jnp.triu(x, diagonal)


@row("constant_pad_nd")
def _constant_pad(x: Any, pad: Sizes, value: Any = 0) -> Any:
    """``pad`` goes from the last dim to the front, two numbers each; negative ones cut."""
    given = [(low, high, 0) for low, high in zip(pad[::2], pad[1::2], strict=True)][::-1]
    ahead = [(0, 0, 0)] * (x.ndim - len(given))
    return lax.pad(x, jnp.asarray(value).astype(x.dtype), ahead + given)


def _padded(mode: Any) -> Any:
    def pad(x: Any, padding: Sizes) -> Any:
        given = list(zip(padding[::2], padding[1::2], strict=True))[::-1]
        axes = range(x.ndim - len(given), x.ndim)
        if min(padding) < 0:
            for axis, (low, high) in zip(axes, given, strict=True):
                whole = np.pad(np.arange(x.shape[axis]), (max(low, 0), max(high, 0)), mode=mode)
                x = jnp.take(x, whole[max(-low, 0) : len(whole) - max(-high, 0)], axis)
            return x
        return jnp.pad(x, [(0, 0)] * (x.ndim - len(given)) + given, mode=mode)

    return pad


row("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")(_padded("reflect"))
row("replication_pad1d", "replication_pad2d", "replication_pad3d")(_padded("edge"))
row("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")(
    lambda given, x, padding: jax.vjp(lambda x: _padded("edge")(x, padding), x)[1](given)[0]
)


@row("as_strided", "as_strided_copy")
def _as_strided(x: Any, size: Sizes, stride: Sizes, offset: int | None = None) -> Any:
    return jnp.take(x.reshape(-1), _strided_places(x, size, stride, offset), axis=0)


@row("as_strided_scatter", "prims.as_strided_scatter")
def _as_strided_scatter(x: Any, source: Any, size: Sizes, stride: Sizes, offset: int | None = None) -> Any:
    places = _strided_places(x, size, stride, offset)
    return x.reshape(-1).at[places].set(source.astype(x.dtype)).reshape(x.shape)


def _strided_places(x: Any, size: Sizes, stride: Sizes, offset: int | None) -> np.ndarray[Any, Any]:
    """Of a contiguous array: the numbers of the elements at sums of multiples of ``stride``.

    Raises NotImplementedError for elements of the memory beside the array's own.
    """
    places = np.full(tuple(size), offset or 0, np.int64)
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[axis] = length
        places = places + (np.arange(length) * step).reshape(shape)
    if places.size and not 0 <= places.min() <= places.max() < x.size:
        raise NotImplementedError("memory beside the tensor that it is given")
    return places


@row("unfold", "unfold_copy")
def _unfold(x: Any, dim: int, size: int, step: int) -> Any:
    if not x.ndim:
        return jnp.broadcast_to(x, (size,))
    axis = axis_of(dim, x.ndim)
    count = (x.shape[axis] - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    return jnp.moveaxis(jnp.take(x, places, axis=axis), axis + 1, -1)


@row("full")
def _full(size: Sizes, value: Any, dtype: Any = None, **_: Any) -> Any:
    return jnp.full(tuple(size), value, dtype)


row("full_like")(lambda x, value, dtype=None: jnp.full(x.shape, value, dtype or x.dtype))
row("fill")(lambda x, value: jnp.broadcast_to(jnp.asarray(value).astype(x.dtype), x.shape))
row("zeros", "empty.memory_format", "empty_permuted", "_efficientzerotensor")(
    lambda size, *_, dtype=None: jnp.zeros(tuple(size), dtype)
)
row("ones")(lambda size, dtype=None: jnp.ones(tuple(size), dtype))
row("new_zeros", "new_empty", "new_empty_strided")(
    lambda x, size, *_, dtype=None: jnp.zeros(tuple(size), dtype or x.dtype)
)
row("empty_strided")(lambda size, stride, dtype=None: jnp.zeros(tuple(size), dtype))
row("new_ones")(lambda x, size, dtype=None: jnp.ones(tuple(size), dtype or x.dtype))
row("new_full")(lambda x, size, value, dtype=None: jnp.full(tuple(size), value, dtype or x.dtype))
row("zeros_like", "empty_like")(lambda x, dtype=None: jnp.zeros(x.shape, dtype or x.dtype))
row("ones_like")(lambda x, dtype=None: jnp.ones(x.shape, dtype or x.dtype))
row("scalar_tensor")(lambda value, dtype=None: jnp.asarray(value, dtype))
row("eye")(lambda n, m=None, dtype=None: jnp.eye(n, m, dtype=dtype or np.float32))


@row("arange")
def _arange(*ends: Any, dtype: Any = None) -> Any:
    wanted = dtype or (np.float32 if any(isinstance(end, float) for end in ends) else np.int64)
    return jnp.asarray(_steps(*ends).astype(wanted))


def _steps(*ends: Any) -> np.ndarray[Any, Any]:
    start, end, step = {1: (0, *ends, 1), 2: (*ends, 1), 3: ends}[len(ends)]
    return np.arange(start, end, step)


@row("linspace")
def _linspace(start: Any, end: Any, steps: int, dtype: Any = None) -> Any:
    return jnp.linspace(start, end, steps).astype(dtype or np.float32)


@row("tril_indices")
def _tril_indices(rows: int, columns: int, offset: int = 0, dtype: Any = None) -> Any:
    return jnp.asarray(np.stack(np.tril_indices(rows, offset, columns)))


@row("triu_indices")
def _triu_indices(rows: int, columns: int, offset: int = 0, dtype: Any = None) -> Any:
    return jnp.asarray(np.stack(np.triu_indices(rows, offset, columns)))
