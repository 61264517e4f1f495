"""Stores of what lies with neighbours on neighbouring partitions, such as few features of many rows.

A DMA moves them element by element. Here Vector transposes them square by square, bit for bit, so that a partition has
neighbours in one run. The opposite of ``column_kernel``.
"""

from __future__ import annotations

from math import ceil, prod

from neuronx_cc.codegen.emission.builder import Block, Builder, emit_over, merge_free
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Nested
from neuronx_cc.codegen.movement.transpose_kernel import turn_squares
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.rules import SQUARE
from neuronx_cc.ir.isa.table import NUMBER
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

MOST_SQUARES = 64
"""That are emitted one by one."""
BUFFERS = 2


def nanoseconds(timing: Timing, target: Block, source: Block) -> float | None:
    """Time of such a store; None for what is none, or too large for one tile."""
    found = _crossed(target, source)
    if found is None:
        return None
    target, source = found
    width, rows, others = itemsize(source.dtype), source.dims[1].size, prod(atom.size for atom in source.dims[2:])
    squares = ceil(source.dims[0].size / SQUARE) * ceil(rows / SQUARE) * others
    if squares > MOST_SQUARES or rows > PARTITIONS:
        return None
    each = timing.engine("transpose", Stream.VECTOR, SQUARE).bound
    stored = timing.transfer(
        prod(atom.size for atom in source.dims) * width, source.dims[0].size * width, "write"
    ).bound
    return squares * each + timing.latency(Stream.VECTOR) + stored + timing.transfer_latency


def nbytes(target: Block, source: Block) -> int:
    """Bytes a partition of its tile, of a store that has a time."""
    found = _crossed(target, source)
    assert found is not None, "has a time"
    across, _, *others = found[1].dims
    return prod(atom.size for atom in (across, *others)) * itemsize(source.dtype)


def copy(builder: Builder, target: Block, source: Block, stream: Stream) -> None:
    """Store it; ``nanoseconds`` has a time for it."""
    found = _crossed(target, source)
    assert found is not None, "has a time"
    target, source = found
    across, rows, *others = source.dims
    with TilePool(builder, "transposed for its store", BUFFERS) as pool:
        tile = pool.tile([*(atom.size for atom in others), across.size], source.dtype, rows.size)
        for there, here in zip(tile.at_each(1, len(others)), source.at_each(2, len(others)), strict=True):
            turn_squares(builder, there, here)
        order = [1, *range(2, len(target.dims)), 0]
        emit_over(builder, "dma_copy", stream, [target.select(order)], [tile])


def _crossed(target: Block, source: Block) -> tuple[Block, Block] | None:
    """Both blocks with the dim first, after the partitions, that becomes the partitions: the longest one."""
    on_chip = source.alloc.space is Space.SBUF and source.dims[0].partition and not source.partition
    if not on_chip or target.alloc.space is not Space.HBM or not target.dtype == source.dtype in NUMBER:
        return None
    if target.dims[0].stride != itemsize(target.dtype) or target.dims[0].size == 1:
        return None
    if isinstance(target.dims[0], Nested):
        return None
    target, source = merge_free([target, source])
    if len(source.dims) < 2 or any(atom.stride == 0 for atom in target.dims):
        return None
    longest = max(range(1, len(source.dims)), key=lambda dim: source.dims[dim].size)
    order = [0, longest, *(dim for dim in range(1, len(source.dims)) if dim != longest)]
    return target.select(order), source.select(order)
