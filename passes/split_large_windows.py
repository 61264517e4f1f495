"""Cuts convolutions that no partition could hold the images for.

Input: canonical hlo. Output: a convolution with groups of features whose window covers more of an image than ``SHARE``
is the sum of two, each over half of the window's largest dim, and so on. One position of the result needs all that its
window covers on one partition. Gradients of kernels, whose images may be in groups, contract positions instead, tile by
tile. A convolution without groups under a window whose elements lie far apart (``rhs_dilation``) is the sum of several
over blocks of features, where the images of all features of a partition are larger than ``SPREAD_SHARE`` with their
padding, which is much of them. Sums keep their terms, in another order.
"""

from dataclasses import replace
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule, WindowDim, editing
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

SHARE = (4, 11)
"""Of a partition of SBUF, which holds two images under one window, and the kernel: most bytes of such an image."""
SPREAD_SHARE = (1, 4)
"""The same of the padded images of all features of a partition."""
GROWTH = 1.2
"""How many times as large as images they are padded, at least, for features to be cut."""
FEW = 49
"""Elements of a window that lie apart, at most: those of a gradient's are the positions of an image."""


@only_for(hlo.ConvolutionOp)
def run(module: HloModule, context: PassContext) -> None:
    sizes = context.timing.sizes
    most = sizes.sbuf_share(SHARE)
    for computation in module.computations():
        for op in editing.ops_of(computation.block):
            if not isinstance(op, hlo.ConvolutionOp):
                continue
            b, wide = Build.before(module, op), "f32" if op.shape.dtype in FLOATS else op.shape.dtype
            if _is_too_large(op, op.window.data, most):
                editing.replace(op, b.convert(_sum(b, op, op.rhs, op.window.data, wide, most), op.shape.dtype))
            elif step := _block_of_features(op, sizes):
                editing.replace(op, b.convert(_sum_of_blocks(b, op, step, wide), op.shape.dtype))


def _block_of_features(op: hlo.ConvolutionOp, sizes: Sizes) -> int:
    """How many features of a convolution are added up together, which fill partitions; 0 for all."""
    window, shape = op.window.data, hlo.shape_of(op.lhs)
    apart = any(dim.rhs_dilation > 1 for dim in window) and prod(dim.size for dim in window) <= FEW
    grouped = op.feature_group_count.data > 1 or op.batch_group_count.data > 1
    if grouped or not apart or not _is_forward(window):
        return 0
    images = [shape.dims[axis] for axis in op.dims.data.lhs_spatial]
    padded = prod(size + dim.pad_low + dim.pad_high for size, dim in zip(images, window, strict=True))
    chunks = -(-shape.dims[op.dims.data.lhs_feature] // sizes.rows)
    held = max(1, sizes.sbuf_share(SPREAD_SHARE) // max(1, padded * hlo.itemsize(shape.dtype)))
    if padded < GROWTH * prod(images) or held >= chunks:
        return 0
    return -(-chunks // -(-chunks // held)) * sizes.rows


def _sum_of_blocks(b: Build, op: hlo.ConvolutionOp, step: int, dtype: str) -> Value:
    """Of convolutions of ``step`` neighbouring features each."""
    dims, total = op.dims.data, hlo.shape_of(op.lhs).dims[op.dims.data.lhs_feature]
    found: Value | None = None
    for start in range(0, total, step):
        limit = min(total, start + step)
        operands = (
            b.slice(op.lhs, dims.lhs_feature, start, limit),
            b.slice(op.rhs, dims.rhs_input_feature, start, limit),
        )
        part = b.typed(hlo.ConvolutionOp, operands, hlo.array_type(dtype, op.shape.dims), **op.properties)
        found = part if found is None else b.add(found, part)
    assert found is not None, "there are features"
    return found


def _is_too_large(op: hlo.ConvolutionOp, window: tuple[WindowDim, ...], most: int) -> bool:
    if op.feature_group_count.data == 1 or not _is_forward(window):
        return False
    shape = hlo.shape_of(op.lhs)
    sizes = [shape.dims[axis] for axis in op.dims.data.lhs_spatial]
    covered = prod(min(size, _reach(dim) + 1) for size, dim in zip(sizes, window, strict=True))
    return covered * hlo.itemsize(shape.dtype) > most and any(dim.size > 1 for dim in window)


def _is_forward(window: tuple[WindowDim, ...]) -> bool:
    return not any(dim.reversal or dim.lhs_dilation > 1 for dim in window)


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
