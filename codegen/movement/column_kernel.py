"""Loads of vectors whose neighbours go to neighbouring partitions, such as one value for each feature.

A DMA moves them element by element. Here they come as
rows of up to 128 elements, one a partition, and Vector turns these square by square, bit for bit.
"""

from __future__ import annotations

from math import ceil, prod

from neuronx_cc.codegen.emission.builder import Block, Builder, merge_free
from neuronx_cc.codegen.emission.tiles import TilePool, tile_in
from neuronx_cc.codegen.emission.views import Nested
from neuronx_cc.codegen.movement import transfer
from neuronx_cc.codegen.movement.transpose_kernel import turn_squares
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.rules import SQUARE
from neuronx_cc.ir.isa.table import NUMBER
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import FLOATS, itemsize


def copy(builder: Builder, target: Block, source: Block, stream: Stream) -> None:
    """Load ``source`` from HBM into ``target`` [partitions, ...] in SBUF, transposed where that is faster; it may cast
    floats.
    """
    if not _applies(builder, target, source):
        transfer.copy(builder, target, source, stream)
        return
    target, source = merge_free([target, source])
    partitions, rows = source.dims
    width = itemsize(target.dtype)
    with TilePool(builder, "rows of a column") as pool:
        tile = tile_in(builder, pool.ring(partitions.size * width, 2), [partitions.size], target.dtype, rows.size)
        builder.emit("dma_copy", stream, [tile], [source.select([1, 0])])
        turn_squares(builder, target, tile)


def _nbytes(source: Block) -> int:
    return prod(atom.size for atom in source.dims) * itemsize(source.dtype)


def _rows_ns(timing: Timing, source: Block) -> float:
    """Time of loading [partitions, rows] as rows and transposing these, beyond the latency of a transfer."""
    partitions, rows = (atom.size for atom in source.dims)
    squares = ceil(partitions / SQUARE) * ceil(rows / SQUARE)
    transposed = squares * timing.engine("transpose", Stream.VECTOR, SQUARE).bound + timing.latency(Stream.VECTOR)
    return timing.transfer(_nbytes(source), partitions * itemsize(source.dtype)).bound + transposed


def _applies(builder: Builder, target: Block, source: Block) -> bool:
    """Whether single elements would be moved that are neighbours in memory, and SBUF has room for them as rows."""
    partitions = target.dims[0]
    casts = target.dtype != source.dtype and not {target.dtype, source.dtype} <= FLOATS
    if (
        target.dtype not in NUMBER
        or casts
        or isinstance(source.dims[0], Nested)
        or source.dims[0].stride != itemsize(source.dtype)
    ):
        return False
    target, source = merge_free([target, source])
    if len(source.dims) != 2 or source.dims[1].size > PARTITIONS:
        return False
    if _rows_ns(builder.timing, source) >= builder.timing.transfer(_nbytes(source), itemsize(source.dtype)).bound:
        return False
    return builder.sbuf.largest_gap() >= 4 * partitions.size * itemsize(target.dtype)
