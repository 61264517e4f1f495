"""FP32 values of which only integers are made: quotients of 64-bit integers, codes of 8-bit floats, places in arrays.

Rounded to fewer bits they would make other integers, and casts of FP32 change no value of another type.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import has_dtype, ops_of
from neuronx_cc.ir.types import INTEGERS

REASON = "integers alone are made of it"


def only_for_integers(computation: hlo.ComputationOp) -> set[hlo.HloOp]:
    """Ops that make integers of floats, and those all of whose uses end in such ops, by way of booleans too."""
    found: set[hlo.HloOp] = set()
    for op in reversed(list(ops_of(computation.block))):
        if not isinstance(op, hlo.ElementwiseOp | hlo.MovementOp | hlo.BitcastConvertOp):
            continue
        users = [use.operation for use in op.results[0].uses]
        ends = has_dtype(op.results[0].type, INTEGERS)
        if ends or (users and all(user in found for user in users)):
            found.add(op)
    return found
