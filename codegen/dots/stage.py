"""Operands of a contraction brought to SBUF with k on the partitions: in place, loaded, transposed or laid out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod

from neuronx_cc.codegen.dots.budget import DotBudget
from neuronx_cc.codegen.dots.constants import ConstantLayout
from neuronx_cc.codegen.dots.plan import PE_DTYPES, TILE_ROWS, Resident, Segment, Side, Span
from neuronx_cc.codegen.dots.transpose import Transposer
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import tile_in
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.maps.plan import is_given
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

UNROLLED_CHUNKS = 64
"""Chunks transposed by instructions of their own."""
UNROLLED_PIECES = 16
"""Parts of rows, transposed one by one, that are no loop."""


class DotStaging(DotBudget):
    """Stages blocks of both operands."""

    transposer: Transposer | None = None
    kept: Alloc | None = None
    """HBM in which transposed blocks of ``kept_side`` are kept."""
    kept_side: Side | None = None
    kept_filled = False
    """Whether all of them are there."""

    def _stage(self, side: Side, span: Span, segments: Sequence[Segment] | None = None) -> list[Block]:
        """For each segment of ``segments`` a block [lanes, chunks, size]: in place, loaded, or transposed."""
        if side.data is not None:
            (segment,) = self.segments
            layout = ConstantLayout(self.context, self.k_sizes, self.k_dim, segment)
            block = layout.block(side, span, self.n_block if side is self.rhs else self.m_block)
            return [self._loaded(side, block, span.size, segment)]
        if side.resident is not None:
            return [self._resident_block(side, side.resident, span, each) for each in segments or self.segments]
        blocks = []
        for segment in segments or self.segments:
            source = self._source_block(side, span, segment)
            if self._is_in_place(side, [atom.size for atom in source.dims[1:-1]]):
                chunk = next((atom for atom in source.dims[1:-1] if atom.size > 1), Atom(1, 0))
                blocks.append(source.of((source.dims[0], chunk, source.dims[-1])))
            elif side is self.kept_side and self.kept_filled:
                blocks.append(self._loaded(side, self._kept_block(side, span, segment), span.size, segment))
            elif side.rows_on_lanes:
                blocks.append(self._transposed(side, source, span.size, segment))
                if side is self.kept_side:
                    copy(self.builder, self._kept_block(side, span, segment), blocks[-1], Stream.DMA_STORE)
            else:
                blocks.append(self._loaded(side, source, span.size, segment))
        return blocks

    def _make_transposer(self) -> None:
        """Reserve PSUM for transposes."""

        def bits(dtype: str, sizes: Sequence[int], lanes: int) -> Block:
            return self._dense_tile(dtype, sizes, lanes, "bits", 2, several=True)

        banks = self.pool.psum(self.builder.sizes.banks // 2, "transposes")
        self.transposer = Transposer(self.context, self.emitter, banks, self.unrolled_banks, bits)

    def _keep_turned(self, side: Side) -> None:
        """Make room in HBM for the transposed blocks of ``side``, unless there is none."""
        rows = prod(atom.size for atom in side.free) * self.other_terms * itemsize(side.dtype)
        nbytes = sum(segment.lanes * segment.outer for segment in self.segments) * rows
        self.kept = self.builder.hbm.allocate(nbytes, f"{side.name} of {self.op.loc.name}")
        self.kept_side = side if self.kept is not None else None

    def _kept_block(self, side: Side, span: Span, segment: Segment) -> Block:
        """Where a transposed block is kept: [lanes, chunks, rows], one contiguous run a partition."""
        assert self.kept is not None
        width = itemsize(side.dtype)
        others = self.other_terms
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

    def _source_block(self, side: Side, span: Span, segment: Segment) -> Block:
        """The operand's part: [k lanes, other k dims..., rows] or, rows on lanes, [rows, k dims..., lanes dim]."""
        offset, rows = _rows_at(side, span)
        lane_atom = side.contracted[self.k_dim] if self.k_dim >= 0 else Atom(1, 0)
        offset = offset + (0 if lane_atom.partition else segment.start * lane_atom.stride)
        chunks = [atom for dim, atom in enumerate(side.contracted) if dim != self.k_dim]
        chunks.append(Atom(segment.outer, 0 if lane_atom.partition else lane_atom.stride * segment.lanes))
        if span.terms is not None:
            offset = _added(offset, (first * atom.stride for (first, _), atom in zip(span.terms, chunks, strict=True)))
            chunks = [replace(atom, size=size) for (_, size), atom in zip(span.terms, chunks, strict=True)]
        if segment.outer == 1:
            chunks.pop()
        lanes = replace(lane_atom, size=segment.lanes)
        dims = (rows, *chunks, lanes) if side.rows_on_lanes else (lanes, *chunks, rows)
        return Block(side.view.alloc, side.view.dtype, offset, dims)

    def _resident_block(self, side: Side, resident: Resident, span: Span, segment: Segment) -> Block:
        """The part [k lanes, chunks, rows] of what was staged ahead of the loops."""
        offset, rows = _rows_at(side, span)
        first, steps = (Affine(), segment.outer) if span.terms is None else span.terms[0]
        first = first + segment.start // TILE_ROWS
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
        nbytes = max(prod(sizes) * itemsize(dtype), self.planned.get(name, 0))
        key = (name, count)
        if key not in self._tile_rings or self._tile_rings[key].nbytes < nbytes:
            self._tile_rings[key] = self.pool.ring(nbytes, count, f"{name} of {self.op.loc.name}")
        tile = tile_in(self.builder, self._tile_rings[key], sizes, dtype, lanes, several)
        unread = [block.offset for block in self._unread() if block.alloc is tile.alloc]
        if later and any(_may_meet(tile.offset, offset) for offset in unread):
            self._multiply_staged()
        return tile

    def _transposed(self, side: Side, source: Block, size: int, segment: Segment, out: Block | None = None) -> Block:
        """Load rows of up to 128 onto the partitions (unless they lie there) and transpose them chunk by chunk."""
        chunks = [atom.size for atom in source.dims[1:-1]]
        out = out or self._block_tile(side, [prod(chunks), size], source.dims[-1].size, segment)
        exact_cast = not self.fast(source.dtype) and source.dtype != side.dtype
        cast = side.on_chip and (source.dtype not in PE_DTYPES or exact_cast)
        for start, tiles, rows in [(0, 1, size)] if side.on_chip else self.builder.tiles(size, TILE_ROWS):
            for index in self.builder.each(tiles):
                at = index * rows + start
                part = source if side.on_chip else source.index(0, at, rows)
                for taken, into, several in self._pieces(part, out.index(2, at, rows)):
                    self._transpose_rows(side, taken, into, cast, several)
        return out

    def _pieces(self, source: Block, out: Block, several: bool = False) -> Iterator[tuple[Block, Block, bool]]:
        """Rows [rows, chunks..., lanes] and ``out[lanes, chunk, rows]`` in parts that are transposed one by one.

        With each, whether others follow in straight-line code.
        """
        chunks = [atom.size for atom in source.dims[1:-1]]
        together = self._together(chunks)
        dim = next((dim for dim, count in enumerate(chunks) if together[dim] < count), None)
        if dim is None:
            kept = [1 + dim for dim, count in enumerate(chunks) if count > 1]
            yield source.select([0, *kept, len(chunks) + 1]), out, several
            return
        inner = prod(chunks[dim + 1 :])
        for start, tiles, count in self.builder.tiles(chunks[dim], together[dim]):
            for index in self.builder.each(tiles, UNROLLED_PIECES):
                at = index * count + start
                taken, into = source.index(1 + dim, at, count), out.index(1, at * inner, count * inner)
                yield from self._pieces(taken, into, tiles <= UNROLLED_PIECES)

    def _transpose_rows(self, side: Side, part: Block, out: Block, cast: bool, several: bool) -> None:
        """Transpose [rows, chunks..., lanes] into ``out[lanes, chunk, rows]``; what lies in HBM is loaded.

        ``cast``: what lies on chip needs another type; ``several``: one of several such parts that follow each other.
        """
        assert self.transposer is not None, "made for sides with their rows on the partitions"
        if side.on_chip:
            if cast:
                sizes = [atom.size for atom in part.dims[1:]]
                rows = self._dense_tile(side.dtype, sizes, part.dims[0].size, f"{side.name} cast", 1)
                self.emitter.over("tensor_copy", Stream.VECTOR, [rows], [part])
                part = rows
            self.transposer.transpose(part, out)
            return
        order = self._order_of_rows(part)
        sizes = [part.dims[dim].size for dim in order]
        rows = self._dense_tile(side.dtype, sizes, part.dims[0].size, f"{side.name} rows", 2, several=several)
        stream = Stream.DMA_WEIGHT if is_given(side.value) else Stream.DMA_LOAD
        copy(self.builder, rows, part.select([0, *order]), stream)
        self.transposer.transpose(rows.select([0, *(1 + order.index(dim) for dim in range(1, len(part.dims)))]), out)

    def _order_of_rows(self, source: Block) -> list[int]:
        """The dims [chunks..., lanes] of rows in the order in which the DMA reads long runs, unless TensorE would then
        have many chunks whose strides differ; bit patterns are put in order when they are taken apart.
        """
        order = sorted(range(1, len(source.dims)), key=lambda dim: -abs(source.dims[dim].stride))
        many = prod(atom.size for atom in source.dims[1:-1]) > UNROLLED_CHUNKS
        return list(range(1, len(source.dims))) if self.fast(source.dtype) and many else order


def batch_start(view: View, atoms: Sequence[Atom], batch: Sequence[Affine]) -> Affine:
    """Where the part of one batch index begins; ``atoms``: of the view's batch dims."""
    offset = view.start
    for atom, index in zip(atoms, batch, strict=True):
        offset = offset + index * atom.stride
    return offset


def _added(offset: Affine, steps: Iterable[Affine]) -> Affine:
    for step in steps:
        offset = offset + step
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


def _spread_chunks(tile: Block, chunks: Sequence[int]) -> Block:
    """View the flat chunk dim of a staged tile as the k dims it came from."""
    stride = tile.dims[1].stride
    atoms = []
    for size in reversed(chunks):
        atoms.append(Atom(size, stride))
        stride *= size
    return replace(tile, dims=(tile.dims[0], *reversed(atoms), tile.dims[2]))


def _may_meet(buffer: Affine, other: Affine) -> bool:
    """Whether two buffers of a ring may be the same one: a loop's turns and those of unrolled code are not in step."""
    return buffer.terms != other.terms or buffer.const == other.const
