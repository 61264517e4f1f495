"""Tiles that are loaded with what lies between their elements, where a DMA would move these one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod

from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom, run_of
from neuronx_cc.codegen.maps.parts import LEAST_TILE
from neuronx_cc.codegen.movement.relayout_plan import GAIN, Dim, Extent, as_loaded, direct_ns, is_long
from neuronx_cc.ir.isa.program import MAX_FREE_DIMS, Space
from neuronx_cc.ir.isa.table import NUMBER
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

MOST_BETWEEN = 64
"""How many times its bytes a tile may take with what lies between its elements."""
LEAST_STEPS = 2
"""Elements from which it pays to load that, too."""
MOST_KEPT = 4
"""How many times the elements of a tile one may have that loads nothing twice."""


def elements_of(block: Block) -> int:
    """Elements a partition of ``block`` without repetitions."""
    return prod(atom.size for atom in block.dims[1:] if atom.stride)


def gathered(timing: Timing, block: Block) -> Extent | None:
    """How a tile is loaded with what lies between its elements; None where a DMA moves it well without.

    Elements that are contiguous with no other are transfers of their own otherwise, and the ports of SBUF read short
    steps, also backwards, at full speed .
    """
    if block.alloc.space is not Space.HBM:
        return None
    minor, size = block.dims[-1], itemsize(block.dtype)
    if len(block.dims) > 1 and minor.stride == size and is_long(timing, minor.size * size):
        return None
    return _gathered(timing, block.dims, size)


@lru_cache(maxsize=4096)
def _gathered(timing: Timing, dims: tuple[Atom, ...], size: int) -> Extent | None:
    free = dims[1:]
    elements = prod([atom.size for atom in free if atom.stride])
    if elements < LEAST_STEPS:
        return None
    run = run_of([atom for atom in free if atom.stride and atom.size > 1], size)
    extent = as_loaded(timing, [Dim(atom.size, 0, atom.stride) for atom in free], [atom.size for atom in free], size)
    if extent.nbytes > MOST_BETWEEN * elements * size or len(_steps_of(free, extent)) > MAX_FREE_DIMS:
        return None
    partitions = dims[0].size
    alone, together = (
        direct_ns(timing, partitions * nbytes, length)
        for nbytes, length in ((elements * size, run), (extent.nbytes, extent.run))
    )
    return extent if together * GAIN < alone or (run == size and together < alone) else None


def ordered(timing: Timing, block: Block) -> Extent | None:
    """The same of a tile that is put in order on chip then: with the dims along which it repeats it has too many steps
    for the instructions that read it.
    """
    varying = [atom for atom in block.dims[1:] if atom.stride]
    if len(varying) == len(block.dims) - 1 or block.dtype not in NUMBER or gathered(timing, block) is not None:
        return None
    return gathered(timing, block.of((block.dims[0], *varying)))


def _steps_of(free: Sequence[Atom], extent: Extent) -> list[Atom]:
    """The free dims of the tile, merged where one step goes on in the next: reductions take no more than four."""
    merged: list[Atom] = []
    for dim, atom in enumerate(free):
        step = extent.strides.get(dim, 0) if atom.stride > 0 else -extent.strides.get(dim, 0)
        if merged and merged[-1].stride == step * atom.size:
            merged[-1] = Atom(merged[-1].size * atom.size, step)
        elif atom.size > 1:
            merged.append(Atom(atom.size, step))
    return merged


def between(timing: Timing, block: Block) -> int:
    """Bytes that a tile of ``block`` takes for each element, besides the element's own."""
    extent = gathered(timing, block)
    if extent is None:
        return 0
    elements = elements_of(block)
    return max(0, -(-extent.nbytes // elements) - itemsize(block.dtype))


def finest(block: Block) -> int:
    """The free dim of ``block`` whose elements lie closest together."""
    return min(block.varying, key=lambda dim: abs(block.dims[dim].stride)) - 1


def cut_by(block: Block, loops: Sequence[tuple[int, int]]) -> Block:
    """A tile of ``block``: (free dim, step) of ``loops``."""
    dims = list(block.dims)
    for dim, step in loops:
        dims[dim + 1] = Atom(step, dims[dim + 1].stride, dims[dim + 1].partition)
    return block.of(tuple(dims))


def gathered_bytes(timing: Timing, blocks: Sequence[Block], loops: Sequence[tuple[int, int]]) -> int:
    """Bytes a partition of tiles of ``blocks`` that are loaded with what lies between their elements.

    A tile has more of that than the whole block where a looped dim is the minor one in HBM.
    """
    cut = [cut_by(block, loops) for block in blocks]
    extents = [gathered(timing, block) or ordered(timing, block) for block in cut]
    return sum(extent.nbytes for extent in extents if extent is not None)


def within(
    room: int,
    blocks: Sequence[Block],
    sizes: Sequence[int],
    elements: int,
    cut: Callable[[int], list[tuple[int, int]]],
    taken: Callable[[list[tuple[int, int]]], int],
    timing: Timing,
) -> list[tuple[int, int]]:
    """The loops that ``cut`` makes for tiles of ``elements``, or of fewer if these do not fit ``room`` bytes.

    ``taken``: bytes of a tile. One that is larger than asked for, which loads nothing twice, has to fit with what lies
    between its elements; others can do without that (``fit``).
    """
    least = LEAST_TILE // MOST_KEPT  # so that larger tiles than asked for do not stay
    while True:
        loops = cut(elements)
        larger = prod(dict(loops).get(dim, size) for dim, size in enumerate(sizes)) > elements
        nbytes = taken(loops) + (gathered_bytes(timing, blocks, loops) if larger else 0)
        if nbytes <= room or elements <= least:
            return loops
        elements = max(least, elements // 2)


def fit(pool: TilePool, blocks: Sequence[Block], loops: Sequence[tuple[int, int]], nbytes: int, room: int) -> None:
    """Take fewer buffers, or do without what lies between elements, where tiles of ``blocks`` would not fit with it.

    ``loops`` are (free dim, step), ``nbytes`` what the kernel's tiles take without, but for those of inputs that are
    repeated in part.
    """
    more = gathered_bytes(pool.builder.timing, blocks, loops)
    for block in blocks:
        if not all(atom.stride for atom in block.dims[1:]):
            nbytes += elements_of(cut_by(block, loops)) * itemsize(block.dtype)
    pool.gathers = nbytes + more <= room
    if pool.gathers:
        pool.buffers = max(1, min(pool.buffers, room // (nbytes + more)))
        if more or 2 * nbytes * pool.buffers > room:
            # large tiles among small ones, or hardly room for all: all in one gap
            pool.builder.sbuf.make_room((nbytes + more) * pool.buffers)
