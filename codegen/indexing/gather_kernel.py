"""Gathers of rows: a DMA whose descriptors GpSimd software makes from the indices.

Input: the forms that ``passes.indexing.gather`` makes. Operand [R, W], indices [N], slices [k, W]; tables on chip are
``group_kernel``'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots import listed
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.emission.views import Atom, View, align, coalesce
from neuronx_cc.codegen.indexing import group_kernel, walked_kernel
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.indexing.costs import Costs

ROW_SHARE = (1, 11)
"""Of a partition of SBUF: one tile of rows."""
DEPTH = 8
"""Most rows that a partition of one tile takes in turn, each by an instruction of its own, so that they overlap."""
COPIED = 3
"""How often an operand whose rows are brought together is moved: read, transposed, written."""


def gather(context: Context, op: hlo.GatherOp, step: int) -> None:
    """The result [N, k, W] in HBM; or no more than where contractions find its rows."""
    if op.dims.data.operand_batching_dims:
        group_kernel.gather(context, op)
    elif not walked_kernel.lower(context, op) and not listed.lay_out(context, op):
        _of_rows(context, op)
    del step


def bring_together(context: Context, value: hlo.SSAValue) -> None:
    """Move the rows that are ``value`` after all, if contractions were to read them where they lie."""
    if context.listed.pop(value, None) is not None:
        assert isinstance(value.owner, hlo.GatherOp), "rows of a table by number"
        _of_rows(context, value.owner)


def _of_rows(context: Context, op: hlo.GatherOp) -> None:
    """The result [N, k, W] in HBM."""
    height, _ = op.slice_sizes.data
    count = hlo.shape_of(op.rhs).dims[0]
    target = context.new_hbm(op.result)
    context.homes[op.result] = [target]
    view = _operand(context, op, count)
    window = view.slice(0, 0, height)
    assert window is not None, "rows lie at one distance"
    row = align([window, replace(target, dims=target.dims[1:])], window.shape)
    assert row is not None, "HBM views align"
    indices = context.dense(op.rhs)
    stride = view.dims[0][0].stride if view.dims[0] else 0
    source = Block(view.alloc, view.dtype, view.start, (Atom(view.shape[0] - height + 1, stride), *row.atoms[0]))
    pitch = target.dims[0][0].stride if target.dims[0] else 0
    out = Block(target.alloc, target.dtype, target.start, (Atom(count, pitch), *row.atoms[1]))
    move_rows(context, source, out, indices)


def _operand(context: Context, op: hlo.GatherOp, count: int) -> View:
    """A view of the operand with rows at one distance; dense where that is cheaper than rows of many short runs."""
    view = context.hbm(op.lhs)
    view = replace(view, dims=(coalesce(view.dims[0]), view.dims[1]))
    if len(view.dims[0]) > 1:
        return context.dense(op.lhs)
    size = itemsize(view.dtype)
    row = coalesce(view.dims[1])
    run = row[-1].size * size if row and row[-1].stride == size else size
    runs = prod(view.shape[1:]) * size // run
    if runs > 1:
        whole = op.slice_sizes.data[0] * prod(view.shape[1:]) * size
        costs = Costs(context.timing)
        copied = COPIED * hlo.shape_of(op.lhs).nbytes / context.timing.dma_rate + costs.rows(count, whole)
        if copied < costs.rows(count, run, runs * op.slice_sizes.data[0]):
            return context.dense(op.lhs)
    return view


def move_rows(
    context: Context,
    table: Block,
    listed: Block,
    indices: View,
    write: bool = False,
    splat: float | None = None,
) -> None:
    """Rows of ``table`` (HBM, rows first) to those of ``listed``, or the other way: row ``indices[n]`` with row n.

    Reads clamp the index, writes skip rows outside; ``splat`` is written instead of what ``listed`` has. Rows longer
    than a tile are moved in pieces.
    """
    builder = context.builder
    size, row_bytes = itemsize(table.dtype), builder.sizes.sbuf_share(ROW_SHARE)
    sizes = [atom.size for atom in table.dims[1:]]
    cut = next((dim for dim in range(len(sizes)) if prod(sizes[dim + 1 :]) * size <= row_bytes), 0)
    step = max(1, row_bytes // (prod(sizes[cut + 1 :]) * size))
    depth = min(DEPTH, row_bytes // (prod(sizes) * size))
    rings: list[Ring] = []
    for start, tiles, partitions, deep in deal(listed.dims[0].size, depth):
        ring = builder.ring(builder.sbuf, max(64, 4 * deep), 2, "indices")
        rings.append(ring)
        with builder.loop(tiles) as tile:
            first_row = tile * (partitions * deep) + start
            rows = _row_numbers(context, indices, first_row, partitions, deep, ring)
            pitch = listed.dims[0].stride
            here = listed.index(0, first_row, partitions * deep)
            here = here.of((Atom(partitions, pitch * deep), Atom(deep, pitch), *here.dims[1:]))
            pieces = builder.tiles(sizes[cut], step) if sizes else [(0, 1, 1)]
            for first, count, width in pieces:
                with builder.loop(count) as index:
                    ends = (table, here)
                    if sizes:
                        at = index * width + first
                        ends = (table.index(cut + 1, at, width), here.index(cut + 2, at, width))
                    _move(context, *ends, rows, rings, write, splat)
    for ring in rings:
        builder.sbuf.free(ring.alloc)


def deal(count: int, depth: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut ``count`` into (start, count of tiles, partitions, rows of one): up to ``depth`` neighbours a partition.

    Several rows of a partition share the load of their indices and the store. Four tiles or more, where there are as
    many, let both run under the gathers.
    """
    start = 0
    while start < count:
        left = count - start
        partitions = min(PARTITIONS, left)
        deep = max(1, min(depth, left // (4 * partitions)))
        tiles = left // (partitions * deep)
        yield start, tiles, partitions, deep
        start += tiles * partitions * deep


def _row_numbers(context: Context, indices: View, at: Affine, partitions: int, deep: int, ring: Ring) -> Block:
    builder = context.builder
    stride = indices.dims[0][0].stride if indices.dims[0] else 0
    tile = Block(ring.alloc, indices.dtype, builder.slot(ring), (Atom(partitions, 1, True), Atom(deep, 4)))
    offset = indices.start + at * stride
    source = Block(indices.alloc, indices.dtype, offset, (Atom(partitions, deep * stride), Atom(deep, stride)))
    builder.emit("dma_copy", Stream.DMA_LOAD, [tile], [source])
    return tile


def _move(
    context: Context,
    table: Block,
    listed: Block,
    rows: Block,
    rings: list[Ring],
    write: bool,
    splat: float | None,
) -> None:
    """Rows of ``table`` to or from ``listed`` [partitions, rows of one, row]."""
    builder = context.builder
    if len(table.dims) == 1:
        table, listed = (block.of((*block.dims, Atom(1, 0))) for block in (table, listed))
    sizes = [atom.size for atom in listed.dims[1:]]
    free = dense(sizes, table.dtype)
    nbytes = free[0].size * free[0].stride
    ring = builder.ring(builder.sbuf, nbytes, 2, "rows")
    rings.append(ring)
    tile = Block(ring.alloc, table.dtype, builder.slot(ring), (Atom(listed.dims[0].size, 1, True), *free))
    if write and splat is not None:
        flat = tile.of((tile.dims[0], Atom(nbytes // itemsize(tile.dtype), free[-1].stride)))
        builder.memset(flat, splat)
    elif write:
        copy(builder, tile, listed, Stream.DMA_LOAD)
    for index in builder.each(sizes[0], DEPTH):
        part, here = tile.index(1, index), rows.index(1, index, 1)
        if write:
            builder.emit("dma_scatter", Stream.DMA_DYNAMIC, [table], [part, here], flags=["skip"])
        else:
            builder.emit("dma_gather", Stream.DMA_DYNAMIC, [part], [table, here], flags=["clamp"])
    if not write:
        copy(builder, listed, tile, Stream.DMA_STORE)
