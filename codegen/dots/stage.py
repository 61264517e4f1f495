"""Operands of a contraction brought to SBUF with k on the partitions: in place, loaded, transposed or laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots import conversion
from neuronx_cc.codegen.dots.constants import ConstantLayout
from neuronx_cc.codegen.dots.contraction import Bound
from neuronx_cc.codegen.dots.problem import PE_DTYPES, Operand, Problem, Segment, Staged
from neuronx_cc.codegen.dots.schedule import (
    ROW_BUFFERS,
    Coming,
    Way,
    block_name,
    suspects_name,
    together,
    unconverted_bytes,
)
from neuronx_cc.codegen.dots.span import Span, rows_at
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.dots.transpose import Transposer
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

UNROLLED_CHUNKS = 64
"""Chunks transposed by instructions of their own."""
UNROLLED_PIECES = 16
"""Parts of rows, transposed one by one, that are no loop."""


def transposer_of(context: Context, emitter: Emitter, tiles: Tiles, banks: Ring, unrolled: int) -> Transposer:
    """Transposes through ``banks``; parts of bit patterns go through tiles."""

    def bits(dtype: str, sizes: Sequence[int], partitions: int) -> Block:
        return tiles.tile(dtype, sizes, partitions, "bits", ROW_BUFFERS, several=True)

    return Transposer(context, emitter, banks, unrolled, bits)


@dataclass(frozen=True, slots=True)
class Filler:
    """Fills tiles with parts of one operand."""

    problem: Problem
    operand: Operand
    bound: Bound
    row_bytes: int
    """Of a row that is loaded to be transposed, at most."""
    row_buffers: int
    """Of such rows."""
    beside: int
    """Such rows on a partition, at most."""
    emitter: Emitter
    tiles: Tiles
    transposer: Transposer | None

    def source(self, span: Span, segment: Segment) -> Block:
        """What lies there: [k on partitions, other k dims..., rows] or, to be transposed, [rows, k dims..., k]."""
        operand, k_dim = self.operand, self.problem.k_dim
        offset, rows = rows_at(self.bound.view, operand.batch, operand.free, span)
        inner = operand.contracted[k_dim] if k_dim >= 0 else Atom(1, 0)
        offset = offset + (0 if inner.partition else segment.start * inner.stride)
        chunks = [atom for dim, atom in enumerate(operand.contracted) if dim != k_dim]
        chunks.append(Atom(segment.steps, 0 if inner.partition else inner.stride * segment.partitions))
        offset, chunks = span.within(offset, chunks)
        if segment.steps == 1:
            chunks.pop()
        inner = replace(inner, size=segment.partitions)
        dims = (rows, *chunks, inner) if operand.transposed else (inner, *chunks, rows)
        return Block(self.bound.view.alloc, self.bound.view.dtype, offset, dims)

    def load(self, source: Block, tile: Block) -> None:
        """Copy a block with k on the partitions, casting on the way."""
        target = _spread_chunks(tile, [atom.size for atom in source.dims[1:-1]])
        if self.operand.direct:
            order = [0, len(source.dims) - 1, *range(1, len(source.dims) - 1)]
            source, target = source.select(order), target.select(order)
        if self.operand.on_chip:
            self.emitter.over("tensor_copy", Stream.VECTOR, [target], [source])
        elif source.dtype != target.dtype and self.operand.converted:
            self._convert(source, target, False)
        else:
            copy(self.emitter.builder, target, source, self.bound.stream)

    def _convert(self, source: Block, target: Block, several: bool) -> None:
        """Load what is stored in fewer bits, as much at a time as is kept unconverted, and convert it.

        ``several``: others follow in straight-line code.
        """
        sizes, builder = [atom.size for atom in target.dims[1:]], self.emitter.builder
        most = unconverted_bytes(self.problem, builder.sizes)
        if prod(sizes) > most:
            dim = next(dim for dim, size in enumerate(sizes) if size > 1)
            pieces = -(-sizes[dim] // max(1, most // prod(sizes[dim + 1 :])))
            for start, tiles, count in builder.tiles(sizes[dim], -(-sizes[dim] // pieces)):
                for index in builder.each(tiles, UNROLLED_PIECES):
                    at = index * count + start
                    more = tiles <= UNROLLED_PIECES
                    self._convert(source.index(1 + dim, at, count), target.index(1 + dim, at, count), more)
            return
        name = f"{self.operand.name} unconverted"
        raw = self.tiles.tile(source.dtype, sizes, target.dims[0].size, name, conversion.BUFFERS, several)
        copy(builder, raw, source, self.bound.stream)
        conversion.convert(self.emitter, self.operand, target, raw)

    def transpose(self, source: Block, out: Block) -> None:
        """Load rows to all partitions (unless they lie there) and transpose them chunk by chunk."""
        on_chip, builder, size = self.operand.on_chip, self.emitter.builder, source.dims[0].size
        heights = [(0, 1, size, 1)] if on_chip else self._heights(size)
        more = len(heights) > 1 or len(self.problem.segments) > 1
        for start, tiles, rows, beside in heights:
            for index in builder.each(tiles):
                at = index * rows + start
                part = source if on_chip else source.index(0, at, rows)
                for taken, into, several in self._pieces(part, out.index(2, at, rows), more and tiles == 1):
                    self._transpose_rows(taken, into, beside, several)

    def _heights(self, size: int) -> list[tuple[int, int, int, int]]:
        """Cut rows into (start, count of tiles, tile size, rows side by side): all partitions are filled first."""
        found, start, height = [], 0, self.emitter.builder.sizes.rows
        for beside in range(self.beside, 0, -1):
            tiles = (size - start) // (height * beside)
            if tiles:
                found.append((start, tiles, height * beside, beside))
                start += tiles * height * beside
        return [*found, *([(start, 1, size - start, 1)] if start < size else [])]

    def _pieces(self, source: Block, out: Block, several: bool = False) -> Iterator[tuple[Block, Block, bool]]:
        """Rows [rows, chunks..., k] and ``out[k, chunk, rows]`` in parts that are transposed one by one.

        With each, whether others follow in straight-line code.
        """
        chunks = tuple(atom.size for atom in source.dims[1:-1])
        counts = together(self.problem, chunks, self.row_bytes)
        dim = next((dim for dim, count in enumerate(chunks) if counts[dim] < count), None)
        if dim is None:
            kept = [1 + dim for dim, count in enumerate(chunks) if count > 1]
            yield source.select([0, *kept, len(chunks) + 1]), out, several
            return
        inner, builder = prod(chunks[dim + 1 :]), self.emitter.builder
        for start, tiles, count in builder.tiles(chunks[dim], counts[dim]):
            for index in builder.each(tiles, UNROLLED_PIECES):
                at = index * count + start
                taken, into = source.index(1 + dim, at, count), out.index(1, at * inner, count * inner)
                yield from self._pieces(taken, into, 1 < tiles <= UNROLLED_PIECES or (several and tiles == 1))

    def _transpose_rows(self, part: Block, out: Block, beside: int, several: bool) -> None:
        """Transpose [rows, chunks..., k] into ``out[k, chunk, rows]``; what lies in HBM is loaded.

        ``beside``: rows that come to one partition; ``several``: one of several such parts that follow each other.
        """
        assert self.transposer is not None, "made for operands with their rows on the partitions"
        operand, partitions = self.operand, part.dims[0].size // beside
        if operand.on_chip:
            exact_cast = not self.problem.fast(operand.stored) and operand.stored != operand.dtype
            if operand.stored not in PE_DTYPES or exact_cast:
                sizes = [atom.size for atom in part.dims[1:]]
                rows = self.tiles.tile(operand.dtype, sizes, partitions, f"{operand.name} cast", 1)
                self.emitter.over("tensor_copy", Stream.VECTOR, [rows], [part])
                part = rows
            self.transposer.transpose(part, out)
            return
        if beside > 1:
            part, out = _rows_beside(part, 0, beside), _rows_beside(out, 2, beside)
            part, out = part.select([0, *range(2, len(part.dims) - 1), 1, len(part.dims) - 1]), out.select([0, 1, 3, 2])
        order = self._order_of_rows(part)
        sizes = [part.dims[dim].size for dim in order]
        carried = self.problem.transposed_as(operand)
        rows = self.tiles.tile(carried, sizes, partitions, f"{operand.name} rows", self.row_buffers, several)
        part_in_order = part.select([0, *order])
        if operand.converted and carried != operand.stored:
            self._convert(part_in_order, rows, several)
        else:
            copy(self.emitter.builder, rows, part_in_order, self.bound.stream)
        self.transposer.transpose(rows.select([0, *(1 + order.index(dim) for dim in range(1, len(part.dims)))]), out)

    def _order_of_rows(self, source: Block) -> list[int]:
        """The dims [chunks..., k] of rows in the order in which the DMA reads long runs, unless TensorE would then
        have many chunks whose strides differ; bit patterns are put in order when they are taken apart.
        """
        order = sorted(range(1, len(source.dims)), key=lambda dim: -abs(source.dims[dim].stride))
        many = prod(atom.size for atom in source.dims[1:-1]) > UNROLLED_CHUNKS
        return list(range(1, len(source.dims))) if self.problem.fast(source.dtype) and many else order


@dataclass(frozen=True, slots=True)
class KeptBlocks:
    """Transposed blocks of an operand in HBM, each [partitions, chunks, rows] with one contiguous run a partition."""

    problem: Problem
    operand: Operand
    alloc: Alloc

    def block(self, span: Span, segment: Segment) -> Block:
        """Where a block is kept."""
        operand, others = self.operand, self.problem.other_terms
        width = itemsize(operand.dtype)
        chunks, rows = others * segment.steps, prod(atom.size for atom in operand.free)
        before = sum(each.partitions * each.steps for each in self.problem.segments if each.start < segment.start)
        offset, stride = Affine(self.alloc.lo + before * others * rows * width), segment.partitions * chunks * width
        order = [dim for dim in range(len(operand.free)) if dim != span.tiled]
        for dim in (span.tiled, *reversed(order)) if span.tiled >= 0 else reversed(order):
            offset = offset + span.at[dim] * stride
            stride *= operand.free[dim].size
        dims = (
            Atom(segment.partitions, chunks * span.size * width),
            Atom(chunks, span.size * width),
            Atom(span.size, width),
        )
        return Block(self.alloc, operand.dtype, offset, dims)


def kept_bytes(problem: Problem, operand: Operand) -> int:
    """Of all transposed blocks of one batch index."""
    rows = prod(atom.size for atom in operand.free) * problem.other_terms * itemsize(operand.dtype)
    return sum(segment.partitions * segment.steps for segment in problem.segments) * rows


@dataclass(frozen=True, slots=True)
class Stage:
    """Stages blocks of one operand as its part of the schedule says."""

    coming: Coming
    filler: Filler
    layout: ConstantLayout | None
    kept: KeptBlocks | None
    """None, too, where HBM has no room for them."""
    told: Callable[[Block], None]
    """Told of each tile before it is filled: what lies there may still be unread."""

    def blocks(self, span: Span, segments: Sequence[Segment], again: bool) -> list[Block]:
        """For each segment a block [partitions, chunks, rows]. ``again``: all that is kept is there.

        Behind those of decoded operands stand as many with the patterns that tell NaNs.
        """
        blocks = [self._block(span, segment, again) for segment in segments]
        if not self.filler.operand.decoded:
            return blocks
        return blocks + [self._suspects(*each) for each in zip(blocks, segments, strict=True)]

    def _suspects(self, block: Block, segment: Segment) -> Block:
        name, sizes = suspects_name(self.filler.operand, segment), [atom.size for atom in block.dims[1:]]
        tile = self.filler.tiles.tile(conversion.SUSPECTS, sizes, block.dims[0].size, name, self.coming.buffers)
        self.told(tile)
        conversion.suspect(self.filler.emitter, tile, block)
        return tile

    def _block(self, span: Span, segment: Segment, again: bool) -> Block:
        problem, bound = self.filler.problem, self.filler.bound
        way = self.coming.ways[problem.segments.index(segment)]
        if way is Way.STAGED:
            assert bound.staged is not None
            return _staged_block(self.filler.operand, bound.view, bound.staged, span, segment)
        if way is Way.LAID_OUT:
            assert self.layout is not None
            return self._loaded(self.layout.block(span, self.coming.rows), span, segment)
        source = self.filler.source(span, segment)
        if way is Way.IN_PLACE:
            chunk = next((atom for atom in source.dims[1:-1] if atom.size > 1), Atom(1, 0))
            return source.of((source.dims[0], chunk, source.dims[-1]))
        if way is Way.LOADED:
            return self._loaded(source, span, segment)
        if self.kept is not None and again:
            return self._loaded(self.kept.block(span, segment), span, segment)
        tile = self._tile([atom.size for atom in source.dims[1:-1]], span, segment)
        self.filler.transpose(source, tile)
        if self.kept is not None:
            copy(self.filler.emitter.builder, self.kept.block(span, segment), tile, Stream.DMA_STORE)
        return tile

    def _loaded(self, source: Block, span: Span, segment: Segment) -> Block:
        tile = self._tile([atom.size for atom in source.dims[1:-1]], span, segment)
        self.filler.load(source, tile)
        return tile

    def _tile(self, chunks: Sequence[int], span: Span, segment: Segment) -> Block:
        operand = self.filler.operand
        name, sizes = block_name(operand, segment), [prod(chunks), span.size]
        order = [0, 2, 1] if operand.direct else [0, 1, 2]
        sizes = [sizes[dim - 1] for dim in order[1:]]
        tile = self.filler.tiles.tile(operand.dtype, sizes, segment.partitions, name, self.coming.buffers)
        tile = tile.select(order)
        self.told(tile)
        return tile


def _staged_block(operand: Operand, view: View, staged: Staged, span: Span, segment: Segment) -> Block:
    """The part [partitions, chunks, rows] of what was staged ahead of the loops."""
    offset, rows = rows_at(view, operand.batch, operand.free, span)
    first = sum(each.steps for each in staged.segments if each.start < segment.start)
    offset, (chunks,) = span.within(offset + first * staged.chunk_bytes, [Atom(segment.steps, staged.chunk_bytes)])
    return Block(view.alloc, view.dtype, offset, (Atom(segment.partitions, 1, True), chunks, rows))


def _rows_beside(block: Block, dim: int, beside: int) -> Block:
    """With the rows ``dim`` in two dims: (row of a partition's first, rows beside it)."""
    rows = block.dims[dim]
    split = (Atom(rows.size // beside, rows.stride * beside, rows.partition), Atom(beside, rows.stride))
    return block.of((*block.dims[:dim], *split, *block.dims[dim + 1 :]))


def _spread_chunks(tile: Block, chunks: Sequence[int]) -> Block:
    """View the flat chunk dim of a staged tile as the k dims it came from."""
    stride = tile.dims[1].stride
    atoms = []
    for size in reversed(chunks):
        atoms.append(Atom(size, stride))
        stride *= size
    return tile.of((tile.dims[0], *reversed(atoms), tile.dims[2]))
