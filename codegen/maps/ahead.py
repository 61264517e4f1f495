"""Inputs of a map that are copied dense ahead of it, because its tiles would be loaded element by element."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from neuronx_cc.codegen.context import Context, as_stored
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.views import Atom, View, align
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.axes import full_view, is_small, minor_axis
from neuronx_cc.codegen.maps.between import gathered, run_of
from neuronx_cc.codegen.maps.order import partition_dim
from neuronx_cc.codegen.maps.plan import MapPlan, Partitions, partitions_of, resident_view
from neuronx_cc.codegen.maps.space import loops_of, streamed_elements
from neuronx_cc.codegen.movement.straight import pays
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize


def copy_ahead(context: Context, plan: MapPlan, external: Sequence[hlo.SSAValue]) -> None:
    """Give inputs that a DMA would load in short runs a dense home, where a copy takes less time by estimate."""
    kernel, partitions, timing = plan.kernel, plan.partitions, context.timing
    if partitions is None or plan.transposed:
        return
    across = partitions.axis if partitions.inner == 1 else -1
    for value in external:
        stored = _stored(context, plan, value)
        view = full_view(stored, kernel) if stored is not None else None
        if stored is None or view is None or is_small(view, kernel) or (across >= 0 and minor_axis(view) == across):
            continue
        nbytes = prod(atom.size for atoms in view.dims for atom in atoms if atom.stride) * itemsize(view.dtype)
        # tiles hold neighbours along a scan, or along rows that are folded, as they lie (maps.order)
        if minor_axis(view) in {plan.along, kernel.scanned} - {-1}:
            continue
        if pays(context, value, stored, nbytes, _loaded_ns(timing, view, kernel.shape, partitions)):
            context.dense(value)


def along_rows(context: Context, kernel: Kernel, external: Sequence[hlo.SSAValue]) -> int:
    """``MapPlan.along``."""
    minors = set()
    for value in external if kernel.reduced else []:
        home = context.views(value)[0]
        stored = as_stored(value) if home.in_sbuf else home
        view = full_view(stored, kernel) if stored is not None else None
        if view is None or not is_small(view, kernel):
            minors.add(-1 if view is None else minor_axis(view))
    axis = minors.pop() if len(minors) == 1 else -1
    return axis if axis < len(kernel.rows) else -1


def _stored(context: Context, plan: MapPlan, value: hlo.SSAValue) -> View | None:
    """``value`` in HBM as it lies or, if it is on chip, will lie there; None where it is read on chip."""
    views = context.views(value)
    if not views[0].in_sbuf:
        return views[0]
    if any(view.in_sbuf and partitions_of(full_view(view, plan.kernel)) == plan.partitions for view in views):
        return None
    return as_stored(value)


def _loaded_ns(timing: Timing, view: View, shape: Sequence[int], partitions: Partitions) -> float:
    """Time of the transfers that load all of ``view``, of the space ``shape``, a tile at a time."""
    size, axis = itemsize(view.dtype), partitions.axis
    whole = shape[axis] - shape[axis] % (partitions.size * partitions.inner)
    full = view.slice(axis, 0, whole)
    if full is None:
        return 0.0
    shape = (*shape[:axis], whole, *shape[axis + 1 :])
    space = align([resident_view(Alloc(Space.SBUF, 0, 0), "u8", shape, partitions), full], shape)
    if space is None or sum(atom.partition for atom in space.atoms[0]) != 1:
        return 0.0
    at = partition_dim(space)
    free = [atom for dim, atom in enumerate(space.atoms[1]) if dim != at and atom.stride]
    sizes = [atom.size for atom in free]
    steps = dict(loops_of(sizes, frozenset(), streamed_elements(timing, size)))
    tile = [Atom(steps.get(dim, atom.size), atom.stride) for dim, atom in enumerate(free)]
    head = space.atoms[1][at]
    extent = gathered(timing, Block(view.alloc, view.dtype, view.start, (head, *tile)))
    nbytes, run = prod(atom.size for atom in tile) * size, run_of(tile, size)
    if extent is not None:
        nbytes, run = extent.nbytes, extent.run
    tiles = prod(sizes) / prod(atom.size for atom in tile)
    return tiles * timing.transfer(head.size * nbytes, run).bound
