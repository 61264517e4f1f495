"""Gathers of windows at known, even places: a view of the table, or one DMA where the result has a place of its own.

Input: operand [R, W], constant indices [N], slices [k, W], where the indices are sums of even steps
(``passes.indexing.walks``).
"""

from __future__ import annotations

import numpy as np

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.formation.graph import base
from neuronx_cc.codegen.indexing.indexed_kernel import stays
from neuronx_cc.codegen.movement.transfer import transfer
from neuronx_cc.codegen.sharing import successors
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.passes.indexing.walks import walk_of

FEW = 2
"""Steps of windows that lie apart: those of more, and rows that stand alone, are brought together, once."""


def lower(context: Context, op: hlo.GatherOp) -> bool:
    """Whether ``op`` is such a gather; its result [N, k, W] has a home then."""
    view = _view(context, op)
    if view is None:
        return False
    if _is_read(op, view) and op.result not in context.outputs and _stays(context, op.lhs, view):
        context.lies_within(op.result, op.lhs)
        context.homes[op.result] = [view]
        return True
    target = context.new_hbm(op.result)
    context.homes[op.result] = [target]
    moved = transfer(context.builder, target, view, Stream.DMA_LOAD)
    assert moved, "HBM views align"
    return True


def _is_read(op: hlo.GatherOp, view: View) -> bool:
    """Whether what reads ``op`` reads ``view``: windows at few steps, with neighbours in memory along one dim alone."""
    size, steps = hlo.itemsize(view.dtype), view.dims[0]
    return op.slice_sizes.data[0] > 1 and len(steps) <= FEW and all(atom.stride != size for atom in steps)


def _stays(context: Context, array: hlo.SSAValue, view: View) -> bool:
    """Whether nothing is written over ``view`` of ``array``, or of a copy of it, until the end of the computation."""
    lent = context.carried.get(base(array))
    copied = (lent is None or lent.alloc is not view.alloc) and next(successors(context, base(array)), None) is None
    return copied or stays(context, array, view)


def _view(context: Context, op: hlo.GatherOp) -> View | None:
    """The windows in the dense operand."""
    made = op.rhs.owner
    if not isinstance(made, hlo.ConstantOp) or hlo.shape_of(op.lhs).rank != 2:
        return None
    starts = np.asarray(context.module.constants[made.value.data]).reshape(-1).astype(np.int64)
    height, width = op.slice_sizes.data
    rows = hlo.shape_of(op.lhs).dims[0]
    walk = walk_of(np.clip(starts, 0, rows - height), starts.shape, {})
    if walk is None or hlo.shape_of(op.lhs).dims[1] != width:
        return None
    table = context.dense(op.lhs)
    pitch = hlo.itemsize(table.dtype) * width
    atoms = tuple(Atom(count, step * pitch) for count, step in walk.steps if count > 1)
    inner = table.of(((), (Atom(height, pitch),) if height > 1 else (), table.dims[1]))
    return table.of((coalesce(atoms), *inner.dims[1:]), walk.first * pitch)
