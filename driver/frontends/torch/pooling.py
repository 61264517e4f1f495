"""Rows of pooling and resampling over trailing dims, and of their gradients."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.torch.registry import limits, row


def _spread(values: int | Sequence[int] | None, rank: int, default: Sequence[int] = ()) -> list[int]:
    if values is None or (not isinstance(values, int) and not len(values)):
        return list(default)
    return [values] * rank if isinstance(values, int) else list(values) * (rank if len(values) == 1 else 1)


def _count(size: int, window: int, stride: int, pad: int, gap: int, ceil: bool) -> int:
    """How many windows torch puts along a dim."""
    reach = gap * (window - 1) + 1
    places = (size + 2 * pad - reach) / stride
    count = (math.ceil(places) if ceil else math.floor(places)) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + pad else count


class Windows:
    """Windows over the last dims of an array: sizes, strides, and what is added at either end."""

    def __init__(self, x: Any, rank: int, size: Any, stride: Any, pad: Any, gap: Any, ceil: bool) -> None:
        self.lead = x.ndim - rank
        self.size = _spread(size, rank)
        self.stride = _spread(stride, rank, self.size)
        self.gap = _spread(gap, rank)
        low = _spread(pad, rank)
        self.dims = x.shape[self.lead :]
        form = zip(self.dims, self.size, self.stride, low, self.gap, strict=True)
        self.counts = [_count(*each, ceil) for each in form]
        self.pads = [
            (p, max((count - 1) * step + g * (w - 1) + 1 - n - p, 0))
            for n, w, step, p, g, count in zip(
                self.dims, self.size, self.stride, low, self.gap, self.counts, strict=True
            )
        ]

    def fold(self, x: Any, initial: Any, function: Any) -> Any:
        """Fold each window."""
        ones = (1,) * self.lead
        kept = tuple(slice(None) for _ in range(self.lead)) + tuple(slice(0, count) for count in self.counts)
        return lax.reduce_window(
            x,
            np.array(initial, x.dtype),
            function,
            ones + tuple(self.size),
            ones + tuple(self.stride),
            ((0, 0),) * self.lead + tuple(self.pads),
            None,
            ones + tuple(self.gap),
        )[kept]

    def taps(self, x: Any, fill: Any) -> list[Any]:
        """For each place within a window, the elements there of all windows."""
        padded = lax.pad(
            x, np.array(fill, x.dtype), [(0, 0, 0)] * self.lead + [(low, high, 0) for low, high in self.pads]
        )
        found = []
        for place in itertools.product(*map(range, self.size)):
            starts = [at * gap for at, gap in zip(place, self.gap, strict=True)]
            cut = tuple(
                slice(start, start + (count - 1) * step + 1, step)
                for start, count, step in zip(starts, self.counts, self.stride, strict=True)
            )
            found.append(padded[(slice(None),) * self.lead + cut])
        return found


def _max_pool(rank: int) -> Any:
    def pool(x: Any, size: Any, stride: Any = (), pad: Any = 0, gap: Any = 1, ceil: bool = False) -> Any:
        windows = Windows(x, rank, size, stride, pad, gap, ceil)
        values = windows.fold(x, limits(x.dtype)[0], lax.max)
        numbers = np.arange(math.prod(windows.dims)).reshape(windows.dims)
        places = windows.taps(jnp.broadcast_to(numbers, x.shape), -1)
        found = jnp.full(values.shape, -1, np.int64)
        for tap, place in zip(reversed(windows.taps(x, limits(x.dtype)[0])), reversed(places), strict=True):
            found = jnp.where((tap == values) & (place >= 0), place, found)
        return values, found

    return pool


def _max_pool_backward(rank: int) -> Any:
    def back(given: Any, x: Any, size: Any, stride: Any, pad: Any, gap: Any, ceil: bool, places: Any) -> Any:
        windows = Windows(x, rank, size, stride, pad, gap, ceil)
        if all(each == 1 for each in windows.gap):
            _, pull = jax.vjp(lambda x: windows.fold(x, limits(x.dtype)[0], lax.max), x)
            return pull(given)[0]
        return _to_places(given, places, x.shape[: windows.lead], windows.dims, True)

    return back


row("max_pool2d_with_indices")(_max_pool(2))
row("max_pool3d_with_indices")(_max_pool(3))
row("max_pool2d_with_indices_backward")(_max_pool_backward(2))
row("max_pool3d_with_indices_backward")(_max_pool_backward(3))


def average(
    x: Any,
    rank: int,
    size: Any,
    stride: Any = (),
    pad: Any = 0,
    ceil: bool = False,
    with_pad: bool = True,
    divisor: int | None = None,
) -> Any:
    """Means of windows; the divisor counts what is added at the ends, or not."""
    windows = Windows(x, rank, size, stride, pad, 1, ceil)
    total = windows.fold(x, 0, lax.add)
    if divisor is not None:
        return total / divisor
    for axis in range(rank):
        n, w, step, (low, _) = windows.dims[axis], windows.size[axis], windows.stride[axis], windows.pads[axis]
        starts = np.arange(windows.counts[axis]) * step - low
        ends = np.minimum(starts + w, n + low)
        counted = ends - starts if with_pad else np.minimum(ends, n) - np.maximum(starts, 0)
        total = total * jnp.asarray(1 / counted, x.dtype).reshape(-1, *[1] * (rank - 1 - axis))
    return total


def _average_backward(rank: int) -> Any:
    def back(given: Any, x: Any, *how: Any) -> Any:
        return jax.vjp(lambda x: average(x, rank, *how), x)[1](given)[0]

    return back


for _rank in (1, 2, 3):
    row(f"avg_pool{_rank}d")(lambda x, *how, _rank=_rank: average(x, _rank, *how))
    row(f"avg_pool{_rank}d_backward")(_average_backward(_rank))


def adaptive(x: Any, sizes: Sequence[int]) -> Any:
    """Means of windows that cover each of the last dims in ``sizes`` parts."""
    for axis, parts in zip(range(x.ndim - len(sizes), x.ndim), sizes, strict=True):
        n = x.shape[axis]
        if parts and n % parts == 0:
            split = x.reshape(*x.shape[:axis], parts, n // parts, *x.shape[axis + 1 :])
            x = jnp.mean(split, axis + 1)
        else:
            shares = np.zeros((parts, n), np.float64)
            for i in range(parts):
                start, end = i * n // parts, -(-(i + 1) * n // parts)
                shares[i, start:end] = 1 / (end - start)
            moved = jnp.matmul(jnp.moveaxis(x, axis, -1), shares.T.astype(x.dtype))
            x = jnp.moveaxis(moved, -1, axis)
    return x


row("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")(adaptive)


def _adaptive_backward(given: Any, x: Any, rank: int) -> Any:
    return jax.vjp(lambda x: adaptive(x, given.shape[-rank:]), x)[1](given)[0]


row("_adaptive_avg_pool2d_backward")(lambda given, x: _adaptive_backward(given, x, 2))
row("_adaptive_avg_pool3d_backward")(lambda given, x: _adaptive_backward(given, x, 3))


def _parts(n: int, parts: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The elements of each part of a dim, [parts, longest], and which of them are in it."""
    starts = np.arange(parts) * n // parts
    lengths = -(-(np.arange(parts) + 1) * n // parts) - starts
    steps = np.arange(max(lengths, default=0))
    return np.minimum(starts[:, None] + steps, n - 1), steps < lengths[:, None]


def _adaptive_max(x: Any, sizes: Sequence[int]) -> Any:
    """The largest element of each part, and its number within the last dims."""
    rank = len(sizes)
    lead, dims = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    low = jnp.asarray(limits(x.dtype)[0], x.dtype)
    windows = x.reshape(-1, *dims)
    numbers: Any = np.arange(math.prod(dims)).reshape(dims)
    for axis, (n, parts) in enumerate(zip(dims, sizes, strict=True)):
        elements, inside = _parts(n, parts)
        at = 2 * axis
        shape = [1] * (rank + axis + 1)
        shape[at : at + 2] = inside.shape
        numbers = np.take(numbers, elements, at)
        windows = jnp.take(windows, elements, at + 1)
        windows = jnp.where(inside.reshape(shape), windows, low)
    order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
    windows = jnp.transpose(windows, [0, *(1 + axis for axis in order)]).reshape(
        -1, *sizes, math.prod(windows.shape[2::2])
    )
    numbers = np.transpose(numbers, order).reshape(1, *windows.shape[1:])
    best = jnp.argmax(windows, -1, keepdims=True)
    places = jnp.take_along_axis(jnp.broadcast_to(jnp.asarray(numbers), windows.shape), best, -1)
    values = jnp.take_along_axis(windows, best, -1)
    return values.reshape(*lead, *sizes), places.reshape(*lead, *sizes)


row("adaptive_max_pool2d", "adaptive_max_pool3d")(_adaptive_max)


def _to_places(values: Any, places: Any, lead: Sequence[int], dims: Sequence[int], add: bool) -> Any:
    """``values`` at their numbers within the last dims, ``dims``; zeros elsewhere."""
    rows = np.arange(math.prod(lead))[:, None]
    flat = jnp.zeros((math.prod(lead), math.prod(dims)), values.dtype)
    target = flat.at[rows, places.reshape(math.prod(lead), -1)]
    given = values.reshape(math.prod(lead), -1)
    return (target.add(given) if add else target.set(given)).reshape(*lead, *dims)


def _adaptive_max_backward(rank: int) -> Any:
    return lambda given, x, places: _to_places(given, places, x.shape[:-rank], x.shape[-rank:], True)


row("adaptive_max_pool2d_backward")(_adaptive_max_backward(2))
row("adaptive_max_pool3d_backward")(_adaptive_max_backward(3))
row("max_unpool2d")(lambda x, places, size: _to_places(x, places, x.shape[:-2], size, False))
row("max_unpool3d")(lambda x, places, size, *_: _to_places(x, places, x.shape[:-3], size, False))
