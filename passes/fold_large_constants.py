"""Folds what ``fold_constants`` left because of its size, then drops constants that no op names any more.

Runs in the cleanup stage: a weight that is a constant is cast, transposed and reshaped here once, so the memory high
water is the constants plus one changed copy of the largest.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.passes.dce import run as remove_dead_ops
from neuronx_cc.passes.fold_constants import fold
from neuronx_cc.passes.manager import PassContext


def run(module: HloModule, context: PassContext) -> None:
    fold(module, None)
    remove_dead_ops(module, context)
    used = set()
    for computation in module.computations():
        op = computation.block.first_op
        while op is not None:
            if isinstance(op, hlo.ConstantOp):
                used.add(op.value.data)
            op = op.next_op
    module.constants.keep(used)
