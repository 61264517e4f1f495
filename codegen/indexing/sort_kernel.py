"""Sorts and top-k of rows: operands stand side by side in one tile, which a GpSimd program sorts in place.

``passes.expand_sort`` has prepared the ops: two dims, the last one sorted, all words s32, as many rows of a length that
fit a partition, or rows that go on over several partitions.
"""

from __future__ import annotations

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.formation.graph import is_place
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import FLOATS, itemsize

TILE_WORDS = 8192
"""Words a partition of one tile, so that loads, sorts and stores of different tiles overlap."""


def sort(context: Context, op: hlo.SortOp, step: int) -> None:
    """Tiles of rows, [partition, word, row, element]."""
    del step
    assert op.keys is not None, "expand_sort says how many operands are keys"
    rows, count = hlo.shape_of(op.args[0]).dims
    blocks = op.blocks.data if op.blocks is not None else 1
    sources = [None if is_place(operand) else context.dense(operand) for operand in op.args]
    targets = _new_homes(context, op)
    words, flags = len(sources), ["across"] if blocks > 1 else []
    pool = TilePool(context.builder, "sorted words", buffers=2)
    inner = count // blocks
    for start, tiles, partitions, each in _row_tiles(rows * blocks, inner, words, blocks):
        with context.builder.loop(tiles) as index:
            at = index * (partitions * each) + start
            tile = pool.tile([words, each, inner], "s32", partitions)
            for position, source in enumerate(sources):
                plane = tile.index(1, Affine(position))
                if source is None:
                    steps = [0, inner if blocks > 1 else 0, 0, 1]
                    context.builder.emit("iota", Stream.GPSIMD, [plane], imm=steps)
                else:
                    copy(context.builder, plane, _rows(source, at, partitions, each, inner), Stream.DMA_LOAD)
            context.builder.emit("sort", Stream.GPSIMD, [tile], [tile], imm=[op.keys.data], flags=flags)
            for position, target in targets.items():
                plane = tile.index(1, Affine(position))
                copy(context.builder, _rows(target, at, partitions, each, inner), plane, Stream.DMA_STORE)
            pool.give_back(tile)
    pool.free()


def topk(context: Context, op: hlo.TopkOp, step: int) -> None:
    """Tiles of rows, [partition, row, element]; the DMA casts narrow floats to FP32, and what is found of them back."""
    del step
    count = hlo.shape_of(op.operand).dims[1]
    found = op.k.data
    source = context.hbm(op.operand)
    if len(coalesce(source.dims[0])) > 2 or len(coalesce(source.dims[1])) > 1:
        source = context.dense(op.operand)
    targets = _new_homes(context, op)
    word = "f32" if source.dtype in FLOATS else source.dtype
    atoms = coalesce(source.dims[0]) or (Atom(1, 0),)
    column = coalesce(source.dims[1]) or (Atom(1, itemsize(source.dtype)),)
    # rows of two strides: the shorter dim is looped over
    outer, inner = (atoms[0], atoms[1]) if len(atoms) == 2 else (atoms[0], Atom(1, 0))
    swapped = inner.size > outer.size
    long, short = (inner, outer) if swapped else (outer, inner)
    pitch = (1, inner.size) if swapped else (inner.size, 1)
    pool = TilePool(context.builder, "top-k", buffers=2)
    for start, tiles, partitions, each in _row_tiles(long.size, count, 1, 1):
        for repeat in context.builder.each(short.size):
            with context.builder.loop(tiles) as index:
                at = index * (partitions * each) + start
                tile = pool.tile([each, count], word, partitions)
                dims = (Atom(partitions, each * long.stride), Atom(each, long.stride), Atom(count, column[0].stride))
                offset = source.start + at * long.stride + repeat * short.stride
                copy(context.builder, tile, Block(source.alloc, source.dtype, offset, dims), Stream.DMA_LOAD)
                results = [pool.tile([each, found], dtype, partitions) for dtype in (word, "s32")]
                context.builder.emit("topk", Stream.GPSIMD, results, [tile])
                for position, target in targets.items():
                    row = found * itemsize(target.dtype)
                    dims = (
                        Atom(partitions, each * pitch[0] * row),
                        Atom(each, pitch[0] * row),
                        Atom(found, itemsize(target.dtype)),
                    )
                    offset = target.start + at * (pitch[0] * row) + repeat * (pitch[1] * row)
                    copy(
                        context.builder,
                        Block(target.alloc, target.dtype, offset, dims),
                        results[position],
                        Stream.DMA_STORE,
                    )
                for block in (tile, *results):
                    pool.give_back(block)
    pool.free()


def _new_homes(context: Context, op: hlo.HloOp) -> dict[int, View]:
    """HBM for the results that anything uses, by their number."""
    is_tuple = isinstance(op.result.type, hlo.TupleType)
    targets: dict[int, View] = {}
    for number, values in (context.elements(op.result) if is_tuple else {0: [op.result]}).items():
        targets[number] = context.new_hbm(values[0])
        for value in values:
            context.lies_within(value, values[0])
            context.homes[value] = [targets[number]]
    return targets


def _row_tiles(rows: int, count: int, words: int, blocks: int) -> list[tuple[int, int, int, int]]:
    """(first row, tiles, partitions, rows a partition) that cover all rows; a row of several blocks is one tile."""
    if blocks > 1:
        return [(0, rows // blocks, blocks, 1)]
    each = max(1, min(TILE_WORDS // (words * count), -(-rows // 128)))
    pieces = []
    start, tiles = 0, rows // (128 * each)
    if tiles:
        pieces.append((start, tiles, 128, each))
        start = tiles * 128 * each
    partitions, rest = divmod(rows - start, each)
    if partitions:
        pieces.append((start, 1, partitions, each))
    if rest:
        pieces.append((rows - rest, 1, 1, rest))
    return pieces


def _rows(view: View, at: Affine, partitions: int, each: int, count: int) -> Block:
    """Rows from ``at`` on of a dense [rows, count] array, ``each`` to a partition."""
    size = itemsize(view.dtype)
    dims = (Atom(partitions, each * count * size), Atom(each, count * size), Atom(count, size))
    return Block(view.alloc, view.dtype, view.start + at * (count * size), dims)
