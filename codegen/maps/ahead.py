"""Inputs of a map that are copied dense ahead of it, because its tiles would be loaded element by element."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.views import View, unplaced
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.axes import full_view, is_small, minor_axis, varying
from neuronx_cc.codegen.maps.moved import Moved, moved
from neuronx_cc.codegen.maps.plan import MapPlan, partitions_of
from neuronx_cc.codegen.movement.straight import pays
from neuronx_cc.codegen.view_ops import as_stored
from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import itemsize


def copy_ahead(
    context: Context, plan: MapPlan, external: Sequence[hlo.SSAValue], results: Sequence[hlo.SSAValue]
) -> None:
    """Give inputs that a DMA would load in short runs a dense home, where a copy takes less time by estimate.

    ``results`` are stored in tiles of the same order.
    """
    kernel, partitions, timing = plan.kernel, plan.partitions, context.timing
    if partitions is None or plan.transposed:
        return
    across = partitions.axis if partitions.inner == 1 else -1
    along = {axis for axis, _ in partitions.steps}
    arrays = {value: full_view(context.views(value)[0], kernel) for value in external}
    made = [
        full_view(context.outputs.get(value, unplaced(shape.dtype, shape.dims)), kernel)
        for value, shape in ((value, hlo.shape_of(value)) for value in results)
        if not kernel.is_row(shape)
    ]
    known: dict[object, Moved | None] = {}  # of arrays that lie alike, of which there may be thousands
    for value in external:
        stored = _stored(context, plan, value)
        view = full_view(stored, kernel) if stored is not None else None
        if stored is None or view is None or (across >= 0 and minor_axis(view) == across):
            continue
        if is_small(view, kernel) and not along.intersection(varying(view)):
            continue  # a row that all partitions read
        if minor_axis(view) == kernel.scanned >= 0:
            continue  # tiles hold neighbours along a scan as they lie
        nbytes = prod(atom.size for atoms in view.dims for atom in atoms if atom.stride) * itemsize(view.dtype)
        lies = view.dtype, view.dims
        if lies not in known:
            others = [*(each for at, each in arrays.items() if at is not value), *made]
            known[lies] = moved(context, plan, others, view)
        tiles = known[lies]
        if tiles is None:
            continue
        once = value.op.operand if isinstance(value, hlo.OpResult) and isinstance(value.op, hlo.BroadcastOp) else value
        once = value if value in context.homes or context.views(once)[0].in_sbuf else once
        stored = stored if once is value else context.views(once)[0]
        if pays(context, once, stored, nbytes, tiles.loaded_ns(timing)):
            context.dense(once)


def along_rows(context: Context, kernel: Kernel, external: Sequence[hlo.SSAValue]) -> int:
    """``MapPlan.along``."""
    minors = set()
    for value in external if kernel.reduced else []:
        view = stored_view(context, kernel, value)
        if view is None or not is_small(view, kernel):
            minors.add(-1 if view is None else minor_axis(view))
    axis = minors.pop() if len(minors) == 1 else -1
    return axis if axis < len(kernel.rows) else -1


def stored_view(context: Context, kernel: Kernel, value: hlo.SSAValue) -> View | None:
    """``value`` in HBM as it lies or, if it is on chip, will lie there, as one of the kernel's whole shape; None where
    that is not known.
    """
    home = context.views(value)[0]
    stored = as_stored(value) if home.in_sbuf else home
    return None if stored is None else full_view(stored, kernel)


def _stored(context: Context, plan: MapPlan, value: hlo.SSAValue) -> View | None:
    """``value`` in HBM as it lies or, if it is on chip, will lie there; None where it is read on chip."""
    views = context.views(value)
    if not views[0].in_sbuf:
        return views[0]
    if any(view.in_sbuf and partitions_of(full_view(view, plan.kernel)) == plan.partitions for view in views):
        return None
    return as_stored(value)
