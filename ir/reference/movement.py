"""Reference semantics of constants' shapes and data movement: ``MOVEMENT[opcode](op, *arrays) -> array``.

Results may be views of the operands; nothing writes into a value once made.
"""

from collections.abc import Callable, Sequence

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.reference.values import Array, narrow


def bitcast(op: hlo.HloOp, x: Array) -> Array:
    """Same bytes, other dims (row-major) and possibly another type."""
    if x.dtype == op.shape.numpy_dtype:
        return x.reshape(op.shape.dims)
    return np.frombuffer(x.tobytes(), op.shape.numpy_dtype).reshape(op.shape.dims)


def broadcast(op: hlo.BroadcastOp, x: Array) -> Array:
    """Operand dim i becomes result dim ``dimensions[i]``; other result dims repeat."""
    dims = op.shape.dims
    order = sorted(range(x.ndim), key=lambda i: op.dimensions.data[i])
    placed = [1] * len(dims)
    for i in order:
        placed[op.dimensions.data[i]] = x.shape[i]
    return np.broadcast_to(x.transpose(order).reshape(placed), dims)


def concatenate(op: hlo.ConcatenateOp, *args: Array) -> Array:
    """Operands one after another along ``dimension``."""
    return np.concatenate(args, axis=op.dimension.data)


def dynamic_slice(op: hlo.DynamicSliceOp, x: Array, *starts: Array) -> Array:
    """The window at the start indices, clamped so that it fits."""
    return x[_window(x.shape, op.dynamic_slice_sizes.data, starts)]


def dynamic_update_slice(op: hlo.HloOp, x: Array, update: Array, *starts: Array) -> Array:
    """A copy of the operand with the update at the start indices, clamped so that it fits."""
    result = x.copy()
    result[_window(x.shape, update.shape, starts)] = update
    return result


def _window(dims: Sequence[int], sizes: Sequence[int], starts: Sequence[Array]) -> tuple[slice, ...]:
    window = []
    if len(starts) == 1 and starts[0].ndim == 1:
        starts = list(starts[0])  # the old form: one index vector
    for dim, size, start in zip(dims, sizes, starts, strict=True):
        first = min(max(int(start), 0), dim - size)
        window.append(slice(first, first + size))
    return tuple(window)


def get_dimension_size(op: hlo.GetDimensionSizeOp, x: Array) -> Array:
    """Size of one dim as s32."""
    return np.array(x.shape[op.dimension.data], np.int32)


def iota(op: hlo.IotaOp) -> Array:
    """Counts along ``iota_dimension``."""
    shape = op.shape
    axis = op.iota_dimension.data
    count = narrow(np.arange(shape.dims[axis]), shape.dtype)
    return np.broadcast_to(count.reshape([-1 if i == axis else 1 for i in range(shape.rank)]), shape.dims)


def pad(op: hlo.PadOp, x: Array, value: Array) -> Array:
    """Interior padding, then edges; negative edges crop."""
    if all(dim.interior == 0 and dim.low <= 0 and dim.high <= 0 for dim in op.padding.data):
        return x[tuple(slice(-dim.low, size + dim.high) for dim, size in zip(op.padding.data, x.shape, strict=True))]
    result = np.full(op.shape.dims, value, x.dtype)
    into, source = [], []
    for dim, size, total in zip(op.padding.data, x.shape, op.shape.dims, strict=True):
        step = dim.interior + 1
        first = max(0, -(dim.low // step))  # first operand index at or after result position 0
        last = min(size, -((dim.low - total) // step))  # one past the last that fits
        count = max(0, last - first)
        start = dim.low + first * step
        into.append(slice(start, start + max(0, (count - 1) * step + 1), step) if count else slice(0, 0))
        source.append(slice(first, first + count))
    result[tuple(into)] = x[tuple(source)]
    return result


def reshape(op: hlo.HloOp, x: Array) -> Array:
    """Same elements in row-major order, other dims."""
    return x.reshape(op.shape.dims)


def bitcast_convert(op: hlo.HloOp, x: Array) -> Array:
    """Same bits, other element type; a trailing dim appears or vanishes when the width changes."""
    target = op.shape.numpy_dtype
    packed = np.ascontiguousarray(x).reshape(-1)
    if "int4" in (x.dtype.name, target.name) or "uint4" in (x.dtype.name, target.name):
        return x.astype(np.uint8).astype(target).reshape(op.shape.dims)
    return packed.view(target).reshape(op.shape.dims)


def reverse(op: hlo.ReverseOp, x: Array) -> Array:
    """Reverses the order along ``dimensions``."""
    return np.flip(x, op.dimensions.data)


def set_dimension_size(op: hlo.SetDimensionSizeOp, x: Array, size: Array) -> Array:
    """Identity when the size is the static one."""
    axis = op.dimension.data
    if int(size) != x.shape[axis]:
        raise CompileError(
            "EMOD025",
            f"dimension {axis} of size {x.shape[axis]} is set to {int(size)} at run time",
            "pad to a static shape",
            op.loc,
        )
    return x


def slice_(op: hlo.SliceOp, x: Array) -> Array:
    """Static strided slice."""
    return x[tuple(slice(dim.start, dim.limit, dim.stride) for dim in op.slice.data)]


def transpose(op: hlo.TransposeOp, x: Array) -> Array:
    """Result dim i is operand dim ``dimensions[i]``."""
    return x.transpose(op.dimensions.data)


MOVEMENT: dict[str, Callable[..., Array]] = {
    "bitcast": bitcast,
    "bitcast-convert": bitcast_convert,
    "broadcast": broadcast,
    "concatenate": concatenate,
    "dynamic-slice": dynamic_slice,
    "dynamic-update-slice": dynamic_update_slice,
    "get-dimension-size": get_dimension_size,
    "iota": iota,
    "pad": pad,
    "reshape": reshape,
    "reverse": reverse,
    "set-dimension-size": set_dimension_size,
    "slice": slice_,
    "transpose": transpose,
}
