"""Cuts the windows of convolutions with groups of features that no partition could hold an image for.

Input: canonical hlo. Output: a convolution with groups whose window covers more of an image than ``SHARE`` is the
sum of two, each over half of the window's largest dim, and so on. One position of the result needs all that its window
covers on one partition. Gradients of kernels, whose images may be in groups, contract positions instead, tile by tile.
Sums keep their terms, in another order.
"""

from dataclasses import replace
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule, WindowDim, editing
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

SHARE = (4, 11)
"""Of a partition of SBUF, which holds two images under one window, and the kernel: most bytes of such an image."""


@only_for(hlo.ConvolutionOp)
def run(module: HloModule, context: PassContext) -> None:
    most = context.timing.sizes.sbuf_share(SHARE)
    for computation in module.computations():
        for op in editing.ops_of(computation.block):
            if isinstance(op, hlo.ConvolutionOp) and _is_too_large(op, op.window.data, most):
                b = Build.before(module, op)
                wide = "f32" if op.shape.dtype in FLOATS else op.shape.dtype
                editing.replace(op, b.convert(_sum(b, op, op.rhs, op.window.data, wide, most), op.shape.dtype))


def _is_too_large(op: hlo.ConvolutionOp, window: tuple[WindowDim, ...], most: int) -> bool:
    if op.feature_group_count.data == 1 or any(dim.reversal or dim.lhs_dilation > 1 for dim in window):
        return False
    shape = hlo.shape_of(op.lhs)
    sizes = [shape.dims[axis] for axis in op.dims.data.lhs_spatial]
    covered = prod(min(size, _reach(dim) + 1) for size, dim in zip(sizes, window, strict=True))
    return covered * hlo.itemsize(shape.dtype) > most and any(dim.size > 1 for dim in window)


def _reach(dim: WindowDim) -> int:
    """From the first to the last element of the window."""
    return (dim.size - 1) * dim.rhs_dilation


def _sum(b: Build, op: hlo.ConvolutionOp, kernel: Value, window: tuple[WindowDim, ...], dtype: str, most: int) -> Value:
    if not _is_too_large(op, window, most):
        properties = {**op.properties, "window": hlo.WindowAttr(window)}
        return b.typed(hlo.ConvolutionOp, (op.lhs, kernel), hlo.array_type(dtype, op.shape.dims), **properties)
    at = max((axis for axis, dim in enumerate(window) if dim.size > 1), key=lambda axis: _reach(window[axis]))
    dim, axis = window[at], op.dims.data.rhs_spatial[at]
    half = dim.size // 2
    skipped = half * dim.rhs_dilation
    first = replace(dim, size=half, pad_high=dim.pad_high - (dim.size - half) * dim.rhs_dilation)
    second = replace(dim, size=dim.size - half, pad_low=dim.pad_low - skipped)
    parts = []
    for start, limit, part in ((0, half, first), (half, dim.size, second)):
        piece = b.slice(kernel, axis, start, limit)
        parts.append(_sum(b, op, piece, (*window[:at], part, *window[at + 1 :]), dtype, most))
    return b.add(*parts)
