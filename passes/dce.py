"""Removes ops nobody uses and computations nobody calls. Input and output: any hlo module.

One backward sweep a computation; ops with effects outside the module stay.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import erase
from neuronx_cc.passes.calls import called_names
from neuronx_cc.passes.manager import PassContext

EFFECTS: frozenset[type] = frozenset(
    [
        hlo.InfeedOp,
        hlo.OutfeedOp,
        hlo.SendOp,
        hlo.SendDoneOp,
        hlo.RecvOp,
        hlo.RecvDoneOp,
    ]
)


def has_effects(op: hlo.HloOp) -> bool:
    """Whether ``op`` does something besides computing its result."""
    if type(op) is hlo.CustomCallOp:
        return op.extra is not None and dict(op.extra.data).get("custom_call_has_side_effect") == "true"
    return type(op) in EFFECTS


def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        sweep(computation)
    remove_uncalled(module)


def sweep(computation: hlo.ComputationOp) -> None:
    """Remove what nothing in ``computation`` uses."""
    op = computation.block.last_op
    while op is not None:
        previous = op.prev_op
        if op.results and op.results[0].first_use is None and isinstance(op, hlo.HloOp) and not has_effects(op):
            erase(op)
        op = previous


def remove_uncalled(module: HloModule) -> None:
    """Drop the computations that the entry does not reach; callers come after callees, so one backward sweep does."""
    called: set[str] = set()
    for computation in reversed(list(module.computations())):
        if not computation.is_entry.data and computation.computation_name not in called:
            erase(computation)
            continue
        op = computation.block.first_op
        while op is not None:
            called.update(called_names(op))
            op = op.next_op
