"""Rewrites ops into their simplest equal form. Input and output: any inlined hlo module.

One forward sweep over each computation, dispatched on the op class to the rules of the files of ``canonical``. Operands
are canonical when a rule sees an op; ops that a rule builds are offered to the rules again. Every rule is exact for
IEEE floats (NaN payloads aside), except where its docstring, or that of its file, names the error.
"""

from functools import cache

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import erase, kinds_in, ops_of
from neuronx_cc.passes.canonical.arithmetic import RULES as ARITHMETIC
from neuronx_cc.passes.canonical.conditions import RULES as CONDITIONS
from neuronx_cc.passes.canonical.contraction import RULES as CONTRACTION
from neuronx_cc.passes.canonical.convolution import RULES as CONVOLUTION
from neuronx_cc.passes.canonical.functions import RULES as FUNCTIONS
from neuronx_cc.passes.canonical.joins import RULES as JOINS
from neuronx_cc.passes.canonical.movement import RULES as MOVEMENT
from neuronx_cc.passes.canonical.movement import SINKS
from neuronx_cc.passes.canonical.pads import RULES as PADS
from neuronx_cc.passes.canonical.products import RULES as PRODUCTS
from neuronx_cc.passes.canonical.rule import Rule, Scope, may_apply
from neuronx_cc.passes.manager import PassContext

LIMIT = 64
"""Rewrites of one op in a row before the sweep goes on; reached only by rules that undo each other."""


@cache
def _rules_of(op: type) -> tuple[Rule, ...]:
    """The rules of an op: each file's for all its kinds, the general ones first."""
    files = (ARITHMETIC, MOVEMENT, CONTRACTION, CONVOLUTION, FUNCTIONS, CONDITIONS, PRODUCTS, PADS, JOINS, SINKS)
    return tuple(rule for rules in files for kind in reversed(op.mro()) for rule in rules.get(kind, ()))


@cache
def _applicable(op: type, owners: frozenset[type]) -> tuple[Rule, ...]:
    """The rules of an op whose operands are results of ``owners``."""
    return tuple(rule for rule in _rules_of(op) if may_apply(rule, owners))


def run(module: HloModule, context: PassContext) -> None:
    scope = Scope(module, kinds_in(module))
    for computation in module.computations():
        for op in ops_of(computation.block):
            before = op.prev_op
            value = _first_rewrite(op, scope)
            if value is not None:
                _simplify(_replace(op, value, before, scope), scope)


def _first_rewrite(op: hlo.HloOp, scope: Scope) -> hlo.SSAValue | None:
    if op.results[0].first_use is None:
        return None
    for rule in _applicable(type(op), frozenset([type(operand.owner) for operand in op.sources])):
        value = rule(op, scope)
        if value is not None:
            return value
    return None


def _replace(op: hlo.HloOp, value: hlo.SSAValue, before: hlo.Operation | None, scope: Scope) -> list[hlo.HloOp]:
    """Put ``value`` in the place of ``op``; the ops built since ``before``, last first."""
    built = _built(before, op)
    scope.kinds.update(map(type, built))
    op.results[0].replace_all_uses_with(value)
    erase(op)
    return built


def _simplify(pending: list[hlo.HloOp], scope: Scope) -> None:
    """Apply rules to the ops ``pending`` and to what they build, until none applies."""
    for _ in range(LIMIT):
        if not pending:
            return
        op = pending.pop()
        before = op.prev_op
        value = _first_rewrite(op, scope)
        if value is not None:
            pending.extend(_replace(op, value, before, scope))


def _built(before: hlo.Operation | None, current: hlo.Operation) -> list[hlo.HloOp]:
    """Ops that a rule inserted between ``before`` and ``current``, last first."""
    found: list[hlo.HloOp] = []
    op = current.prev_op
    while op is not None and op is not before:
        if isinstance(op, hlo.HloOp):
            found.append(op)
        op = op.prev_op
    return found
