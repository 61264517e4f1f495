"""Inputs of a map that are copied dense ahead of it, because its tiles would be loaded element by element."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.views import Atom, View, linear
from neuronx_cc.codegen.maps.axes import SMALL_SHARE, full_view, is_small
from neuronx_cc.codegen.maps.inputs import gathered
from neuronx_cc.codegen.maps.plan import MapPlan, Partitions
from neuronx_cc.codegen.maps.space import loops_of, streamed_elements
from neuronx_cc.codegen.maps.transposed import minor_axis
from neuronx_cc.codegen.movement.transfer import nanoseconds
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize


def copy_ahead(
    context: Context, plan: MapPlan, external: Sequence[hlo.SSAValue], results: Sequence[hlo.SSAValue]
) -> None:
    """Give inputs a dense home that a DMA would otherwise load in short runs, where a copy takes less time by estimate.

    Tiles hold the neighbours of all large arrays side by side where these agree.
    """
    kernel, partitions, timing = plan.kernel, plan.partitions, context.timing
    if partitions is None or plan.transposed or len(kernel.shape) < 2:
        return
    views = {value: full_view(context.views(value)[0], kernel) for value in external}
    large = {value: view for value, view in views.items() if not is_small(view, kernel) and not view.in_sbuf}
    minors = {minor_axis(view) for view in large.values()}
    if any(prod(hlo.shape_of(value).dims) * SMALL_SHARE > prod(kernel.shape) for value in results):
        minors.add(len(kernel.shape) - 1)
    if len(minors) < 2 and not kernel.reduced:
        return
    for value, view in large.items():
        if view.start.terms or minor_axis(view) in (-1, partitions.axis, len(kernel.shape) - 1):
            continue
        nbytes = prod(atom.size for atoms in view.dims for atom in atoms if atom.stride) * itemsize(view.dtype)
        dense = linear(Alloc(Space.HBM, 0, 0), 0, view.dtype, hlo.shape_of(value).dims)
        copied = nanoseconds(context.builder, dense, context.views(value)[0]) + timing.transfer_latency
        if _loaded_ns(timing, view, partitions) > copied + timing.transfer(nbytes, timing.long_run).bound:
            context.dense(value)


def _loaded_ns(timing: Timing, view: View, partitions: Partitions) -> float:
    """Time of the transfers that load all of ``view``, a tile at a time."""
    size, free, groups = itemsize(view.dtype), [], 1
    for axis, atoms in enumerate(view.dims):
        if axis != partitions.axis:
            free += [atom for atom in atoms if atom.stride]
            continue
        groups = prod(atom.size for atom in atoms) // (partitions.size * partitions.inner)
        free.append(Atom(partitions.inner, atoms[-1].stride))
    whole = [atom.size for atom in free]
    steps = dict(loops_of(whole, frozenset(), streamed_elements(timing, size)))
    tile = [Atom(steps.get(dim, atom.size), atom.stride) for dim, atom in enumerate(free)]
    head = Atom(partitions.size, view.dims[partitions.axis][-1].stride * partitions.inner)
    extent = gathered(timing, Block(view.alloc, view.dtype, view.start, (head, *tile)))
    nbytes, run = (prod(atom.size for atom in tile) * size, size) if extent is None else (extent.nbytes, extent.run)
    tiles = groups * prod(whole) / prod(atom.size for atom in tile)
    return tiles * timing.transfer(partitions.size * nbytes, run).bound
