"""What the ops that move nothing make of a view: an array as its reshape, transpose, slice, ... sees it."""

from __future__ import annotations

from math import prod

from neuronx_cc.codegen.emission.views import View, unplaced
from neuronx_cc.codegen.formation.graph import base, is_view
from neuronx_cc.ir import hlo


def apply_view(op: hlo.HloOp, view: View) -> View | None:
    """The result of view op ``op`` for operand ``view``; None when it is no view of that buffer."""
    if isinstance(op, hlo.BroadcastOp):
        return view.broadcast(op.shape.dims, op.dimensions.data)
    if isinstance(op, hlo.TransposeOp):
        return view.transpose(op.dimensions.data)
    if isinstance(op, hlo.ReverseOp):
        return view.reverse(op.dimensions.data)
    if isinstance(op, hlo.ReshapeOp | hlo.BitcastOp):
        return view.reshape(op.shape.dims)
    if isinstance(op, hlo.SliceOp):
        result: View | None = view
        for axis, (dim, size) in enumerate(zip(op.slice.data, op.shape.dims, strict=True)):
            result = result.slice(axis, dim.start, size, dim.stride) if result is not None else None
        return result
    if isinstance(op, hlo.BitcastConvertOp | hlo.ConvertOp):
        return view.retyped(op.shape.dtype)
    return view


def seen_by(value: hlo.SSAValue, view: View) -> View | None:
    """``view``, of the ``base`` of ``value``, as ``value`` sees it; None if it is no view of that buffer."""
    chain = []
    while isinstance(value, hlo.OpResult) and is_view(value.op):
        chain.append(value.op)
        value = value.op.sources[0]
    found: View | None = view
    for op in reversed(chain):
        found = apply_view(op, found) if found is not None else None
    return found


def as_stored(value: hlo.SSAValue) -> View | None:
    """``value`` as it would lie if the array that it is a view of lay dense in HBM; None if it is no view of that."""
    shape = hlo.shape_of(base(value))
    return seen_by(value, unplaced(shape.dtype, shape.dims))


def squeezed(view: View) -> View:
    """Without size-1 dims."""
    kept = tuple([atoms for atoms in view.dims if prod([atom.size for atom in atoms]) > 1])
    return view if len(kept) == len(view.dims) else view.of(kept)
