"""Rewrites of convolutions for the pass ``canonicalize``.

* A kernel that is reversed along window dims becomes a reversed window.
* One whose result has one position becomes a dot over input features and window: fully connected layers written as
  convolutions, gradients of 1 x 1 kernels, convolutions without window dims.

Sums keep their terms but for products with padding; their order, which HLO leaves open, may change.
"""

from dataclasses import replace

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import DotDims, SliceDim, WindowDim
from neuronx_cc.ir.hlo.editing import insert_before
from neuronx_cc.passes.canonical_movement import reshaped
from neuronx_cc.passes.canonicalize import Rule, Scope, result_op

Value = hlo.SSAValue


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


def _single_position(op: hlo.ConvolutionOp, scope: Scope) -> Value | None:
    """``reshape(dot(slice(lhs), slice(rhs)))`` for a result of one position, without groups or a dilated input."""
    dims, window = op.dims.data, op.window.data
    if op.feature_group_count.data > 1 or op.batch_group_count.data > 1 or op.shape.size == 0:
        return None
    if any(op.shape.dims[axis] != 1 for axis in dims.out_spatial) or any(dim.lhs_dilation > 1 for dim in window):
        return None
    lhs_shape, rhs_shape = hlo.shape_of(op.lhs), hlo.shape_of(op.rhs)
    left, right = [SliceDim(0, size) for size in lhs_shape.dims], [SliceDim(0, size) for size in rhs_shape.dims]
    flipped = []
    for lhs_axis, rhs_axis, dim in zip(dims.lhs_spatial, dims.rhs_spatial, window, strict=True):
        met = _met(lhs_shape.dims[lhs_axis], dim)
        if not met:
            return None
        first, count = met.start, len(met)
        left[lhs_axis] = SliceDim(first, first + (count - 1) * dim.rhs_dilation + 1, dim.rhs_dilation)
        begin = (first + dim.pad_low) // dim.rhs_dilation
        if dim.reversal:
            begin = dim.size - begin - count
            flipped.append(rhs_axis)
        right[rhs_axis] = SliceDim(begin, begin + count)
    lhs, rhs = _sliced(op, op.lhs, left), _sliced(op, op.rhs, right)
    if flipped:
        attr = {"dimensions": hlo.IntsAttr(tuple(flipped))}
        rhs = insert_before(op, hlo.ReverseOp, (rhs,), rhs.type, op.loc, attr)
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


def _met(size: int, dim: WindowDim) -> range:
    """Input positions inside the array that the window meets at output position 0."""
    positions = range(-dim.pad_low, -dim.pad_low + dim.size * dim.rhs_dilation, dim.rhs_dilation)
    inside = [position for position in positions if 0 <= position < size]
    return range(inside[0], inside[-1] + 1, dim.rhs_dilation) if inside else range(0)


def _sliced(op: hlo.HloOp, value: Value, slices: list[SliceDim]) -> Value:
    shape = hlo.shape_of(value)
    if all(part == SliceDim(0, size) for part, size in zip(slices, shape.dims, strict=True)):
        return value
    dims = tuple(-(-(part.limit - part.start) // part.stride) for part in slices)
    type_ = hlo.array_type(shape.dtype, dims)
    return insert_before(op, hlo.SliceOp, (value,), type_, op.loc, {"slice": hlo.SliceAttr(tuple(slices))})


RULES: dict[type, tuple[Rule, ...]] = {hlo.ConvolutionOp: (_reversed_kernel, _single_position)}
