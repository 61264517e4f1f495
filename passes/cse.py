"""Keeps one of each group of ops that compute the same from the same operands. Input and output: any hlo module.

One forward sweep a computation. Operands of commutative ops are compared in either order. Barriers, random numbers and
ops with effects are never merged.
"""

from collections.abc import Hashable

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.passes.analysis.effects import has_effects
from neuronx_cc.passes.manager import PassContext

DISTINCT = frozenset([hlo.OptBarrierOp, hlo.RngOp, hlo.RngGetAndUpdateStateOp, hlo.AfterAllOp])


def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        seen: dict[Hashable, hlo.SSAValue] = {}
        for op in ops_of(computation.block):
            if type(op) in DISTINCT or has_effects(op):
                continue
            first = seen.setdefault(key_of(op), op.results[0])
            if first is not op.results[0]:
                replace(op, first)


def key_of(op: hlo.HloOp) -> Hashable:
    """Equal for ops that compute the same of the same operands."""
    operands: Hashable = tuple(map(id, op.sources))
    if isinstance(op, hlo.CombinerOp) and not isinstance(op, hlo.ExtremeOp) and id(op.sources[0]) > id(op.sources[1]):
        operands = (id(op.sources[1]), id(op.sources[0]))
    return type(op), operands, op.results[0].type, frozenset(op.properties.items())
