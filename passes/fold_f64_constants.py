"""Rounds FP64 constants that are only converted: JAX with 64-bit types on writes Python's numbers so.

Input: an inlined module. Output: the same, without a ``convert`` of an FP64 constant or of a splat of one. What else is
FP64 is left to ``check_operators``, which refuses it, and ``demote_f64``.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import erase, ops_of, replace
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.analysis.values import splat_of
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext


def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.ConvertOp) and hlo.shape_of(op.operand).dtype == "f64" and op.shape.dtype != "f64":
                _fold(module, op)


def _fold(module: HloModule, op: hlo.ConvertOp) -> None:
    number = splat_of(op.operand, module)
    if number is None or NUMPY_DTYPE[op.shape.dtype].kind in "iu":
        return
    source = op.operand
    b = Build.before(module, op)
    replace(op, b.number(number.item(), op.shape.dtype, op.shape.dims))
    while isinstance(source, hlo.OpResult) and source.first_use is None:
        unused = source.op
        source = unused.operands[0] if unused.operands else None  # type: ignore[assignment]
        erase(unused)
