"""Rewrites ops into their simplest equal form. Input and output: any inlined hlo module.

One forward sweep over each computation, dispatched on the op class to the rules of ``canonical_arithmetic``,
``canonical_movement`` and ``canonical_contraction``. Operands are canonical when a rule sees an op; ops that a rule
builds are offered to the rules again. Every rule is exact for IEEE floats (NaN payloads aside), except where its
docstring names the error.
"""

from collections.abc import Callable
from dataclasses import dataclass

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, erase, ops_of
from neuronx_cc.passes.manager import PassContext


@dataclass(frozen=True, slots=True)
class Scope:
    """What a rule may look at besides the op."""

    module: HloModule


Rule = Callable[..., hlo.SSAValue | None]
"""``rule(op, scope)`` returns the value that replaces ``op``'s result, built above ``op``, or None."""

LIMIT = 64
"""Rewrites of one op in a row before the sweep goes on; reached only by rules that undo each other."""


def run(module: HloModule, context: PassContext) -> None:
    from neuronx_cc.passes.canonical_arithmetic import RULES as ARITHMETIC
    from neuronx_cc.passes.canonical_contraction import RULES as CONTRACTION
    from neuronx_cc.passes.canonical_contraction import TRANSPOSE_RULES
    from neuronx_cc.passes.canonical_movement import RULES as MOVEMENT
    from neuronx_cc.passes.canonical_movement import sink_reshape

    rules: dict[type, tuple[Rule, ...]] = {**ARITHMETIC, **MOVEMENT, **CONTRACTION}
    rules[hlo.TransposeOp] += TRANSPOSE_RULES
    for kind in hlo.OPCODES.values():
        if issubclass(kind, hlo.ElementwiseUnaryOp | hlo.ElementwiseBinaryOp | hlo.SelectOp):
            rules[kind] = (*rules.get(kind, ()), sink_reshape)
    scope = Scope(module)
    for computation in module.computations():
        for op in ops_of(computation.block):
            if type(op) in rules and op.results[0].first_use is not None:
                _simplify(op, rules, scope)


def _simplify(op: hlo.HloOp, rules: dict[type, tuple[Rule, ...]], scope: Scope) -> None:
    """Apply rules to ``op`` and to what they build, until none applies."""
    pending = [op]
    for _ in range(LIMIT):
        if not pending:
            return
        current = pending.pop()
        result = current.results[0]
        if result.first_use is None:
            continue
        before = current.prev_op
        value = next((new for rule in rules[type(current)] if (new := rule(current, scope)) is not None), None)
        if value is None:
            continue
        pending.extend(_built(before, current, rules))
        result.replace_all_uses_with(value)
        erase(current)


def _built(
    before: hlo.Operation | None, current: hlo.Operation, rules: dict[type, tuple[Rule, ...]]
) -> list[hlo.HloOp]:
    """Ops that a rule inserted between ``before`` and ``current``, last first."""
    found: list[hlo.HloOp] = []
    op = current.prev_op
    while op is not None and op is not before:
        if isinstance(op, hlo.HloOp) and type(op) in rules:
            found.append(op)
        op = op.prev_op
    return found


def result_op(value: hlo.SSAValue) -> hlo.HloOp | None:
    """The instruction that defines ``value``; None for a parameter."""
    return defining_op(value)  # type: ignore[return-value]  # only instructions have results
