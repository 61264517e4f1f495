"""Gradients of kernels of transposed convolutions, for the pass ``canonicalize``.

Such a gradient slides an image as its window over an input with zeros between its elements. The image and the input
change places: the sum is the same one over the elements of the input, which lie apart in the image, and its result is
turned round. That is the form of the gradients of other kernels, which ``conv_gradient_kernel`` contracts.
"""

from dataclasses import replace
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import WindowDim
from neuronx_cc.ir.hlo.editing import insert_before
from neuronx_cc.passes.canonical.rule import Scope

MOST_OUTPUTS = 64
"""Positions of the result up to which it is taken for the gradient of a kernel."""
LEAST_TAPS = 16
"""Positions of the window, and elements of the input, from which on."""


def window_as_input(op: hlo.ConvolutionOp, scope: Scope) -> hlo.SSAValue | None:
    """``reverse(convolution(rhs, lhs))`` where the window is an image over a dilated input, else None.

    With ``d`` the dilation and ``P`` result positions ``p``: ``k = d j + pad - stride p`` is the position in the window
    of element ``j``, so in terms of ``q = P - 1 - p`` the padding is ``stride (P - 1) - pad``.
    """
    dims, window = op.dims.data, op.window.data
    outputs = [op.shape.dims[axis] for axis in dims.out_spatial]
    sizes = [hlo.shape_of(op.lhs).dims[axis] for axis in dims.lhs_spatial]
    taps = min(prod(sizes), prod(dim.size for dim in window))
    grouped = op.feature_group_count.data > 1 or op.batch_group_count.data > 1
    if grouped or all(dim.lhs_dilation == 1 for dim in window) or any(d.rhs_dilation > 1 or d.reversal for d in window):
        return None
    if not op.shape.size or prod(outputs) > MOST_OUTPUTS or taps < LEAST_TAPS or taps <= prod(outputs):
        return None
    turned = tuple(_turned(dim, size, out) for dim, size, out in zip(window, sizes, outputs, strict=True))
    swapped = replace(
        dims,
        lhs_batch=dims.rhs_output_feature,
        lhs_feature=dims.rhs_input_feature,
        lhs_spatial=dims.rhs_spatial,
        rhs_output_feature=dims.lhs_batch,
        rhs_input_feature=dims.lhs_feature,
        rhs_spatial=dims.lhs_spatial,
        out_batch=dims.out_feature,
        out_feature=dims.out_batch,
    )
    properties = {**op.properties, "window": hlo.WindowAttr(turned), "dims": hlo.ConvDimsAttr(swapped)}
    precision = op.operand_precision
    if precision is not None and len(precision.data) == 2:
        properties["operand_precision"] = hlo.StrsAttr(precision.data[::-1])
    type_ = op.results[0].type
    value = insert_before(op, hlo.ConvolutionOp, (op.rhs, op.lhs), type_, op.loc, properties)
    axes = tuple(sorted(axis for axis, size in zip(dims.out_spatial, outputs, strict=True) if size > 1))
    if not axes:
        return value
    return insert_before(op, hlo.ReverseOp, (value,), type_, op.loc, {"dimensions": hlo.IntsAttr(axes)})


def _turned(dim: WindowDim, size: int, out: int) -> WindowDim:
    """One dim of the window, ``size`` elements of the input, that slides to ``out`` positions over the image."""
    reach = dim.stride * (out - 1)
    low = reach - dim.pad_low
    high = reach + dim.lhs_dilation * (size - 1) + 1 - dim.size - low
    return WindowDim(size, dim.stride, low, high, 1, dim.lhs_dilation)
