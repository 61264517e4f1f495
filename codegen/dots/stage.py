"""Operands of a contraction brought to SBUF with k on the partitions: in place, loaded, transposed or laid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from neuronx_cc.codegen.dots import conversion, pairs, splitting
from neuronx_cc.codegen.dots.constants import ConstantLayout
from neuronx_cc.codegen.dots.filler import Filler
from neuronx_cc.codegen.dots.problem import PART, PARTS, TWO, Operand, Problem, Segment, Split, Staged
from neuronx_cc.codegen.dots.scaling import Scaling
from neuronx_cc.codegen.dots.schedule import (
    Coming,
    Way,
    block_name,
    parts_name,
    suspects_name,
)
from neuronx_cc.codegen.dots.span import Span, in_a_row, rows_at
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize


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


class InPairs(NamedTuple):
    """What an operand is staged for; its filler may bring its pairs."""

    problem: Problem
    operand: Operand
    apart: int
    """Bytes from the code of an even term to that of its neighbour, or between what they are decoded to."""


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
    pairs: InPairs | None = None
    """Where an operand comes in pairs, of both."""
    scaling: Scaling | None = None
    """Of codes with terms on the partitions, which are scaled as they come."""

    def blocks(self, span: Span, segments: Sequence[Segment], again: bool) -> list[Block]:
        """For each segment a block [partitions, chunks, rows]. ``again``: all that is kept is there.

        After those whose codes may be NaN stand as many with the patterns that tell NaNs. What is split has blocks of
        the last part of each segment, then of the others; or all parts in one [partitions, chunks, part, rows]. Where
        an operand comes in pairs there are two for each of these: even terms, and odd ones.
        """
        blocks = self._blocks(span, segments, again)
        if self.pairs is None:
            return blocks
        if self.pairs.operand.paired:
            return pairs.codes(blocks, self.pairs.operand, self.pairs.apart)
        return pairs.apart(self.pairs.problem, blocks, segments)

    def _blocks(self, span: Span, segments: Sequence[Segment], again: bool) -> list[Block]:
        ways = {self.coming.ways[self.filler.problem.segments.index(segment)] for segment in segments}
        if ways == {Way.TRANSPOSED} and not (again and self.kept is not None):
            blocks = self._transposed(span, segments)
        else:
            blocks = [self._block(span, segment, again) for segment in segments]
        if (how := self.filler.operand.split) is not None:
            split = [self._split(*each, how) for each in zip(blocks, segments, strict=True)]
            return [part for parts in zip(*split, strict=True) for part in parts]
        if not self.filler.operand.suspected:
            return blocks
        return blocks + [self._suspects(*each) for each in zip(blocks, segments, strict=True)]

    def _split(self, block: Block, segment: Segment, how: Split) -> list[Block]:
        filler, sizes = self.filler, [PARTS, *(atom.size for atom in block.dims[1:])]
        name = parts_name(filler.operand, segment)
        tile = filler.tiles.tile(PART, sizes, block.dims[0].size, name, self.coming.buffers)
        self.told(tile)
        parts = [tile.index(1, Affine(number)) for number in range(PARTS)]
        most = splitting.most_elements(filler.problem, filler.emitter.builder.sizes)
        splitting.split(filler.emitter, filler.tiles, parts, block, how, most)
        if how is Split.APART:
            return [splitting.side_by_side(tile)]
        return parts[::-1]  # the smallest are added up first

    def _suspects(self, block: Block, segment: Segment) -> Block:
        operand, (chunks, rows) = self.filler.operand, (atom.size for atom in block.dims[1:])
        name, sizes = suspects_name(operand, segment), [chunks, conversion.width(operand, rows)]
        tile = self.filler.tiles.tile(conversion.SUSPECTS, sizes, block.dims[0].size, name, self.coming.buffers)
        tile = tile.index(2, Affine(0), rows)
        self.told(tile)
        conversion.suspect(self.filler.emitter, tile, block)
        return tile

    def _block(self, span: Span, segment: Segment, again: bool) -> Block:
        problem, bound = self.filler.problem, self.filler.bound
        way = self.coming.ways[problem.segments.index(segment)]
        if way is Way.STAGED:
            assert bound.staged is not None
            return _staged_block(problem, self.filler.operand, bound.view, bound.staged, span, segment)
        if way is Way.LAID_OUT:
            assert self.layout is not None
            return self._loaded(self.layout.block(span, self.coming.rows), span, segment)
        if way is Way.TRANSPOSED:
            assert self.kept is not None
            return self._loaded(self.kept.block(span, segment), span, segment)
        if self.scaling is not None:
            box = span.terms or tuple((Affine(), size) for size in problem.chunks(segment))
            tile = self._tile([size for _, size in box], span, segment)
            for first, part in span.tiles():
                self.scaling.fill(tile.index(2, first, part.size), part, segment)
            return tile
        source = self.filler.source(span, segment)
        if way is Way.IN_PLACE:
            chunk = next((atom for atom in source.dims[1:-1] if atom.size > 1), Atom(1, 0))
            return source.of((source.dims[0], chunk, source.dims[-1]))
        if span.group == 1 or problem.follows(span.around):
            return self._loaded(source, span, segment)
        tile = self._tile([atom.size for atom in source.dims[1:-1]], span, segment)
        for first, part in span.tiles():
            self.filler.load(self.filler.source(part, segment), tile.index(2, first, part.size), span.chunk)
        return tile

    def _transposed(self, span: Span, segments: Sequence[Segment]) -> list[Block]:
        """Rows are loaded with all of these segments: each would be a short run."""
        spans = list(span.tiles(self.coming.beside if span.group > 1 else 1))
        rows = self.filler.rows(spans[0][1], segments)
        others = [atom.size for atom in rows.dims[1 : -1 - (spans[0][1].group > 1)]]
        left = rows.dims[-1].size - sum(each.partitions * each.steps for each in segments[1:])
        steps = [left // segments[0].partitions, *(each.steps for each in segments[1:])]
        tiles = [self._tile([*others, count], span, segment) for count, segment in zip(steps, segments, strict=True)]
        for first, part in spans:
            outs = [tile.index(2, first, part.size) for tile in tiles]
            source = self.filler.rows(part, segments)
            if part.group > 1:
                self.filler.transpose_tiles(source, outs, len(spans) > 1)
            else:
                self.filler.transpose(source, outs, len(spans) > 1)
        if self.kept is not None:
            for segment, tile in zip(segments, tiles, strict=True):
                copy(self.filler.emitter.builder, self.kept.block(span, segment), tile, Stream.DMA_STORE)
        return tiles

    def _loaded(self, source: Block, span: Span, segment: Segment) -> Block:
        tile = self._tile([atom.size for atom in source.dims[1:-1]], span, segment)
        self.filler.load(source, tile, span.chunk)
        return tile

    def _tile(self, chunks: Sequence[int], span: Span, segment: Segment) -> Block:
        operand = self.filler.operand
        name, sizes = block_name(operand, segment), [prod(chunks), conversion.width(operand, span.size)]
        if operand.dtype == TWO:
            return self._tile_apart(name, prod(chunks), span.size, segment)
        order = [0, 2, 1] if operand.direct else [0, 1, 2]
        sizes = [sizes[dim - 1] for dim in order[1:]]
        tile = self.filler.tiles.tile(operand.dtype, sizes, segment.partitions, name, self.coming.buffers)
        tile = tile.select(order).index(2, Affine(0), span.size)
        self.told(tile)
        return tile

    def _tile_apart(self, name: str, chunks: int, rows: int, segment: Segment) -> Block:
        """Of decoded pairs: the region for even terms, after which that for odd ones lies."""
        assert self.pairs is not None
        width = conversion.width(self.pairs.operand, rows)
        size = self.pairs.apart // itemsize(conversion.SIGNED) + chunks * width
        tile = self.filler.tiles.tile(conversion.SIGNED, [size], segment.partitions, name, self.coming.buffers)
        self.told(tile)
        return tile.of((tile.dims[0], *dense([chunks, width], conversion.SIGNED))).index(2, Affine(0), rows)


def _staged_block(
    problem: Problem, operand: Operand, view: View, staged: Staged, span: Span, segment: Segment
) -> Block:
    """The part [partitions, chunks, rows] of what was staged ahead of the loops."""
    offset, rows = rows_at(view, operand.batch, operand.free, span)
    sizes, ahead = problem.chunks(segment), sum(each.steps for each in staged.segments if each.start < segment.start)
    begin, count = (Affine(), prod(sizes)) if span.terms is None else in_a_row(span.terms, sizes)
    offset = offset + (begin + ahead) * staged.chunk_bytes
    dims = (Atom(segment.partitions, 1, True), Atom(count, staged.chunk_bytes), rows)
    return Block(view.alloc, view.dtype, offset, dims)
