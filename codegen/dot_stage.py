"""Operands of a contraction brought to SBUF with k on the partitions: in place, loaded, transposed or laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from neuronx_cc.codegen.accesses import Alloc
from neuronx_cc.codegen.builder import PSUM_BANK, Affine, Block, Ring
from neuronx_cc.codegen.dot_budget import DotBudget
from neuronx_cc.codegen.dot_plan import PE_DTYPES, TILE_COLUMNS, TILE_ROWS, Resident, Segment, Side
from neuronx_cc.codegen.emitter import SCALAR_COPIES
from neuronx_cc.codegen.halves import halves_of, part_of
from neuronx_cc.codegen.map_plan import is_given
from neuronx_cc.codegen.tiles import dense
from neuronx_cc.codegen.transfer import copy
from neuronx_cc.codegen.views import Atom, View
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import NUMPY_DTYPE, itemsize

UNROLLED_CHUNKS = 64
"""Chunks transposed by instructions of their own."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of an operand, and terms of k, that are staged together."""

    batch: list[Affine]
    at: dict[int, Affine]
    """Index along each free dim; along ``tile_dim`` that of the first row."""
    tile_dim: int
    """The free dim that is cut into blocks, -1 without any."""
    size: int
    """Rows along it."""
    first: Affine = field(default_factory=Affine)
    """First step of the lane dim of k."""
    steps: int | None = None
    """How many steps, None for all."""


class DotStaging(DotBudget):
    """Stages blocks of both operands."""

    turn: Ring | None = None
    """PSUM for transposes."""
    kept: Alloc | None = None
    """HBM in which transposed blocks of ``kept_side`` are kept."""
    kept_side: Side | None = None
    kept_filled = False
    """Whether all of them are there."""

    def _psum_ring(self, banks: int) -> Ring:
        ring = self.builder.ring(self.builder.psum, PSUM_BANK, banks, "partial sums")
        self.psum_rings.append(ring)
        return ring

    def _ring(self, nbytes: int, count: int, name: str) -> Ring:
        ring = self.builder.ring(self.builder.sbuf, nbytes, count, name)
        self.rings.append(ring)
        return ring

    def _stage(self, side: Side, span: Span) -> list[Block]:
        """For each segment a block [lanes, chunks, size] of ``side``: in place, loaded, or transposed."""
        if side.data is not None:
            return [self._loaded(side, self._literal_block(side, span), span.size, self.segments[0])]
        if side.resident is not None:
            return [self._resident_block(side, side.resident, span, segment) for segment in self.segments]
        blocks = []
        for segment in self.segments:
            source = self._source_block(side, span, segment)
            in_place = (
                side.on_chip and not side.rows_on_lanes and side.view.dtype == side.dtype and len(source.dims) <= 3
            )
            if in_place:
                blocks.append(source if len(source.dims) == 3 else _insert_chunk(source))
            elif side is self.kept_side and self.kept_filled:
                blocks.append(self._loaded(side, self._kept_block(side, span, segment), span.size, segment))
            elif side.rows_on_lanes:
                blocks.append(self._transposed(side, source, span.size, segment))
                if side is self.kept_side:
                    copy(self.builder, self._kept_block(side, span, segment), blocks[-1], Stream.DMA_STORE)
            else:
                blocks.append(self._loaded(side, source, span.size, segment))
        return blocks

    def _keep_turned(self, side: Side) -> None:
        """Make room in HBM for the transposed blocks of ``side``, unless there is none."""
        chunks = prod(count for dim, count in enumerate(self.k_sizes) if dim != self.k_dim)
        rows = prod(atom.size for atom in side.free) * chunks * itemsize(side.dtype)
        nbytes = sum(segment.lanes * segment.outer for segment in self.segments) * rows
        self.kept = self.builder.hbm.allocate(nbytes, f"{side.name} of {self.op.loc.name}")
        self.kept_side = side if self.kept is not None else None

    def _kept_block(self, side: Side, span: Span, segment: Segment) -> Block:
        """Where a transposed block is kept: [lanes, chunks, rows], one contiguous run a partition."""
        assert self.kept is not None
        width = itemsize(side.dtype)
        others = prod(count for dim, count in enumerate(self.k_sizes) if dim != self.k_dim)
        chunks, rows = others * segment.outer, prod(atom.size for atom in side.free)
        before = sum(each.lanes * each.outer for each in self.segments if each.start < segment.start)
        offset, stride = Affine(self.kept.lo + before * others * rows * width), segment.lanes * chunks * width
        order = [dim for dim in range(len(side.free)) if dim != span.tile_dim]
        for dim in (span.tile_dim, *reversed(order)) if span.tile_dim >= 0 else reversed(order):
            offset = offset + span.at[dim] * stride
            stride *= side.free[dim].size
        dims = (
            Atom(segment.lanes, chunks * span.size * width),
            Atom(chunks, span.size * width),
            Atom(span.size, width),
        )
        return Block(self.kept, side.dtype, offset, dims)

    def _literal_block(self, side: Side, span: Span) -> Block:
        """A block of a constant, stored so that each partition reads one contiguous run."""
        at, tile_dim, size = span.at, span.tile_dim, span.size
        total = side.free[tile_dim].size if tile_dim >= 0 else 1
        block = self.n_block if side is self.rhs else self.m_block
        start = 0 if size == min(block, total) else total // block * block
        (segment,) = self.segments
        others = [count for dim, count in enumerate(self.k_sizes) if dim != self.k_dim]
        chunks = prod(others) * segment.outer
        width = itemsize(side.dtype)
        if (start, size) not in side.laid_out:
            side.laid_out[start, size] = self._lay_out(side, tile_dim, start, size, segment)
        view = side.laid_out[start, size]
        outer = [(atom, index) for atom, index in zip(side.batch, span.batch, strict=True)]
        outer += [(atom, at[dim]) for dim, atom in enumerate(side.free) if dim != tile_dim]
        count = (total - start) // size * size
        stride = count * segment.lanes * chunks * width
        offset = Affine(view.offset)
        for atom, index in reversed(outer):
            offset = offset + index * stride
            stride *= atom.size
        if tile_dim >= 0:
            offset = offset + (at[tile_dim] + -start) * (segment.lanes * chunks * width)
        dims = (Atom(segment.lanes, chunks * size * width), Atom(chunks, size * width), Atom(size, width))
        return Block(view.alloc, side.dtype, offset, dims)

    def _lay_out(self, side: Side, tile_dim: int, start: int, size: int, segment: Segment) -> View:
        """Register the constant as [batch..., other free dims..., blocks, lanes, chunks, rows of a block]."""
        assert side.data is not None
        array = strided(side.data, side.view.offset, [*side.batch, *side.free, *side.contracted])
        batch, free = len(side.batch), len(side.free)
        if tile_dim >= 0:
            stop = start + (side.free[tile_dim].size - start) // size * size
            array = array[(slice(None),) * (batch + tile_dim) + (slice(start, stop),)]
        array = array.astype(NUMPY_DTYPE[side.dtype])
        lane_axis = batch + free + self.k_dim
        shape = list(array.shape)
        if self.k_dim >= 0:
            shape[lane_axis : lane_axis + 1] = [segment.outer, segment.lanes]
        else:
            lane_axis = len(shape)
            shape += [1, 1]
        row_axis = batch + tile_dim if tile_dim >= 0 else len(shape)
        if tile_dim >= 0:
            shape[row_axis : row_axis + 1] = [shape[row_axis] // size, size]
            lane_axis += 1
        else:
            shape += [1, 1]
        array = array.reshape(shape)
        others = [axis for axis in range(batch + free + (tile_dim >= 0)) if axis not in (row_axis, row_axis + 1)]
        others = [axis for axis in others if axis not in (lane_axis, lane_axis + 1)]
        rest = [
            axis
            for axis in range(len(shape))
            if axis not in (*others, row_axis, row_axis + 1, lane_axis, lane_axis + 1)
        ]
        order = [*others, row_axis, lane_axis + 1, *rest, lane_axis, row_axis + 1]
        laid_out = np.ascontiguousarray(array.transpose(order))
        name = f"{hlo.loc_of(side.value).name}.{start}"
        return self.context.constant(laid_out, side.dtype, name)

    def _source_block(self, side: Side, span: Span, segment: Segment) -> Block:
        """The operand's part: [k lanes, other k dims..., rows] or, rows on lanes, [rows, k dims..., lanes dim]."""
        offset, rows = _rows_at(side, span)
        others = [(dim, atom) for dim, atom in enumerate(side.contracted) if dim != self.k_dim]
        lane_atom = side.contracted[self.k_dim] if self.k_dim >= 0 else Atom(1, 0)
        offset = offset + (0 if lane_atom.partition else segment.start * lane_atom.stride)
        chunks = [atom for _, atom in others]
        if segment.outer > 1 or span.steps is not None:
            outer = Atom(segment.outer, lane_atom.stride * segment.lanes)
            if span.steps is not None:
                offset = offset + span.first * outer.stride
                outer = replace(outer, size=span.steps)
            chunks.append(outer)
        lanes = replace(lane_atom, size=segment.lanes)
        dims = (rows, *chunks, lanes) if side.rows_on_lanes else (lanes, *chunks, rows)
        return Block(side.view.alloc, side.view.dtype, offset, dims)

    def _resident_block(self, side: Side, resident: Resident, span: Span, segment: Segment) -> Block:
        """The part [k lanes, chunks, rows] of what was staged ahead of the loops."""
        offset, rows = _rows_at(side, span)
        first = span.first + segment.start // TILE_ROWS
        steps = segment.outer if span.steps is None else span.steps
        dims = (Atom(segment.lanes, 1, True), Atom(steps, resident.chunk_bytes), rows)
        return Block(side.view.alloc, side.dtype, offset + first * resident.chunk_bytes, dims)

    def _loaded(self, side: Side, source: Block, size: int, segment: Segment, tile: Block | None = None) -> Block:
        """DMA a block with k on the partitions (to ``tile``, if given), casting on the way."""
        chunks = [atom.size for atom in source.dims[1:-1]]
        lanes = source.dims[0].size
        tile = tile or self._block_tile(side, [prod(chunks), size], lanes, segment)
        target = _spread_chunks(tile, chunks)
        if side.on_chip:
            self.emitter.over("tensor_copy", Stream.VECTOR, [target], [source])
        else:
            stream = Stream.DMA_WEIGHT if is_given(side.value) else Stream.DMA_LOAD
            copy(self.builder, target, source, stream)
        return tile

    def _block_tile(self, side: Side, sizes: Sequence[int], lanes: int, segment: Segment) -> Block:
        """Room for a staged block."""
        buffers = self.lhs_buffers if side.name == "lhs" else self.rhs_buffers
        return self._dense_tile(side.dtype, sizes, lanes, f"{side.name} block {segment.start}", buffers, later=True)

    def _unread(self) -> list[Block]:
        """Blocks that are staged and not yet multiplied."""
        return []

    def _multiply_staged(self) -> None:
        """Multiply them: what follows may take their place."""

    def _dense_tile(
        self,
        dtype: str,
        sizes: Sequence[int],
        lanes: int,
        name: str,
        count: int,
        later: bool = False,
        several: bool = False,
    ) -> Block:
        """The next buffer of a ring.

        ``later``: of blocks that are read after the next one is staged; ``several``: of tiles that follow each other in
        straight-line code.
        """
        nbytes = prod(sizes) * itemsize(dtype)
        key = (name, count)
        if key not in self._tile_rings or self._tile_rings[key].nbytes < nbytes:
            self._tile_rings[key] = self._ring(nbytes, count, f"{name} of {self.op.loc.name}")
        ring = self._tile_rings[key]
        slot = self.builder.slot(ring, several)
        tile = Block(ring.alloc, dtype, slot, (Atom(lanes, 1, True), *dense(sizes, dtype)))
        unread = [block.offset for block in self._unread() if block.alloc is tile.alloc]
        if later and any(_may_meet(tile.offset, offset) for offset in unread):
            self._multiply_staged()
        return tile

    def _transposed(self, side: Side, source: Block, size: int, segment: Segment, out: Block | None = None) -> Block:
        """Load rows of up to 128 onto the partitions (unless they lie there) and transpose them chunk by chunk."""
        chunks = [atom.size for atom in source.dims[1:-1]]
        lanes = source.dims[-1].size
        out = out or self._block_tile(side, [prod(chunks), size], lanes, segment)
        exact_cast = not self.fast(source.dtype) and source.dtype != side.dtype
        if source.dims[0].partition and (source.dtype not in PE_DTYPES or exact_cast):
            cast = self._dense_tile(
                side.dtype, [atom.size for atom in source.dims[1:]], source.dims[0].size, f"{side.name} cast", 1
            )
            self.emitter.over("tensor_copy", Stream.VECTOR, [cast], [source])
            source = cast
        if source.dims[0].partition:
            self._turn(source, out, chunks, Affine(0), size)
            return out
        row_stride = source.dims[0].stride
        for start, tiles, rows in self.builder.tiles(size, TILE_ROWS):
            for index in self.builder.each(tiles):
                at = index * rows + start
                part = replace(
                    source,
                    offset=source.offset + at * row_stride,
                    dims=(replace(source.dims[0], size=rows), *source.dims[1:]),
                )
                if len(chunks) == 1 and (together := self._together(chunks[0])) < chunks[0]:
                    for first, pieces, count in self.builder.tiles(chunks[0], together):
                        for piece in range(pieces):
                            here = first + piece * count
                            into = out.index(1, Affine(here), count)
                            taken = part.index(1, Affine(here), count)
                            self._rows_turned(side, taken, into, [count], at, rows, several=True)
                    continue
                self._rows_turned(side, part, out, chunks, at, rows)
        return out

    def _rows_turned(
        self,
        side: Side,
        part: Block,
        out: Block,
        chunks: Sequence[int],
        at: Affine,
        rows: int,
        several: bool = False,
    ) -> None:
        """Load [rows, chunks..., lanes] and transpose it into ``out[lanes, chunk, at : at + rows]``.

        ``several``: one of several such parts that follow each other.
        """
        order = self._order_of_rows(part)
        sizes = [part.dims[dim].size for dim in order]
        natural = self._dense_tile(side.dtype, sizes, rows, f"{side.name} rows", 2, several=several)
        stream = Stream.DMA_WEIGHT if is_given(side.value) else Stream.DMA_LOAD
        copy(self.builder, natural, replace(part, dims=(part.dims[0], *(part.dims[d] for d in order))), stream)
        back = (natural.dims[1 + order.index(dim)] for dim in range(1, len(part.dims)))
        natural = replace(natural, dims=(natural.dims[0], *back))
        self._turn(natural, out, chunks, at, rows)

    def _order_of_rows(self, source: Block) -> list[int]:
        """The dims [chunks..., lanes] of rows in the order in which the DMA reads long runs, unless TensorE would then
        have many chunks whose strides differ; bit patterns are put in order when they are taken apart.
        """
        order = sorted(range(1, len(source.dims)), key=lambda dim: -abs(source.dims[dim].stride))
        many = prod(atom.size for atom in source.dims[1:-1]) > UNROLLED_CHUNKS
        return list(range(1, len(source.dims))) if self.fast(source.dtype) and many else order

    def _turn(self, natural: Block, out: Block, chunks: Sequence[int], at: Affine, rows: int) -> None:
        """Transpose [rows, chunks..., lanes] into ``out[lanes, chunk, at : at + rows]``."""
        if self.fast(natural.dtype):
            self._turn_rows(natural, out, chunks, at, rows)
            return
        sizes = [atom.size for atom in natural.dims[1:]]

        def room(carrier: str, _: int) -> Block:
            return self._dense_tile(carrier, sizes, rows, "bits", 2, several=True)

        for plane, part, byte in halves_of(natural, room, self.emitter.copy):
            self._turn_rows(plane, part_of(out, part, byte), chunks, at, rows)

    def _turn_rows(self, natural: Block, out: Block, chunks: Sequence[int], at: Affine, rows: int) -> None:
        """Transpose [rows, chunks..., lanes] into ``out[lanes, chunk, at : at + rows]``, a PSUM bank at a time."""
        identity = self.context.identity(natural.dtype)
        identity = replace(identity, dims=(replace(identity.dims[0], size=rows), replace(identity.dims[1], size=rows)))
        lanes = natural.dims[-1].size
        flat = _flatten_chunks(natural)
        total = prod(chunks)
        per_bank = max(1, TILE_COLUMNS // max(rows, 1))
        if flat is None:
            for position, index in enumerate(_every(chunks)):
                piece = natural
                for value in index:
                    piece = piece.index(1, Affine(value))
                bank = self._turn_bank(1, rows, lanes, several=True)
                self._turn_some(piece, None, identity, out, Affine(position), at, bank)
            return
        pieces = self.builder.tiles(total, per_bank)
        # a whole row of tiles follows, or the other part of their bit patterns
        several = len(pieces) > 1 or not self.fast(natural.dtype)
        for start, tiles, count in pieces:
            for loop_index in self.builder.each(tiles, self.unrolled_banks):
                first = loop_index * count + start
                bank = self._turn_bank(count, rows, lanes, several=several and tiles == 1)
                self._turn_some(flat, first, identity, out, first, at, bank)

    def _turn_bank(self, count: int, rows: int, lanes: int, several: bool) -> Block:
        """A bank of PSUM for ``count`` transposed pieces [lanes, count, rows]; ``several`` as for ``_dense_tile``."""
        assert self.turn is not None
        slot = self.builder.slot(self.turn, several)
        return Block(self.turn.alloc, "f32", slot, (Atom(lanes, 1, True), Atom(count, rows * 4), Atom(rows, 4)))

    def _turn_some(
        self, source: Block, first: Affine | None, identity: Block, out: Block, chunk: Affine, at: Affine, bank: Block
    ) -> None:
        """Transpose pieces of ``source`` from ``first`` on, through ``bank``, into ``out`` from ``chunk`` on."""
        _, pieces, rows = (atom.size for atom in bank.dims)
        for position in range(pieces):
            piece = source if first is None else source.index(1, first + position)
            self.builder.emit("load_stationary", Stream.TENSOR, [], [piece])
            self.builder.emit("multiply_moving", Stream.TENSOR, [bank.index(1, Affine(position))], [identity])
        self._leave_psum(out.index(1, chunk, pieces).index(2, at, rows), bank)

    def _leave_psum(self, target: Block, bank: Block) -> None:
        """Copy or cast what TensorE made: on Scalar if it can, which takes less time, and keeps Vector from PSUM."""
        if {target.dtype, bank.dtype} <= SCALAR_COPIES:
            self.emitter.over("activation", Stream.SCALAR, [target], [bank], alu=["copy"], imm=[1.0])
        else:
            self.emitter.copy(target, bank)


def strided(data: np.ndarray, offset: int, atoms: Sequence[Atom]) -> np.ndarray:
    """The elements of a constant from byte ``offset`` on, as dims of these atoms."""
    raw = data.reshape(-1)
    sizes, strides = [atom.size for atom in atoms], [atom.stride for atom in atoms]
    return np.lib.stride_tricks.as_strided(raw[offset // raw.itemsize :], sizes, strides, writeable=False)


def narrow_parts(row: np.ndarray) -> np.ndarray | None:
    """Three rows of bf16 whose sum is an FP32 row, exactly, or None: TensorE adds them in a quarter of the time."""
    bf16 = NUMPY_DTYPE["bf16"]
    parts, left = np.empty((3, len(row)), bf16), row.astype(np.float32)
    with np.errstate(all="ignore"):
        for part in parts:
            part[:] = left.astype(bf16)
            left = left - part.astype(np.float32)
    return None if left.any() else parts


def batch_start(view: View, atoms: Sequence[Atom], batch: Sequence[Affine]) -> Affine:
    """Where the part of one batch index begins; ``atoms``: of the view's batch dims."""
    offset = view.start
    for atom, index in zip(atoms, batch, strict=True):
        offset = offset + index * atom.stride
    return offset


def _rows_at(side: Side, span: Span) -> tuple[Affine, Atom]:
    """Where the rows of a block begin, and how they follow each other."""
    offset = batch_start(side.view, side.batch, span.batch)
    rows = Atom(1, 0)
    for dim, atom in enumerate(side.free):
        if dim == span.tile_dim:
            rows = replace(atom, size=span.size)
            if atom.partition:
                continue
        offset = offset + span.at[dim] * atom.stride
    return offset, rows


def _insert_chunk(block: Block) -> Block:
    return replace(block, dims=(block.dims[0], Atom(1, 0), block.dims[1]))


def _spread_chunks(tile: Block, chunks: Sequence[int]) -> Block:
    """View the flat chunk dim of a staged tile as the k dims it came from."""
    stride = tile.dims[1].stride
    atoms = []
    for size in reversed(chunks):
        atoms.append(Atom(size, stride))
        stride *= size
    return replace(tile, dims=(tile.dims[0], *reversed(atoms), tile.dims[2]))


def _flatten_chunks(block: Block) -> Block | None:
    """Merge the chunk dims between the first and the last dim into one; None when their strides differ."""
    dims = list(block.dims[1:-1])
    if not dims:
        return replace(block, dims=(block.dims[0], Atom(1, 0), block.dims[-1]))
    while len(dims) > 1:
        if dims[0].stride != dims[1].stride * dims[1].size:
            return None
        dims[0:2] = [Atom(dims[0].size * dims[1].size, dims[1].stride)]
    return replace(block, dims=(block.dims[0], dims[0], block.dims[-1]))


def _every(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = [()]
    for size in sizes:
        out = [(*index, value) for index in out for value in range(size)]
    return out


def _may_meet(buffer: Affine, other: Affine) -> bool:
    """Whether two buffers of a ring may be the same one: a loop's turns and those of unrolled code are not in step."""
    return buffer.terms != other.terms or buffer.const == other.const
