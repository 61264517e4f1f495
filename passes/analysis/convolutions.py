"""Which of the ways to compute it a convolution is for."""

from math import prod

from neuronx_cc.ir import hlo

MAX_OUTPUTS = 512
"""Output positions of a kernel's gradient, whose sums are unrolled."""


def is_kernel_gradient(op: hlo.ConvolutionOp) -> bool:
    """Whether the window has many more positions than the result, or images are in groups, without a dilated input."""
    window, dims = op.window.data, op.dims.data
    outputs, taps = prod(op.shape.dims[axis] for axis in dims.out_spatial), prod(dim.size for dim in window)
    plain = all(dim.lhs_dilation == 1 and not dim.reversal for dim in window)
    if not plain or op.feature_group_count.data > 1:
        return False
    return op.batch_group_count.data > 1 or (outputs <= MAX_OUTPUTS and taps >= 16 and taps > outputs)


def is_depthwise(op: hlo.ConvolutionOp) -> bool:
    """Whether each feature is convolved by itself along one dim, which Vector may do (``depthwise_kernel``)."""
    features = op.feature_group_count.data
    dims, window = op.dims.data, op.window.data
    given, made = hlo.shape_of(op.lhs).dims[dims.lhs_feature], op.shape.dims[dims.out_feature]
    plain = op.batch_group_count.data == 1 and all(dim.lhs_dilation == 1 for dim in window)
    return plain and len(window) == 1 and features > 1 and given == made == features


def is_grouped(op: hlo.ConvolutionOp) -> bool:
    """Whether features, or images, are in groups that do not meet."""
    return op.feature_group_count.data > 1 or op.batch_group_count.data > 1
