"""Trees of elementwise ops, computed in another order of their dims; dims of one element are left out of them.

A tree ends at its leaves: what is no elementwise op, and what its owner says. Orders are as ``features_first`` has
them: dim i of what there was becomes dim ``order[i]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, insert_before
from neuronx_cc.passes.expansions.reordered import transposed

Value = hlo.SSAValue
Order = tuple[int, ...]
Known = Callable[[Value], Order | None]
"""The order of which a value is the transpose already."""

MOST = 64
"""Ops of a tree."""


def axes_of(dims: Sequence[int]) -> list[int]:
    """The dims of more than one element."""
    return [axis for axis, size in enumerate(dims) if size != 1]


def wide(dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(size for size in dims if size != 1)


def inverse(order: Iterable[int]) -> Order:
    order = tuple(order)
    return tuple(order.index(axis) for axis in range(len(order)))


class Tree:
    """The elementwise ops that make ``roots``, arrays of ``dims``, of its ``leaves``."""

    def __init__(self, dims: tuple[int, ...], roots: Iterable[Value], is_leaf: Callable[[Value], bool]) -> None:
        self.dims = dims
        self.ops: dict[hlo.HloOp, None] = {}
        self.leaves: dict[Value, None] = {}
        pending = list(roots)
        while pending:
            value = pending.pop()
            op = defining_op(value)
            if not self._is_array(value):
                continue
            inner = isinstance(op, hlo.ElementwiseOp) or (isinstance(op, hlo.ReshapeOp) and self._is_array(op.operand))
            if not inner or len(self.ops) > MOST or is_leaf(value):
                self.leaves[value] = None
            elif op not in self.ops:
                self.ops[op] = None  # type: ignore[index]
                pending += op.operands  # type: ignore[union-attr]

    def _is_array(self, value: Value) -> bool:
        return wide(hlo.shape_of(value).dims) == self.dims

    def cost(self, order: Order, known: Known) -> int:
        """Elements that are transposed for ``order``."""
        return sum(_cost(value, order, known) for value in self.leaves)

    def made(
        self, anchor: hlo.HloOp, value: Value, order: Order, known: Known, copies: dict[tuple[Value, Order], Value]
    ) -> Value:
        """``value`` in ``order``, written above ``anchor`` unless it is among ``copies``."""
        if not self._is_array(value):
            return value
        key, op = (value, order), defining_op(value)
        if key not in copies:
            if not isinstance(op, hlo.HloOp) or op not in self.ops:
                copies[key] = _leaf(anchor, value, order, known)
            elif isinstance(op, hlo.ReshapeOp):
                copies[key] = self.made(anchor, op.operand, order, known, copies)
            else:
                operands = [self.made(anchor, each, order, known, copies) for each in op.operands]
                type_ = hlo.array_type(op.shape.dtype, tuple(self.dims[axis] for axis in inverse(order)))
                copied = copy_op(op, operands, type_)
                assert anchor.parent is not None
                anchor.parent.insert_op_before(copied, anchor)
                copies[key] = copied.results[0]
        return copies[key]


def _cost(value: Value, order: Order, known: Known) -> int:
    op, size = defining_op(value), hlo.shape_of(value).size
    if known(value) == order or isinstance(op, hlo.IotaOp):
        return 0
    if isinstance(op, hlo.BroadcastOp):
        places = _places(op, order)
        return hlo.shape_of(op.operand).size if places != sorted(places) else 0
    if isinstance(op, hlo.TransposeOp):
        return 0 if _through(op, order) == sorted(_through(op, order)) else size
    return size if list(order) != sorted(order) else 0


def _places(op: hlo.BroadcastOp, order: Order) -> list[int]:
    """Where the wide dims of what ``op`` repeats come to stand."""
    axes, dims = axes_of(op.shape.dims), hlo.shape_of(op.operand).dims
    return [order[axes.index(axis)] for axis, size in zip(op.dimensions.data, dims, strict=True) if size != 1]


def _through(op: hlo.TransposeOp, order: Order) -> list[int]:
    """The wide dims of the operand of ``op`` in the order in which they come to stand."""
    axes, source = axes_of(op.shape.dims), axes_of(hlo.shape_of(op.operand).dims)
    return [source.index(op.dimensions.data[axes[axis]]) for axis in inverse(order)]


def _leaf(anchor: hlo.HloOp, value: Value, order: Order, known: Known) -> Value:
    op, shape = defining_op(value), hlo.shape_of(value)
    dims = wide(shape.dims)
    type_ = hlo.array_type(shape.dtype, tuple(dims[axis] for axis in inverse(order)))
    if known(value) == order:
        assert isinstance(op, hlo.TransposeOp), "known are transposes"
        return _squeezed(anchor, op.operand)
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
        return transposed(anchor, _squeezed(anchor, op.operand), _through(op, order))
    return transposed(anchor, _squeezed(anchor, value), inverse(order))


def _squeezed(anchor: hlo.HloOp, value: Value) -> Value:
    shape = hlo.shape_of(value)
    if wide(shape.dims) == shape.dims:
        return value
    type_ = hlo.array_type(shape.dtype, wide(shape.dims))
    return insert_before(anchor, hlo.ReshapeOp, (value,), type_, hlo.loc_of(value))
