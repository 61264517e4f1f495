"""FP32 values that are made of random bits alone: uniform and normal numbers, and what they are compared with.

Rounded to fewer bits on the way, draws below one become one, and the infinity that a normal or Gumbel draw is made of
that: such values are drawn in FP32, and rounded where something else is computed with them.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.types import INTEGERS

REASON = "drawn from random bits"


def drawn(computation: hlo.ComputationOp) -> set[hlo.HloOp]:
    """Ops on what is made of integers' bits and of constants, comparisons of that with anything, and what constants are
    repeated by for these.
    """
    found, values, constants = set[hlo.HloOp](), set[hlo.SSAValue](), set[hlo.SSAValue]()
    for op in ops_of(computation.block):
        if isinstance(op, hlo.BitcastConvertOp) and hlo.shape_of(op.operand).dtype in INTEGERS:
            values.add(op.result)
        elif isinstance(op, hlo.ConstantOp | hlo.IotaOp):
            constants.add(op.results[0])
        elif isinstance(op, hlo.ElementwiseOp | hlo.MovementOp):
            others = [operand for operand in op.operands if operand not in values]
            if len(others) == len(op.operands):
                constants.update(op.results if constants.issuperset(others) else ())
            elif constants.issuperset(others):
                values.add(op.results[0])
                found.add(op)
            elif isinstance(op, hlo.CompareOp):
                found.add(op)
    waiting = [operand for op in found for operand in op.operands]
    while waiting:
        value = waiting.pop()
        maker = value.owner
        if value in constants and isinstance(maker, hlo.ElementwiseOp | hlo.MovementOp) and maker not in found:
            found.add(maker)
            waiting += maker.operands
    return found
