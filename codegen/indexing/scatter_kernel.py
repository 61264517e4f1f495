"""Scatters of rows that no two updates share: a DMA whose descriptors GpSimd software makes from the indices.

Input: the forms that ``passes.indexing.scatter`` makes. Operand [R, W], indices [N], updates [N, W]; an index outside
is skipped. Tables on chip are ``group_kernel``'s, counts ``count_kernel``'s, sums of
rows with duplicates ``sum_kernel``'s.
"""

from __future__ import annotations

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.views import Atom, View, linear
from neuronx_cc.codegen.indexing import count_kernel, group_kernel, sum_kernel
from neuronx_cc.codegen.indexing.gather_kernel import move_rows
from neuronx_cc.codegen.indexing.indexed_kernel import update_in_place
from neuronx_cc.ir import hlo


def scatter(context: Context, op: hlo.ScatterOp, step: int) -> None:
    """The operand's buffer itself when nothing else reads it, else a copy, with the rows written into it."""
    _, indices, updates = op.args
    if op.dims.data.input_batching_dims and count_kernel.applies(context, op):
        count_kernel.lower(context, op)
        return
    if op.dims.data.input_batching_dims:
        group_kernel.scatter(context, op)
        return
    if not op.unique_indices.data:
        sum_kernel.lower(context, op)
        return
    target = update_in_place(context, op, step)
    splat = context.splat(updates)
    rows = hlo.shape_of(updates)
    listed = context.dense(updates) if splat is None else linear(target.alloc, target.start, rows.dtype, rows.dims)
    move_rows(context, _rows(target), _rows(listed), context.dense(indices), write=True, splat=splat)


def _rows(view: View) -> Block:
    """A dense [R, W] array by rows."""
    height, width = view.shape
    size = hlo.itemsize(view.dtype)
    return Block(view.alloc, view.dtype, view.start, (Atom(height, width * size), Atom(width, size)))
