"""Operands whose neighbours lie a step apart, or backwards: copied dense ahead of the kernels that load whole runs.

Maps load what lies between and step over it on chip; copies do so, too (``relayout_kernel``). So are operands of which
more elements are contracted than are staged whole, if these are no progression in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.copies import come_whole
from neuronx_cc.codegen.dots.problem import run_of
from neuronx_cc.codegen.emission.views import View, coalesce, outermost, unplaced
from neuronx_cc.codegen.formation.graph import base, is_view
from neuronx_cc.codegen.movement.fill import repeats_one
from neuronx_cc.codegen.movement.relayout_plan import LEAST_ELEMENTS, dims_of, direct_run, ordered
from neuronx_cc.codegen.movement.split import split
from neuronx_cc.codegen.movement.transfer import blocks_of, nanoseconds, transfer
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.merge_contracted import MOST_CONTRACTED

SIDE_BY_SIDE = 8
"""Neighbouring rows of a contraction that would be loaded, and multiplied, so many at a time."""
_READERS = (hlo.ContractionOp, hlo.ReduceOp)


def straighten(context: Context, op: hlo.HloOp, step: int) -> None:
    """Give operands of a contraction or reduction ``op``, of kernel ``step``, or parts that it pads, a dense home where
    no other lets a DMA move runs.
    """
    if isinstance(op, hlo.PadOp):
        split(context, op)
    if not isinstance(op, _READERS):
        return
    contracted = (op.dims.data.lhs_contracting, op.dims.data.rhs_contracting) if isinstance(op, hlo.DotOp) else ()
    batches = (op.dims.data.lhs_batch, op.dims.data.rhs_batch) if isinstance(op, hlo.DotOp) else ()
    orders, copies = dict[int, tuple[hlo.SSAValue, tuple[int, ...]]](), 0.0
    for index, operand in enumerate(op.operands):
        if operand in context.scaled:
            continue
        operand = context.load_casts.get(operand, operand) if isinstance(op, hlo.ReduceOp) else operand
        deep = index < len(contracted) and _is_deep(operand, contracted[index])
        steps = _steps(operand) and hlo.shape_of(operand).size >= LEAST_ELEMENTS
        first = _interleaved(context, operand, batches[index], contracted[index]) if index < len(batches) else ()
        spread = isinstance(op, hlo.ConvolutionOp) and index == 0 and _repeats_positions(context, op)
        if not deep and not steps and not first and not spread:
            continue
        if (op, index) in context.residents.staged or context.literal(operand) is not None:
            continue
        if base(context.source_of(operand)) in context.listed:
            continue
        operand = context.source_of(operand) if deep or spread else operand
        views = context.views(operand)
        scattered = deep and not views[0].in_sbuf
        scattered = scattered and all(len(coalesce(view.dims[contracted[index][0]])) > 1 for view in views)
        if spread or scattered or (steps and all(_is_stepped(view) for view in views)):
            context.dense(operand)
        elif first and (copied := _order_ns(context, operand, first)) is not None:
            orders[index] = operand, first
            copies += copied
    places = {
        at: outermost(unplaced(hlo.shape_of(x).dtype, hlo.shape_of(x).dims), first) for at, (x, first) in orders.items()
    }
    if orders and not (isinstance(op, hlo.DotOp) and come_whole(context, op, step, places, copies)):
        for operand, first in orders.values():
            _order(context, operand, first)


def pays(context: Context, value: hlo.SSAValue, view: View, nbytes: int, loaded_ns: float) -> bool:
    """Whether a kernel that loads ``nbytes`` of ``value`` from ``view`` in ``loaded_ns`` would take longer than a dense
    copy ahead of it, and loading that in long runs.
    """
    timing = context.timing
    straight = timing.transfer(nbytes, timing.long_run).bound
    if view.start.terms or view.in_sbuf or loaded_ns <= straight + timing.transfer_latency:
        return False
    dense = unplaced(view.dtype, hlo.shape_of(value).dims)
    return loaded_ns > nanoseconds(context.builder, dense, view) + timing.transfer_latency + straight


def direct(context: Context, view: View) -> tuple[int, float]:
    """Bytes of ``view``, and nanoseconds of one DMA between it and a dense array."""
    dense = unplaced(view.dtype, view.shape)
    blocks = blocks_of([dense, view], view.shape)
    nbytes, size = prod(view.shape) * itemsize(view.dtype), itemsize(view.dtype)
    run = size if blocks is None else direct_run(dims_of(*ordered(*blocks)), size)
    return nbytes, context.timing.transfer(nbytes, run).bound


def _interleaved(
    context: Context, value: hlo.SSAValue, batch: tuple[int, ...], contracted: tuple[int, ...]
) -> tuple[int, ...]:
    """The dims of a large array along which neighbours in memory lie, where only short runs of it can be loaded."""
    if hlo.shape_of(value).size < LEAST_ELEMENTS or value in context.load_casts or context.literal(value) is not None:
        return ()
    views = context.views(value)
    if not all(interleaves(view, batch, contracted) for view in views):
        return ()
    return (*batch, *(dim for dim in _unit_dims(views[0]) if dim not in batch))


def interleaves(view: View, batch: Container[int], contracted: Collection[int]) -> bool:
    """Whether a view in HBM has neighbours along dims of ``batch`` alone, or few rows or terms of a contraction."""
    units, size = _unit_dims(view), itemsize(view.dtype)
    few = [dim for dim in units if dim not in contracted and view.dims[dim][-1].size <= SIDE_BY_SIDE]
    if run_of((atom for dim in contracted for atom in view.dims[dim]), size) <= SIDE_BY_SIDE * size:
        few += [dim for dim in units if dim in contracted]
    return not view.in_sbuf and bool(units) and all(dim in batch or dim in few for dim in units)


def _unit_dims(view: View) -> list[int]:
    size = itemsize(view.dtype)
    return [dim for dim, atoms in enumerate(view.dims) for atom in atoms if abs(atom.stride) == size]


def _order_ns(context: Context, value: hlo.SSAValue, first: tuple[int, ...]) -> float | None:
    """Nanoseconds of a copy of ``value`` with dims ``first`` outermost; None if loading it as it lies takes less time
    than that and loading runs.
    """
    shape, source, timing = hlo.shape_of(value), context.hbm(value), context.timing
    size = itemsize(shape.dtype)
    rows = [source.dims[dim][-1].size for dim in _unit_dims(source)]
    run = size * max((each for each in rows if each <= SIDE_BY_SIDE), default=1)
    apart, runs = (timing.transfer(shape.size * size, each).bound for each in (run, timing.long_run))
    copied = nanoseconds(context.builder, outermost(unplaced(shape.dtype, shape.dims), first), source)
    return copied if copied + timing.transfer_latency + runs < apart else None


def _order(context: Context, value: hlo.SSAValue, first: tuple[int, ...]) -> None:
    """Give ``value`` a home with dims ``first`` outermost."""
    home = outermost(context.own_hbm(base(value), hlo.shape_of(value)), first)
    transfer(context.builder, home, context.hbm(value), Stream.DMA_LOAD, force=True)
    context.homes.setdefault(value, []).append(home)


def _repeats_positions(context: Context, op: hlo.ConvolutionOp) -> bool:
    """Whether an image holds the same elements everywhere, as gradients of means do: a DMA would move one at a time."""
    if hlo.shape_of(op.lhs).size < LEAST_ELEMENTS:
        return False
    views, spatial = context.views(context.source_of(op.lhs)), op.dims.data.lhs_spatial
    return bool(views) and all(_repeats(view, spatial) and not repeats_one(view) for view in views)


def _repeats(view: View, dims: Collection[int]) -> bool:
    atoms = [atom for dim in dims for atom in view.dims[dim] if atom.size > 1]
    return bool(atoms) and not any(atom.stride for atom in atoms)


def _is_deep(value: hlo.SSAValue, axes: tuple[int, ...]) -> bool:
    """Whether one contracted dim is too long to be staged whole."""
    return len(axes) == 1 and hlo.shape_of(value).dims[axes[0]] > MOST_CONTRACTED


def _steps(value: hlo.SSAValue) -> bool:
    """Whether a reversal or a slice with a step is among the views that ``value`` is."""
    while isinstance(value, hlo.OpResult) and is_view(value.op):
        if isinstance(value.op, hlo.ReverseOp):
            return True
        if isinstance(value.op, hlo.SliceOp) and any(dim.stride > 1 for dim in value.op.slice.data):
            return True
        value = value.op.operands[0]
    return False


def _is_stepped(view: View) -> bool:
    """Whether no two elements of an HBM view are neighbours in order."""
    strides = [atom.stride for atoms in view.dims for atom in atoms if atom.stride]
    return not view.in_sbuf and min(strides, key=abs, default=0) not in (0, itemsize(view.dtype))
