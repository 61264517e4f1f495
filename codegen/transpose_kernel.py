"""Transposing copies between HBM arrays, exact for every element type.

A DMA moves a transposed array element by element, about 140 ns each; here rows are loaded in long runs,
Vector transposes 32 x 32 blocks (bits are moved, never computed with), and columns are stored in long
runs.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from neuronx_cc.codegen.builder import Affine, Block, Builder, Ring
from neuronx_cc.codegen.views import Atom
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

LEAST_ELEMENTS = 4096
"""Below this an element-wise DMA is as quick."""
BLOCK = 512
LANES = 128
SQUARE = 32


def contiguous_dim(block: Block) -> int:
    """The dim whose neighbours are adjacent in memory, or -1."""
    size = itemsize(block.dtype)
    return next((dim for dim, atom in enumerate(block.dims) if abs(atom.stride) == size and atom.size > 1), -1)


def applies(target: Block, source: Block) -> bool:
    """Whether a copy between two HBM blocks is a large transpose: contiguous along different dims."""
    across, along = contiguous_dim(source), contiguous_dim(target)
    return (
        across >= 0
        and along >= 0
        and across != along
        and target.dtype == source.dtype
        and prod(atom.size for atom in target.dims) >= LEAST_ELEMENTS
        and min(target.dims[across].size, target.dims[along].size) >= 4
    )


def estimated_ns(target: Block, source: Block) -> float:
    """Time of ``copy``: Vector's, 83 cycles a square, or the latencies of its DMAs (hardware sheet 1.8.2, 3.2)."""
    sides = [source.dims[dim].size for dim in (contiguous_dim(source), contiguous_dim(target))]
    others = prod(atom.size for atom in source.dims) / prod(sides)
    squares = prod(ceil(side / SQUARE) for side in sides)
    return others * max(squares * 74.0, ceil(sides[0] / LANES) * ceil(sides[1] / LANES) * 1400.0) + 2600


def copy(builder: Builder, target: Block, source: Block, load: Stream) -> None:
    """Copy with loops over all dims but the two that are contiguous on one side each."""
    across, along = contiguous_dim(source), contiguous_dim(target)
    others = [dim for dim in range(len(source.dims)) if dim not in (across, along)]
    size = itemsize(source.dtype)
    width = min(BLOCK, source.dims[across].size)
    height = min(BLOCK, source.dims[along].size)
    rows = builder.ring(builder.sbuf, width * size, 2, "transpose rows")
    turned = builder.ring(builder.sbuf, -(-width // LANES) * height * size, 2, "transposed")

    def outer(position: int, target: Block, source: Block) -> None:
        if position < len(others):
            dim = others[position]
            with builder.loop(source.dims[dim].size) as index:
                one_target, one_source = target.index(dim, index, 1), source.index(dim, index, 1)
                outer(position + 1, one_target, one_source)
            return
        _blocks(builder, target.select([across, along]), source.select([along, across]), rows, turned, load)

    outer(0, target, source)
    builder.sbuf.free(rows.alloc)
    builder.sbuf.free(turned.alloc)


def _blocks(builder: Builder, target: Block, source: Block, rows: Ring, turned: Ring, load: Stream) -> None:
    """``target[a, b] = source[b, a]`` in blocks of up to 512 x 512."""
    size = itemsize(source.dtype)
    for b_start, b_tiles, b_size in builder.tiles(source.dims[0].size, BLOCK):
        with builder.loop(b_tiles) as b_index:
            b_at = b_index * b_size + b_start
            for a_start, a_tiles, a_size in builder.tiles(source.dims[1].size, BLOCK):
                with builder.loop(a_tiles) as a_index:
                    a_at = a_index * a_size + a_start
                    columns = Block(
                        turned.alloc,
                        source.dtype,
                        builder.slot(turned),
                        (Atom(LANES, 1, True), Atom(-(-a_size // LANES), b_size * size), Atom(b_size, size)),
                    )
                    part = source.index(0, b_at, b_size).index(1, a_at, a_size)
                    _load_and_turn(builder, columns, part, rows, load)
                    for start, tiles, count in builder.tiles(a_size, LANES):
                        with builder.loop(tiles) as index:
                            chunk = columns.index(1, index + start // LANES)
                            lanes = replace(chunk, dims=(Atom(count, 1, True), chunk.dims[1]))
                            at = a_at + index * count + start
                            builder.emit(
                                "dma_copy",
                                Stream.DMA_STORE,
                                [target.index(0, at, count).index(1, b_at, b_size)],
                                [lanes],
                            )


def _load_and_turn(builder: Builder, columns: Block, part: Block, rows: Ring, load: Stream) -> None:
    size = itemsize(part.dtype)
    a_size = part.dims[1].size
    for b_start, b_tiles, b_count in builder.tiles(part.dims[0].size, LANES):
        with builder.loop(b_tiles) as b_index:
            at = b_index * b_count + b_start
            tile = Block(
                rows.alloc,
                part.dtype,
                builder.slot(rows),
                (Atom(b_count, 1, True), Atom(a_size, size)),
            )
            builder.emit("dma_copy", load, [tile], [part.index(0, at, b_count)])
            for a_start, a_tiles, a_count in builder.tiles(a_size, LANES):
                with builder.loop(a_tiles) as a_index:
                    source = tile.index(1, a_index * a_count + a_start, a_count)
                    target = columns.index(1, a_index + a_start // LANES).index(1, at, b_count)
                    turn_squares(builder, target, source)


def turn_squares(builder: Builder, target: Block, source: Block) -> None:
    """Transpose [b, a] into [a, b], both at most 128 x 128, square by square."""
    for b in range(0, source.dims[0].size, SQUARE):
        for a in range(0, source.dims[1].size, SQUARE):
            height, width = min(SQUARE, source.dims[0].size - b), min(SQUARE, source.dims[1].size - a)
            square = replace(
                source.index(1, Affine(a), width),
                partition=b,
                dims=(Atom(height, 1, True), replace(source.dims[1], size=width)),
            )
            turned = replace(
                target.index(1, Affine(b), height),
                partition=a,
                dims=(Atom(width, 1, True), replace(target.dims[1], size=height)),
            )
            builder.emit("transpose", Stream.VECTOR, [turned], [square])
