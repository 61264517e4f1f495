"""FP32 values that recurrences read and make.

A recurrence adds up in FP32, whatever its operands are, and what it reads would be cast to 16 bits for it to be widened
again. Ops that elementwise ops, movement and folds connect with one are one group, which has one type: a cast between
two types takes as long as an op, and often a way through HBM.
"""

from collections.abc import Iterable

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.scans import scan_of
from neuronx_cc.passes.manager import PassOptions
from neuronx_cc.passes.precision.decisions import Contraction, is_f32, lowers_all

REASON = "of a recurrence, which is FP32"
_APART = (hlo.RegionOp, hlo.ConstantOp, hlo.IotaOp, hlo.FormatOp, hlo.GetTupleElementOp)


def of_recurrences(computation: hlo.ComputationOp, options: PassOptions) -> set[hlo.HloOp]:
    """Ops of the groups with a recurrence, where all that computes FP32 would be cast."""
    if not lowers_all(options):
        return set()
    groups = _groups([op for op in ops_of(computation.block) if _is_in_group(op)])
    return {op for group in groups if any(scan_of(each) is not None for each in group) for op in group}


def _is_in_group(op: hlo.HloOp) -> bool:
    return not isinstance(op, (Contraction, *_APART)) and isinstance(op.results[0].type, hlo.ArrayType)


def _groups(ops: list[hlo.HloOp]) -> Iterable[list[hlo.HloOp]]:
    """``ops``, in order, by what FP32 values connect."""
    leader = {op: op for op in ops}

    def first(op: hlo.HloOp) -> hlo.HloOp:
        while leader[op] is not op:
            leader[op] = op = leader[leader[op]]
        return op

    for op in ops:
        for made in [value.owner for value in op.operands if is_f32(value)]:
            if isinstance(made, hlo.HloOp) and made in leader:
                leader[first(made)] = first(op)
    found: dict[hlo.HloOp, list[hlo.HloOp]] = {}
    for op in ops:
        found.setdefault(first(op), []).append(op)
    return found.values()
