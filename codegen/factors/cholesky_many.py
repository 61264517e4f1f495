"""Cholesky factorisations of many matrices, one in each partition (``many``), of which lower triangles are read.

Columns are kept as they are left, and divided by the roots of their pivots at the end, as in ``cholesky_kernel``.
"""

from __future__ import annotations

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.tiles import TilePool, pieces
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.factors.many import element, groups, matrices
from neuronx_cc.codegen.factors.vector import Vector
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream

FEW = 16
"""Rows from which on there are instructions for each, which leave out what is above the diagonal."""


def lower(context: Context, op: hlo.CustomCallOp) -> None:
    """A custom call with the target ``CHOLESKY``."""
    source, target = context.dense(op.operands[0]), context.new_hbm(op.result)
    context.homes[op.result] = [target]
    batch, size, _ = source.shape
    builder = context.builder
    for first, count in groups(builder, batch):
        with TilePool(builder, "cholesky") as pool:
            left = pool.apart([size, size], "f32", count)
            builder.emit("dma_copy", Stream.DMA_LOAD, [left.flat()], [matrices(source, first, count)])
            _factor(builder, pool, left, size)
            _finish(builder, pool, left, size)
            builder.emit("dma_copy", Stream.DMA_STORE, [matrices(target, first, count)], [left.flat()])


def _factor(builder: Builder, pool: TilePool, left: Block, size: int) -> None:
    vector = Vector(builder)
    count = left.dims[0].size
    column, shares = (pool.apart([size], "f32", count) for _ in range(2))
    pivot, change = pool.apart([1], "f32", count), pool.apart([FEW, FEW], "f32", count)
    for at in range(size - 1):
        rest = size - at - 1
        below = left.index(2, Affine(at)).index(1, Affine(at + 1), rest)
        here, share = column.index(1, Affine(), rest), shares.index(1, Affine(), rest)
        vector.copied(here, below)
        vector.scaled(pivot, element(left.index(1, Affine(at)), at), ["max"], 0.0)
        vector.scaled(share, here, ["divide"], pivot)
        inner = left.index(1, Affine(at + 1), rest).index(2, Affine(at + 1), rest)
        if rest < FEW:
            taken = change.index(1, Affine(), rest).index(2, Affine(), rest)
            across = here.of((here.dims[0], Atom(rest, 0), here.dims[1]))
            down = share.of((share.dims[0], share.dims[1], Atom(rest, 0)))
            vector.both(taken, across, "multiply", down)
            vector.both(inner, inner, "subtract", taken)
            continue
        for start, rows in pieces(rest, max(FEW, -(-rest // 4))):
            with builder.loop(rows) as row:
                part = inner.index(1, row + start).index(1, Affine(), start + rows)
                across = here.index(1, Affine(), start + rows)
                vector.combined(part, across, "multiply", element(share, row + start), "subtract", part, reverse=True)


def _finish(builder: Builder, pool: TilePool, left: Block, size: int) -> None:
    """Columns over the roots of their pivots, zeros above; NaN everywhere if a pivot has no root."""
    vector, count = Vector(builder), left.dims[0].size
    pivots = left.of((left.dims[0], Atom(size, 4 * (size + 1))))
    roots, ratio = (pool.apart([size], "f32", count) for _ in range(2))
    flaw = pool.apart([1], "f32", count)
    builder.emit("activation", Stream.SCALAR, [roots], [pivots], ["sqrt"], [1.0])
    vector.both(ratio, pivots, "divide", roots)
    vector.scaled(ratio, ratio, ["multiply"], 0.0)
    vector.folded(flaw, ratio, "add")
    vector.both(left, left, "divide", roots.of((roots.dims[0], Atom(size, 0), roots.dims[1])))
    builder.emit("affine_select", Stream.GPSIMD, [left], [left], ["is_ge"], [0.0, 0, 0, 1, -1])
    vector.scaled(left, left, ["add"], flaw)
