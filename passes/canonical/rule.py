"""What the rules of the pass ``canonicalize`` are."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op


@dataclass(frozen=True, slots=True)
class Scope:
    """What a rule may look at besides the op."""

    module: HloModule
    kinds: set[type[hlo.HloOp]] = field(default_factory=set)
    """Of the ops that the module holds, and some that it held."""


Rule = Callable[..., hlo.SSAValue | None]
"""``rule(op, scope)`` returns the value that replaces ``op``'s result, built above ``op``, or None."""

SPLATS = (hlo.ConstantOp, hlo.BroadcastOp, hlo.ReshapeOp, hlo.TransposeOp)
"""What a splat is the result of."""

_OPERANDS: dict[Rule, tuple[type, ...]] = {}


def over(*kinds: type) -> Callable[[Rule], Rule]:
    """The rule applies only where an operand is the result of an op of one of these kinds: others are never asked."""

    def declare(rule: Rule) -> Rule:
        _OPERANDS[rule] = kinds
        return rule

    return declare


def may_apply(rule: Rule, owners: Iterable[type]) -> bool:
    """Whether ``rule`` looks for any of ``owners``, the classes of the ops whose results an op takes."""
    kinds = _OPERANDS.get(rule)
    return kinds is None or any(issubclass(owner, kinds) for owner in owners)


def result_op(value: hlo.SSAValue) -> hlo.HloOp | None:
    """The instruction that defines ``value``; None for a parameter."""
    return defining_op(value)  # type: ignore[return-value]  # only instructions have results
