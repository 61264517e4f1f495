"""Vectors whose neighbours lie on neighbouring partitions, such as one value for each feature, between HBM and SBUF.

A DMA moves them element by element. Here they come and go as
rows of up to 128 elements, one a partition, which Vector transposes square by square, bit for bit.
"""

from __future__ import annotations

from math import ceil, prod

from neuronx_cc.codegen.emission.builder import Block, Builder, merge_free
from neuronx_cc.codegen.emission.tiles import TilePool, tile_in
from neuronx_cc.codegen.movement import transfer
from neuronx_cc.codegen.movement.transpose_kernel import turn_squares
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.rules import SQUARE
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize


def copy(builder: Builder, target: Block, source: Block, stream: Stream) -> None:
    """Copy ``source`` to ``target`` [partitions, ...], one of them in HBM, transposed where that is faster."""
    if not _applies(builder, target, source):
        transfer.copy(builder, target, source, stream)
        return
    target, source = merge_free([target, source])
    partitions, rows = source.dims
    width = itemsize(source.dtype)
    with TilePool(builder, "rows of a column") as pool:
        tile = tile_in(builder, pool.ring(partitions.size * width, 2), [partitions.size], source.dtype, rows.size)
        if source.alloc.space is Space.HBM:
            builder.emit("dma_copy", stream, [tile], [source.select([1, 0])])
            turn_squares(builder, target, tile)
        else:
            turn_squares(builder, tile, source)
            builder.emit("dma_copy", stream, [target.select([1, 0])], [tile])


def _nbytes(block: Block) -> int:
    return prod(atom.size for atom in block.dims) * itemsize(block.dtype)


def _rows_ns(timing: Timing, block: Block, way: str) -> float:
    """Time of moving [partitions, rows] as rows and transposing these, beyond the latency of a transfer."""
    partitions, rows = (atom.size for atom in block.dims)
    squares = ceil(partitions / SQUARE) * ceil(rows / SQUARE)
    transposed = squares * timing.engine("transpose", Stream.VECTOR, SQUARE).bound + timing.latency(Stream.VECTOR)
    return timing.transfer(_nbytes(block), partitions * itemsize(block.dtype), way).bound + transposed


def _applies(builder: Builder, target: Block, source: Block) -> bool:
    """Whether single elements would be moved that are neighbours in memory, and SBUF has room for them as rows."""
    size, loads = itemsize(source.dtype), source.alloc.space is Space.HBM
    stored = source if loads else target
    if target.dtype != source.dtype or stored.dims[0].stride != size:
        return False
    target, source = merge_free([target, source])
    stored = source if loads else target
    if len(stored.dims) != 2 or stored.dims[1].size > PARTITIONS:
        return False
    way = "read" if loads else "write"
    if _rows_ns(builder.timing, stored, way) >= builder.timing.transfer(_nbytes(stored), size, way).bound:
        return False
    return builder.sbuf.largest_gap() >= 4 * stored.dims[0].size * size
