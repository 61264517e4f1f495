"""Removes ``opt-barrier``: its operand takes its place.

Runs after the last CSE. JAX puts barriers around recomputation (``jax.checkpoint``) so that it is not merged with the
first computation.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.OptBarrierOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if type(op) is hlo.OptBarrierOp:
                replace(op, op.operands[0])
