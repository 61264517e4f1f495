"""Transposes and reshapes of sums over devices stand ahead of the sums, at what makes the addends.

Input: ``flatten_control``'s form, collectives as ``resolve_collectives`` leaves them. XLA's partitioner puts the sum of
a gradient right after its contraction, ahead of the transpose that gives it the order of the weight. Contractions take
such transposes in (``canonical/contraction``, ``turn_products``); after a sum they would move the whole array. No
value changes. Collectives of modules whose devices run programs of their own keep the order that the others know.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, has_one_use, ops_of, replace, retype, users
from neuronx_cc.passes.analysis.effects import has_effects
from neuronx_cc.passes.manager import PassContext, only_for

MOVED = (hlo.TransposeOp, hlo.ReshapeOp)


@only_for(hlo.AllReduceOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.AllReduceOp) and not has_effects(op):
                _move_ahead(op)


def _move_ahead(op: hlo.AllReduceOp) -> None:
    total = op.results[0]
    while has_one_use(total) and isinstance(view := users(total)[0], MOVED):
        moved = copy_op(view, op.operands)
        computation = op.parent
        assert computation is not None, "it stands in a computation"
        computation.insert_op_before(moved, op)
        op.operands = moved.results
        retype(total, view.results[0].type)
        replace(view, total)
