"""Clamps infinities among the 16- and 8-bit operands of contractions to the largest finite values.

Only under ``--enable-saturate-infinity``. TensorE transposes such operands by multiplying with a unit matrix, where an
infinity times zero is NaN, which spreads over its row of the tile. Clamped ahead of that, an infinity stays the largest
number of its type; NaNs stay NaNs. With ``--no-fast-relayout`` and in FP32 transposes move bits; nothing is clamped.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.types import FLOATS, itemsize, largest_number
from neuronx_cc.passes.auto_cast import code_computations
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext
from neuronx_cc.passes.precision.decisions import Contraction


def run(module: HloModule, context: PassContext) -> None:
    if not context.options.saturate_infinity or not context.options.fast_relayout:
        return
    for computation in code_computations(module):
        clamped: dict[hlo.SSAValue, hlo.SSAValue] = {}
        for op in ops_of(computation.block):
            if isinstance(op, Contraction):
                op.operands = [_finite(module, op, operand, clamped) for operand in op.operands]


def _finite(
    module: HloModule, op: Contraction, value: hlo.SSAValue, clamped: dict[hlo.SSAValue, hlo.SSAValue]
) -> hlo.SSAValue:
    """``value``, an operand of ``op``, without infinities; clamped once for all contractions after this one."""
    dtype = hlo.shape_of(value).dtype
    if dtype not in FLOATS or itemsize(dtype) >= 4:
        return value
    if value not in clamped:
        build = Build(module, op, hlo.loc_of(value))
        largest = largest_number(dtype)
        low, high = build.number(-largest, dtype), build.number(largest, dtype)
        clamped[value] = build.op(hlo.ClampOp, [low, value, high], dtype, hlo.shape_of(value).dims)
    return clamped[value]
