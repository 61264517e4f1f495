"""Removes ops nobody uses and computations nobody calls. Input and output: any hlo module.

One backward sweep a computation; ops with effects outside the module stay, and loops and branches that have such ops.
"""

from collections.abc import Set

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import erase
from neuronx_cc.passes.analysis.calls import called_names
from neuronx_cc.passes.analysis.effects import effectful_computations, has_effects
from neuronx_cc.passes.manager import PassContext


def run(module: HloModule, context: PassContext) -> None:
    effectful = effectful_computations(module)
    for computation in module.computations():
        sweep(computation, effectful)
    remove_uncalled(module)


def sweep(computation: hlo.ComputationOp, effectful: Set[str]) -> None:
    """Remove what nothing in ``computation`` uses; calls of computations ``effectful`` stay."""
    op = computation.block.last_op
    while op is not None:
        previous = op.prev_op
        result = next(iter(op.results), None)
        unused = result is not None and result.first_use is None
        if unused and isinstance(op, hlo.HloOp) and not has_effects(op, effectful):
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
