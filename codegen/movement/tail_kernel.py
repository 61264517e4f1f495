"""Arrays whose last elements along a dim are one number: these are written where all of it lies, nothing is moved.

So it is with scores of attention by kernels apart, where rows were added that have no weight (``passes.even_rows``).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np

from neuronx_cc.codegen.attention.pattern import Attention
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.problem import divisor
from neuronx_cc.codegen.emission.builder import emit_over
from neuronx_cc.codegen.formation.graph import reads
from neuronx_cc.codegen.movement.concatenate_kernel import put
from neuronx_cc.codegen.movement.transfer import blocks_of, transfer
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.passes.analysis.stored import FILLED, RESIDENT_VALUE_SHARE


@dataclass(frozen=True, slots=True)
class Tail:
    """Elements from ``start`` on along ``axis`` are ``number``."""

    axis: int
    start: int
    number: float


def worthwhile(
    context: Context, computation: hlo.ComputationOp, without: Set[hlo.Operation], attentions: Sequence[Attention]
) -> set[hlo.HloOp]:
    """The selects of ``computation`` that are such a kernel: of what may stay on chip. None of the ops ``without`` and
    of ``attentions`` is.
    """
    apart = {*without, *(op for each in attentions for op in each.ops)}
    most = context.sizes.sbuf_share(RESIDENT_VALUE_SHARE) * context.sizes.partitions
    return {
        op
        for op in ops_of(computation.block)
        if isinstance(op, hlo.SelectOp)
        and op not in apart
        and 0 < op.shape.nbytes <= most
        and _is_made_for(context, op)
        and tail_of(context, op) is not None
    }


def _is_made_for(context: Context, op: hlo.SelectOp) -> bool:
    """Whether a contraction makes what ``op`` alone reads, of rows that stay on chip, and no result of the program."""
    value, rows = op.operands[1], op.shape.dims[-2] if op.shape.rank > 1 else 1
    if divisor(rows, context.sizes.columns) * FILLED < context.sizes.columns:
        return False
    if any(isinstance(use.operation, hlo.ReturnOp) for use in reads(op.result)):
        return False
    while value.has_one_use() and isinstance(value.owner, hlo.ElementwiseOp):
        arrays = [x for x in value.owner.operands if context.splat(x) is None]
        if len(arrays) != 1:
            return False
        (value,) = arrays
    return value.has_one_use() and isinstance(value.owner, hlo.DotOp)


def tail_of(context: Context, op: hlo.SelectOp) -> Tail | None:
    """The last elements along the last dim of the result, if they are a constant and the others an operand's."""
    predicate, _, other = op.operands
    number, axis = context.splat(other), op.shape.rank - 1
    while isinstance(predicate.owner, hlo.BroadcastOp) and axis in predicate.owner.dimensions.data:
        axis = predicate.owner.dimensions.data.index(axis)
        predicate = predicate.owner.operand
    test = predicate.owner
    if number is None or not isinstance(test, hlo.CompareOp) or test.direction.data != "LT":
        return None
    counts, end = test.lhs.owner, context.splat(test.rhs)
    if not isinstance(counts, hlo.IotaOp) or counts.iota_dimension.data != axis or end is None:
        return None
    return Tail(op.shape.rank - 1, int(end), number) if 0 < end < op.shape.dims[-1] else None


def lower(context: Context, op: hlo.SelectOp, step: int) -> None:
    """Where the operand lies, which is dead then; or in a copy."""
    value, tail = op.operands[1], tail_of(context, op)
    assert tail is not None, "found to be one"
    home = context.views(value)[0]
    if not context.takes_over(op.result, value, home, step):
        home = context.new_hbm(op.result)
        put(context, home, value)
    context.homes[op.result] = [home]
    part = home.slice(tail.axis, tail.start, op.shape.dims[tail.axis] - tail.start)
    if part is None:
        dense = context.dense(op.result)
        part = dense.slice(tail.axis, tail.start, op.shape.dims[tail.axis] - tail.start)
        context.homes[op.result] = [dense]  # no other one, of which copies may have been made, has the numbers
    assert part is not None, "a dense array slices"
    if part.in_sbuf:
        blocks = blocks_of([part], part.shape)
        assert blocks is not None, "one array aligns"
        emit_over(context.builder, "memset", Stream.VECTOR, blocks, [], imm=[tail.number])
    else:
        number = context.constant(np.asarray(tail.number, op.shape.numpy_dtype), op.shape.dtype)
        transfer(context.builder, part, number.broadcast(part.shape, ()), Stream.DMA_STORE, force=True)
