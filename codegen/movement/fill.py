"""Arrays of one value: a tile is made in SBUF and stored as often as needed.

Reading the one element of a broadcast again and again costs a DMA descriptor for each element of the result.
"""

from __future__ import annotations

from math import prod

from neuronx_cc.codegen.emission.builder import Block, Builder
from neuronx_cc.codegen.emission.pace import tile_columns
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Stage
from neuronx_cc.ir.types import itemsize

SHARE = (1, 11)
"""Of a partition of SBUF: most of the tile."""


def repeats_one(view: View) -> bool:
    """Whether all of ``view``'s elements are the same one."""
    return not any(atom.stride or atom.partition for atoms in view.dims for atom in atoms)


def fill(builder: Builder, target: View, number: float | None, scalar: View | None = None) -> None:
    """Write ``number``, or the element at ``scalar`` in HBM, everywhere in the dense HBM array ``target``."""
    total = prod(target.shape)
    size = itemsize(target.dtype)
    timing, each = builder.timing, -(-total // PARTITIONS)

    def stages(count: int) -> list[Stage]:
        made = timing.engine("memset", Stream.VECTOR, count, ins=())
        return [timing.done(made, Stream.VECTOR), timing.moved(PARTITIONS * count * size, count * size, "write")]

    columns = tile_columns(timing, each, max(1, builder.sizes.sbuf_share(SHARE) // size), each, stages)
    with TilePool(builder, "fill") as pool:
        tile = pool.apart([columns], target.dtype, PARTITIONS)
        if number is not None:
            builder.memset(tile, number)
        else:
            assert scalar is not None, "a value or where it lies"
            with TilePool(builder, "fill value") as one:
                source = one_a_partition(builder, one, scalar).repeated(tile)
                builder.emit("tensor_copy", Stream.VECTOR, [tile], [source])
        _store_repeatedly(builder, Block(target.alloc, target.dtype, target.start, (Atom(total, size),)), tile)


def one_a_partition(builder: Builder, pool: TilePool, scalar: View) -> Block:
    """A tile [128] with the element at ``scalar`` in HBM on each partition."""
    partitions = pool.apart([], scalar.dtype, PARTITIONS)
    load_scalar(builder, partitions, scalar)
    return partitions


def load_scalar(builder: Builder, block: Block, scalar: View) -> None:
    """The element at ``scalar`` in HBM on each partition of ``block``, which has one element a partition."""
    source = Block(scalar.alloc, scalar.dtype, scalar.start, (Atom(block.dims[0].size, 0),))
    builder.emit("dma_copy", Stream.DMA_LOAD, [block.of(block.dims[:1])], [source])


def _store_repeatedly(builder: Builder, target: Block, tile: Block) -> None:
    """Write the dense array ``target`` of one dim with as many copies of ``tile`` [128, columns] as it takes."""
    partitions, columns = tile.dims[0].size, tile.dims[1].size
    size = itemsize(tile.dtype)
    for at, count in builder.pieces(target.dims[0].size, partitions * columns):
        for first, rows, width in builder.tiles(count, columns):
            there = target.index(0, at + first, rows * width).of((Atom(rows, columns * size), Atom(width, size)))
            here = tile.of((Atom(rows, 1, True), Atom(width, size)))
            copy(builder, there, here, Stream.DMA_STORE)
