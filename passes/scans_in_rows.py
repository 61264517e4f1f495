"""Puts the steps of scans behind the dims that lie beside them, which fill the partitions.

Input: canonical hlo. Output: a scan along a dim of which neighbours lie apart in memory, as time does in
``[batch, time, features]``, is computed in the order ``[batch, features, time]``: a partition has whole rows of it,
however many features there are. Dims that are folded after it stay innermost, as the states of
``[batch, time, features, states]``. What the scan is made of moves along as far as no more elements are transposed for
that, and what is made of it as far as ``features_first.Mover`` moves it. No value changes; reductions may add in another
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, insert_before, ops_of, users
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.scans import Scan, scan_of
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.expansions.reordered import is_small, transposed
from neuronx_cc.passes.features_first import Mover, Order, Value
from neuronx_cc.passes.manager import PassContext, only_for

LEAST = 1 << 14
"""Elements from which a scan is worth what is copied around it."""
LEAST_STEPS = 16
"""Steps from which a row of them is worth being scanned by an instruction of its own."""
ROW_SHARE = (1, 16)
"""Of a partition of SBUF: a scan's dim and all after it, where the dims ahead of these fill the partitions already."""
MOST = 64
"""Ops before and after a scan that are looked at."""


@only_for(hlo.CustomCallOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        if any(scan_of(op) is not None for op in ops_of(computation.block)):
            mover = _Steps(context.timing.sizes)
            for op in ops_of(computation.block):
                mover.visit(op)


class _Steps(Mover):
    """The transposes around scans."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.partitions, self.row = sizes.partitions, sizes.sbuf_share(ROW_SHARE)
        self.copies: dict[tuple[Value, Order], Value] = {}
        """Elementwise ops ahead of scans, computed in another order."""

    def visit(self, op: hlo.HloOp) -> None:
        scan = scan_of(op)
        if scan is None:
            super().visit(op)
            return
        order = next((source[1] for x in op.operands if (source := self._source(x)) is not None), None)
        order = order or self._wanted(op, scan)
        if order is None:
            return
        operands = self._computed(op, op.operands, order)
        place = _inverse(order)
        type_ = hlo.array_type(op.shape.dtype, tuple(op.shape.dims[axis] for axis in place))
        config = hlo.StrAttr(f"{order[scan.axis]} {int(scan.reverse)} {scan.result}")
        made = insert_before(op, hlo.CustomCallOp, operands, type_, op.loc, {**op.properties, "backend_config": config})
        self._restore(op, made, order)

    def _wanted(self, op: hlo.HloOp, scan: Scan) -> Order | None:
        """Where each dim is to stand; None where the scan is best left as it is."""
        dims = op.shape.dims
        if dims[scan.axis] < LEAST_STEPS or self._has_rows(dims, scan.axis):
            return None
        folded = _folded(op)
        keep = tuple(range(len(dims)))
        for value in _Tree(self, keep, dims, op.operands).leaves:
            made = defining_op(value)
            if isinstance(made, hlo.TransposeOp) and self._has_rows(
                hlo.shape_of(made.operand).dims, made.dimensions.data[scan.axis]
            ):
                return made.dimensions.data
        if op.shape.size < LEAST * prod(dims[axis] for axis in folded):
            return None
        later = range(scan.axis + 1, len(dims))
        kept = [axis for axis in later if axis not in folded]
        if prod(dims[axis] for axis in kept) == 1:
            if prod(dims[: scan.axis]) >= self.partitions // 2:
                return None
            kept = [*later]
        inner = [axis for axis in later if axis not in kept]
        return _inverse((*range(scan.axis), *kept, scan.axis, *inner))

    def _has_rows(self, dims: Sequence[int], axis: int) -> bool:
        """Whether elements along ``axis`` are neighbours, or dims ahead of it fill the partitions with all others."""
        if prod(dims[axis + 1 :]) == 1:
            return True
        return prod(dims[:axis]) >= self.partitions // 2 and itemsize("f32") * prod(dims[axis:]) <= self.row

    def _pays(self, op: hlo.HloOp, missing: Iterable[Value], ready: int) -> bool:
        """Another large array is transposed only if that leaves less to be transposed afterwards."""
        size = sum(hlo.shape_of(value).size for value in missing)
        folds = all(isinstance(user, hlo.ReduceOp) for user in users(op.results[0]))
        return size <= ready if folds else 2 * size <= ready

    def _in_order(self, anchor: hlo.HloOp, value: Value, order: Order) -> Value:
        """As elsewhere, but what is repeated is transposed itself, once for all ranges of steps."""
        made = defining_op(value)
        if not isinstance(made, hlo.BroadcastOp):
            return super()._in_order(anchor, value, order)
        places = [order[axis] for axis in made.dimensions.data]
        operand = transposed(anchor, made.operand, sorted(range(len(places)), key=places.__getitem__))
        shape, dimensions = made.shape, {"dimensions": hlo.IntsAttr(tuple(sorted(places)))}
        type_ = hlo.array_type(shape.dtype, tuple(shape.dims[axis] for axis in _inverse(order)))
        return insert_before(anchor, hlo.BroadcastOp, (operand,), type_, made.loc, dimensions)

    # what scans are made of

    def _computed(self, anchor: hlo.HloOp, values: Iterable[Value], order: Order) -> list[Value]:
        """``values`` in ``order``, with the elementwise ops that make them where that transposes no more elements."""
        values = list(values)
        dims = hlo.shape_of(values[0]).dims
        every = _Tree(self, order, dims, values)
        if every.cost() <= sum(self._cost(value, order) for value in dict.fromkeys(values)):
            return [every.made(anchor, value) for value in values]
        trees = [_Tree(self, order, dims, [value]) for value in values]
        return [
            tree.made(anchor, value)
            if tree.cost() <= self._cost(value, order)
            else self._in_order(anchor, value, order)
            for value, tree in zip(values, trees, strict=True)
        ]

    def _cost(self, value: Value, order: Order) -> int:
        """Elements that are transposed for ``value`` in ``order``."""
        source, op = self._source(value), defining_op(value)
        if (source is not None and source[1] == order) or isinstance(op, hlo.IotaOp):
            return 0
        if isinstance(op, hlo.TransposeOp):
            order = tuple(op.dimensions.data[axis] for axis in _inverse(order) if op.shape.dims[axis] > 1)
            return op.shape.size if order != tuple(sorted(order)) else 0
        if isinstance(op, hlo.BroadcastOp) and is_small(op):
            return hlo.shape_of(op.operand).size
        return hlo.shape_of(value).size


class _Tree:
    """The elementwise ops that make ``roots``, and nothing else, of arrays of ``dims``."""

    def __init__(self, steps: _Steps, order: Order, dims: tuple[int, ...], roots: Iterable[Value]) -> None:
        self.steps, self.order, self.dims = steps, order, dims
        self.ops: dict[hlo.HloOp, None] = {}
        self.leaves: dict[Value, None] = {}
        pending = list(roots)
        while pending:
            value = pending.pop()
            op = defining_op(value)
            if hlo.shape_of(value).dims != dims:
                continue
            if not isinstance(op, hlo.ElementwiseOp) or len(self.ops) > MOST or self.steps._source(value) is not None:
                self.leaves[value] = None
            elif op not in self.ops:
                self.ops[op] = None
                pending += op.operands

    def cost(self) -> int:
        """Elements that are transposed for it."""
        return sum(self.steps._cost(value, self.order) for value in self.leaves)

    def made(self, anchor: hlo.HloOp, value: Value) -> Value:
        if hlo.shape_of(value).dims != self.dims:
            return value
        key, op = (value, self.order), defining_op(value)
        if key not in self.steps.copies:
            if isinstance(op, hlo.HloOp) and op in self.ops:
                operands = [self.made(anchor, each) for each in op.operands]
                place = _inverse(self.order)
                copied = copy_op(op, operands, hlo.array_type(op.shape.dtype, tuple(self.dims[at] for at in place)))
                assert anchor.parent is not None
                anchor.parent.insert_op_before(copied, anchor)
                self.steps.copies[key] = copied.results[0]
            else:
                self.steps.copies[key] = self.steps._in_order(anchor, value, self.order)
        return self.steps.copies[key]


def _folded(op: hlo.HloOp) -> set[int]:
    """Dims along which anything that elementwise ops make of the scan ``op`` is summed."""
    found, seen, pending = set[int](), {op}, [op]
    while pending and len(seen) <= MOST:
        for user in users(pending.pop().results[0]):
            if isinstance(user, hlo.ReduceOp) and hlo.shape_of(user.operands[0]).dims == op.shape.dims:
                found |= {*user.dimensions.data}
            elif isinstance(user, hlo.ElementwiseOp) and user.shape.dims == op.shape.dims and user not in seen:
                seen.add(user)
                pending.append(user)
    return found


def _inverse(order: Iterable[int]) -> Order:
    order = tuple(order)
    return tuple(order.index(axis) for axis in range(len(order)))
