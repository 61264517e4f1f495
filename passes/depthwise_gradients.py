"""Writes gradients of depthwise kernels as sums of products.

Input: canonical hlo, images features first where ``features_first`` has brought them into that order. Output: a
convolution of as many groups of its batch as it has output features is, for each position of its result, the product of
its second operand with a window of the first, summed over all but the features, in FP32. TensorE would multiply with
matrices of which one element of each row is used, position by position of an image.
"""

from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule, SliceDim
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

FEW_OUTPUTS, MOST_OUTPUTS = 25, 49
"""Positions of the result, each of which is a kernel of its own: for any images, and for large ones."""
LARGE_IMAGE = 1024
"""Positions of the window."""


@only_for(hlo.ConvolutionOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.ConvolutionOp) and _applies(op):
                replace(op, _sums(Build.before(module, op), op))


def _applies(op: hlo.ConvolutionOp) -> bool:
    dims, window, groups = op.dims.data, op.window.data, op.batch_group_count.data
    lhs, rhs = hlo.shape_of(op.lhs), hlo.shape_of(op.rhs)
    outputs, taps = prod(op.shape.dims[axis] for axis in dims.out_spatial), prod(dim.size for dim in window)
    return (
        groups > 1
        and lhs.dims[dims.lhs_batch] == rhs.dims[dims.rhs_output_feature] == groups
        and {lhs.dtype, rhs.dtype, op.shape.dtype} <= FLOATS
        and all(dim.lhs_dilation == 1 and not dim.reversal for dim in window)
        and outputs <= min(MOST_OUTPUTS if taps >= LARGE_IMAGE else FEW_OUTPUTS, taps)
        and bool(op.shape.size)
    )


def _sums(b: Build, op: hlo.ConvolutionOp) -> Value:
    dims, window = op.dims.data, op.window.data
    # the second operand's dims in the order of the first's
    axes = {dims.lhs_batch: dims.rhs_output_feature, dims.lhs_feature: dims.rhs_input_feature}
    axes |= dict(zip(dims.lhs_spatial, dims.rhs_spatial, strict=True))
    x = b.convert(op.lhs, "f32")
    y = b.transpose(b.convert(op.rhs, "f32"), [axes[axis] for axis in range(len(axes))])
    padding = [(0, 0)] * len(axes)
    for axis, dim in zip(dims.lhs_spatial, window, strict=True):
        padding[axis] = dim.pad_low, dim.pad_high
    x = b.pad(x, padding)
    folded = [axis for axis in range(len(axes)) if axis != dims.lhs_batch]
    sizes = [op.shape.dims[axis] for axis in dims.out_spatial]
    rows = []
    for number in range(prod(sizes)):
        bounds = [SliceDim(0, size) for size in hlo.shape_of(x).dims]
        for axis, dim, size in reversed(list(zip(dims.lhs_spatial, window, sizes, strict=True))):
            number, at = divmod(number, size)
            start = at * dim.stride
            bounds[axis] = SliceDim(start, start + (dim.size - 1) * dim.rhs_dilation + 1, dim.rhs_dilation)
        part = b.op(hlo.SliceOp, (x,), "f32", hlo.shape_of(y).dims, slice=hlo.SliceAttr(tuple(bounds)))
        rows.append(b.reshape(b.sum(b.mul(part, y), folded), (1, op.batch_group_count.data)))
    # positions, then features, which is the order of spatial dims, batch (1) and features
    found = b.reshape(b.concatenate(rows, 0), (*sizes, 1, op.batch_group_count.data))
    order = [*dims.out_spatial, dims.out_batch, dims.out_feature]
    return b.convert(b.transpose(found, [order.index(axis) for axis in range(len(order))]), op.shape.dtype)
