"""Copies that transpose where a DMA would move every element for itself: short dims in HBM, free dims on chip.

Between HBM arrays of which one dim is short, such as the channels of an image: each partition loads a long run of
pixels with their channels (or of each channel), Vector puts them in the other order within the partition, and a run
for each channel (or one of all) is stored. From SBUF to HBM: Vector puts what lies apart side by side before it is
stored. Exact for every element type: bits are moved, never computed with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from neuronx_cc.codegen.builder import Affine, Block, Builder, Ring, emit_over
from neuronx_cc.codegen.transpose_kernel import LANES, LEAST_ELEMENTS, SQUARE, contiguous_dim
from neuronx_cc.codegen.views import Atom
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

SHORT = 16
"""Longest short dim, unless the long one is very long: from there on transposing squares is as quick."""
RUN = 512
"""Bytes of a run that a DMA moves well (hardware sheet 1.8.2)."""
ROOM = 16384
"""Bytes of a tile in a partition."""


def applies(target: Block, source: Block) -> bool:
    """Whether a copy between two HBM blocks swaps a short and a long dim, each contiguous on one side."""
    dims = contiguous_dim(source), contiguous_dim(target)
    if min(dims) < 0 or dims[0] == dims[1] or target.dtype != source.dtype or itemsize(source.dtype) > 4:
        return False
    short, long = sorted(source.dims[dim].size for dim in dims)
    shortest = SHORT if long < LANES * LANES else SQUARE - 1
    return short <= shortest and long >= SQUARE and prod(atom.size for atom in source.dims) >= LEAST_ELEMENTS


@dataclass(slots=True)
class _Copy:
    builder: Builder
    load: Stream
    short_first: bool
    """The order in the target: the short dim outside."""
    arriving: Ring
    leaving: Ring
    dtype: str

    def tile(self, target: Block, source: Block) -> None:
        """One tile of blocks with dims [partitions, long, short]."""
        lanes, long, short = (atom.size for atom in source.dims)
        size = itemsize(self.dtype)
        outside, inside = (Atom(short, long * size), Atom(long, size)), (Atom(long, short * size), Atom(short, size))
        before, after = (inside, outside) if self.short_first else (outside, inside)
        tiles = []
        for ring, layout in ((self.arriving, before), (self.leaving, after)):
            by_size = dict(zip("sl" if layout is outside else "ls", layout, strict=True))
            dims = (Atom(lanes, 1, True), by_size["l"], by_size["s"])
            tiles.append(Block(ring.alloc, self.dtype, self.builder.slot(ring), dims))
        # the contiguous dim last, so that a descriptor takes a whole run
        loaded, stored = ([0, 1, 2], [0, 2, 1]) if self.short_first else ([0, 2, 1], [0, 1, 2])
        self.builder.emit("dma_copy", self.load, [tiles[0].select(loaded)], [source.select(loaded)])
        emit_over(self.builder, "tensor_copy", Stream.VECTOR, [tiles[1]], [tiles[0]])
        self.builder.emit("dma_copy", Stream.DMA_STORE, [target.select(stored)], [tiles[1].select(stored)])


def copy(builder: Builder, target: Block, source: Block, load: Stream) -> None:
    """Copy, tile by tile; ``applies`` must hold."""
    along, across = contiguous_dim(source), contiguous_dim(target)
    short, long = sorted((along, across), key=lambda dim: source.dims[dim].size)
    width, size = source.dims[short].size, itemsize(source.dtype)
    most = max(1, ROOM // (width * size))
    others = [dim for dim, atom in enumerate(source.dims) if dim not in (short, long) and atom.size > 1]
    rows = max(others, key=lambda dim: source.dims[dim].size, default=-1)
    if rows >= 0 and source.dims[rows].size < LANES // 2 and source.dims[long].size >= LANES * SQUARE:
        rows = -1
    length = source.dims[long].size if rows >= 0 else max(-(-source.dims[long].size // LANES), RUN // size)
    step = min(most, length)
    arriving, leaving = (builder.ring(builder.sbuf, step * width * size, 2, name) for name in ("mixed", "sorted"))
    work = _Copy(builder, load, along == short, arriving, leaving, source.dtype)

    def outer(dims: list[int], target: Block, source: Block) -> None:
        if dims:
            with builder.loop(source.dims[dims[0]].size) as index:
                outer(dims[1:], target.index(dims[0], index, 1), source.index(dims[0], index, 1))
        elif rows >= 0:
            order = [rows, long, short]
            _by_rows(work, target.select(order), source.select(order), step)
        else:
            _split(work, target.select([long, short]), source.select([long, short]), step)

    outer([dim for dim in others if dim != rows], target, source)
    builder.sbuf.free(arriving.alloc)
    builder.sbuf.free(leaving.alloc)


def reorders(target: Block, source: Block) -> bool:
    """Whether an HBM block wants neighbours that lie apart within the partitions of an SBUF block."""
    across, along = _free_run(source), contiguous_dim(target)
    if not source.dims[0].partition or min(across, along) < 1 or across == along:
        return False
    if target.dtype != source.dtype or itemsize(source.dtype) > 4:
        return False
    short = min(source.dims[dim].size for dim in (across, along))
    return prod(atom.size for atom in source.dims) >= LEAST_ELEMENTS and short * itemsize(source.dtype) * 8 <= ROOM


def store(builder: Builder, target: Block, source: Block) -> None:
    """Copy, each piece put into the target's order within its partitions; ``reorders`` must hold."""
    along, across = _free_run(source), contiguous_dim(target)
    short, long = sorted((along, across), key=lambda dim: source.dims[dim].size)
    size = itemsize(source.dtype)
    step = max(1, min(source.dims[long].size, ROOM // (source.dims[short].size * size)))
    ring = builder.ring(builder.sbuf, step * source.dims[short].size * size, 2, "sorted")
    order = [0, along, across]

    def outer(dims: list[int], target: Block, source: Block) -> None:
        if dims:
            with builder.loop(source.dims[dims[0]].size) as index:
                outer(dims[1:], target.index(dims[0], index, 1), source.index(dims[0], index, 1))
            return
        for start, tiles, count in builder.tiles(source.dims[long].size, step):
            with builder.loop(tiles) as index:
                at = index * count + start
                piece, place = (block.index(long, at, count).select(order) for block in (source, target))
                lanes, outside, inside = piece.dims
                free = (Atom(outside.size, inside.size * size), Atom(inside.size, size))
                tile = Block(ring.alloc, source.dtype, builder.slot(ring), (replace(lanes, stride=1), *free))
                tile = replace(tile, partition=piece.partition)
                emit_over(builder, "tensor_copy", Stream.VECTOR, [tile], [piece])
                builder.emit("dma_copy", Stream.DMA_STORE, [place], [tile])

    outer([dim for dim in range(1, len(source.dims)) if dim not in (short, long)], target, source)
    builder.sbuf.free(ring.alloc)


def _free_run(block: Block) -> int:
    """The free dim whose neighbours are adjacent in a partition, or -1."""
    size = itemsize(block.dtype)
    return next((dim for dim, atom in enumerate(block.dims) if dim and abs(atom.stride) == size and atom.size > 1), -1)


def _by_rows(work: _Copy, target: Block, source: Block, step: int) -> None:
    """Another dim lies on the partitions."""
    builder = work.builder
    for row, row_tiles, lanes in builder.tiles(source.dims[0].size, LANES):
        with builder.loop(row_tiles) as row_index:
            for start, tiles, count in builder.tiles(source.dims[1].size, step):
                with builder.loop(tiles) as index:
                    at = (row_index * lanes + row, index * count + start)
                    parts = [block.index(0, at[0], lanes).index(1, at[1], count) for block in (target, source)]
                    work.tile(parts[0], parts[1])


def _split(work: _Copy, target: Block, source: Block, step: int) -> None:
    """The long dim is cut: a run of ``step`` elements on each partition."""
    builder = work.builder
    for start, tiles, count in builder.tiles(source.dims[0].size, LANES * step):
        with builder.loop(tiles) as index:
            lanes, rest = divmod(count, step)
            at = index * count + start
            if lanes:
                work.tile(_cut(target, at, lanes, step), _cut(source, at, lanes, step))
            if rest:
                at += lanes * step
                work.tile(_cut(target, at, 1, rest), _cut(source, at, 1, rest))


def _cut(block: Block, at: Affine, lanes: int, run: int) -> Block:
    """[lanes, run, short] from ``at`` on, of a block [long, short]."""
    part = block.index(0, at, lanes * run)
    stride = part.dims[0].stride
    return replace(part, dims=(Atom(lanes, stride * run), Atom(run, stride), *part.dims[1:]))
