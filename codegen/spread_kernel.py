"""Pads that part the elements of the last dim: rows are loaded whole, spread out on chip, and stored whole.

The DMA would write every element as a transfer of its own (hardware sheet 1.8.2).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from neuronx_cc.codegen.builder import Affine, Block, emit_over, merge_free
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.tiles import TilePool
from neuronx_cc.codegen.transfer import copy
from neuronx_cc.codegen.views import Atom, View
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import FLOATS, itemsize

SHORT_GAP = 4
"""Elements of padding between two others below which this pays."""
LEAST_ROWS = 32
LARGEST_ROW = 4096
"""Elements of a partition."""


def applies(context: Context, op: hlo.PadOp) -> bool:
    """Whether ``op`` has short gaps between the elements of its last dim, and pads no other dim."""
    if not op.padding.data:
        return False
    *others, last = op.padding.data
    dims = op.shape.dims
    if any((dim.low, dim.high, dim.interior) != (0, 0, 0) for dim in others) or last.low < 0 or last.high < 0:
        return False
    fits = dims[-1] <= LARGEST_ROW and prod(dims[:-1]) >= LEAST_ROWS and hlo.shape_of(op.lhs).size > 0
    return 0 < last.interior < SHORT_GAP and fits and context.splat(op.rhs) is not None


def lower(context: Context, op: hlo.PadOp, target: View) -> None:
    """Write ``op`` to the dense HBM array ``target``."""
    builder, source = context.builder, context.dense(op.lhs)
    last, size = op.padding.data[-1], itemsize(target.dtype)
    rows, width, out = prod(op.shape.dims[:-1]), hlo.shape_of(op.lhs).dims[-1], op.shape.dims[-1]
    fill = context.splat(op.rhs)
    assert fill is not None, "``applies`` asks for a constant"
    engine = Stream.VECTOR if target.dtype in FLOATS else Stream.GPSIMD
    pool = TilePool(builder, "spread", 2)
    each = max(1, min(rows // 128, LARGEST_ROW // out))
    for start, tiles, count in builder.tiles(rows, 128 * each):
        lanes = next(lanes for lanes in range(min(128, count), 0, -1) if count % lanes == 0)
        deep = count // lanes
        with builder.loop(tiles) as index:
            row = index * count + start
            tile, spread = (pool.tile([deep, columns], target.dtype, lanes) for columns in (width, out))
            copy(builder, tile, _rows(source, row, lanes, deep, width), Stream.DMA_LOAD)
            builder.emit("memset", engine, merge_free([spread]), [], imm=[fill])
            part = spread.index(2, Affine(last.low), width)
            step = Atom(width, (last.interior + 1) * size)
            emit_over(builder, "tensor_copy", engine, [replace(part, dims=(*part.dims[:2], step))], [tile])
            copy(builder, _rows(target, row, lanes, deep, out), spread, Stream.DMA_STORE)
            pool.give_back(tile)
            pool.give_back(spread)
    pool.free()


def _rows(view: View, row: Affine, lanes: int, deep: int, columns: int) -> Block:
    """``lanes * deep`` rows of a dense array from ``row`` on, ``deep`` of them to each partition."""
    pitch = columns * itemsize(view.dtype)
    atoms = (Atom(lanes, deep * pitch), Atom(deep, pitch), Atom(columns, itemsize(view.dtype)))
    return Block(view.alloc, view.dtype, row * pitch + view.offset, atoms)
