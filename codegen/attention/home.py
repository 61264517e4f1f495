"""Results that stay on chip, rows on the partitions, for the contractions that read them."""

from __future__ import annotations

from math import prod

from neuronx_cc.codegen.attention.arrays import from_stored, stored_order
from neuronx_cc.codegen.attention.choose import problem_of
from neuronx_cc.codegen.attention.estimate import least
from neuronx_cc.codegen.attention.pattern import Attention
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.formation.graph import is_view
from neuronx_cc.codegen.maps.plan import resident_view
from neuronx_cc.codegen.maps.spread import Partitions
from neuronx_cc.codegen.view_ops import apply_view
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.types import itemsize


def on_chip(context: Context, attention: Attention) -> View | None:
    """A home there, if contractions alone read the result as it lies, and the kernel takes no longer with it; else
    None.
    """
    value, lies = attention.result, _partitions(context, attention)
    if value in context.outputs or lies is None:
        return None
    shape = hlo.shape_of(value)
    nbytes = shape.size // lies.size * itemsize(shape.dtype)
    view = _lying(attention, lies, Alloc(Space.SBUF, 0, max(1, nbytes)))
    if not context.residents.may_stay(nbytes) or not _is_multiplied(value, view):
        return None
    apart = problem_of(context, attention, context.builder.sbuf.largest_gap())
    stays = replace(apart, stays=True, room=apart.room - nbytes)
    if least(stays, context.timing) > least(apart, context.timing):
        return None
    alloc = context.new_resident(value, nbytes)
    return None if alloc is None else _lying(attention, lies, alloc)


def _partitions(context: Context, attention: Attention) -> Partitions | None:
    rows = attention.dims[attention.row]
    whole = (Atom(rows, prod(attention.dims[attention.row + 1 :])),)
    axes = [axis for axis, atoms in enumerate(attention.made_marks.dims) if coalesce(atoms) == whole]
    size = min(rows, context.sizes.columns)
    return Partitions(axes[0], size, 1) if len(axes) == 1 and rows > 1 and rows % size == 0 else None


def _lying(attention: Attention, lies: Partitions, alloc: Alloc) -> View:
    """In the order in which its reader goes through it."""
    shape, order = hlo.shape_of(attention.result), stored_order(attention)
    dims = [shape.dims[axis] for axis in order]
    there = resident_view(alloc, shape.dtype, dims, Partitions(order.index(lies.axis), lies.size, 1))
    return from_stored(there, order)


def _is_multiplied(value: hlo.SSAValue, view: View) -> bool:
    """Whether contractions, and nothing else, read ``view`` of ``value``, or views that can be made of it."""
    for op in (use.operation for use in value.uses):
        if isinstance(op, hlo.DotOp):
            continue
        after = apply_view(op, view) if is_view(op) else None
        if after is None or not _is_multiplied(op.results[0], after):
            return False
    return True
