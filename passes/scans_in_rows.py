"""Puts the steps of scans after the dims that lie beside them, which fill the partitions.

Input: canonical hlo. Output: a scan along a dim of which neighbours lie apart in memory, as time does in
``[batch, time, features]``, is computed in the order ``[batch, features, time]``: a partition has whole rows of it,
however many features there are. Dims that are folded after it stay innermost, as the states of
``[batch, time, features, states]``. What the scan is made of moves along as far as no more elements are transposed for
that, and what is made of it as far as ``features_first.Mover`` moves it. No value changes; reductions may add in
another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, insert_before, ops_of, replace, users
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.scans import Scan, scan_of
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.windows import is_running
from neuronx_cc.passes.expansions.reordered import inverse, transposed
from neuronx_cc.passes.expansions.reordered_trees import Tree, axes_of, wide
from neuronx_cc.passes.features_first import Mover, Order, Value
from neuronx_cc.passes.manager import PassContext, only_for

LEAST = 1 << 14
"""Elements from which what is made of a scan is worth what is copied around it."""
LEAST_STEPS = 16
"""Steps from which a row of them is worth being scanned by an instruction of its own."""
ROW_SHARE = (1, 2)
"""Of a partition of SBUF: a scan's dim and all after it, where the dims ahead of these fill the partitions already."""
MOST = 64
"""Ops after a scan that are looked at."""


@only_for(hlo.CustomCallOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        if any(scan_of(op) is not None for op in ops_of(computation.block)):
            mover = _Steps(context.timing.sizes)
            for op in ops_of(computation.block):
                mover.visit(op)


class _Steps(Mover):
    """The transposes around scans. Orders of scans are those of their dims that have more than one element."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.partitions, self.row = sizes.partitions, sizes.sbuf_share(ROW_SHARE)
        self.copies: dict[tuple[Value, Order], Value] = {}
        """Values ahead of scans, in another order."""

    def visit(self, op: hlo.HloOp) -> None:
        scan = scan_of(op)
        if scan is not None:
            self._scan(op, scan)
        elif isinstance(op, hlo.TransposeOp) and _is_running_fold(op.operand):
            if all(isinstance(user, hlo.ElementwiseOp) for user in users(op.result)):
                self.made.add(op)
        else:
            super().visit(op)

    def _scan(self, op: hlo.HloOp, scan: Scan) -> None:
        dims, axes = op.shape.dims, axes_of(op.shape.dims)
        if scan.axis not in axes:
            return
        axis = axes.index(scan.axis)
        order = next((each for x in op.operands if (each := self._known_order(x)) is not None), None)
        order = order or self._wanted(op, axis)
        if order is None:
            return
        operands = self._computed(op, op.operands, order)
        core = wide(dims)
        type_ = hlo.array_type(op.shape.dtype, tuple(core[at] for at in inverse(order)))
        config = scan.config(order[axis])
        made = insert_before(op, hlo.CustomCallOp, operands, type_, op.loc, {**op.properties, "backend_config": config})
        if core == dims:
            self._restore(op, made, order)
            return
        straight = hlo.array_type(op.shape.dtype, core)
        back = insert_before(op, hlo.TransposeOp, (made,), straight, op.loc, {"dimensions": hlo.IntsAttr(order)})
        self.made.add(back.owner)  # type: ignore[arg-type]
        whole = insert_before(op, hlo.ReshapeOp, (back,), op.results[0].type, op.loc)
        replace(op, whole)
        super().visit(whole.owner)  # type: ignore[arg-type]

    def _known_order(self, value: Value) -> Order | None:
        """The order of which ``value`` is the transpose by this pass."""
        source = self._source(value)
        if source is None:
            return None
        places = [source[1][axis] for axis in axes_of(hlo.shape_of(value).dims)]
        return tuple(sorted(places).index(place) for place in places)

    def _wanted(self, op: hlo.HloOp, axis: int) -> Order | None:
        """Where each dim is to stand; None where the scan is best left as it is."""
        dims = wide(op.shape.dims)
        if dims[axis] < LEAST_STEPS or self._has_rows(dims, axis):
            return None
        if (order := self._as_it_was(op, axis)) is not None:
            return order
        keep = tuple(range(len(dims)))
        folded = _folded(op)
        if prod(dims) < LEAST * prod(dims[at] for at in folded):
            return None
        later = keep[axis + 1 :]
        kept = [at for at in later if at not in folded]
        if not kept:
            if prod(dims[:axis]) >= self.partitions // 2:
                return None
            kept = [*later]
        inner = [at for at in later if at not in kept]
        return inverse((*keep[:axis], *kept, axis, *inner))

    def _as_it_was(self, op: hlo.HloOp, axis: int) -> Order | None:
        """The order ahead of a transpose of what the scan is made of, if its steps are neighbours there."""
        seen, pending = set[Value](), [*op.operands]
        while pending and len(seen) <= MOST:
            value = pending.pop()
            made = defining_op(value)
            if value in seen or wide(hlo.shape_of(value).dims) != wide(op.shape.dims):
                continue
            seen.add(value)
            if isinstance(made, hlo.ElementwiseOp | hlo.ReshapeOp):
                pending += made.operands
            if isinstance(made, hlo.TransposeOp):
                source = hlo.shape_of(made.operand).dims
                places = [made.dimensions.data[each] for each in axes_of(made.shape.dims)]
                if self._has_rows(wide(source), axes_of(source).index(places[axis])):
                    return tuple(sorted(places).index(place) for place in places)
        return None

    def _has_rows(self, dims: Sequence[int], axis: int) -> bool:
        """Whether elements along ``axis`` are neighbours, or dims ahead of it fill the partitions with all others."""
        if prod(dims[axis + 1 :]) == 1:
            return True
        return prod(dims[:axis]) >= self.partitions // 2 and itemsize("f32") * prod(dims[axis:]) <= self.row

    def _pays(self, op: hlo.HloOp, missing: Sequence[Value], ready: int) -> bool:
        """Another large array is transposed only if that leaves less to be transposed afterwards."""
        size = sum(hlo.shape_of(value).size for value in missing)
        folds = all(isinstance(user, hlo.ReduceOp) for user in users(op.results[0]))
        return size <= ready if folds else 2 * size <= ready

    def _is_free(self, value: Value, order: Order) -> bool:
        return self._has_copy(value, order) or super()._is_free(value, order)

    def _has_copy(self, value: Value, order: Order) -> bool:
        dims = hlo.shape_of(value).dims
        return (value, order) in self.copies and wide(dims) == dims

    def _in_order(self, anchor: hlo.HloOp, value: Value, order: Order) -> Value:
        """As elsewhere, but what is repeated is transposed itself, once for all ranges of steps."""
        made = defining_op(value)
        if self._has_copy(value, order):
            return self.copies[value, order]
        if not isinstance(made, hlo.BroadcastOp):
            return super()._in_order(anchor, value, order)
        places = [order[axis] for axis in made.dimensions.data]
        operand = transposed(anchor, made.operand, sorted(range(len(places)), key=places.__getitem__))
        shape, dimensions = made.shape, {"dimensions": hlo.IntsAttr(tuple(sorted(places)))}
        type_ = hlo.array_type(shape.dtype, tuple(shape.dims[axis] for axis in inverse(order)))
        return insert_before(anchor, hlo.BroadcastOp, (operand,), type_, made.loc, dimensions)

    # what scans are made of

    def _is_known(self, value: Value, order: Order) -> bool:
        return (value, order) in self.copies or self._known_order(value) == order

    def _computed(self, anchor: hlo.HloOp, values: Sequence[Value], order: Order) -> list[Value]:
        """``values`` in ``order``, with the elementwise ops that make them where that transposes no more elements."""
        every = Tree(values, order, self._is_known)
        alone = {value: Tree([value], order, self._is_known, deep=False) for value in values}
        if every.cost <= sum(tree.cost for tree in alone.values()):
            return [every.made(anchor, value, order, self.copies) for value in values]
        found = []
        for value in values:
            deep = Tree([value], order, self._is_known)
            best = deep if deep.cost <= alone[value].cost else alone[value]
            found.append(best.made(anchor, value, order, self.copies))
        return found


def _is_running_fold(value: Value) -> bool:
    """Whether ``value`` is a running fold along its last dim."""
    op = defining_op(value)
    if not isinstance(op, hlo.ReduceWindowOp) or len(op.operands) != 2 or not op.shape.rank:
        return False
    return is_running(op.window.data[-1], op.shape.dims[-1])


def _folded(op: hlo.HloOp) -> set[int]:
    """Dims of more than one element along which anything that elementwise ops make of the scan ``op`` is summed."""
    found, seen, pending = set[int](), {op}, [op]
    core = wide(op.shape.dims)
    while pending and len(seen) <= MOST:
        for user in users(pending.pop().results[0]):
            if isinstance(user, hlo.ReduceOp) and wide(dims := hlo.shape_of(user.operands[0]).dims) == core:
                found |= {axes_of(dims).index(axis) for axis in user.dimensions.data if dims[axis] != 1}
            elif (
                isinstance(user, hlo.ElementwiseOp | hlo.ReshapeOp)
                and wide(user.shape.dims) == core
                and user not in seen
            ):
                seen.add(user)
                pending.append(user)
    return found
