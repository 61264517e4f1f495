"""Arrays with a batch inside of their rows or terms, as heads are, and how they lie on chip where they move whole."""

from __future__ import annotations

from math import prod

from neuronx_cc.codegen.dots.cuts import LEAST_FILLED
from neuronx_cc.codegen.dots.problem import divisor
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.views import View, stride_of
from neuronx_cc.codegen.maps.plan import resident_view
from neuronx_cc.codegen.maps.spread import Partitions
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.types import itemsize


def in_memory(view: View) -> list[int]:
    """The dims of a view, the outermost in memory first."""
    return sorted(range(len(view.dims)), key=lambda dim: -stride_of(view.dims[dim]))


def dim_around(view: View, batch: int) -> int:
    """The outermost dim in memory but the first ``batch``, where some of these lie inside of it; -1 where none do."""
    order = in_memory(view)
    at = next((at for at, dim in enumerate(order) if dim >= batch), len(order))
    return order[at] if any(dim < batch and view.shape[dim] > 1 for dim in order[at:]) else -1


def lying_whole(view: View, dim: int, most: int, like: Partitions | None) -> View | None:
    """How an array lies on chip, in an order in memory as in ``view``: ``dim`` on the partitions as ``like`` has it,
    else neighbours on each. None where that fills few of ``most`` partitions.
    """
    order = in_memory(view)
    sizes, axis = [view.shape[each] for each in order], order.index(dim)
    size = divisor(sizes[axis], most)
    partitions = Partitions(axis, size, sizes[axis] // size)
    if like is not None:
        partitions = Partitions(axis, like.size, like.inner)
    if partitions.size * LEAST_FILLED < most:
        return None
    nbytes = prod(sizes) // partitions.size * itemsize(view.dtype)
    lies = resident_view(Alloc(Space.SBUF, 0, nbytes), view.dtype, sizes, partitions)
    return lies.transpose([order.index(each) for each in range(len(order))])
