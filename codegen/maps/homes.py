"""Where a map kernel finds its inputs, and where its results come to lie."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.views import Affine, View, outermost, unplaced
from neuronx_cc.codegen.formation.graph import base, squeeze
from neuronx_cc.codegen.maps.axes import axes_view, full_view, is_small, laid_out, value_view
from neuronx_cc.codegen.maps.moved import moved
from neuronx_cc.codegen.maps.plan import (
    MapPlan,
    held_rows,
    is_column,
    lies_across,
    lies_along,
    partitions_of,
    resident_bytes,
    resident_view,
)
from neuronx_cc.codegen.maps.spread import Partitions
from neuronx_cc.codegen.maps.stored import stored_home
from neuronx_cc.codegen.movement.transfer import transfer
from neuronx_cc.codegen.movement.transpose_kernel import turn_squares
from neuronx_cc.codegen.view_ops import as_stored, squeezed
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.table import NUMBER
from neuronx_cc.ir.types import itemsize


def choose_input(context: Context, plan: MapPlan, value: hlo.SSAValue) -> View:
    """A home that the kernel can address: resident with the same partitions, else HBM (copied if it lies across)."""
    if value in plan.transposed:
        return plan.transposed[value]
    if value in plan.copied:
        return plan.copied[value]
    for view in context.views(value):
        full = full_view(view, plan.kernel)
        scalar = plan.partitions is None and not squeezed(view).dims
        if (plan.partitions is not None or scalar) and view.in_sbuf and partitions_of(full) == plan.partitions:
            return full
        if (
            plan.partitions is not None
            and view.in_sbuf
            and (rows := _column_as_rows(context, value, full, plan)) is not None
        ):
            return rows
    first = context.views(value)[0]
    if is_small(first, plan.kernel) and not lies_along(full_view(first, plan.kernel), plan):
        return laid_out(context, value, plan.kernel)
    made = as_stored(value)
    on_chip = all(view.in_sbuf for view in context.views(value))
    if on_chip and (made is None or not _is_cut(full_view(made, plan.kernel), plan)):
        return full_view(context.dense(value), plan.kernel)
    full = _quickest(context, plan, value)
    if not _is_cut(full, plan):
        return full_view(context.dense(value), plan.kernel)
    if plan.partitions is None or not lies_across(full, plan.partitions, context.timing):
        return full
    stored = [full_view(view, plan.kernel) for view in context.views(value) if not view.in_sbuf]
    ready = next(
        (view for view in stored if not lies_across(view, plan.partitions, context.timing) and _is_cut(view, plan)),
        None,
    )
    if ready is not None:
        return ready
    dense = unplaced(full.dtype, squeeze(hlo.shape_of(value).dims))
    across = lies_across(full_view(dense, plan.kernel), plan.partitions, context.timing)
    if not isinstance(value.owner, hlo.BroadcastOp) and not across:
        return full_view(context.dense(value), plan.kernel)
    dims = hlo.shape_of(value).dims
    outer = [dim for dim in range(len(dims)) if plan.kernel.axis_of(dims, dim) == plan.partitions.axis]
    return full_view(_transposed(context, value, outer), plan.kernel)


def _quickest(context: Context, plan: MapPlan, value: hlo.SSAValue) -> View:
    """Of the homes of ``value`` in HBM the one whose tiles take least to load, of the kernel's space."""
    first = full_view(context.hbm(value), plan.kernel)
    homes = [full_view(view, plan.kernel) for view in context.views(value) if not view.in_sbuf]
    if len(homes) < 2:
        return first
    tiles = [moved(context, plan, [], view) if _is_cut(view, plan) else None for view in homes]
    times = [inf if each is None else each.loaded_ns(context.timing) for each in tiles]
    return homes[times.index(min(times))] if min(times) < inf else first


def _column_as_rows(context: Context, value: hlo.SSAValue, column: View, plan: MapPlan) -> View | None:
    """A column on chip (see ``is_column``), transposed so that each of its rows lies on a partition: another home."""
    partitions, found = plan.partitions, partitions_of(column)
    shape = plan.kernel.shape
    if (
        partitions is None
        or found is None
        or not is_column(shape, found)
        or partitions != Partitions(0, partitions.size, found.size)
    ):
        return None
    if len(column.dims[0]) != 2 or column.dtype not in NUMBER:
        return None
    alloc = context.new_resident(value, found.size * itemsize(column.dtype))
    if alloc is None:
        return None
    rows = resident_view(alloc, column.dtype, shape, partitions)
    (outer, partition), (row, inner) = column.dims[0], rows.dims[0]
    turn_squares(
        context.builder,
        Block(alloc, rows.dtype, rows.start, (row, inner)),
        Block(column.alloc, column.dtype, column.start, (partition, outer)),
    )
    home = value_view(rows, plan.kernel, hlo.shape_of(value).dims)
    if home is not None:
        context.homes.setdefault(value, []).append(home)
    return rows


def _is_cut(view: View, plan: MapPlan) -> bool:
    """Whether each box of the kernel is a view: where partitions do not divide their axis, ``view`` is cut along it."""
    if plan.partitions is None:
        return True
    for axis, step in plan.partitions.steps:
        size = plan.kernel.shape[axis]
        rest = size % step
        if rest and any(view.slice(axis, *part) is None for part in ((0, size - rest), (size - rest, rest))):
            return False
    return True


def _transposed(context: Context, value: hlo.SSAValue, outer: Sequence[int]) -> View:
    """A copy of ``value`` in HBM whose outermost dims are ``outer``, of what is repeated only once."""
    shape = hlo.shape_of(value)
    if isinstance(value, hlo.OpResult) and isinstance(value.op, hlo.BroadcastOp):
        dimensions, source = value.op.dimensions.data, hlo.shape_of(value.op.operand).dims
        places = [dimensions.index(dim) for dim in outer if dim in dimensions]
        if len(places) == len(outer) and all(source[place] != 1 for place in places):
            return _transposed(context, value.op.operand, places).broadcast(shape.dims, dimensions)
    target = outermost(context.own_hbm(base(value), shape), outer)
    if not transfer(context.builder, target, context.hbm(value), Stream.DMA_LOAD, force=True):
        transfer(context.builder, target, context.dense(value), Stream.DMA_LOAD, force=True)
    context.homes.setdefault(value, []).append(target)
    return target


def choose_output(context: Context, plan: MapPlan, value: hlo.SSAValue, step: int, inputs: Sequence[View]) -> View:
    """Resident in the kernel's partitions if it fits and is used again soon; else HBM. ``inputs``: the kernel's."""
    shape = hlo.shape_of(value)
    partitions = plan.partitions
    dims = plan.kernel.rows if plan.kernel.is_row(shape) else plan.kernel.shape
    target = context.outputs.get(value)
    if target is not None and target.in_sbuf and partitions_of(axes_view(target, plan.kernel)) == partitions:
        return target
    if partitions is not None and (nbytes := resident_bytes(context, plan, value, step)):
        alloc = context.new_resident(value, nbytes)
        if alloc is not None:
            made = held_rows if plan.holds_rows and partitions.inner == 1 else resident_view
            view = value_view(made(alloc, shape.dtype, dims, partitions), plan.kernel, shape.dims)
            assert view is not None, "what stays is a view of its value"
            return view
    if partitions is None and not dims and context.prefix:
        alloc = context.new_resident(value, itemsize(shape.dtype))
        if alloc is not None:
            return View(alloc, shape.dtype, Affine(alloc.lo), tuple(() for _ in shape.dims))
    return stored_home(context, plan, value, inputs)
