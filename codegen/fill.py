"""Arrays of one value: a tile is made in SBUF and stored as often as needed.

Reading the one element of a broadcast again and again costs a DMA descriptor for each element of the result.
"""

from __future__ import annotations

from math import prod

from neuronx_cc.codegen.builder import Affine, Block, Builder
from neuronx_cc.codegen.transfer import copy
from neuronx_cc.codegen.views import Atom, View
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import FLOATS, itemsize

COLUMNS = 2048
"""Elements a partition of the tile."""


def repeats_one(view: View) -> bool:
    """Whether all of ``view``'s elements are the same one."""
    return not any(atom.stride or atom.partition for atoms in view.dims for atom in atoms)


def fill(builder: Builder, target: View, number: float | None, scalar: View | None = None) -> None:
    """Write ``number``, or the element at ``scalar`` in HBM, everywhere in the dense HBM array ``target``."""
    total = prod(target.shape)
    size = itemsize(target.dtype)
    columns = min(COLUMNS, -(-total // 128))
    ring = builder.ring(builder.sbuf, columns * size, 1, "fill")
    tile = Block(ring.alloc, target.dtype, Affine(ring.alloc.lo), (Atom(128, 1, True), Atom(columns, size)))
    if number is not None:
        engine = Stream.VECTOR if target.dtype in FLOATS else Stream.GPSIMD
        builder.emit("memset", engine, [tile], [], imm=[number])
    else:
        assert scalar is not None, "a value or where it lies"
        scalar_ring = builder.ring(builder.sbuf, size, 1, "fill value")
        lanes = Block(scalar_ring.alloc, target.dtype, Affine(scalar_ring.alloc.lo), (Atom(128, 1, True),))
        source = Block(scalar.alloc, scalar.dtype, Affine(scalar.offset), (Atom(128, 0),))
        builder.emit("dma_copy", Stream.DMA_LOAD, [lanes], [source])
        spread = Block(lanes.alloc, lanes.dtype, lanes.offset, (lanes.dims[0], Atom(columns, 0)))
        builder.emit("tensor_copy", Stream.VECTOR, [tile], [spread])
        builder.sbuf.free(scalar_ring.alloc)
    base = Block(target.alloc, target.dtype, Affine(target.offset), (Atom(total, size),))
    for start, tiles, count in builder.tiles(total, 128 * columns):
        with builder.loop(tiles) as index:
            at = index * count + start
            full, rest = divmod(count, columns)
            for first, rows, width in ((0, full, columns), (full * columns, 1, rest)):
                if not rows or not width:
                    continue
                whole = base.index(0, at + first, rows * width)
                atoms = (Atom(rows, columns * size), Atom(width, size))
                there = Block(whole.alloc, whole.dtype, whole.offset, atoms)
                here = Block(tile.alloc, tile.dtype, tile.offset, (Atom(rows, 1, True), Atom(width, size)))
                copy(builder, there, here, Stream.DMA_STORE)
    builder.sbuf.free(ring.alloc)
