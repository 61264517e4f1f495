"""Trees of elementwise ops, computed in another order of their dims; dims of one element are left out of them.

A tree ends at its leaves: what is no elementwise op or transpose, and what is there already. Orders are as
``features_first`` has them: dim i of what there was becomes dim ``order[i]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, insert_before
from neuronx_cc.passes.expansions.reordered import inverse, transposed

Value = hlo.SSAValue
Order = tuple[int, ...]
Node = tuple[Value, Order]
"""A value in an order."""
Known = Callable[[Value, Order], bool]
"""Whether a value is there in an order already."""

MOST = 64
"""Ops of a tree."""


def axes_of(dims: Sequence[int]) -> list[int]:
    """The dims of more than one element."""
    return [axis for axis, size in enumerate(dims) if size != 1]


def wide(dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(size for size in dims if size != 1)


class Tree:
    """What ``roots`` are made of, in ``order``: elementwise ops in the order in which each is wanted, and ``leaves``.

    ``known`` says what of it is there already, ``deep`` whether ops are looked through.
    """

    def __init__(self, roots: Iterable[Value], order: Order, known: Known, deep: bool = True) -> None:
        self.known = known
        self.inner: dict[Node, list[Node]] = {}
        """Ops that are written again, by their results -> their operands; of views the one."""
        self.leaves: dict[Node, None] = {}
        pending = [(root, order) for root in roots]
        while pending:
            node = pending.pop()
            if node in self.inner or node in self.leaves:
                continue
            operands = self._operands(*node) if deep and len(self.inner) < MOST else None
            if operands is None:
                self.leaves[node] = None
            else:
                self.inner[node] = operands
                pending += operands

    def _operands(self, value: Value, order: Order) -> list[Node] | None:
        op = defining_op(value)
        if self.known(value, order) or list(order) == sorted(order):
            return None
        dims = wide(hlo.shape_of(value).dims)
        if isinstance(op, hlo.ElementwiseOp):
            return [(x, order) for x in op.operands if wide(hlo.shape_of(x).dims) == dims]
        if isinstance(op, hlo.ReshapeOp) and wide(hlo.shape_of(op.operand).dims) == dims:
            return [(op.operand, order)]
        return [(op.operand, _ahead(op, order))] if isinstance(op, hlo.TransposeOp) else None

    @property
    def cost(self) -> int:
        """Elements that are transposed for it."""
        return sum(0 if self.known(*node) else _cost(*node) for node in self.leaves)

    def made(self, anchor: hlo.HloOp, value: Value, order: Order, copies: dict[Node, Value]) -> Value:
        """``value`` in ``order``, written above ``anchor`` unless it is among ``copies``."""
        node, op = (value, order), defining_op(value)
        if node not in copies:
            if node not in self.inner:
                copies[node] = _leaf(anchor, value, order)
            elif not isinstance(op, hlo.ElementwiseOp):
                ((operand, ahead),) = self.inner[node]
                copies[node] = self.made(anchor, operand, ahead, copies)
            else:
                dims = wide(op.shape.dims)
                alike = [wide(hlo.shape_of(x).dims) == dims for x in op.operands]
                operands = [
                    self.made(anchor, x, order, copies) if each else x
                    for x, each in zip(op.operands, alike, strict=True)
                ]
                type_ = hlo.array_type(op.shape.dtype, tuple(dims[axis] for axis in inverse(order)))
                copied = copy_op(op, operands, type_)
                assert anchor.parent is not None
                anchor.parent.insert_op_before(copied, anchor)
                copies[node] = copied.results[0]
        return copies[node]


def _cost(value: Value, order: Order) -> int:
    op, size = defining_op(value), hlo.shape_of(value).size
    if isinstance(op, hlo.IotaOp):
        return 0
    if isinstance(op, hlo.BroadcastOp):
        places = _places(op, order)
        return hlo.shape_of(op.operand).size if places != sorted(places) else 0
    if isinstance(op, hlo.TransposeOp):
        order = _ahead(op, order)
    return size if list(order) != sorted(order) else 0


def _ahead(op: hlo.TransposeOp, order: Order) -> Order:
    """In which order the operand of ``op`` stands for the result to stand in ``order``."""
    axes, source = axes_of(op.shape.dims), axes_of(hlo.shape_of(op.operand).dims)
    found = [0] * len(order)
    for axis, place in zip(axes, order, strict=True):
        found[source.index(op.dimensions.data[axis])] = place
    return tuple(found)


def _places(op: hlo.BroadcastOp, order: Order) -> list[int]:
    """Where the wide dims of what ``op`` repeats come to stand."""
    axes, dims = axes_of(op.shape.dims), hlo.shape_of(op.operand).dims
    return [order[axes.index(axis)] for axis, size in zip(op.dimensions.data, dims, strict=True) if size != 1]


def _leaf(anchor: hlo.HloOp, value: Value, order: Order) -> Value:
    op, shape = defining_op(value), hlo.shape_of(value)
    dims = wide(shape.dims)
    type_ = hlo.array_type(shape.dtype, tuple(dims[axis] for axis in inverse(order)))
    if isinstance(op, hlo.BroadcastOp):
        places = _places(op, order)
        operand = _squeezed(anchor, op.operand)
        operand = transposed(anchor, operand, sorted(range(len(places)), key=places.__getitem__))
        dimensions = {"dimensions": hlo.IntsAttr(tuple(sorted(places)))}
        return insert_before(anchor, hlo.BroadcastOp, (operand,), type_, op.loc, dimensions)
    if isinstance(op, hlo.IotaOp):
        axis = order[axes_of(shape.dims).index(op.iota_dimension.data)]
        return insert_before(anchor, hlo.IotaOp, (), type_, op.loc, {"iota_dimension": hlo.IntAttr(axis)})
    if isinstance(op, hlo.TransposeOp):
        return transposed(anchor, _squeezed(anchor, op.operand), inverse(_ahead(op, order)))
    return transposed(anchor, _squeezed(anchor, value), inverse(order))


def _squeezed(anchor: hlo.HloOp, value: Value) -> Value:
    shape = hlo.shape_of(value)
    if wide(shape.dims) == shape.dims:
        return value
    type_ = hlo.array_type(shape.dtype, wide(shape.dims))
    return insert_before(anchor, hlo.ReshapeOp, (value,), type_, hlo.loc_of(value))
