"""Short parts of rows that are padded, as gradients of concatenations are: the array is split once, on chip.

The DMA would move each row of each part as a transfer of its own. Instead the whole array is put in order so that every
part is dense, in one pass.
"""

from __future__ import annotations

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.views import View, unplaced
from neuronx_cc.codegen.formation.graph import base
from neuronx_cc.codegen.movement.relayout_plan import LEAST_ELEMENTS, is_long
from neuronx_cc.codegen.movement.transfer import nanoseconds, transfer
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

LEAST_PARTS = 3
"""Of an array that is split."""


def split(context: Context, op: hlo.PadOp) -> None:
    """Give the part of rows that ``op`` pads, and others like it, dense homes where that takes less time for all."""
    part = op.lhs.owner
    if not isinstance(part, hlo.SliceOp) or part.result in context.homes:
        return
    whole, width = part.operand, part.shape.dims[-1] if part.shape.rank else 0
    shape = hlo.shape_of(whole)
    parts = [use.operation for use in whole.uses if _is_like(use.operation, part)]
    if len(parts) < LEAST_PARTS or shape.dims[-1] % width or shape.size < LEAST_ELEMENTS or shape.size == width:
        return
    size, timing = itemsize(shape.dtype), context.timing
    source = next((view for view in context.views(whole) if not view.in_sbuf), None)
    if source is None or is_long(timing, width * size):
        return
    each = part.shape.nbytes
    apart, dense = (timing.transfer(each, run).bound for run in (width * size, timing.long_run))
    count = shape.dims[-1] // width
    split_shape = hlo.Shape(shape.dtype, (count, *part.shape.dims))
    order = [*range(1, shape.rank), 0, shape.rank]
    like = _joined(unplaced(shape.dtype, split_shape.dims), order, shape)
    if nanoseconds(context.builder, like, source) + timing.transfer_latency + len(parts) * dense > len(parts) * apart:
        return
    home = context.own_hbm(base(whole), split_shape)
    transfer(context.builder, _joined(home, order, shape), source, Stream.DMA_LOAD, force=True)
    for other in parts:
        start = other.slice.data[-1].start // width
        taken = home.slice(0, start, 1)
        taken = None if taken is None else taken.reshape(other.shape.dims)
        assert taken is not None, "a part of a dense array"
        context.homes[other.result] = [taken]


def _joined(home: View, order: list[int], shape: hlo.Shape) -> View:
    """[parts, dims..., width] as the array that is split."""
    joined = home.transpose(order).reshape(shape.dims)
    assert joined is not None, "the last two dims are one"
    return joined


def _is_like(op: object, part: hlo.SliceOp) -> bool:
    """Whether ``op`` is a part of the same width of the same rows, which only pads read."""
    if not isinstance(op, hlo.SliceOp) or op.shape != part.shape:
        return False
    *rows, last = op.slice.data
    width = op.shape.dims[-1]
    whole = hlo.shape_of(op.operand).dims[:-1]
    all_rows = all(dim.stride == 1 and dim.limit - dim.start == size for dim, size in zip(rows, whole, strict=True))
    padded = all(isinstance(use.operation, hlo.PadOp) for use in op.result.uses)
    return all_rows and last.stride == 1 and last.start % width == 0 and padded
