"""Rewrites of convolutions for the pass ``canonicalize``.

* A kernel that is reversed along window dims becomes a reversed window.
* Zeros around an input, as frameworks pad where both sides differ, are padding of the window.
* One whose result has one position becomes a dot over input features and window where these are neighbouring dims of
  both operands: fully connected layers written as convolutions, some gradients of 1 x 1 kernels, convolutions without
  window dims. Others are better contracted as convolutions, position by position.
* Gradients of kernels of transposed convolutions take the form of other kernels' (``canonical.gradients``).
* Large patches that do not overlap become dots (``canonical.patches``).

Sums keep their terms but for products with padding; their order, which HLO leaves open, may change.
"""

from dataclasses import replace
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import DotDims, WindowDim
from neuronx_cc.ir.hlo.editing import insert_before
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.canonical.gradients import window_as_input
from neuronx_cc.passes.canonical.movement import reshaped
from neuronx_cc.passes.canonical.patches import patches
from neuronx_cc.passes.canonical.rule import Rule, Scope, result_op

Value = hlo.SSAValue
LEAST_POSITIONS = 256
"""Positions of images, features last, from which a gradient of a 1 x 1 kernel stays a convolution."""


def _reversed_kernel(op: hlo.ConvolutionOp, scope: Scope) -> Value | None:
    inner = result_op(op.rhs)
    if not isinstance(inner, hlo.ReverseOp):
        return None
    spatial, axes = op.dims.data.rhs_spatial, inner.dimensions.data
    if not set(axes) <= set(spatial):
        return None
    window = tuple(
        replace(dim, reversal=not dim.reversal) if spatial[number] in axes else dim
        for number, dim in enumerate(op.window.data)
    )
    properties = {**op.properties, "window": hlo.WindowAttr(window)}
    return insert_before(op, hlo.ConvolutionOp, (op.lhs, inner.operand), op.results[0].type, op.loc, properties)


def _padded_input(op: hlo.ConvolutionOp, scope: Scope) -> Value | None:
    pad, dims, window = result_op(op.lhs), op.dims.data, op.window.data
    if not isinstance(pad, hlo.PadOp) or splat_number(pad.rhs, scope.module) != 0:
        return None
    around = pad.padding.data
    inside = [dim for axis, dim in enumerate(around) if axis not in dims.lhs_spatial]
    if any(dim.low or dim.high for dim in inside) or any(dim.interior or min(dim.low, dim.high) < 0 for dim in around):
        return None
    if any(dim.lhs_dilation > 1 for dim in window):
        return None
    wider = tuple(
        replace(dim, pad_low=dim.pad_low + around[axis].low, pad_high=dim.pad_high + around[axis].high)
        for axis, dim in zip(dims.lhs_spatial, window, strict=True)
    )
    properties = {**op.properties, "window": hlo.WindowAttr(wider)}
    return insert_before(op, hlo.ConvolutionOp, (pad.lhs, op.rhs), op.results[0].type, op.loc, properties)


def _single_position(op: hlo.ConvolutionOp, scope: Scope) -> Value | None:
    """``reshape(dot(lhs, rhs))`` for a result of one position, without groups, padding and dilation."""
    dims, window = op.dims.data, op.window.data
    if op.feature_group_count.data > 1 or op.batch_group_count.data > 1 or op.shape.size == 0:
        return None
    lhs_dims, rhs_dims = hlo.shape_of(op.lhs).dims, hlo.shape_of(op.rhs).dims
    covering = all(
        lhs_dims[axis] == dim.size and dim == WindowDim(dim.size, dim.stride)
        for axis, dim in zip(dims.lhs_spatial, window, strict=True)
    )
    if not covering or not (_adjacent(lhs_dims, dims.lhs_feature, dims.lhs_spatial)):
        return None
    if not _adjacent(rhs_dims, dims.rhs_input_feature, dims.rhs_spatial):
        return None
    # gradients of kernels, which convolutions contract with fewer transfers: both operands have to be transposed, or
    # so many positions are contracted that they do not fit at once
    positions, last = prod(dim.size for dim in window), len(lhs_dims) - 1
    if last in dims.lhs_spatial and lhs_dims[dims.lhs_feature] < 8 and positions >= 16:
        return None
    if last == dims.lhs_batch and positions >= LEAST_POSITIONS:
        return None
    lhs, rhs = op.lhs, op.rhs
    lhs_folded = (dims.lhs_feature, *dims.lhs_spatial)
    rhs_folded = (dims.rhs_input_feature, *dims.rhs_spatial)
    batch, outputs = op.shape.dims[dims.out_batch], op.shape.dims[dims.out_feature]
    numbers, shape = DotDims(lhs_folded, rhs_folded), (batch, outputs)
    precision = op.operand_precision
    if dims.out_feature < dims.out_batch:
        numbers, shape, lhs, rhs = DotDims(rhs_folded, lhs_folded), shape[::-1], rhs, lhs
        if precision is not None and len(precision.data) == 2:
            precision = hlo.StrsAttr(precision.data[::-1])
    properties: dict[str, hlo.Attribute] = {"dims": hlo.DotDimsAttr(numbers)}
    if precision is not None:
        properties["operand_precision"] = precision
    dot = insert_before(op, hlo.DotOp, (lhs, rhs), hlo.array_type(op.shape.dtype, shape), op.loc, properties)
    return reshaped(op, dot, op.shape.dims)


def _adjacent(dims: tuple[int, ...], feature: int, spatial: tuple[int, ...]) -> bool:
    """Whether the dims that are contracted lie side by side, features before or after the window, sizes of 1 aside."""
    for order in ((feature, *spatial), (*spatial, feature)):
        large = [axis for axis in order if dims[axis] != 1]
        between = [size for size in dims[large[0] : large[-1] + 1] if size != 1] if large else []
        if large == sorted(large) and len(between) == len(large):
            return True
    return False


RULES: dict[type, tuple[Rule, ...]] = {
    hlo.ConvolutionOp: (_reversed_kernel, _padded_input, _single_position, window_as_input, patches)
}
