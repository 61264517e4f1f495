"""FP32 values that are made of integers and constants alone: random numbers, what is counted, and angles of positions.

Rounded to fewer bits on the way, draws below one become one, and the infinity that a normal or Gumbel draw is made of
that; positions beyond 256 become others, and with them the sines of embeddings. Such values are computed in FP32, and
rounded where something else is computed with them. So are their extremes, and parts of them, or what is equal to the
greatest of them would be none.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.types import INTEGERS, itemsize
from neuronx_cc.passes.analysis.values import is_extreme
from neuronx_cc.passes.precision.decisions import is_f32

REASON = "made of integers and constants alone"

MOVED = hlo.MovementOp | hlo.SelectOp
"""Ops whose operands of other types say which elements there are."""


def made_of_integers(computation: hlo.ComputationOp, module: hlo.HloModule) -> set[hlo.HloOp]:
    """Ops on what is made of integers, or of their bits, and of constants; comparisons of that with anything; and what
    constants are repeated by for these.
    """
    found, values, constants = set[hlo.HloOp](), set[hlo.SSAValue](), set[hlo.SSAValue]()
    for op in ops_of(computation.block):
        if isinstance(op, hlo.BitcastConvertOp) and hlo.shape_of(op.operand).dtype in INTEGERS:
            values.add(op.result)
        elif isinstance(op, hlo.IotaOp) and is_f32(op.results[0]):
            values.add(op.results[0])
        elif _is_whole(op):
            values.add(op.results[0])
            found.add(op)
        elif isinstance(op, hlo.ConstantOp | hlo.IotaOp):
            constants.add(op.results[0])
        elif isinstance(op, hlo.ElementwiseOp | hlo.MovementOp):
            others = [operand for operand in op.operands if operand not in values]
            if len(others) == len(op.operands):
                constants.update(op.results if constants.issuperset(others) else ())
            elif constants.issuperset(each for each in others if is_f32(each) or not isinstance(op, MOVED)):
                values.add(op.results[0])
                found.add(op)
            elif isinstance(op, hlo.CompareOp):
                found.add(op)
        elif is_extreme(op, module) and op.operands[0] in values and op.operands[1] in constants:
            values.add(op.results[0])
            found.add(op)
    found -= {op for op in found if _is_whole(op) and not any(use.operation in found for use in op.results[0].uses)}
    waiting = [operand for op in found for operand in op.operands]
    while waiting:
        value = waiting.pop()
        maker = value.owner
        if value in constants and isinstance(maker, hlo.ElementwiseOp | hlo.MovementOp) and maker not in found:
            found.add(maker)
            waiting += maker.operands
    return found


def _is_whole(op: hlo.HloOp) -> bool:
    """Whether ``op`` makes FP32 numbers of integers that fewer bits may not hold."""
    if not isinstance(op, hlo.ConvertOp) or not is_f32(op.results[0]):
        return False
    dtype = hlo.shape_of(op.operand).dtype
    return dtype in INTEGERS and itemsize(dtype) > 1
