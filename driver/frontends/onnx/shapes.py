"""Operators that move elements or say what the shapes are. On known values they run in NumPy."""

from collections.abc import Sequence
from math import prod

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.onnx.table import Value, namespace, op, refusal
from neuronx_cc.driver.frontends.onnx.types import checked, dtype_of, is_float

Ints = Sequence[int]


def ints(value: Value) -> tuple[int, ...]:
    """A known vector, or an attribute, as Python's integers."""
    return tuple(int(item) for item in np.asarray(value).reshape(-1))


def normal(axis: int, rank: int) -> int:
    """``axis`` counted from the front. Raises CompileError EVRF064 when there is none such."""
    if not -rank <= axis < max(rank, 1):
        raise refusal(f"axis {axis} of an array with {rank} dimensions", code="EVRF064")
    return axis % rank if rank else 0


@op("Shape")
def shape(data: Value, *, start: int = 0, end: int | None = None) -> Value:
    return np.asarray(data.shape, np.int64)[start:end]


@op("Size")
def size(data: Value) -> Value:
    return np.asarray(prod(data.shape), np.int64)


@op("Reshape", static=("shape",))
def reshape(data: Value, shape: Value, *, allowzero: int = 0) -> Value:
    dims = list(ints(shape))
    if not allowzero:
        dims = [data.shape[i] if dim == 0 else dim for i, dim in enumerate(dims)]
    return data.reshape(dims)


@op("Flatten")
def flatten(x: Value, *, axis: int = 1) -> Value:
    split = axis + x.ndim if axis < 0 else axis
    return x.reshape(prod(x.shape[:split]), prod(x.shape[split:]))


@op("Squeeze", static=("axes",))
def squeeze(data: Value, axes: Value = None) -> Value:
    return namespace(data).squeeze(data, None if axes is None else ints(axes))


@op("Unsqueeze", static=("axes",))
def unsqueeze(data: Value, axes: Value) -> Value:
    return namespace(data).expand_dims(data, ints(axes))


@op("Transpose")
def transpose(data: Value, *, perm: Ints | None = None) -> Value:
    return namespace(data).transpose(data, perm)


@op("Concat")
def concat(*inputs: Value, axis: int) -> Value:
    return namespace(*inputs).concatenate(inputs, normal(axis, inputs[0].ndim))


@op("Split", static=("split",))
def split(input: Value, split: Value = None, *, axis: int = 0, num_outputs: int = 0, count: int = 1) -> Value:
    axis = normal(axis, input.ndim)
    length, parts = input.shape[axis], num_outputs or count
    each = -(-length // parts)
    sizes = ints(split) if split is not None else [min(each, length - i * each) for i in range(parts)]
    if sum(sizes) != length or any(part < 0 for part in sizes):
        raise refusal(f"parts of {list(sizes)} do not make {length}", code="EVRF064")
    return tuple(namespace(input).split(input, np.cumsum(sizes)[:-1].tolist(), axis))


@op("Slice", static=("starts", "ends", "axes", "steps"))
def slice_(data: Value, starts: Value, ends: Value, axes: Value = None, steps: Value = None) -> Value:
    firsts, lasts = ints(starts), ints(ends)
    along = range(len(firsts)) if axes is None else ints(axes)
    strides = (1,) * len(firsts) if steps is None else ints(steps)
    index = [slice(None)] * data.ndim
    for axis, first, last, step in zip(along, firsts, lasts, strides, strict=True):
        axis = normal(axis, data.ndim)
        length = data.shape[axis]
        if step > 0:
            low, high = (max(0, length + v if v < 0 else v) for v in (first, last))
            index[axis] = slice(min(low, length), min(high, length), step)
        else:
            low, high = (length + v if v < 0 else v for v in (first, last))
            index[axis] = slice(min(max(low, 0), length - 1), high if high >= 0 else None, step)
    return data[tuple(index)]


@op("Expand", static=("shape",))
def expand(input: Value, shape: Value) -> Value:
    dims = checked(np.broadcast_shapes(input.shape, ints(shape)))
    return (np if isinstance(input, np.ndarray) and prod(dims) <= 1024 else jnp).broadcast_to(input, dims)


@op("Tile", static=("repeats",))
def tile(input: Value, repeats: Value) -> Value:
    checked(a * b for a, b in zip(input.shape, ints(repeats), strict=True))
    return jnp.tile(input, ints(repeats))


_PAD_MODES = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}


@op("Pad", static=("pads", "axes"))
def pad(data: Value, pads: Value, constant_value: Value = None, axes: Value = None, *, mode: str = "constant") -> Value:
    """Negative pads crop."""
    along = range(data.ndim) if axes is None else [normal(axis, data.ndim) for axis in ints(axes)]
    widths = [(0, 0)] * data.ndim
    amounts = ints(pads)
    for i, axis in enumerate(along):
        widths[axis] = amounts[i], amounts[i + len(amounts) // 2]
    crop = tuple(slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(widths, data.shape, strict=True))
    data = jnp.asarray(data)[crop]
    widths = [(max(a, 0), max(b, 0)) for a, b in widths]
    checked(n + a + b for n, (a, b) in zip(data.shape, widths, strict=True))
    if mode != "constant":
        return jnp.pad(data, widths, _PAD_MODES[mode])
    value = np.zeros((), data.dtype) if constant_value is None else constant_value.reshape(())
    return lax.pad(data, jnp.asarray(value, data.dtype), [(a, b, 0) for a, b in widths])


@op("Range", static=("start", "limit", "delta"))
def range_(start: Value, limit: Value, delta: Value, *, stash_type: int = 1) -> Value:
    """Narrow floats are computed in ``stash_type``."""
    wide = (
        dtype_of(stash_type, "the steps")
        if np.dtype(start.dtype).itemsize < 4 and is_float(start.dtype)
        else start.dtype
    )
    first, last, step = (value.reshape(()).astype(wide) for value in (start, limit, delta))
    count = max(0, int(np.ceil((np.float64(last) - np.float64(first)) / np.float64(step))))
    checked([count])
    if count <= 1024:
        return (np.arange(count).astype(wide) * step + first).astype(start.dtype)
    return (jnp.arange(count, dtype=wide) * step + first).astype(start.dtype)


@op("EyeLike")
def eye_like(input: Value, *, dtype: int | None = None, k: int = 0) -> Value:
    rows, columns = input.shape
    checked(input.shape)
    return jnp.eye(rows, columns, k, input.dtype if dtype is None else dtype_of(dtype, "the result"))


@op("Trilu", static=("k",))
def trilu(input: Value, k: Value = None, *, upper: int = 1) -> Value:
    return (jnp.triu if upper else jnp.tril)(input, 0 if k is None else int(k.reshape(())))


@op("DepthToSpace")
def depth_to_space(input: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    n, c, h, w = input.shape
    if mode == "DCR":
        split = input.reshape(n, blocksize, blocksize, c // blocksize**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        split = input.reshape(n, c // blocksize**2, blocksize, blocksize, h, w).transpose(0, 1, 4, 2, 5, 3)
    return split.reshape(n, c // blocksize**2, h * blocksize, w * blocksize)


@op("SpaceToDepth")
def space_to_depth(input: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    n, c, h, w = input.shape
    split = input.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return split.transpose(order).reshape(n, c * blocksize**2, h // blocksize, w // blocksize)


@op("Upsample", static=("scales",), note="nearest only")
def upsample(x: Value, scales: Value, *, mode: str = "nearest") -> Value:
    if mode != "nearest":
        raise refusal(f"mode {mode!r} is not supported", "Resize is its successor")
    for axis, (length, scale) in enumerate(zip(x.shape, scales.reshape(-1), strict=True)):
        positions = np.arange(int(length * scale)) / scale
        x = jnp.take(x, positions.astype(np.int32), axis)
    return x


@op("ReverseSequence")
def reverse_sequence(input: Value, sequence_lens: Value, *, batch_axis: int = 1, time_axis: int = 0) -> Value:
    moved = jnp.moveaxis(jnp.asarray(input), (time_axis, batch_axis), (0, 1))
    steps = jnp.arange(moved.shape[0])[:, None]
    lengths = jnp.asarray(sequence_lens)[None, :]
    index = jnp.where(steps < lengths, lengths - 1 - steps, steps)
    index = index.reshape(index.shape + (1,) * (moved.ndim - 2))
    return jnp.moveaxis(jnp.take_along_axis(moved, index, 0), (0, 1), (time_axis, batch_axis))


@op("Col2Im", static=("image_shape", "block_shape"))
def col_to_image(
    input: Value,
    image_shape: Value,
    block_shape: Value,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    image, block = ints(image_shape), ints(block_shape)
    rank = len(image)
    dilation, stride = dilations or (1,) * rank, strides or (1,) * rank
    margins = pads or (0,) * (2 * rank)
    padded = [n + margins[i] + margins[i + rank] for i, n in enumerate(image)]
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, d, s in zip(padded, block, dilation, stride, strict=True)]
    batch, channels = input.shape[0], input.shape[1] // prod(block)
    checked([batch, channels, *padded])
    columns = input.reshape(batch, channels, *block, *counts)
    made = jnp.zeros((batch, channels, *padded), input.dtype)
    for offset in np.ndindex(*block):
        places = tuple(
            slice(o * d, o * d + s * (n - 1) + 1, s)
            for o, d, s, n in zip(offset, dilation, stride, counts, strict=True)
        )
        made = made.at[(slice(None), slice(None), *places)].add(columns[(slice(None), slice(None), *offset)])
    inner = tuple(slice(margins[i], margins[i] + n) for i, n in enumerate(image))
    return made[(slice(None), slice(None), *inner)]


@op("CenterCropPad", static=("shape",))
def center_crop_pad(input_data: Value, shape: Value, *, axes: Ints | None = None) -> Value:
    along = range(input_data.ndim) if axes is None else [normal(axis, input_data.ndim) for axis in axes]
    widths = [(0, 0, 0)] * input_data.ndim
    for axis, target in zip(along, ints(shape), strict=True):
        missing = target - input_data.shape[axis]
        before = missing // 2 if missing >= 0 else -(-missing // 2)
        widths[axis] = before, missing - before, 0
    checked(n + a + b for n, (a, b, _) in zip(input_data.shape, widths, strict=True))
    return lax.pad(jnp.asarray(input_data), np.zeros((), input_data.dtype), widths)
