"""Slices with steps and pads with gaps, built one dim at a time."""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.passes.expansions.build import Build, Value


def strided_slice(build: Build, operand: Value, axis: int, start: int, count: int, step: int = 1) -> Value:
    """Elements ``start, start + step, ...`` (``count`` of them) of dim ``axis``."""
    shape = hlo.shape_of(operand)
    if (start, count) == (0, shape.dims[axis]) and (step == 1 or count == 1):
        return operand
    bounds = [hlo.SliceDim(0, size) for size in shape.dims]
    bounds[axis] = hlo.SliceDim(start, start + (count - 1) * step + 1, step)
    dims = [count if dim == axis else size for dim, size in enumerate(shape.dims)]
    return build.op(hlo.SliceOp, (operand,), shape.dtype, dims, slice=hlo.SliceAttr(tuple(bounds)))


def padded(build: Build, operand: Value, fill: Value, padding: Sequence[hlo.PadDim]) -> Value:
    """``pad`` with the scalar ``fill``; negative amounts crop."""
    shape = hlo.shape_of(operand)
    if all((dim.low, dim.high, dim.interior) == (0, 0, 0) for dim in padding):
        return operand
    dims = [
        size + dim.low + dim.high + max(0, size - 1) * dim.interior
        for size, dim in zip(shape.dims, padding, strict=True)
    ]
    return build.op(hlo.PadOp, (operand, fill), shape.dtype, dims, padding=hlo.PaddingAttr(tuple(padding)))
