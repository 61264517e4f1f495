"""Copies that repeat short runs, such as the pixels of an enlarged image: rows are repeated on chip and stored whole.

A DMA from HBM to HBM would write every repetition as a transfer of its own (hardware sheet 1.8.2). Each partition loads
a row without its repetitions, Vector makes them, and what is repeated as a whole is stored several times.
"""

from __future__ import annotations

from math import prod

from neuronx_cc.codegen.builder import Block, Builder, emit_over
from neuronx_cc.codegen.tiles import dense
from neuronx_cc.codegen.transpose_kernel import LANES, LEAST_ELEMENTS
from neuronx_cc.codegen.views import Atom
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

RUN = 512
"""Bytes of a run that a DMA moves well (hardware sheet 1.8.2)."""
LEAST_LANES = 32
ROOM = 32768
"""Bytes of a tile in a partition."""


def applies(target: Block, source: Block) -> bool:
    """Whether a copy between two HBM blocks repeats runs that are too short, in rows that are not."""
    size = itemsize(source.dtype)
    if target.dtype != source.dtype or size > 4 or prod(atom.size for atom in target.dims) < LEAST_ELEMENTS:
        return False
    lanes = _lane_dim(source)
    if lanes < 0 or source.dims[lanes].size < LEAST_LANES:
        return False
    run, row, repeated = size, size, False
    for dim in reversed(range(len(target.dims))):
        atom, other = target.dims[dim], source.dims[dim]
        if atom.size == 1:
            continue
        if dim == lanes or atom.stride != row:
            break
        repeated = repeated or other.stride == 0
        row *= atom.size
        run = run if repeated or other.stride != run else row
    return repeated and run < RUN <= row


def copy(builder: Builder, target: Block, source: Block, load: Stream) -> None:
    """Copy; ``applies`` must hold."""
    dtype, size, lanes = source.dtype, itemsize(source.dtype), _lane_dim(source)
    room = min(ROOM, builder.sbuf.largest_gap() // 5)
    inner = [dim for dim in range(len(source.dims)) if dim != lanes]
    loops: list[tuple[int, int]] = []
    """Dim and how many of its elements make a tile, outermost first."""
    while prod(source.dims[dim].size for dim in inner) * size > room:
        dim, *rest = inner
        step = max(1, room // (prod(source.dims[other].size for other in rest) * size))
        loops.append((dim, step if source.dims[dim].stride else 1))
        if loops[-1][1] > 1:
            break
        inner = rest
    steps = dict(loops)
    kept = [dim for dim in inner if source.dims[dim].stride]
    largest = {dim: steps.get(dim, source.dims[dim].size) for dim in inner}
    rings = [
        builder.ring(builder.sbuf, prod(largest[dim] for dim in dims) * size, 2, name)
        for dims, name in ((kept, "rows"), (inner, "repeated"))
    ]

    def stores(dims: list[int], target: Block, tile: Block) -> None:
        if dims:
            with builder.loop(target.dims[dims[0]].size) as index:
                stores(dims[1:], target.index(dims[0], index, 1), tile)
            return
        emit_over(builder, "dma_copy", Stream.DMA_STORE, [target.select([lanes, *inner])], [tile])

    def rows(left: list[tuple[int, int]], target: Block, source: Block) -> None:
        dim, step = left[0] if left else (lanes, LANES)
        for start, tiles, count in builder.tiles(source.dims[dim].size, step):
            with builder.loop(tiles) as index:
                stored, part = (block.index(dim, index * count + start, count) for block in (target, source))
                if left:
                    rows(left[1:], stored, part)
                    continue
                sizes = [[part.dims[dim].size for dim in dims] for dims in (kept, inner)]
                loaded, tile = (
                    Block(ring.alloc, dtype, builder.slot(ring), (Atom(count, 1, True), *dense(shape, dtype)))
                    for ring, shape in zip(rings, sizes, strict=True)
                )
                emit_over(builder, "dma_copy", load, [loaded], [part.select([lanes, *kept])])
                atoms = dict(zip(kept, loaded.dims[1:], strict=True))
                spread = tuple(atoms.get(dim, Atom(part.dims[dim].size, 0)) for dim in inner)
                wide = Block(loaded.alloc, dtype, loaded.offset, (loaded.dims[0], *spread))
                emit_over(builder, "tensor_copy", Stream.VECTOR, [tile], [wide])
                stores([dim for dim, _ in loops if not source.dims[dim].stride], stored, tile)

    rows([(dim, step) for dim, step in loops if source.dims[dim].stride], target, source)
    for ring in rings:
        builder.sbuf.free(ring.alloc)


def _lane_dim(source: Block) -> int:
    """The outermost dim of many elements that is no repetition and not the innermost; -1 if there is none."""
    dims = [dim for dim, atom in enumerate(source.dims[:-1]) if atom.stride and atom.size > 1]
    many = [dim for dim in dims if source.dims[dim].size >= LANES // 2]
    return many[0] if many else max(dims, key=lambda dim: source.dims[dim].size, default=-1)
