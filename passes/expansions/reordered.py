"""Elementwise ops over arrays that are made of smaller ones, which are repeated, in another order of their dims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, insert_before

Value = hlo.SSAValue

LEAST_SHARE = 8
"""How many times larger than an array that is transposed and repeated the result is, at least."""


def is_small(op: hlo.BroadcastOp) -> bool:
    """Whether transposing what ``op`` repeats is little beside what it is repeated to."""
    return hlo.shape_of(op.operand).size * LEAST_SHARE <= op.shape.size


class Reordered:
    """Arrays of ``dims`` written again with dim ``order[i]`` as dim i."""

    def __init__(self, dims: tuple[int, ...], order: tuple[int, ...]) -> None:
        self.dims, self.order = dims, order
        self.made: dict[Value, Value] = {}
        """As they were -> as they are."""

    def copy(self, anchor: hlo.HloOp, op: hlo.HloOp) -> Value:
        """The result of an elementwise op, computed above ``anchor``; its operands are repeated or made already."""
        operands = [self.made.get(each) or self._operand(anchor, each) for each in op.operands]
        copied = copy_op(op, operands, self._type(op.shape.dtype))
        assert anchor.parent is not None
        anchor.parent.insert_op_before(copied, anchor)
        self.made[op.results[0]] = copied.results[0]
        return copied.results[0]

    def _type(self, dtype: str) -> hlo.Attribute:
        return hlo.array_type(dtype, tuple(self.dims[axis] for axis in self.order))

    def _operand(self, anchor: hlo.HloOp, value: Value) -> Value:
        """What is repeated or counted, in the new order; scalars as they are."""
        made = defining_op(value)
        if hlo.shape_of(value).dims != self.dims:
            return value
        if isinstance(made, hlo.IotaOp):
            axis = hlo.IntAttr(self.order.index(made.iota_dimension.data))
            return insert_before(
                anchor, hlo.IotaOp, (), self._type(made.shape.dtype), made.loc, {"iota_dimension": axis}
            )
        assert isinstance(made, hlo.BroadcastOp), "arrays are made of what is repeated"
        places = [self.order.index(axis) for axis in made.dimensions.data]
        order = sorted(range(len(places)), key=places.__getitem__)
        operand = transposed(anchor, made.operand, order)
        dimensions = hlo.IntsAttr(tuple(sorted(places)))
        type_ = self._type(made.shape.dtype)
        return insert_before(anchor, hlo.BroadcastOp, (operand,), type_, made.loc, {"dimensions": dimensions})


def inverse(order: Iterable[int]) -> tuple[int, ...]:
    """Where each dim stands in ``order``."""
    order = tuple(order)
    return tuple(order.index(axis) for axis in range(len(order)))


def transposed(anchor: hlo.Operation, value: Value, order: Sequence[int]) -> Value:
    """``value`` with dim ``order[i]`` as dim i; itself where that is its order."""
    if list(order) == sorted(order):
        return value
    shape = hlo.shape_of(value)
    type_ = hlo.array_type(shape.dtype, tuple(shape.dims[axis] for axis in order))
    attribute = {"dimensions": hlo.IntsAttr(tuple(order))}
    return insert_before(anchor, hlo.TransposeOp, (value,), type_, hlo.loc_of(value), attribute)
