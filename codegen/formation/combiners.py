"""Reduction computations that engines know."""

from neuronx_cc.ir import hlo
from neuronx_cc.passes.analysis.values import computation_kind


def simple_combiners(module: hlo.HloModule) -> dict[str, str]:
    """Computation name -> opcode, for computations of the form ``op(parameter, parameter)`` with an associative op."""
    kinds = {body.computation_name: computation_kind(body) for body in module.computations()}
    return {name: kind for name, kind in kinds.items() if kind}
