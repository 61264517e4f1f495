"""Which ops do something besides computing their result, or may be run once only. No pass: passes and code generation
ask it."""

from collections.abc import Set

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.analysis.calls import called_names
from neuronx_cc.passes.analysis.trip_count import trip_count

_OTHER_PROGRAMS = "meets_other_programs"


def keep_collectives(module: HloModule) -> None:
    """From now on the collectives of ``module`` have effects: the other devices run programs of their own."""
    module.op.attributes[_OTHER_PROGRAMS] = hlo.IntAttr(1)


def has_effects(op: hlo.HloOp, effectful: Set[str] = frozenset()) -> bool:
    """Whether ``op`` has effects of its own, or calls one of the computations ``effectful``."""
    if type(op) is hlo.CustomCallOp:
        return op.extra is not None and dict(op.extra.data).get("custom_call_has_side_effect") == "true"
    if isinstance(op, hlo.CollectiveOp):
        computation = op.parent_op()
        module = computation.parent_op() if computation is not None else None
        return module is not None and _OTHER_PROGRAMS in module.attributes
    return isinstance(op, hlo.HostOp) or (bool(effectful) and not effectful.isdisjoint(called_names(op)))


def runs_once(op: hlo.HloOp, module: HloModule, once: Set[str]) -> bool:
    """Whether ``op`` must not be run with other values first, and then again: others hear of it, or it may never end.

    ``once``: the computations in which something is such.
    """
    if isinstance(op, hlo.WhileOp) and trip_count(op, module) is None:
        return True
    heard = isinstance(op, hlo.CollectiveOp | hlo.CustomCallOp) or has_effects(op)
    return heard or not once.isdisjoint(called_names(op))


def computations_run_once(module: HloModule) -> frozenset[str]:
    """Names of the computations in which something ``runs_once``; callees come before callers."""
    found: set[str] = set()
    for computation in module.computations():
        if any(runs_once(op, module, found) for op in ops_of(computation.block)):
            found.add(computation.computation_name)
    return frozenset(found)


def effectful_computations(module: HloModule) -> frozenset[str]:
    """Names of the computations in which something has effects; callees come before callers."""
    found: set[str] = set()
    for computation in module.computations():
        if any(has_effects(op, found) for op in ops_of(computation.block)):
            found.add(computation.computation_name)
    return frozenset(found)
