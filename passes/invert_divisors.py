"""Quotients of FP32 arrays by constants as products with their reciprocals: engines take an eighth of the time.

Input: canonical hlo after the casts, which must not round a reciprocal. A product is within one unit in the last place
of the quotient; so quotients stay where a rounding op looks at that, or where constant or reciprocal is no normal
number. Constants of products and quotients come together in the ``canonicalize`` that follows.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import insert_before, ops_of, replace
from neuronx_cc.passes.analysis.values import is_normal, splat_number, tells_last_bit
from neuronx_cc.passes.canonical.arithmetic import splat
from neuronx_cc.passes.canonical.rule import Scope
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.DivideOp)
def run(module: HloModule, context: PassContext) -> None:
    scope = Scope(module)
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.DivideOp) and op.shape.dtype == "f32" and op.shape.rank:
                _invert(op, scope)


def _invert(op: hlo.DivideOp, scope: Scope) -> None:
    number = splat_number(op.rhs, scope.module)
    if not number or not is_normal(number, "f32") or not is_normal(1 / number, "f32") or tells_last_bit(op.result):
        return
    operands = (op.lhs, splat(op, scope, 1 / number))
    replace(op, insert_before(op, hlo.MultiplyOp, operands, op.result.type, op.loc))
