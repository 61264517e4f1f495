"""FP32 values of which only integers are made: quotients of 64-bit integers, codes of 8-bit floats, places in arrays.

Rounded to fewer bits they would make other integers, and casts of FP32 change no value of another type. So would places
that are compared with each other, as where a gather looks for one.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import has_dtype, ops_of
from neuronx_cc.ir.types import INTEGERS

REASON = "integers alone are made of it"
_COUNTING = hlo.MovementOp | hlo.AddOp | hlo.SubtractOp | hlo.MultiplyOp | hlo.ExtremeOp | hlo.FloorOp
"""Ops that make integers of integers."""


def only_for_integers(computation: hlo.ComputationOp) -> set[hlo.HloOp]:
    """Ops that make integers of floats, or compare such, and those all of whose uses end in these, by way of booleans
    and reductions too.
    """
    found: set[hlo.HloOp] = set()
    ops = list(ops_of(computation.block))
    counts = _counts(ops)
    for op in reversed(ops):
        if not isinstance(op, hlo.ElementwiseOp | hlo.MovementOp | hlo.BitcastConvertOp | hlo.ReduceOp):
            continue
        users = [use.operation for use in op.results[0].uses]
        ends = has_dtype(op.results[0].type, INTEGERS) and not isinstance(op, hlo.ReduceOp)
        ends |= isinstance(op, hlo.CompareOp) and counts.issuperset(op.operands)
        given = isinstance(op, hlo.ConvertOp) and has_dtype(op.operand.type, INTEGERS)  # others may round it
        if ends or (users and (any if given else all)(user in found for user in users)):
            found.add(op)
    return found


def _counts(ops: list[hlo.HloOp]) -> set[hlo.SSAValue]:
    """Values that are integers, whatever their type: numbers along a dim, and what is made of integers."""
    found = set[hlo.SSAValue]()
    for op in ops:
        made = isinstance(op, hlo.ConvertOp) and has_dtype(op.operand.type, INTEGERS)
        if made or isinstance(op, hlo.IotaOp) or (isinstance(op, _COUNTING) and found.issuperset(op.operands)):
            found.add(op.results[0])
    return found
