"""Norms over features that come first are computed with these features last, as map kernels fold them.

Input: hlo after all other layout. Output: where arrays are added up over their leading dims, and elementwise ops spread
what is made of the sums over these dims again (a mean that is subtracted, a variance that is divided by), the sums and
all that is computed elementwise of them have the summed dims last. The transposes at the borders are views, so nothing
moves: what lies with its features on the partitions is folded across these (``codegen.maps.crossing``), and one kernel
makes sums, what comes of them, and results. No value changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, insert_before, ops_of, replace, users
from neuronx_cc.passes.analysis.values import combiner_kind
from neuronx_cc.passes.manager import PassContext, only_for

Value = hlo.SSAValue

MOST_TILES = 4
"""Equal tiles of features, one on each partition, up to which norms are made so; more stream past their sums."""


@only_for(hlo.ReduceOp)
def run(module: HloModule, context: PassContext) -> None:
    partitions = context.timing.sizes.partitions
    for computation in module.computations():
        taken: set[hlo.Operation] = set()
        for op in list(ops_of(computation.block)):
            if not isinstance(op, hlo.ReduceOp) or op in taken or not (leading := _leading(op, module)):
                continue
            dims = hlo.shape_of(op.operands[0]).dims
            norm = _Norm(module, dims, leading)
            norm.gather(op)
            taken |= norm.ops.keys()
            if norm.spreads and _fits(prod(dims[:leading]), partitions):
                norm.rewrite(computation)


def _fits(features: int, partitions: int) -> bool:
    """Whether ``features`` are ``MOST_TILES`` equal tiles at most."""
    return any(features % tiles == 0 and features // tiles <= partitions for tiles in range(1, MOST_TILES + 1))


def _leading(op: hlo.ReduceOp, module: HloModule) -> int:
    """How many leading dims ``op`` adds up in FP32, of which one is not 1; 0 where it does anything else."""
    dims, folded = hlo.shape_of(op.operands[0]).dims, sorted(op.dimensions.data)
    plain = len(op.operands) == 2 and op.shape.dtype == "f32" and combiner_kind(op, module) == "add"
    if not plain or folded != list(range(len(folded))) or len(folded) == len(dims):
        return 0
    wide = sum(size > 1 for size in dims[: len(folded)])
    return len(folded) if wide == 1 and prod(dims[len(folded) :]) > 1 else 0


@dataclass(slots=True)
class _Norm:
    """Ops on arrays of ``dims`` around sums over the first ``leading`` of these."""

    module: HloModule
    dims: tuple[int, ...]
    leading: int
    ops: dict[hlo.Operation, None] = field(default_factory=dict)
    """That are computed with the leading dims last."""
    spreads: bool = False
    """Whether they read what is made of the sums."""

    @property
    def order(self) -> tuple[int, ...]:
        """The dim of ``dims`` that each dim of what is transposed is."""
        return (*range(self.leading, len(self.dims)), *range(self.leading))

    def gather(self, first: hlo.ReduceOp) -> None:
        """Add ``first``, and what is computed elementwise of it and of other sums of that."""
        pending: list[hlo.Operation] = [first]
        while pending:
            op = pending.pop()
            if op in self.ops:
                continue
            if isinstance(op, hlo.ReduceOp) or self._is_whole(op):
                self.ops[op] = None
            self.spreads |= self._is_whole(op)
            pending += [user for user in users(op.results[0]) if self._follows(user)]
            if op in self.ops:
                pending += [made for value in op.operands if (made := self._serves(value)) is not None]

    def _is_whole(self, op: hlo.Operation) -> bool:
        return isinstance(op, hlo.ElementwiseOp) and hlo.shape_of(op.results[0]).dims == self.dims

    def _follows(self, op: hlo.Operation) -> bool:
        """Whether ``op``, which reads a sum or what is made of one, is part of the norm."""
        if isinstance(op, hlo.ReduceOp):
            return hlo.shape_of(op.operands[0]).dims == self.dims and _leading(op, self.module) == self.leading
        if isinstance(op, hlo.BroadcastOp):
            return op.shape.dims == self.dims and op.dimensions.data == self.order[: -self.leading]
        row = self.dims[self.leading :]
        return isinstance(op, hlo.ElementwiseOp) and op.shape.dims in (self.dims, row)

    def _serves(self, value: Value) -> hlo.Operation | None:
        """What makes ``value`` for the norm alone, of what the norm reads anyway."""
        op = defining_op(value)
        if op is None or not self._is_whole(op) or not all(user in self.ops for user in users(value)):
            return None
        return op if any(user in self.ops for operand in op.operands for user in users(operand)) else None

    def rewrite(self, computation: hlo.ComputationOp) -> None:
        """Compute the norm with the leading dims last."""
        order, moved = self.order, dict[Value, Value]()
        back = tuple(order.index(axis) for axis in range(len(order)))
        dims = tuple(self.dims[axis] for axis in order)
        for op in [op for op in ops_of(computation.block) if op in self.ops]:
            inputs = [self._moved(op, value, moved, dims, back) for value in op.operands]
            if isinstance(op, hlo.ReduceOp):
                folded = tuple(range(len(dims) - self.leading, len(dims)))
                properties = {**op.properties, "dimensions": hlo.IntsAttr(folded)}
                replace(op, insert_before(op, hlo.ReduceOp, inputs, op.results[0].type, op.loc, properties))
                continue
            copied = copy_op(op, inputs, hlo.array_type(op.shape.dtype, dims))
            assert op.parent is not None
            op.parent.insert_op_before(copied, op)
            made = copied.results[0]
            restored = insert_before(
                op, hlo.TransposeOp, (made,), op.results[0].type, op.loc, {"dimensions": hlo.IntsAttr(back)}
            )
            moved[restored] = made
            replace(op, restored)
        _drop_unused(moved)

    def _moved(
        self, anchor: hlo.HloOp, value: Value, moved: dict[Value, Value], dims: tuple[int, ...], back: tuple[int, ...]
    ) -> Value:
        """``value`` with the leading dims last, if it has dims to move."""
        if hlo.shape_of(value).dims != self.dims:
            return value
        if value not in moved:
            shape, made = hlo.shape_of(value), defining_op(value)
            type_ = hlo.array_type(shape.dtype, dims)
            if isinstance(made, hlo.BroadcastOp):
                properties = {"dimensions": hlo.IntsAttr(tuple(back[axis] for axis in made.dimensions.data))}
                return insert_before(anchor, hlo.BroadcastOp, (made.operand,), type_, made.loc, properties)
            properties = {"dimensions": hlo.IntsAttr(self.order)}
            moved[value] = insert_before(anchor, hlo.TransposeOp, (value,), type_, anchor.loc, properties)
        return moved[value]


def _drop_unused(values: Iterable[Value]) -> None:
    for value in reversed(list(values)):
        op = defining_op(value)
        if isinstance(op, hlo.TransposeOp) and not users(value):
            assert op.parent is not None
            op.parent.erase_op(op)
