"""Reduction computations that engines know."""

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE
from neuronx_cc.passes.values import computation_kind


def simple_combiners(module: hlo.HloModule) -> dict[str, str]:
    """Computation name -> opcode, for computations of the form ``op(parameter, parameter)`` with an associative op."""
    kinds = {body.computation_name: computation_kind(body) for body in module.computations()}
    return {name: kind for name, kind in kinds.items() if kind}


def identity(opcode: str, dtype: str) -> float | None:
    """The value that leaves a combiner's other operand unchanged."""
    if opcode in ("add", "or", "xor"):
        return 0
    if opcode == "multiply":
        return 1
    if dtype == "pred":
        return 1 if opcode in ("and", "minimum") else 0
    if dtype in FLOATS:
        return float("-inf") if opcode == "maximum" else float("inf") if opcode == "minimum" else None
    info = np.iinfo(NUMPY_DTYPE[dtype])
    limits = {"maximum": int(info.min), "minimum": int(info.max), "and": -1 if info.min < 0 else int(info.max)}
    return limits.get(opcode)
