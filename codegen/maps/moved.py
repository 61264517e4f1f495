"""How long the DMA takes for an array of a map: its tiles are loaded, or stored, in the order in which they hold it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from math import ceil, prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.views import Atom, View, align, run_of
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps import order as map_order
from neuronx_cc.codegen.maps.between import MOST_KEPT, cut_by, finest, gathered
from neuronx_cc.codegen.maps.parts import LEAST_TILE
from neuronx_cc.codegen.maps.plan import MapPlan, resident_view
from neuronx_cc.codegen.maps.space import keeps_partitions, loops_of, rows_of, streamed_elements
from neuronx_cc.codegen.maps.spread import Partitions
from neuronx_cc.codegen.movement import crossed
from neuronx_cc.codegen.movement.relayout_plan import dims_of, direct_run, ordered
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

TILES = 3
"""Of whole rows that are on chip at once, or rows are taken in sections."""


@dataclass(frozen=True, slots=True)
class Moved:
    """An array in HBM beside one of its tiles, both [partitions, free dims...] in the tile's order."""

    there: Block
    here: Block
    tiles: float
    staged: bool
    """Whether rows are so long that they are taken in sections, which hardly have room for what lies between."""

    def loaded_ns(self, timing: Timing) -> float:
        """Of all its tiles, with what lies between the elements where that is quicker."""
        nbytes, run = self._nbytes, run_of(self.there.dims[1:], itemsize(self.there.dtype))
        if not self.staged and (extent := gathered(timing, self.there)) is not None:
            nbytes, run = extent.nbytes * self.there.dims[0].size, extent.run
        return self.tiles * timing.transfer(nbytes, run).bound

    def stored_ns(self, timing: Timing) -> float:
        """Of all its tiles, put in order on chip where that is quicker."""
        run = direct_run(dims_of(*ordered(self.there, self.here)), itemsize(self.there.dtype))
        ns = timing.transfer(self._nbytes, run, "write").bound
        in_order = crossed.nanoseconds(timing, self.there, self.here)
        return self.tiles * (ns if in_order is None else min(ns, in_order))

    @property
    def _nbytes(self) -> int:
        return prod(atom.size for atom in self.there.dims) * itemsize(self.there.dtype)


def moved(context: Context, plan: MapPlan, others: Sequence[View], view: View, is_row: bool = False) -> Moved | None:
    """What of ``view``, of the kernel's space, moves; None where its tiles are not known beforehand.

    ``others``: those of arrays beside it, of which those in HBM count. ``is_row``: it has one value for each row.
    """
    kernel, partitions, timing = plan.kernel, plan.partitions, context.timing
    if partitions is None:
        return None
    steps = dict(partitions.steps)
    shape = tuple(size - size % steps.get(axis, 1) for axis, size in enumerate(kernel.shape))
    # steps of a scan lie in whichever order suits it
    near = [each for each in others if not each.in_sbuf and kernel.scanned < 0]
    full = (each.broadcast(kernel.shape, range(len(each.dims))) for each in (view, *near))
    boxes = [_box(each, shape) for each in full]
    if boxes[0] is None:
        return None
    return _tiles(timing, kernel, shape, partitions, [box for box in boxes if box is not None], is_row)


def _box(view: View, shape: Sequence[int]) -> View | None:
    """Its elements of a box of ``shape``, which begins where it does; None where that is no view."""
    part: View | None = view
    for axis, size in enumerate(shape):
        part = None if part is None else part.slice(axis, 0, size)
    return part


def _tiles(
    timing: Timing, kernel: Kernel, shape: tuple[int, ...], partitions: Partitions, views: Sequence[View], is_row: bool
) -> Moved | None:
    """The tiles of the first of ``views``, beside whichever of the others its dims nest with."""
    template = resident_view(Alloc(Space.SBUF, 0, 0), "u8", shape, partitions)
    rows = len(kernel.rows) if kernel.reduced else len(shape)
    space = align([template, *views], shape, frozenset([rows]))
    if space is None:
        views = views[:1]
        space = align([template, *views], shape, frozenset([rows]))
    if (
        space is None
        or not (partition_dims := map_order.partition_dims(space))
        or not keeps_partitions(template, space)
    ):
        return None
    order = [dim for dim in range(len(space.sizes)) if dim not in partition_dims]
    if kernel.scanned < 0:
        order = map_order.order(timing, space, views, kernel, -1)
    size = itemsize(views[0].dtype)
    folded = [space.axes[dim] >= rows for dim in order]
    sizes = [space.sizes[dim] for dim in order]
    steps = dict(loops_of(sizes, frozenset(), _elements(timing, sizes, folded, size)))
    kept = [(place, dim) for place, dim in enumerate(order) if not (is_row and folded[place])]
    free = [Atom(steps.get(place, sizes[place]), space.atoms[1][dim].stride) for place, dim in kept]
    if not is_row:
        free = [atom for atom in free if atom.stride]
    head = rows_of(space.atoms[1], partition_dims)
    assert head is not None, "the template has partitions"
    total = prod(space.sizes[dim] for _, dim in kept if is_row or space.atoms[1][dim].stride)
    there = Block(views[0].alloc, views[0].dtype, views[0].start, (head, *free))
    row = prod(each for each, folds in zip(sizes, folded, strict=True) if folds)
    staged = any(folded) and TILES * row * itemsize("f32") > timing.sizes.sbuf_bytes
    return Moved(there, _tile(there), total / prod(atom.size for atom in free), staged)


def _tile(there: Block) -> Block:
    """A dense tile of the elements of ``there``, in its order."""
    tile, stride = list[Atom](), itemsize(there.dtype)
    for atom in reversed(there.dims[1:]):
        tile.insert(0, Atom(atom.size, stride))
        stride *= atom.size
    return Block(Alloc(Space.SBUF, 0, 0), there.dtype, Affine(0), (Atom(there.dims[0].size, 1, partition=True), *tile))


def _elements(timing: Timing, sizes: Sequence[int], folded: Sequence[bool], width: int) -> int:
    """Of a tile: of whole rows, as many as are neighbours in memory."""
    least = streamed_elements(timing, width)
    row = prod(size for size, folds in zip(sizes, folded, strict=True) if folds)
    if not any(folded) or folded[-1] or row > least:
        return least
    return max(least, row * min(sizes[-1], ceil(timing.long_run / itemsize("f32"))))


def loops_around(
    timing: Timing,
    arrays: tuple[Sequence[Block], Sequence[Block]],
    sizes: Sequence[int],
    whole: Set[int],
    elements: int,
) -> list[tuple[int, int]]:
    """(free dim, step) of the loops that leave ``elements`` to a tile, and all of ``whole``.

    ``arrays``: that are loaded for each tile, and stored. Neighbours that are loaded with what lies between stay
    together, or as many as are a long run, where the DMA takes less time for that: a tile of a part would load all that
    lies between. So do the dims along which an array repeats, which is loaded again for each of their parts.
    """
    loaded = arrays[0]
    whole_ones = [block for block in loaded if all(atom.stride for atom in block.dims[1:])]
    near = {finest(block): itemsize(block.dtype) for block in whole_ones if gathered(timing, block)}
    ways = [loops_of(sizes, whole, elements)]
    if near.keys() - whole:
        kept = whole | near.keys()
        if prod(sizes[dim] for dim in kept) <= MOST_KEPT * elements:
            ways = [loops_of(sizes, kept, elements)]
        least = {dim: timing.long_run // size for dim, size in near.items()}
        if elements >= LEAST_TILE:  # there may be no room for more than the smallest tiles
            ways += [loops_of(sizes, whole, times * elements, least) for times in range(1, MOST_KEPT + 1)]
    for block in loaded:
        repeated = {dim for dim, _ in ways[0] if not block.dims[dim + 1].stride} - whole
        if repeated and prod(sizes[dim] for dim in repeated | whole) <= elements:
            ways.append(loops_of(sizes, repeated | whole, elements))
    if len(ways) == 1:
        return ways[0]

    times = [_moving_ns(timing, arrays, sizes, loops) for loops in ways]
    return ways[times.index(min(times))] if map_order.CLEARLY * min(times) < times[0] else ways[0]


Loops = list[tuple[int, int]]


def sooner(
    timing: Timing, arrays: tuple[Sequence[Block], Sequence[Block]], sizes: Sequence[int], loops: Loops, alone: Loops
) -> Loops:
    """``loops`` of tiles that are loaded with what lies between their elements, or ``alone`` of tiles without."""
    together, apart = (_moving_ns(timing, arrays, sizes, *way) for way in ((loops, False), (alone, True)))
    return alone if map_order.CLEARLY * apart < together else loops


def _moving_ns(
    timing: Timing,
    arrays: tuple[Sequence[Block], Sequence[Block]],
    sizes: Sequence[int],
    loops: Sequence[tuple[int, int]],
    alone: bool = False,
) -> float:
    """Of all tiles of ``arrays``, that are loaded and stored; ``alone``: without what lies between their elements."""
    parts = prod(sizes) / prod(dict(loops).get(dim, size) for dim, size in enumerate(sizes))
    tiles = [[_varying(cut_by(block, loops)) for block in blocks] for blocks in arrays]
    moving = [[Moved(block, _tile(block), parts, alone) for block in blocks] for blocks in tiles]
    ns = sum(each.loaded_ns(timing) for each in moving[0]) + sum(each.stored_ns(timing) for each in moving[1])
    return ns * (1 + 2 / parts)  # nothing else moves while the first tile comes and the last one goes


def _varying(block: Block) -> Block:
    return block.of((block.dims[0], *(atom for atom in block.dims[1:] if atom.stride)))
