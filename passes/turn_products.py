"""Computes contractions in the order in which their results are read.

Input: canonical hlo after ``features_first``, whose transposes of single operands stand where two orders meet. Output:
a contraction whose result comes to such transposes, past elementwise ops, slices and exchanges, has its operands
swapped instead, where that turns fewer elements than before. What lies between moves along (``features_first.Mover``).
No value changes.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of
from neuronx_cc.passes.analysis.exchanges import is_exchange
from neuronx_cc.passes.canonical.contraction import swapped_order
from neuronx_cc.passes.features_first import Mover
from neuronx_cc.passes.manager import PassContext, only_for

MOST = 64
"""Ops after a contraction that are looked at."""


@only_for(hlo.DotOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        ops = list(ops_of(computation.block))
        if not any(isinstance(op, hlo.TransposeOp) for op in ops):
            continue
        chosen = {op for op in ops if isinstance(op, hlo.DotOp) and _is_read_transposed(op)}
        if chosen:
            mover = Mover(chosen)
            for op in ops_of(computation.block):
                mover.visit(op)


def _is_read_transposed(dot: hlo.DotOp) -> bool:
    """Whether more elements of what is made of ``dot`` are transposed than are read in its own order."""
    order = swapped_order(dot)
    if order == tuple(range(len(order))):
        return False
    inside: dict[hlo.SSAValue, None] = {dot.result: None}
    pending = [dot.result]
    transposed = 0
    while pending and len(inside) <= MOST:
        value = pending.pop()
        size = hlo.shape_of(value).size
        for use in value.uses:
            user = use.operation
            if isinstance(user, hlo.ElementwiseOp | hlo.SliceOp) or is_exchange(user):
                result = user.results[0]
                if result not in inside:
                    inside[result] = None
                    pending.append(result)
            elif isinstance(user, hlo.TransposeOp):
                transposed += size if user.dimensions.data == order else 0
            elif not isinstance(user, hlo.BroadcastOp | hlo.DotOp) and not _is_convolved(user):
                transposed -= size
    missing = {
        operand: hlo.shape_of(operand).size
        for value in inside
        if value is not dot.result and not isinstance(made := defining_op(value), hlo.SliceOp) and made is not None
        for operand in made.operands
        if operand not in inside
        and hlo.shape_of(operand).rank == len(order)
        and not isinstance(defining_op(operand), hlo.BroadcastOp | hlo.IotaOp)
    }
    return not pending and transposed > sum(missing.values())


def _is_convolved(op: hlo.Operation) -> bool:
    """Whether ``op`` leaves out or adds dims of size 1 for a convolution, which takes any order."""
    if not isinstance(op, hlo.ReshapeOp):
        return isinstance(op, hlo.ConvolutionOp)
    return all(isinstance(use.operation, hlo.ConvolutionOp) for use in op.result.uses)
