"""What contractions read batch by batch is computed batch by batch.

Input: canonical hlo. Output: elementwise ops and reductions over arrays that are made of smaller ones, which are
repeated, have those dims first that are batch dims of the contractions that read the result. So the softmax of a
graph's attention, with the heads last as ``e[:, None] + f[None]`` leaves them, folds rows that lie in memory as they
are folded, and its contraction finds every head's matrix in one piece; nothing large changes its order, for only the
small arrays and what is folded are transposed. No value changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import DotDims, HloModule
from neuronx_cc.ir.hlo.editing import defining_op, insert_before, ops_of, replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Tile, Timing
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.expansions.reordered import Reordered, is_small, transposed
from neuronx_cc.passes.manager import PassContext, only_for

Value = hlo.SSAValue

LEAST = 1 << 17
"""Elements of a space from which rows matter more than what is small and transposed."""


@only_for(hlo.DotOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for dot in list(ops_of(computation.block)):
            if not isinstance(dot, hlo.DotOp):
                continue
            for side, batch in enumerate((dot.dims.data.lhs_batch, dot.dims.data.rhs_batch)):
                if batch and batch != tuple(range(len(batch))):
                    space = _space_around(dot.operands[side], batch)
                    if space is not None and space.is_slow(context.timing):
                        space.move(computation)


@dataclass(slots=True)
class _Space:
    """Ops over arrays of ``dims``, and what reads them."""

    dims: tuple[int, ...]
    batch: tuple[int, ...]
    ops: dict[hlo.HloOp, None] = field(default_factory=dict)
    folds: dict[hlo.ReduceOp, None] = field(default_factory=dict)
    dots: dict[hlo.DotOp, None] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, ...]:
        """The dims as they come to stand."""
        return (*self.batch, *(axis for axis in range(len(self.dims)) if axis not in self.batch))

    def is_slow(self, timing: Timing) -> bool:
        """Whether what is folded lies so far apart that it is read at less than the full rate."""
        last = max(axis for op in self.folds for axis in op.dimensions.data)
        rows = Tile(stride=itemsize("f32") * prod(self.dims[last + 1 :]))
        near, apart = (
            timing.engine("tensor_reduce", Stream.VECTOR, LEAST, ins=(each,), alu=("add",)) for each in (Tile(), rows)
        )
        return prod(self.dims) > LEAST and apart.bound > near.bound

    def move(self, computation: hlo.ComputationOp) -> None:
        """Write all of it again in this order."""
        reordered = Reordered(self.dims, self.order)
        made = reordered.made
        for op in list(ops_of(computation.block)):
            if op in self.ops:
                reordered.copy(op, op)
            elif isinstance(op, hlo.ReduceOp) and op in self.folds:
                self._fold(op, made[op.operands[0]])
            elif isinstance(op, hlo.DotOp) and op in self.dots:
                self._contract(op, made)

    def _fold(self, op: hlo.ReduceOp, operand: Value) -> None:
        folded = tuple(sorted(self.order.index(axis) for axis in op.dimensions.data))
        kept = [axis for axis in self.order if axis not in op.dimensions.data]
        type_ = hlo.array_type(op.shape.dtype, tuple(self.dims[axis] for axis in kept))
        properties = {**op.properties, "dimensions": hlo.IntsAttr(folded)}
        made = insert_before(op, hlo.ReduceOp, (operand, op.operands[1]), type_, op.loc, properties)
        replace(op, transposed(op, made, [kept.index(axis) for axis in sorted(kept)]))

    def _contract(self, op: hlo.DotOp, made: dict[Value, Value]) -> None:
        dims = op.dims.data
        contracting, batch = [dims.lhs_contracting, dims.rhs_contracting], [dims.lhs_batch, dims.rhs_batch]
        for side, operand in enumerate(op.operands):
            if operand in made:
                op.operands[side] = made[operand]
                contracting[side] = tuple(self.order.index(axis) for axis in contracting[side])
                batch[side] = tuple(self.order.index(axis) for axis in batch[side])
        op.properties["dims"] = hlo.DotDimsAttr(DotDims(contracting[0], contracting[1], batch[0], batch[1]))


def _space_around(value: Value, batch: tuple[int, ...]) -> _Space | None:
    """The ops that make ``value`` of repeated arrays, with all that reads them; None where that is not all."""
    space = _Space(hlo.shape_of(value).dims, batch)
    if not isinstance(defining_op(value), hlo.ElementwiseOp):
        return None
    pending = [value]
    while pending:
        op = defining_op(pending.pop())
        if op in space.ops:
            continue
        if not isinstance(op, hlo.ElementwiseOp):
            return None
        space.ops[op] = None
        for operand in op.operands:
            if hlo.shape_of(operand).dims != space.dims:
                if hlo.shape_of(operand).rank:
                    return None
            elif not _is_repeated(space, operand):
                pending.append(operand)
        for use in op.results[0].uses:
            if not _reads(space, use.operation, use.index, pending):
                return None
    # what is folded along rows of a batch alone gains by it
    return space if any(set(op.dimensions.data).isdisjoint(batch) for op in space.folds) else None


def _is_repeated(space: _Space, value: Value) -> bool:
    """Whether ``value`` is counted or repeated, of an array whose dims stay in order or that is small."""
    made = defining_op(value)
    if not isinstance(made, hlo.BroadcastOp):
        return isinstance(made, hlo.IotaOp)
    places = [space.order.index(axis) for axis in made.dimensions.data]
    return places == sorted(places) or is_small(made)


def _reads(space: _Space, user: hlo.Operation, index: int, pending: list[Value]) -> bool:
    """Note what reads an array of the space; False where it wants it in its own order."""
    match user:
        case hlo.ElementwiseOp():
            pending.append(user.results[0])
            return hlo.shape_of(user.results[0]).dims == space.dims
        case hlo.ReduceOp() if len(user.operands) == 2 and index == 0:
            space.folds[user] = None
            return True
        case hlo.DotOp():
            batch = (user.dims.data.lhs_batch, user.dims.data.rhs_batch)[index]
            space.dots[user] = None
            return batch == space.batch
    return False
