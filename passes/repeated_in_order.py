"""Computes what is made of repeated arrays in the order in which it is read.

Input: canonical hlo. Output: a transpose of elementwise ops over arrays that are made of smaller ones, which are
repeated, is gone: only the small arrays are transposed. So the factors of a scan over time, ``exp(dt[..., None] * a)``
with the batch first and ``swapaxes`` after it, are never moved. What is read in its own order, too, stays as it is. No
value changes.
"""

from __future__ import annotations

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace, users
from neuronx_cc.passes.expansions.reordered import Reordered, is_small
from neuronx_cc.passes.manager import PassContext, only_for

Value = hlo.SSAValue
MOST = 64
"""Ops that are moved together."""


@only_for(hlo.TransposeOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        transposes = [
            op
            for op in ops_of(computation.block)
            if isinstance(op, hlo.TransposeOp) and isinstance(defining_op(op.operand), hlo.ElementwiseOp)
        ]
        moved: dict[tuple[Value, tuple[int, ...]], Reordered] = {}
        for op in transposes:
            order = op.dimensions.data
            if (op.operand, order) not in moved and (tree := _tree(op.operand, order)) is not None:
                reordered = Reordered(tree[-1].shape.dims, order)
                for each in tree:
                    reordered.copy(each, each)
                    moved[each.results[0], order] = reordered
        for op in transposes:
            found = moved.get((op.operand, op.dimensions.data))
            if found is not None:
                replace(op, found.made[op.operand])


def _tree(root: Value, order: tuple[int, ...]) -> list[hlo.HloOp] | None:
    """The ops that make ``root`` of repeated arrays, operands first; None where something else is read, or reads."""
    ops: dict[hlo.HloOp, None] = {}
    pending = [root]
    while pending:
        op = defining_op(pending.pop())
        if not isinstance(op, hlo.ElementwiseOp) or len(ops) > MOST:
            return None
        if op in ops:
            continue
        ops[op] = None
        for operand in op.operands:
            made = defining_op(operand)
            if hlo.shape_of(operand).dims != op.shape.dims:
                if hlo.shape_of(operand).rank:
                    return None
            elif not isinstance(made, hlo.IotaOp) and not (isinstance(made, hlo.BroadcastOp) and is_small(made)):
                pending.append(operand)
    for op in ops:
        for user in users(op.results[0]):
            if user not in ops and not (isinstance(user, hlo.TransposeOp) and user.dimensions.data == order):
                return None
    block = root.owner.parent
    assert isinstance(block, hlo.Block)
    return [each for each in ops_of(block) if each in ops]
