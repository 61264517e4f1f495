"""Concatenate and pad: results put together by DMA from strided parts, or on chip where those are single elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import View, linear
from neuronx_cc.codegen.movement import assemble_kernel, relayout_kernel, relayout_plan
from neuronx_cc.codegen.movement.fill import fill as fill_array
from neuronx_cc.codegen.movement.fill import one_a_partition
from neuronx_cc.codegen.movement.relayout_kernel import Blank
from neuronx_cc.codegen.movement.relayout_plan import Dim, Relayout
from neuronx_cc.codegen.movement.transfer import blocks_of, loaded_ns, room, transfer
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize


def concatenate(context: Context, op: hlo.ConcatenateOp, step: int) -> None:
    """Each operand goes to its slice of the result."""
    del step
    begun = op.result in context.homes  # some of its parts are there
    target = context.homes[op.result][0] if begun else context.new_hbm(op.result)
    context.homes[op.result] = [target]
    axis = op.dimension.data
    if not begun and assemble_kernel.applies(context, op):
        assemble_kernel.lower(context, op, target)
        return
    start = 0
    for operand in op.args:
        shape = hlo.shape_of(operand)
        if shape.size:
            part = target.slice(axis, start, shape.dims[axis])
            assert part is not None, "a dense result slices"
            if not (begun and context.lies_in(operand, part)):
                put(context, part, operand)
        start += shape.dims[axis]


def pad(context: Context, op: hlo.PadOp, step: int) -> None:
    """The result is filled with the padding value, then the operand's kept part is written between."""
    del step
    shape = hlo.shape_of(op.lhs)
    target = context.new_hbm(op.result)
    context.homes[op.result] = [target]
    part: View | None = target
    cuts: list[tuple[int, int, int]] = []
    for axis, (dim, size, out) in enumerate(zip(op.padding.data, shape.dims, op.shape.dims, strict=True)):
        spacing = dim.interior + 1
        first = max(0, -(dim.low // spacing)) if dim.low < 0 else 0
        last = min(size - 1, (out - 1 - dim.low) // spacing)
        if last < first:
            fill(context, target, op.rhs)
            return
        cuts.append((axis, first, last - first + 1))
        part = part.slice(axis, dim.low + first * spacing, last - first + 1, spacing) if part is not None else None
    assert part is not None, "a dense result slices"
    if not _pad_on_chip(context, op, target, part, cuts):
        fill(context, target, op.rhs)
        put(context, part, op.lhs, cuts)


def _pad_on_chip(context: Context, op: hlo.PadOp, target: View, part: View, cuts: list[tuple[int, int, int]]) -> bool:
    """Write ``op`` with elements and padding interleaved on chip; False where a DMA moves its elements well."""
    builder, timing, size = context.builder, context.timing, itemsize(target.dtype)
    if size > 4 or prod(part.shape) < relayout_plan.LEAST_ELEMENTS:
        return False
    for view in _homes(context, op.lhs):
        piece: View | None = view
        for cut in cuts:
            piece = piece.slice(*cut) if piece is not None else None
        blocks = blocks_of([part, piece], part.shape) if piece is not None else None
        if blocks is None:
            continue
        to, source = relayout_plan.ordered(*blocks)
        if source.dims[0].partition and to.dims[0].stride < max(atom.stride for atom in to.dims):
            continue  # runs would take in elements of other partitions
        filling = relayout_plan.direct_ns(timing, op.shape.nbytes, timing.long_run)
        relayout = relayout_plan.plan(timing, to, source, room(builder), blank=True, cut_ns=filling)
        if relayout is None:
            return False
        margins = _margins(timing, op, relayout_plan.dims_of(to, source), relayout)
        if margins is None:
            fill(context, target, op.rhs)
            margins = 0, 0
        number = context.splat(op.rhs)
        with TilePool(builder, "padding") as pool:
            value = one_a_partition(builder, pool, context.hbm(op.rhs)) if number is None else number
            blank = Blank(value, *margins)
            relayout_kernel.copy(builder, to, source, relayout, Stream.DMA_LOAD, Stream.DMA_STORE, blank)
        return True
    return False


def _homes(context: Context, value: hlo.SSAValue) -> Iterator[View]:
    """Where ``value`` lies, last a home in HBM, made if need be."""
    yield from context.views(value)
    yield context.hbm(value)


def _margins(timing: Timing, op: hlo.PadOp, dims: Sequence[Dim], relayout: Relayout) -> tuple[int, int] | None:
    """Bytes of padding before and after each run with which the runs cover the result; None where none do."""
    *others, last = op.padding.data
    size = itemsize(op.shape.dtype)
    if any((dim.low, dim.high, dim.interior) != (0, 0, 0) for dim in others) or min(last.low, last.high) < 0:
        return None
    if relayout_plan.as_stored(timing, dims, relayout.pieces, size, blank=True).outside:
        return None
    before, after = last.low * size, last.high * size
    fills_gaps = dims[-1].target == before + size + after
    whole_rows = relayout.pieces[-1] == dims[-1].size == hlo.shape_of(op.lhs).dims[-1]
    return (before, after) if fills_gaps or whole_rows else None


def put(context: Context, target: View, value: hlo.SSAValue, cuts: list[tuple[int, int, int]] | None = None) -> None:
    """Copy ``value`` (or the part given by (axis, start, size) cuts) to an HBM view of the same shape."""
    views = context.views(value)
    if target.in_sbuf and len(views) > 1 and not cuts:  # some of them in another order than it is wanted in
        views = sorted(views, key=lambda view: loaded_ns(context.timing, target, view))
    if not any(_put(context, target, view, cuts) for view in views):
        # partitions on chip are one dim, which a view that joins two dims does not match: a dense array does
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
    put(context, linear(target.alloc, target.start, shape.dtype, shape.dims), op.operands[0])
