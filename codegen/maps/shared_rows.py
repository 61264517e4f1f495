"""Rows of a scan that all partitions read, such as what goes into the states of a state space: copied in tile order.

Neighbours in memory are not those of a tile, which has the scanned axis innermost, or pairs of a reduced one beside it
(``order.paired``). Every partition would load them element by element, again for each tile; a copy is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import ceil, prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.views import Atom, View, run_of
from neuronx_cc.codegen.formation.graph import base
from neuronx_cc.codegen.maps.ahead import stored_view
from neuronx_cc.codegen.maps.axes import full_view, is_small, varying
from neuronx_cc.codegen.maps.inputs import SPREAD_MOST
from neuronx_cc.codegen.maps.order import LEAST_SCANNED
from neuronx_cc.codegen.maps.plan import MapPlan
from neuronx_cc.codegen.movement.transfer import transfer
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

PAIR = 2
SHARE = (1, 4)
"""Of a partition of SBUF, that a row takes at most with what lies between its elements."""


def copy_in_order(
    context: Context, plan: MapPlan, external: Sequence[hlo.SSAValue], results: Sequence[hlo.SSAValue]
) -> None:
    """Note in ``plan`` the copies of such inputs that take less time than what they save, and make them."""
    kernel, partitions = plan.kernel, plan.partitions
    if kernel.scanned < 0 or partitions is None or kernel.joined or kernel.order:
        return
    arrays = {value: stored_view(context, kernel, value) for value in external}
    shared = {value: view for value, view in arrays.items() if view is not None and _is_shared(view, plan)}
    pairs = _pairs(plan, [view for value, view in arrays.items() if value not in shared and view], results)
    for value, view in shared.items():
        axes = [axis for axis in varying(view) if axis != kernel.scanned]
        order = [*axes, kernel.scanned]
        cut = axes[-1] if pairs and axes and axes[-1] == len(kernel.shape) - 1 else -1
        if _is_spread(context.timing, view, order) or not _pays(context.timing, plan, view, order, cut):
            continue
        target = _in_order(context, value, view, order, cut)
        homes = chain(context.views(value), map(context.hbm, [value]))  # in HBM only where no other home does
        parts = (_of(full_view(each, kernel), order) for each in homes)
        if any(transfer(context.builder, target, part, Stream.DMA_LOAD) for part in parts):
            plan.copied[value] = target.broadcast(kernel.shape, order)


def _is_shared(view: View, plan: MapPlan) -> bool:
    """Whether all partitions read the same of ``view``, a small array that varies along the scanned axis."""
    assert plan.partitions is not None, "a plan with partitions"
    axes = varying(view)
    return (
        is_small(view, plan.kernel)
        and plan.kernel.scanned in axes
        and not any(axis in axes for axis, _ in plan.partitions.steps)
    )


def _pairs(plan: MapPlan, others: Sequence[View], results: Sequence[hlo.SSAValue]) -> bool:
    """Whether tiles have neighbours of the last axis, which is reduced, in pairs (``order.paired``)."""
    kernel = plan.kernel
    last, size = len(kernel.shape) - 1, kernel.shape[-1]
    if not kernel.reduced or last == kernel.scanned or size % PAIR or size == PAIR:
        return False
    whole = any(not kernel.is_row(hlo.shape_of(value)) for value in results if value not in plan.ends)
    moved = any({last, kernel.scanned} <= {*varying(view)} for view in others)
    return kernel.shape[kernel.scanned] >= LEAST_SCANNED and not whole and not moved


def _is_spread(timing: Timing, view: View, order: Sequence[int]) -> bool:
    """Whether there is one row, loaded once as it lies and repeated over the partitions (``inputs.spread_row``)."""
    row = prod(atom.size for axis in order for atom in view.dims[axis])
    span = sum((atom.size - 1) * abs(atom.stride) for axis in order for atom in view.dims[axis])
    return len(order) <= 2 and (row <= SPREAD_MOST or span <= timing.sizes.sbuf_share(SHARE))


def _pays(timing: Timing, plan: MapPlan, view: View, order: Sequence[int], cut: int) -> bool:
    """Whether a copy and its reading take less time than reading ``view`` as it lies."""
    partitions = plan.partitions
    assert partitions is not None, "a plan with partitions"
    size = itemsize(view.dtype)
    nbytes = size * prod(plan.kernel.shape[axis] for axis in order)
    straight = run_of([atom for axis in order for atom in view.dims[axis]], size)
    here = max(straight, min(PAIR * size, run_of(view.dims[cut], size)) if cut >= 0 else size)
    outer = prod(plan.kernel.shape[axis] for axis, _ in partitions.steps)
    times = timing.sizes.partitions * ceil(outer / partitions.count)
    copied = timing.transfer(nbytes, here).bound + timing.transfer(nbytes, here, "write").bound
    row = size * plan.kernel.shape[plan.kernel.scanned]
    read, saved = (timing.transfer(times * nbytes, run).bound for run in (min(row, timing.long_run), here))
    return copied + 2 * timing.transfer_latency + read < saved


def _in_order(context: Context, value: hlo.SSAValue, view: View, order: Sequence[int], cut: int) -> View:
    """Memory for a copy, as dims in ``order``: the last one innermost, or pairs of the axis ``cut``."""
    sizes = [prod(atom.size for atom in view.dims[axis]) for axis in order]
    target = context.own_hbm(base(value), hlo.Shape(view.dtype, tuple(sizes)))
    if cut < 0:
        return target
    size = itemsize(view.dtype)
    outer = target.dims[:-2]
    length = sizes[-1]
    pairs = (Atom(sizes[-2] // PAIR, PAIR * length * size), Atom(PAIR, size))
    return target.of((*outer, pairs, (Atom(length, PAIR * size),)))


def _of(view: View, order: Sequence[int]) -> View:
    return view.of(tuple(view.dims[axis] for axis in order))
