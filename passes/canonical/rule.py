"""What the rules of the pass ``canonicalize`` are."""

from collections.abc import Callable
from dataclasses import dataclass

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op


@dataclass(frozen=True, slots=True)
class Scope:
    """What a rule may look at besides the op."""

    module: HloModule


Rule = Callable[..., hlo.SSAValue | None]
"""``rule(op, scope)`` returns the value that replaces ``op``'s result, built above ``op``, or None."""


def result_op(value: hlo.SSAValue) -> hlo.HloOp | None:
    """The instruction that defines ``value``; None for a parameter."""
    return defining_op(value)  # type: ignore[return-value]  # only instructions have results
