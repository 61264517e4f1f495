"""Tiles of a contraction's operand filled with k on the partitions: loaded, converted or transposed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots import conversion
from neuronx_cc.codegen.dots.blocks import has_few_rows
from neuronx_cc.codegen.dots.contraction import Bound
from neuronx_cc.codegen.dots.problem import PE_DTYPES, Operand, Problem, Segment
from neuronx_cc.codegen.dots.schedule import ROW_BUFFERS, together, unconverted_bytes
from neuronx_cc.codegen.dots.span import Span, heights, rows_at
from neuronx_cc.codegen.dots.tiles import UNROLLED_PIECES, WORD, Tiles, piece_of
from neuronx_cc.codegen.dots.transpose import Transposer
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring, merge_free
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import in_long_runs
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream

UNROLLED_LOADS = 4
"""Tiles of rows, transposed one by one, that are no loop."""
UNROLLED_FEW = 16
"""The same of the operand that few rows are multiplied with, whose products take little time."""
AHEAD = 1
"""Parts of rows that are converted before the ones ahead of them are transposed: Scalar, which takes those out of PSUM,
would convert the next ones after that only."""


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
    in_tiles: bool = False
    """Whether rows side by side stand in different tiles of a block, else next to each other."""
    register: int = -1
    """For the numbers of matrices that lie in a table."""
    between: Callable[[], None] | None = None
    """What engines may do besides when a part of the rows is transposed."""
    scaled: Callable[[Block, Block, bool], None] | None = None
    """What loads and scales codes that are to be transposed: ``(source, rows, several)``."""

    def source(self, span: Span, segment: Segment) -> Block:
        """What lies there: [k on partitions, other k dims..., rows]."""
        inner = self._inner
        if not inner.partition:
            inner = replace(inner, stride=segment.strides(inner.stride)[0])
        offset, rows, chunks = self._chunks(span, segment)
        if segment.steps == 1:
            chunks.pop()
        return Block(
            self.bound.view.alloc,
            self.bound.view.dtype,
            offset,
            (replace(inner, size=segment.partitions), *chunks, rows),
        )

    def rows(self, span: Span, segments: Sequence[Segment]) -> Block:
        """What lies there, to be transposed: [rows, other k dims..., k], with all of these segments in the last dim;
        [rows, other k dims..., tile, k] of several tiles.
        """
        offset, rows, (*others, steps) = self._chunks(span, segments[0])
        terms = steps.size * segments[0].partitions + sum(each.steps * each.partitions for each in segments[1:])
        dims = [rows, *others, replace(self._inner, size=terms)]
        if span.group > 1:
            tiles = Atom(span.group, self.operand.free[span.around].stride)
            dims[:1], dims[-1:] = [replace(rows, size=span.size // span.group)], [tiles, dims[-1]]
        return Block(self.bound.view.alloc, self.bound.view.dtype, offset, tuple(dims))

    @property
    def _inner(self) -> Atom:
        """Of k, the dim on the partitions."""
        k_dim = self.problem.k_dim
        return self.operand.contracted[k_dim] if k_dim >= 0 else Atom(1, 0)

    def _chunks(self, span: Span, segment: Segment) -> tuple[Affine, Atom, list[Atom]]:
        """Where the span begins in a segment, its rows, and the other dims of k with the steps along the one on the
        partitions.
        """
        operand, inner = self.operand, self._inner
        arrays, listed = (self.bound.view, operand.batch, operand.free, span), self.bound.listed
        if listed is None:
            offset, rows = rows_at(*arrays)
        else:
            offset, rows = listed.rows_at(self.emitter.builder, *arrays, self.register)
        offset = offset + (0 if inner.partition else segment.start * inner.stride)
        chunks = [atom for dim, atom in enumerate(operand.contracted) if dim != self.problem.k_dim]
        chunks.append(Atom(segment.steps, 0 if inner.partition else segment.strides(inner.stride)[1]))
        offset, chunks = span.within(offset, chunks)
        return offset, rows, chunks

    def load(self, source: Block, tile: Block, first: int = 0) -> None:
        """Copy a block with k on the partitions, casting on the way. ``first``: chunks that came before it."""
        target = _spread_chunks(tile, [atom.size for atom in source.dims[1:-1]])
        if self.operand.direct:
            order = [0, len(source.dims) - 1, *range(1, len(source.dims) - 1)]
            source, target = source.select(order), target.select(order)
        if self.operand.on_chip:
            self.emitter.over("tensor_copy", Stream.VECTOR, [target], [source])
        elif source.dtype != target.dtype and self.operand.converted:
            sizes = [atom.size for atom in target.dims[1:]]
            (target, source), cast = self._cast(target, source, first)
            part = 0.0 if cast is None else prod(atom.size for atom in cast[0].dims[1:]) / prod(sizes)
            left = self._convert(source, target, False, part)
            if cast is not None:
                copy(self.emitter.builder, *cast, self.bound.stream)
            conversion.decode(self.emitter, self.operand, left)
            if cast is not None:
                conversion.decode_cast(self.emitter, cast[0])
        else:
            copy(self.emitter.builder, target, source, self.bound.stream)

    def _convert(self, source: Block, target: Block, several: bool, cast: float = 0.0) -> list[Block]:
        """Load what is stored in fewer bits, as much at a time as is kept unconverted, and convert it.

        ``several``: others follow in straight-line code; ``cast``: the part that the DMA casts of what this is of. What
        is left to decode.
        """
        sizes, builder = [atom.size for atom in target.dims[1:]], self.emitter.builder
        most = unconverted_bytes(self.problem, builder.sizes)
        if prod(sizes) > most:
            dim, piece = piece_of(sizes, most)
            left: list[Block] = []
            for start, tiles, count in builder.tiles(sizes[dim], piece):
                for index in builder.each(tiles, UNROLLED_PIECES):
                    at = index * count + start
                    more = tiles <= UNROLLED_PIECES
                    parts = source.index(1 + dim, at, count), target.index(1 + dim, at, count)
                    if more:
                        left += self._convert(*parts, more, cast)
                        ready, left = left[: -conversion.LAG], left[-conversion.LAG :]
                        conversion.decode(self.emitter, self.operand, ready)
                    else:
                        conversion.decode(self.emitter, self.operand, self._convert(*parts, more, cast))
            return left
        name = f"{self.operand.name} unconverted"
        raw = self.tiles.tile(source.dtype, sizes, target.dims[0].size, name, conversion.BUFFERS, several)
        copy(builder, raw, source, self.bound.stream)
        conversion.convert(self.emitter, self.operand, target, raw, cast)
        return [target]

    def _cast(self, target: Block, source: Block, first: int) -> tuple[list[Block], tuple[Block, Block] | None]:
        """What is left of a block, and what the DMA casts: some of the outermost rows, of which ``first`` came before,
        or of each one, or of the only one.
        """
        blocks = merge_free([target, source])
        if len(blocks[0].dims) < 2:
            return [target, source], None
        dim, unit, timing = 1, 1, self.emitter.builder.timing
        rows, *columns = (atom.size for atom in blocks[0].dims[1:])
        if not columns or conversion.by_columns(timing, self.operand, rows, columns[-1]):
            dim, first, unit = len(blocks[0].dims) - 1, 0, WORD
        size = blocks[0].dims[dim].size
        count = conversion.cast_by_dma(timing, self.operand, first, size, unit)
        if not count:
            return [target, source], None
        count += size % unit  # what is left are whole words
        cast, codes = (block.index(dim, Affine(size - count), count) for block in blocks)
        left = [block.index(dim, Affine(0), size - count) for block in blocks]
        return left, (replace(cast, dtype=conversion.SIGNED), replace(codes, dtype=conversion.CODES))

    def transpose(self, source: Block, outs: Sequence[Block], several: bool) -> None:
        """Load rows [row, k dims...] to all partitions (unless they lie there) and transpose them chunk by chunk.

        ``outs``: [k, chunk, row] of each segment of the last dim, whose terms follow each other; ``several``: one of
        several tiles of rows.
        """
        on_chip, builder, size = self.operand.on_chip, self.emitter.builder, source.dims[0].size
        pieces = [(0, 1, size, 1)] if on_chip else heights(size, builder.sizes.rows, self.beside)
        more = several or len(pieces) > 1 or len(self.problem.segments) > len(outs)
        unrolled = UNROLLED_FEW if has_few_rows(self.problem, builder.sizes) else UNROLLED_LOADS
        straight = max(tiles for _, tiles, _, _ in pieces) <= unrolled
        ahead = self._ahead(source, outs) if straight else 0
        ready: deque[Callable[[], None]] = deque()
        with builder.unrolled_if(ahead > 0):
            for start, tiles, rows, beside in pieces:
                for index in builder.each(tiles, unrolled):
                    at = index * rows + start
                    part = source if on_chip else source.index(0, at, rows)
                    parts = [out.index(2, at, rows) for out in outs]
                    for taken, into, several in self._pieces(part, parts, more and tiles == 1):
                        ready.append(self._rows_ready(taken, into, beside, several))
                        self._transpose_ready(ready, ahead)
            self._transpose_ready(ready, 0)

    def _transpose_ready(self, ready: deque[Callable[[], None]], keep: int) -> None:
        """All but the last ones."""
        while len(ready) > keep:
            ready.popleft()()
            if self.between is not None:
                self.between()

    def _ahead(self, source: Block, outs: Sequence[Block]) -> int:
        """Parts of rows that are converted before others are transposed; none where parts are a loop."""
        operand, others = self.operand, [atom.size for atom in source.dims[1:-1]]
        if operand.on_chip or not self._converts or self.row_buffers <= AHEAD:
            return 0
        sizes = (*others, sum(out.dims[1].size // prod(others) for out in outs))
        counts = together(self.problem, sizes, self.row_bytes)
        loops = any(size // count > UNROLLED_PIECES for size, count in zip(sizes, counts, strict=True))
        return 0 if loops else AHEAD

    @property
    def _converts(self) -> bool:
        """Whether rows that come to be transposed are converted before."""
        return self.operand.converted and self.problem.transposed_as(self.operand) != self.operand.stored

    def transpose_tiles(self, source: Block, outs: Sequence[Block], several: bool) -> None:
        """The same of several tiles [row, k dims..., tile, k], in one piece, that follow each other in ``outs``."""
        rows, *others, tiles, terms = range(len(source.dims))
        kept = [dim for dim in others if source.dims[dim].size > 1]
        count = source.dims[tiles].size
        outs = [_tiles_of(out, 2, count).select([0, 1, 3, 2]) for out in outs]
        self._tile_ready(source.select([rows, *kept, tiles, terms]), outs, several)()

    def _pieces(
        self, source: Block, outs: Sequence[Block], several: bool = False
    ) -> Iterator[tuple[Block, Sequence[Block], bool]]:
        """Rows [row, k dims...] and ``outs`` [k, chunk, row] in parts that are transposed one by one.

        With each, whether others follow in straight-line code.
        """
        others = [atom.size for atom in source.dims[1:-1]]
        steps = [out.dims[1].size // prod(others) for out in outs]
        *counts, count = together(self.problem, (*others, sum(steps)), self.row_bytes)
        dim = next((dim for dim, size in enumerate(others) if counts[dim] < size), None)
        builder = self.emitter.builder
        if dim is not None:
            inner = prod(others[dim + 1 :])
            groups = list(builder.tiles(others[dim], counts[dim]))
            for start, tiles, count in groups:
                for index in builder.each(tiles, UNROLLED_PIECES):
                    at = index * count + start
                    into = [
                        out.index(1, at * (inner * each), count * inner * each)
                        for out, each in zip(outs, steps, strict=True)
                    ]
                    more = 1 < tiles <= UNROLLED_PIECES or (tiles == 1 and (several or len(groups) > 1))
                    yield from self._pieces(source.index(1 + dim, at, count), into, more)
        elif count < sum(steps):
            yield from self._pieces_of_terms(source, outs, count, several)
        else:
            kept = [1 + dim for dim, size in enumerate(others) if size > 1]
            yield source.select([0, *kept, len(others) + 1]), outs, several

    def _pieces_of_terms(
        self, source: Block, outs: Sequence[Block], count: int, several: bool
    ) -> Iterator[tuple[Block, Sequence[Block], bool]]:
        """Parts of ``count`` chunks of the last dim, at one index of the others; its rest comes with the last ones."""
        builder, last = self.emitter.builder, len(source.dims) - 1
        (first, *rest), terms = outs, source.dims[last].size
        width, steps = first.dims[0].size, first.dims[1].size
        whole, left = divmod(steps, count)
        for index in builder.each(whole, UNROLLED_PIECES):
            more = 1 < whole <= UNROLLED_PIECES or (whole == 1 and (several or left > 0 or bool(rest)))
            taken = source.index(last, index * (count * width), count * width)
            yield taken, [first.index(1, index * count, count)], more
        if left or rest:
            taken = source.index(last, Affine(whole * count * width), terms - whole * count * width)
            into = [first.index(1, Affine(whole * count), left)] if left else []
            yield taken, [*into, *rest], several or whole > 0

    def _rows_ready(self, part: Block, outs: Sequence[Block], beside: int, several: bool) -> Callable[[], None]:
        """What transposes [row, k dims...] into ``outs`` [k, chunk, row]; what lies in HBM is loaded, and converted.

        ``beside``: rows that come to one partition; ``several``: one of several such parts that follow each other.
        """
        if beside > 1:
            split = _tiles_of if self.in_tiles else _rows_beside
            part, outs = _rows_beside(part, 0, beside), [split(out, 2, beside) for out in outs]
            part = part.select([0, *range(2, len(part.dims) - 1), 1, len(part.dims) - 1])
            outs = [out.select([0, 1, 3, 2]) for out in outs]
        return self._tile_ready(part, outs, several)

    def _tile_ready(self, part: Block, outs: Sequence[Block], several: bool) -> Callable[[], None]:
        """The same of [row, k dims..., beside, k] into ``outs`` [k, chunk, beside, row], or without rows beside."""
        assert self.transposer is not None, "made for operands with their rows on the partitions"
        operand, partitions = self.operand, part.dims[0].size
        if operand.on_chip:
            exact_cast = not self.problem.fast(operand.stored) and operand.stored != operand.dtype
            if operand.stored not in PE_DTYPES or exact_cast:
                sizes = [atom.size for atom in part.dims[1:]]
                rows = self.tiles.tile(operand.dtype, sizes, partitions, f"{operand.name} cast", 1)
                self.emitter.over("tensor_copy", Stream.VECTOR, [rows], [part])
                part = rows
            return partial(self.transposer.transpose_segments, part, outs)
        order = in_long_runs(part)
        sizes = [part.dims[dim].size for dim in order]
        carried = self.problem.transposed_as(operand)
        rows = self.tiles.tile(carried, sizes, partitions, f"{operand.name} rows", self.row_buffers, several)
        part_in_order = part.select([0, *order])
        if self._converts:
            self._convert_rows(part_in_order, rows, several)
        else:
            copy(self.emitter.builder, rows, part_in_order, self.bound.stream)
        rows = rows.select([0, *(1 + order.index(dim) for dim in range(1, len(part.dims)))])
        return partial(self.transposer.transpose_segments, rows, outs)

    def _convert_rows(self, source: Block, rows: Block, several: bool) -> None:
        """Rows that are to be transposed, of which the DMA casts the last elements."""
        if len((merged := merge_free([source, rows]))[0].dims) > 1:
            source, rows = merged
        if self.scaled is not None:
            self.scaled(source, rows, several)
            return
        timing, last, size = self.emitter.builder.timing, len(rows.dims) - 1, rows.dims[-1].size
        count = conversion.cast_of_row(timing, self.operand, rows.dtype, size)
        others, left = (block.index(last, Affine(0), size - count) for block in (source, rows))
        bits = self._convert(others, left, several, count / size)
        if count:
            codes, cast = (block.index(last, Affine(size - count), count) for block in (source, rows))
            if self.operand.decoded:
                codes, cast = replace(codes, dtype=conversion.CODES), replace(cast, dtype=conversion.SIGNED)
            copy(self.emitter.builder, cast, codes, self.bound.stream)
        conversion.decode(self.emitter, self.operand, bits)
        if count and self.operand.decoded:
            conversion.decode_cast(self.emitter, cast)


def _rows_beside(block: Block, dim: int, beside: int) -> Block:
    """With the rows ``dim`` in two dims: (row of a partition's first, rows beside it)."""
    rows = block.dims[dim]
    split = (Atom(rows.size // beside, rows.stride * beside, rows.partition), Atom(beside, rows.stride))
    return block.of((*block.dims[:dim], *split, *block.dims[dim + 1 :]))


def _tiles_of(block: Block, dim: int, count: int) -> Block:
    """With the rows ``dim`` in two dims: (row of a tile, tile)."""
    rows = block.dims[dim]
    height = rows.size // count
    split = (replace(rows, size=height), Atom(count, rows.stride * height))
    return block.of((*block.dims[:dim], *split, *block.dims[dim + 1 :]))


def _spread_chunks(tile: Block, chunks: Sequence[int]) -> Block:
    """View the flat chunk dim of a staged tile as the k dims it came from."""
    stride = tile.dims[1].stride
    atoms = []
    for size in reversed(chunks):
        atoms.append(Atom(size, stride))
        stride *= size
    return tile.of((tile.dims[0], *reversed(atoms), tile.dims[2]))
