"""Concatenate and pad: results put together by DMA from strided parts."""

from __future__ import annotations

from neuronx_cc.codegen import spread_kernel
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.fill import fill as fill_array
from neuronx_cc.codegen.transfer import transfer
from neuronx_cc.codegen.views import View, linear
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream


def concatenate(context: Context, op: hlo.ConcatenateOp, step: int) -> None:
    """Each operand goes to its slice of the result."""
    del step
    target = context.new_hbm(op.result)
    context.homes[op.result] = [target]
    axis = op.dimension.data
    start = 0
    for operand in op.args:
        shape = hlo.shape_of(operand)
        if shape.size:
            part = target.slice(axis, start, shape.dims[axis])
            assert part is not None, "a dense result slices"
            put(context, part, operand)
        start += shape.dims[axis]


def pad(context: Context, op: hlo.PadOp, step: int) -> None:
    """The result is filled with the padding value, then the operand's kept part is written between."""
    del step
    shape = hlo.shape_of(op.lhs)
    target = context.new_hbm(op.result)
    context.homes[op.result] = [target]
    if spread_kernel.applies(context, op):
        spread_kernel.lower(context, op, target)
        return
    fill(context, target, op.rhs)
    part: View | None = target
    cuts: list[tuple[int, int, int]] = []
    for axis, (dim, size, out) in enumerate(zip(op.padding.data, shape.dims, op.shape.dims, strict=True)):
        spacing = dim.interior + 1
        first = max(0, -(dim.low // spacing)) if dim.low < 0 else 0
        last = min(size - 1, (out - 1 - dim.low) // spacing)
        if last < first:
            return
        cuts.append((axis, first, last - first + 1))
        part = part.slice(axis, dim.low + first * spacing, last - first + 1, spacing) if part is not None else None
    assert part is not None, "a dense result slices"
    put(context, part, op.lhs, cuts)


def put(context: Context, target: View, value: hlo.SSAValue, cuts: list[tuple[int, int, int]] | None = None) -> None:
    """Copy ``value`` (or the part given by (axis, start, size) cuts) to an HBM view of the same shape."""
    if not any(_put(context, target, view, cuts) for view in context.in_place(value)):
        # lanes on chip are one dim, which a view that joins two dims does not match: a dense array does
        copied = _put(context, target, context.hbm(value), cuts) or _put(context, target, context.dense(value), cuts)
        assert copied, "a dense array copies to any view"


def _put(context: Context, target: View, view: View | None, cuts: list[tuple[int, int, int]] | None) -> bool:
    for axis, start, size in cuts or ():
        view = view.slice(axis, start, size) if view is not None else None
    return view is not None and transfer(context.builder, target, view, Stream.DMA_STORE)


def fill(context: Context, target: View, value: hlo.SSAValue) -> None:
    """Write the scalar ``value`` everywhere in the dense HBM array ``target``."""
    number = context.splat(value)
    fill_array(context.builder, target, number, context.hbm(value) if number is None else None)


def bitcast_convert(context: Context, op: hlo.BitcastConvertOp, step: int) -> None:
    """Between element types of different width: the same bytes in row-major order, the minor dim made or taken up."""
    del step
    target = context.new_hbm(op.result)
    context.homes[op.result] = [target]
    shape = hlo.shape_of(op.operands[0])
    put(context, linear(target.alloc, target.offset, shape.dtype, shape.dims), op.operands[0])
