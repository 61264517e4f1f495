"""Masks by device that a partitioner puts on what it has joined from neighbours' parts stay where they hide something.

Windows over a split dim read rows of neighbours: XLA joins these with a device's own rows and selects, by the device's
number and the place of each row, what lies inside of the whole array. Input: a module for several devices. Output:
selects by masks that are true for all rows of all devices are gone; of a concatenation only those parts pass through a
select that some device hides, and none that a device without a sender fills with zeros: it receives zeros.
"""

from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.passes.analysis.devices import device_counts
from neuronx_cc.passes.analysis.masks import Masks
from neuronx_cc.passes.analysis.values import is_positive_zero, splat_number
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext, only_for

Array = np.ndarray[Any, Any]


@only_for(hlo.SelectOp)
def run(module: HloModule, context: PassContext) -> None:
    if device_counts(module) == (1, 1):
        return
    masks = Masks(module)
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.SelectOp) and hlo.shape_of(op.operands[0]).rank:
                mask = masks.of(op.operands[0])
                if mask is not None:
                    _simplify(op, mask, module)


def _simplify(op: hlo.SelectOp, mask: Array, module: HloModule) -> None:
    """``mask``: what the op selects by."""
    _, on_true, on_false = op.operands
    if mask.all() or not mask.any():
        replace(op, on_true if mask.all() else on_false)
        return
    for value, other, shown in ((on_true, on_false, mask), (on_false, on_true, ~mask)):
        joined, filler = defining_op(value), splat_number(other, module)
        if isinstance(joined, hlo.ConcatenateOp) and filler is not None:
            dim = joined.dimension.data
            if all(size == 1 for axis, size in enumerate(shown.shape[1:]) if axis != dim) and shown.shape[1 + dim] > 1:
                _mask_parts(op, joined, shown, is_positive_zero(filler), module)
            return


def _mask_parts(op: hlo.SelectOp, joined: hlo.ConcatenateOp, shown: Array, zeros: bool, module: HloModule) -> None:
    """Select parts of ``joined`` alone, if any part needs no select."""
    dim, start = joined.dimension.data, 0
    build = Build.before(module, op)
    hidden: list[tuple[int, int, bool]] = []
    for part in joined.operands:
        end = start + hlo.shape_of(part).dims[dim]
        rows = shown.take(range(start, end), axis=1 + dim).reshape(shown.shape[0], -1)
        hidden.append((start, end, not (rows.all() or (zeros and _is_zero_where(part, rows)))))
        start = end
    if all(is_hidden for *_, is_hidden in hidden):
        return
    first = op.operands[1] is joined.results[0]
    parts = []
    for part, (start, end, is_hidden) in zip(joined.operands, hidden, strict=True):
        if is_hidden:
            predicate, other = (build.slice(op.operands[at], dim, start, end) for at in (0, 2 if first else 1))
            part = build.select(predicate, *((part, other) if first else (other, part)))
        parts.append(part)
    replace(op, build.typed(hlo.ConcatenateOp, parts, op.results[0].type, dimension=hlo.IntAttr(dim)))


def _is_zero_where(part: hlo.SSAValue, rows: Array) -> bool:
    """Whether ``part`` holds zeros on each device that hides some of its rows (``rows``: those that it shows): what a
    device without a sender receives.
    """
    op = defining_op(part)
    while isinstance(op, hlo.TransposeOp | hlo.ReshapeOp | hlo.SliceOp | hlo.ReverseOp):
        op = defining_op(op.operands[0])
    if not isinstance(op, hlo.CollectivePermuteOp):
        return False
    receivers = {target for _, target in op.source_target_pairs.data}
    return all(row.all() or (len(rows) > 1 and device not in receivers) for device, row in enumerate(rows))
