"""Reads and writes at run-time positions: gather of rows, dynamic-slice, dynamic-update-slice.

Indices of a gather go through SBUF to DMA descriptors made at run time; the start of a slice is loaded
into a sequencer register, clamped there as HLO demands, and added to the address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from neuronx_cc.codegen.builder import Affine, Block, Ring
from neuronx_cc.codegen.context import Context, squeezed
from neuronx_cc.codegen.graph import base
from neuronx_cc.codegen.sync import Alloc
from neuronx_cc.codegen.tiles import dense
from neuronx_cc.codegen.transfer import blocks_of, copy
from neuronx_cc.codegen.views import Atom, View, align, coalesce
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

GATHER_BYTES = 16384
"""Bytes a partition of one gathered tile."""


def gather(context: Context, op: hlo.GatherOp, step: int) -> None:
    """Rows of the operand by index: every start-index dim has slice size 1; other dims are taken whole."""
    del step
    dims = op.dims.data
    operand, indices = op.lhs, op.rhs
    shape, index_shape = hlo.shape_of(operand), hlo.shape_of(indices)
    simple = all(op.slice_sizes.data[axis] == 1 for axis in dims.start_index_map) and not dims.operand_batching_dims
    if not simple:
        raise CompileError(
            "EVRF001",
            "gather of windows along the indexed dims has no code generation",
            "index with slices of size 1 along the indexed dims (jnp.take)",
            op.loc,
        )
    target = context.new_hbm(op.result)
    context.homes[op.result] = [target]
    view = context.dense(operand) if len(dims.start_index_map) > 1 else context.hbm(operand)
    if any(len(coalesce(view.dims[axis])) > 1 for axis in dims.start_index_map):
        view = context.dense(operand)
    columns: View | None = view
    for axis, size in enumerate(op.slice_sizes.data):
        if axis not in dims.start_index_map:
            columns = columns.slice(axis, 0, size) if columns is not None else None
    assert columns is not None, "an HBM view slices from its start"
    free_axes = [axis for axis in range(shape.rank) if axis not in dims.start_index_map]
    offset_axes = [axis for axis in range(shape.rank) if axis not in dims.collapsed_slice_dims]
    out_of = dict(zip(offset_axes, dims.offset_dims, strict=True))
    batch_axes = [axis for axis in range(op.shape.rank) if axis not in dims.offset_dims]
    out = target.transpose(
        [*batch_axes, *(out_of[axis] for axis in free_axes), *(out_of[a] for a in offset_axes if a not in free_axes)]
    )
    count = prod(op.shape.dims[axis] for axis in batch_axes)
    out_batch = squeezed(replace(out, dims=out.dims[: len(batch_axes)]))
    out_free = squeezed(replace(out, dims=out.dims[len(batch_axes) :]))
    rows_view = squeezed(replace(columns, dims=tuple(columns.dims[axis] for axis in free_axes)))
    free = align([rows_view, out_free], rows_view.shape)
    batch = out_batch.reshape((count,))
    assert free is not None, "HBM views align"
    if batch is None or (batch.dims[0] and len(batch.dims[0]) > 1):
        raise CompileError("EVRF001", "gather with batch dims apart in the result", "move the offset dims last", op.loc)
    _Gather(
        context,
        op,
        view,
        free.atoms[0],
        free.atoms[1],
        batch,
        count,
        _index_vectors(context, indices, index_shape, dims),
    ).emit()


def _index_vectors(context: Context, indices: hlo.SSAValue, shape: hlo.Shape, dims: hlo.GatherDims) -> list[View]:
    """For each indexed dim the flat vector of its indices, in HBM."""
    view = context.dense(indices)
    depth = len(dims.start_index_map)
    if dims.index_vector_dim == shape.rank:
        return [view]
    vectors = []
    for position in range(depth):
        part = view.slice(dims.index_vector_dim, position, 1)
        assert part is not None, "a dense array slices"
        vectors.append(part)
    return vectors


class _Gather:
    def __init__(
        self,
        context: Context,
        op: hlo.GatherOp,
        view: View,
        row: Sequence[Atom],
        out_row: Sequence[Atom],
        batch: View,
        count: int,
        vectors: list[View],
    ) -> None:
        self.context, self.op, self.view, self.row, self.out_row = context, op, view, list(row), list(out_row)
        self.batch = batch.dims[0][0] if batch.dims and batch.dims[0] else Atom(1, 0)
        self.out_offset = batch.offset
        self.count = count
        self.vectors = vectors

    def emit(self) -> None:
        """Tiles of up to 128 indices; rows longer than a tile are gathered in pieces."""
        builder = self.context.builder
        size = itemsize(self.view.dtype)
        width = prod(atom.size for atom in self.row)
        cut = next(
            (
                dim
                for dim, atom in enumerate(self.row)
                if prod(a.size for a in self.row[dim + 1 :]) * size <= GATHER_BYTES
            ),
            0,
        )
        inner = prod(atom.size for atom in self.row[cut + 1 :])
        step = (
            max(1, GATHER_BYTES // (inner * size))
            if width * size > GATHER_BYTES
            else self.row[cut].size
            if self.row
            else 1
        )
        rings: list[Ring] = []
        for start, tiles, lanes in builder.tiles(self.count, 128):
            index_ring = builder.ring(builder.sbuf, 64, 2, "indices")
            rings.append(index_ring)
            with builder.loop(tiles) as index:
                at = index * lanes + start
                rows = self._rows(at, lanes, index_ring, rings)
                self._pieces(cut, step, at, lanes, rows, rings)
        for ring in rings:
            builder.sbuf.free(ring.alloc)

    def _rows(self, at: Affine, lanes: int, ring: Ring, rings: list[Ring]) -> Block:
        """Row numbers [lanes, 1]: the index, or the flattened, clamped index tuple."""
        builder = self.context.builder
        tiles = []
        dims = hlo.shape_of(self.op.lhs).dims
        axes = self.op.dims.data.start_index_map
        for position, vector in enumerate(self.vectors):
            used = ring if position == 0 else builder.ring(builder.sbuf, 64, 2, "indices")
            if position:
                rings.append(used)
            flat = vector.reshape((self.count,))
            assert flat is not None, "index vectors have one stride"
            atom = flat.dims[0][0] if flat.dims[0] else Atom(1, 0)
            source = Block(
                flat.alloc, flat.dtype, Affine(flat.offset) + at * atom.stride, (Atom(lanes, atom.stride), Atom(1, 0))
            )
            dtype = flat.dtype if flat.dtype in ("s32", "u32") else "s32"
            slot = builder.slot(used)
            tile = Block(used.alloc, dtype, slot, (Atom(lanes, 1, True), Atom(1, 4)))
            if dtype == flat.dtype:
                builder.emit("dma_copy", Stream.DMA_LOAD, [tile], [source])
            else:
                narrow_ring = builder.ring(builder.sbuf, 64, 2, "indices")
                rings.append(narrow_ring)
                narrow = Block(
                    narrow_ring.alloc, flat.dtype, builder.slot(narrow_ring), (Atom(lanes, 1, True), Atom(1, 4))
                )
                builder.emit("dma_copy", Stream.DMA_LOAD, [narrow], [source])
                builder.emit("convert", Stream.GPSIMD, [tile], [narrow])
            tiles.append(tile)
        if len(tiles) == 1:
            return tiles[0]
        for tile, axis in zip(tiles, axes, strict=True):
            builder.emit("int_tensor_tensor", Stream.GPSIMD, [tile], [tile], ["maximum"], [0])
            builder.emit("int_tensor_tensor", Stream.GPSIMD, [tile], [tile], ["minimum"], [dims[axis] - 1])
            weight = _stride(self.view, axis) // max(1, self._row_stride())
            builder.emit("int_tensor_tensor", Stream.GPSIMD, [tile], [tile], ["multiply"], [weight])
        for tile in tiles[1:]:
            builder.emit("int_tensor_tensor", Stream.GPSIMD, [tiles[0]], [tiles[0], tile], ["add"])
        return tiles[0]

    def _pieces(self, cut: int, step: int, at: Affine, lanes: int, rows: Block, rings: list[Ring]) -> None:
        builder = self.context.builder
        dims = hlo.shape_of(self.op.lhs).dims
        row_stride = self._row_stride()
        reach = sum((dims[axis] - 1) * _stride(self.view, axis) for axis in self.op.dims.data.start_index_map)
        total_rows = 1 + reach // row_stride if row_stride else 1
        pieces = builder.tiles(self.row[cut].size, step) if self.row else [(0, 1, 1)]
        for start, tiles, size in pieces:
            with builder.loop(tiles) as index:
                piece = index * size + start
                row = list(self.row)
                out_row = list(self.out_row)
                offset, out_offset = Affine(self.view.offset), Affine(self.out_offset) + at * self.batch.stride
                if row:
                    offset = offset + piece * row[cut].stride
                    out_offset = out_offset + piece * out_row[cut].stride
                    row[cut] = replace(row[cut], size=size)
                    out_row[cut] = replace(out_row[cut], size=size)
                else:
                    row, out_row = [Atom(1, 0)], [Atom(1, 0)]
                nbytes = prod(atom.size for atom in row) * itemsize(self.view.dtype)
                ring = builder.ring(builder.sbuf, nbytes, 2, "gathered rows")
                rings.append(ring)
                free = dense([atom.size for atom in row], self.view.dtype)
                tile = Block(ring.alloc, self.view.dtype, builder.slot(ring), (Atom(lanes, 1, True), *free))
                source = Block(self.view.alloc, self.view.dtype, offset, (Atom(total_rows, row_stride), *row))
                builder.emit("dma_gather", Stream.DMA_DYNAMIC, [tile], [source, rows], flags=["clamp"])
                target = Block(
                    self.batch_alloc, self.view.dtype, out_offset, (Atom(lanes, self.batch.stride), *out_row)
                )
                copy(builder, target, tile, Stream.DMA_STORE)

    def _row_stride(self) -> int:
        """Bytes from one row number to the next: the step of the innermost indexed dim, which divides the others."""
        strides = [_stride(self.view, axis) for axis in self.op.dims.data.start_index_map]
        return min((stride for stride in strides if stride), key=abs, default=0)

    @property
    def batch_alloc(self) -> Alloc:
        return self.context.homes[self.op.result][0].alloc


def _stride(view: View, axis: int) -> int:
    atoms = coalesce(view.dims[axis])
    return atoms[-1].stride if atoms else 0


def dynamic_slice(context: Context, op: hlo.DynamicSliceOp, step: int) -> None:
    """A DMA whose source address holds the clamped starts."""
    del step
    operand, *starts = op.args
    target = context.new_hbm(op.result)
    context.homes[op.result] = [target]
    source = context.hbm(operand)
    shape = hlo.shape_of(operand)
    window: View | None = source
    for axis, size in enumerate(op.shape.dims):
        window = window.slice(axis, 0, size) if window is not None else None
    if window is None or any(len(atoms) > 1 for atoms in source.dims):
        source = context.dense(operand)
        window = source
        for axis, size in enumerate(op.shape.dims):
            window = window.slice(axis, 0, size) or window
    offset = _dynamic_offset(context, source, starts, shape.dims, op.shape.dims)
    blocks = blocks_of([target, window], op.shape.dims)
    assert blocks is not None, "HBM views align"
    copy(context.builder, blocks[0], replace(blocks[1], offset=blocks[1].offset + offset), Stream.DMA_DYNAMIC)
    _release_registers(context, offset)


def dynamic_update_slice(context: Context, op: hlo.DynamicUpdateSliceOp, step: int) -> None:
    """The operand's buffer itself when nothing else reads it, else a copy, with the update written into it."""
    operand, update, *starts = op.args
    shape, part = op.shape, hlo.shape_of(update)
    home = context.dense(operand)
    source = base(operand)
    own = isinstance(source, hlo.OpResult) and not isinstance(source.op, hlo.ConstantOp) and source is operand
    if (
        own
        and context.last_use(operand) <= step
        and op.result not in context.outputs
        and operand not in context.outputs
    ):
        target = home
        context.adopt(op.result, operand)
    else:
        target = context.new_hbm(op.result)
        blocks = blocks_of([target, home], shape.dims)
        assert blocks is not None, "dense arrays align"
        copy(context.builder, blocks[0], blocks[1], Stream.DMA_STORE)
    context.homes[op.result] = [target]
    if part.size == 0:
        return
    window: View = target
    for axis, size in enumerate(part.dims):
        cut = window.slice(axis, 0, size)
        assert cut is not None, "a dense array slices"
        window = cut
    offset = _dynamic_offset(context, target, starts, shape.dims, part.dims)
    for view in [*context.views(update), context.hbm(update)]:
        blocks = blocks_of([window, view], part.dims)
        if blocks is not None:
            moved = replace(blocks[0], offset=blocks[0].offset + offset)
            copy(context.builder, moved, blocks[1], Stream.DMA_DYNAMIC)
            break
    _release_registers(context, offset)


def _dynamic_offset(
    context: Context, view: View, starts: Sequence[hlo.SSAValue], dims: Sequence[int], sizes: Sequence[int]
) -> Affine:
    """Byte offset of a window of ``sizes`` at run-time ``starts`` of a dense array, clamped so that it fits."""
    offset = Affine()
    for axis, (start, dim, size) in enumerate(zip(starts, dims, sizes, strict=True)):
        if dim == size:
            continue
        stride = _stride(view, axis)
        constant = context.splat(start)
        if constant is not None:
            offset = offset + min(max(int(constant), 0), dim - size) * stride
            continue
        register = context.builder.load_register(context.hbm(start), 0, dim - size, Stream.DMA_DYNAMIC)
        offset = offset + Affine(0, ((register, stride),))
    return offset


def _release_registers(context: Context, offset: Affine) -> None:
    for register, _ in offset.terms:
        context.builder.release_register(register)
