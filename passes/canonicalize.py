"""Rewrites ops into their simplest equal form. Input and output: any inlined hlo module.

One forward sweep over each computation, dispatched on the op class to the rules of the files of ``canonical``. Operands
are canonical when a rule sees an op; ops that a rule builds are offered to the rules again. Every rule is exact for
IEEE floats (NaN payloads aside), except where its docstring, or that of its file, names the error.
"""

from functools import cache

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import erase, ops_of
from neuronx_cc.passes.canonical.arithmetic import RULES as ARITHMETIC
from neuronx_cc.passes.canonical.contraction import RULES as CONTRACTION
from neuronx_cc.passes.canonical.convolution import RULES as CONVOLUTION
from neuronx_cc.passes.canonical.functions import RULES as FUNCTIONS
from neuronx_cc.passes.canonical.joins import RULES as JOINS
from neuronx_cc.passes.canonical.movement import RULES as MOVEMENT
from neuronx_cc.passes.canonical.movement import SINKS
from neuronx_cc.passes.canonical.products import RULES as PRODUCTS
from neuronx_cc.passes.canonical.rule import Rule, Scope
from neuronx_cc.passes.manager import PassContext

LIMIT = 64
"""Rewrites of one op in a row before the sweep goes on; reached only by rules that undo each other."""


@cache
def _all_rules() -> dict[type, tuple[Rule, ...]]:
    """The rules of every op: each file's for all its kinds, the general ones first."""
    files = (ARITHMETIC, MOVEMENT, CONTRACTION, CONVOLUTION, FUNCTIONS, PRODUCTS, JOINS, SINKS)
    return {
        op: tuple(rule for rules in files for kind in reversed(op.mro()) for rule in rules.get(kind, ()))
        for op in hlo.OPCODES.values()
    }


def run(module: HloModule, context: PassContext) -> None:
    rules = _all_rules()
    scope = Scope(module)
    for computation in module.computations():
        for op in ops_of(computation.block):
            applicable = rules[type(op)]
            if not applicable or op.results[0].first_use is None:
                continue
            before = op.prev_op
            value = _first_rewrite(op, applicable, scope)
            if value is not None:
                _simplify(_replace(op, value, before, rules), rules, scope)


def _first_rewrite(op: hlo.HloOp, applicable: tuple[Rule, ...], scope: Scope) -> hlo.SSAValue | None:
    for rule in applicable:
        value = rule(op, scope)
        if value is not None:
            return value
    return None


def _replace(
    op: hlo.HloOp, value: hlo.SSAValue, before: hlo.Operation | None, rules: dict[type, tuple[Rule, ...]]
) -> list[hlo.HloOp]:
    """Put ``value`` in the place of ``op``; the ops built since ``before``, last first."""
    built = _built(before, op, rules)
    op.results[0].replace_all_uses_with(value)
    erase(op)
    return built


def _simplify(pending: list[hlo.HloOp], rules: dict[type, tuple[Rule, ...]], scope: Scope) -> None:
    """Apply rules to the ops ``pending`` and to what they build, until none applies."""
    for _ in range(LIMIT):
        if not pending:
            return
        op = pending.pop()
        if op.results[0].first_use is None:
            continue
        before = op.prev_op
        value = _first_rewrite(op, rules[type(op)], scope)
        if value is not None:
            pending.extend(_replace(op, value, before, rules))


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
