"""Exchanges of one array between devices that all run this program. No pass: passes that move them ask it.

Input: collectives as ``resolve_collectives`` leaves them.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.passes.analysis.effects import has_effects

EXCHANGES = (
    *(hlo.AllReduceOp, hlo.AllGatherOp, hlo.ReduceScatterOp),
    *(hlo.AllToAllOp, hlo.CollectivePermuteOp),
)
_CUT = ("all_gather_dimension", "scatter_dimension", "split_dimension")


def is_exchange(op: hlo.Operation) -> bool:
    """Whether ``op`` is an exchange of whose array the order of dims is free."""
    return isinstance(op, EXCHANGES) and not has_effects(op)


def cut_of(op: hlo.HloOp) -> dict[str, int]:
    """Property -> the dim that ``op`` cuts into one block for each device; empty where it cuts none."""
    return {name: attr.data for name in _CUT if isinstance(attr := op.properties.get(name), hlo.IntAttr)}
