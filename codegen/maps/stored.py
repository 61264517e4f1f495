"""Where in HBM a map stores its results: as they are wanted, or in an order in which its DMAs move runs, to be copied.

Candidates are the program's result and dense arrays, each with the time of the stores and of the copy by estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.views import Atom, View, outermost, unplaced
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.axes import full_view, value_view
from neuronx_cc.codegen.maps.moved import moved
from neuronx_cc.codegen.maps.plan import MapPlan, resident_view
from neuronx_cc.codegen.maps.spread import divides
from neuronx_cc.codegen.movement.straight import direct
from neuronx_cc.codegen.movement.transfer import nanoseconds, stored_ns
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.types import itemsize

CLEARLY = 1.1
"""How many times less a home further from what is wanted has to take."""


def stored_home(context: Context, plan: MapPlan, value: hlo.SSAValue, inputs: Sequence[View]) -> View:
    """A home in HBM for ``value``, with the least time of its stores and of a copy that its readers or users want.

    ``inputs``: arrays of the kernel, whose tiles its results share.
    """
    shape, result = hlo.shape_of(value), context.outputs.get(value)
    if plan.partitions is None or (result is not None and (result.in_sbuf or result.start.terms)):
        return context.new_hbm(value)
    wanted = result if result is not None else _wanted(plan, value)
    least, best = _time(context, plan, value, inputs, wanted), wanted
    timing = context.timing
    if least > timing.transfer(shape.nbytes, timing.long_run, "write").bound + timing.transfer_latency:
        for home in _others(plan, value):
            ns = _time(context, plan, value, inputs, home) + timing.transfer_latency
            if home.dims != wanted.dims and CLEARLY * ns < least:
                ns += nanoseconds(context.builder, wanted, home)
                least, best = (ns, home) if CLEARLY * ns < least else (least, best)
    if best is result:
        return context.new_hbm(value)
    placed = context.own_hbm(value, shape)
    return View(placed.alloc, shape.dtype, placed.start, best.dims)


def _wanted(plan: MapPlan, value: hlo.SSAValue) -> View:
    """The dense array that the readers of ``value`` want."""
    dense = unplaced(hlo.shape_of(value).dtype, hlo.shape_of(value).dims)
    return partitions_first(dense, plan.kernel, len(plan.kernel.shape) - 1) if plan.gives_transposed(value) else dense


def _others(plan: MapPlan, value: hlo.SSAValue) -> Iterator[View]:
    """Dense arrays: in order, and if neighbours lie on neighbouring partitions with these outermost."""
    shape, partitions = hlo.shape_of(value), plan.partitions
    dense = unplaced(shape.dtype, shape.dims)
    yield dense
    if partitions is None or partitions.inner > 1:
        return
    yield partitions_first(dense, plan.kernel, partitions.axis)
    dims = plan.kernel.rows if plan.kernel.is_row(shape) else plan.kernel.shape
    alone = partitions.groups == 1 and plan.kernel.scanned < 0
    if alone and partitions.axis < len(dims) and divides(dims, partitions):
        held = resident_view(dense.alloc, shape.dtype, dims, partitions)
        step = prod(dims) // partitions.size * itemsize(shape.dtype)
        atoms = tuple(tuple(Atom(a.size, step) if a.partition else a for a in each) for each in held.dims)
        home = value_view(View(dense.alloc, shape.dtype, dense.start, atoms), plan.kernel, shape.dims)
        if home is not None:
            yield home


def _time(context: Context, plan: MapPlan, value: hlo.SSAValue, inputs: Sequence[View], home: View) -> float:
    """Of the stores of ``value`` to ``home``; 0 where its tiles are not known beforehand."""
    kernel, partitions, shape = plan.kernel, plan.partitions, hlo.shape_of(value)
    is_row, timing = kernel.is_row(shape), context.timing
    if kernel.scanned >= 0 and partitions is not None:  # a partition has steps of a scan in whichever order suits these
        first = partitions_first(unplaced(shape.dtype, shape.dims), kernel, partitions.axis)
        nbytes, ns = direct(context, first)
        alike = home.dims == first.dims or partitions.inner > 1
        return timing.transfer(nbytes, timing.long_run).bound if alike else ns
    tiles = moved(context, plan, inputs, full_view(home, kernel), is_row)
    if tiles is None or partitions is None:
        return 0.0
    ns = tiles.stored_ns(timing)
    if is_row and partitions.inner == partitions.groups == 1 and not kernel.joined:
        # few values a partition stay until all are there
        whole = [size - size % partitions.size * (axis == partitions.axis) for axis, size in enumerate(kernel.rows)]
        tile = resident_view(Alloc(Space.SBUF, 0, 0), shape.dtype, whole, partitions)
        ns = min(ns, stored_ns(context.builder, unplaced(shape.dtype, whole), tile))
    return ns


def partitions_first(home: View, kernel: Kernel, axis: int) -> View:
    """``home`` with the dims outermost, of those that are not 1, that the kernel's ``axis`` is."""
    counts = kernel.joined or (1,) * (axis + 1)
    dims = kernel.in_order([dim for dim, size in enumerate(home.shape) if size != 1])
    start = sum(counts[:axis])
    return outermost(home, dims[start : start + counts[axis]])
