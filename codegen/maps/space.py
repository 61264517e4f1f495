"""The tiles of a map kernel: the dims that all its arrays have in common, and each array as a block over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from math import ceil, prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.views import Atom, IterSpace, View, align, nested
from neuronx_cc.codegen.maps import order as map_order
from neuronx_cc.codegen.maps.axes import full_view
from neuronx_cc.codegen.maps.plan import MapPlan, resident_view
from neuronx_cc.codegen.maps.spread import Partitions
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.isa.timing import Timing

BUFFERS = 3
"""Of a stream: a load, the work on a tile and the store of another overlap."""
Views = dict[hlo.SSAValue, View]


@dataclass(frozen=True, slots=True)
class TileSpace:
    """The refined dims of the space: one or two of them on the partitions, the others free dims of the tiles."""

    space: IterSpace
    partition_dims: list[int]
    """The dims of ``space`` on the partitions; two are counted along neither."""
    partitions: int
    """Their size."""
    order: list[int]
    """The dim of ``space`` that each free dim is."""
    sizes: list[int]
    """Of the free dims."""
    reduced: list[bool]
    """Whether each free dim is folded."""
    walk: list[int]
    """Block dims along which scans run."""
    blocks: dict[hlo.SSAValue, Block]
    """Each array as [partitions, free dims...]."""

    def axis(self, dim: int) -> int:
        """The axis of the kernel that free dim ``dim`` is part of."""
        return self.space.axes[self.order[dim]]


def tile_space(
    context: Context,
    plan: MapPlan,
    shape: tuple[int, ...],
    arrays: Mapping[hlo.SSAValue, View],
    counted: Set[int],
    part: Callable[[View], View],
) -> TileSpace:
    """The tiles of a box of sizes ``shape``.

    ``arrays``: its inputs and outputs; ``counted``: axes counted along; ``part``: what lies in the box of a view of the
    whole space.
    """
    kernel = plan.kernel
    rows = len(kernel.rows) if kernel.reduced else len(shape)
    views = [view if len(view.dims) == len(shape) else view.broadcast(shape, range(rows)) for view in arrays.values()]
    # a dense on-chip layout that marks the partition dim
    template = resident_view(Alloc(Space.SBUF, 0, 0), "u8", shape, plan.partitions or Partitions(-1, 1, 1))
    # an axis that is counted along stays apart from its neighbours
    apart = counted | {kernel.scanned} - {-1}
    fences = frozenset([rows, kernel.folded, *(fence for axis in apart for fence in (axis, axis + 1))])
    space = align([template, *views], shape, fences)
    if space is None or not keeps_partitions(template, space):
        # a view whose atoms do not nest with the partitions: go through a dense copy
        views = [
            view if _keeps_partitions(template, view, shape) else part(full_view(context.dense(value), kernel))
            for value, view in zip(arrays, views, strict=True)
        ]
        space = align([template, *views], shape, fences)
        for at, (value, view) in enumerate(zip(arrays, views, strict=True)):
            if space is None and not view.in_sbuf and any(len(atoms) > 1 for atoms in view.dims):
                # one whose atoms do not nest with another view's
                views[at] = part(full_view(context.dense(value), kernel))
                space = align([template, *views], shape, fences)
    assert space is not None, "dense views align with anything"
    space, pair = map_order.paired(space, views, kernel, rows)
    partition_dims = map_order.partition_dims(space)
    turned = {at for at, value in enumerate(arrays) if value in plan.transposed}
    order = map_order.order(context.timing, space, views, kernel, pair, turned)
    scanned = [dim for dim in sorted(order) if space.axes[dim] == kernel.scanned]

    def block(view: View, atoms: list[Atom]) -> Block:
        head = rows_of(atoms, partition_dims) or Atom(1, 1 if view.in_sbuf else 0, view.in_sbuf)
        return Block(view.alloc, view.dtype, view.start, (head, *(atoms[dim] for dim in order)))

    return TileSpace(
        space,
        partition_dims,
        prod(space.sizes[dim] for dim in partition_dims),
        order,
        [space.sizes[dim] for dim in order],
        [space.axes[dim] >= rows for dim in order],
        [order.index(dim) + 1 for dim in scanned],
        {value: block(view, atoms) for value, view, atoms in zip(arrays, views, space.atoms[1:], strict=True)},
    )


def rows_of(atoms: Sequence[Atom], partition_dims: Sequence[int]) -> Atom | None:
    """Those of ``atoms`` that lie on the partitions, as one; None without any."""
    return reduce(nested, (atoms[dim] for dim in partition_dims)) if partition_dims else None


def keeps_partitions(template: View, space: IterSpace) -> bool:
    """Whether arrays of ``space`` have one stride along each dim that ``template``, the first, has on partitions."""
    return len(map_order.partition_dims(space)) == sum(atom.partition for atoms in template.dims for atom in atoms)


def _keeps_partitions(template: View, view: View, shape: tuple[int, ...]) -> bool:
    """The same of ``view`` alone."""
    space = align([template, view], shape)
    return space is not None and keeps_partitions(template, space)


def loops_of(
    sizes: Sequence[int], whole: Set[int], elements: int, least: Mapping[int, int] | None = None
) -> list[tuple[int, int]]:
    """(free dim, step) of the loops, outermost first, that leave ``elements`` to a tile, and all of ``whole``.

    ``least``: of each dim, what is left at least.
    """
    loops: list[tuple[int, int]] = []
    left = list(sizes)
    for dim in range(len(left)):
        if prod(left) <= elements:
            break
        if dim in whole or left[dim] == 1:
            continue
        step = max((least or {}).get(dim, 1), elements // (prod(left) // left[dim]))
        if step >= left[dim]:
            continue
        divisor = next(size for size in range(step, 0, -1) if left[dim] % size == 0)
        step = divisor if divisor * 2 >= step else step
        loops.append((dim, step))
        left[dim] = step
    return loops


def streamed_elements(timing: Timing, width: int) -> int:
    """Of a tile of elements of ``width`` bytes that moves: as many as do while ``BUFFERS`` transfers wait."""
    moved = BUFFERS * timing.transfer_latency * timing.dma_rate / timing.sizes.partitions
    return ceil(moved / width)
