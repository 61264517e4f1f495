"""Blocks of a convolution's input in SBUF: features on the partitions, positions between their padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.convolutions.axis import Piece
from neuronx_cc.codegen.convolutions.copies import Copies
from neuronx_cc.codegen.convolutions.problem import Contracted, Segment, atom_of, stride_of
from neuronx_cc.codegen.convolutions.schedule import ROW_BUFFERS, Comes, row_parts
from neuronx_cc.codegen.convolutions.turn import Turner
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.views import Atom, View, coalesce, nested
from neuronx_cc.codegen.movement.halves import part_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize


def by_stride(view: View, free: Sequence[object]) -> list[int]:
    """The order of the dims [partitions, chunks, batch, spatial...] of a tile in which those in HBM follow each other.

    The chunks of an image are neighbours, or the images of a chunk. ``free``: all dims but the partitions.
    """
    after = list(range(3, len(free) + 1))
    return [0, 2, 1, *after] if stride_of(view, 0) > stride_of(view, 1) else [0, 1, 2, *after]


@dataclass(frozen=True, slots=True)
class PackAt:
    """Pack ``index`` of ``count`` packs of ``groups`` groups from group ``start`` on."""

    start: int
    count: int
    groups: int
    index: Affine

    @property
    def group(self) -> Affine:
        return self.index * self.groups + self.start


@dataclass(frozen=True, slots=True)
class RowsAt:
    """Block ``index`` of a piece of one axis."""

    piece: Piece
    index: Affine

    @property
    def row(self) -> Affine:
        """Its first output, counted within a phase."""
        return self.index * self.piece.rows + self.piece.start

    @property
    def input(self) -> Affine:
        """The first input position that exists."""
        axis = self.piece.axis
        return self.row * axis.step + (axis.low + self.piece.before)


@dataclass(frozen=True, slots=True)
class Source:
    """The array that blocks are made of."""

    x: View
    """In canonical order."""
    stream: Stream
    """The queue that loads it."""
    features: Contracted
    dtype: str
    """On TensorE."""
    batch: int
    """Images of a group of the batch."""
    batch_groups: int = 1


@dataclass(frozen=True, slots=True)
class Coming:
    """How they are made, see ``Schedule``."""

    comes: Comes
    buffers: int
    row_bytes: int
    raw_bytes: int
    tiles: int
    """Tiles of positions that are loaded together, to be transposed."""
    row_parts: int = 1
    copies: Copies | None = None


@dataclass(frozen=True, slots=True)
class Images:
    """Stages the input of one convolution."""

    emitter: Emitter
    tiles: Tiles
    turner: Turner
    source: Source
    coming: Coming

    @property
    def builder(self) -> Builder:
        return self.emitter.builder

    @property
    def _height(self) -> int:
        """Partitions of a tile that TensorE transposes."""
        return min(self.builder.sizes.rows, self.builder.sizes.columns)

    def block(self, pack: PackAt, at: Sequence[RowsAt]) -> Block:
        """A block [partitions, chunks, batch, spatial...] that has zeros where the padding lies."""
        partitions, pieces = self.source.features.partitions_of_pack(pack.groups), [rows.piece for rows in at]
        padded = any(piece.before or piece.after for piece in pieces)
        plain = self.source.x.dtype == self.source.dtype and self.coming.copies is None
        if self.source.x.in_sbuf and not padded and plain:
            return self._resident(pack, at)
        extents = [piece.extent for piece in pieces]
        if self.coming.copies is not None:
            extents = self.coming.copies.packed(extents)
        order = by_stride(self.source.x, [self.source.features.chunks, *extents])
        sizes = [[self.source.features.chunks, *extents][dim - 1] for dim in order[1:]]
        stored = self.tiles.tile(self.source.dtype, sizes, partitions, "input", self.coming.buffers)
        # either order is its own inverse
        tile = stored.select(order)
        if self.coming.copies is not None and self.coming.copies.residues > 1:
            self._load_residues(self.coming.copies, pack, at, tile)
        else:
            self._fill(pack, at, tile, padded)
        if self.coming.copies is not None:
            self.coming.copies.spread_input(self.builder, tile, stored)
        return tile

    def _load_residues(self, copies: Copies, pack: PackAt, at: Sequence[RowsAt], tile: Block) -> None:
        """DMA the rows of each residue to partitions of their own; zeros lie where one of them has padding."""
        pieces, apart = [rows.piece for rows in at], copies.residues
        starts = [[piece.before] * apart for piece in pieces]
        ends = [[piece.before + piece.valid] * apart for piece in pieces]
        starts[-2] = [max(0, -(-(pieces[-2].before - r) // apart)) for r in range(apart)]
        ends[-2] = [-(-(ends[-2][0] - r) // apart) for r in range(apart)]
        partitions = Atom((apart - 1) * copies.inner * copies.partitions + copies.partitions, 1, True)
        for axis, atom in enumerate(tile.dims[2:]):
            first, last = max(starts[axis]), min(ends[axis])
            for start, end in ((0, first), (last, atom.size)):
                if start < end:
                    strip = tile.index(2 + axis, Affine(start), end - start)
                    strip = replace(strip, dims=(partitions, *strip.dims[1:]))
                    self.emitter.over("memset", Stream.GPSIMD, [strip], [], imm=[0.0])
        offset, atoms = self._positions(at)
        feature, row = atom_of(self.source.x, 1), atoms[-2].stride
        for r in range(apart):
            inner = tile.index(1, Affine())
            for axis in range(len(pieces)):
                inner = inner.index(1 + axis, Affine(starts[axis][r]), ends[axis][r] - starts[axis][r])
            if any(atom.size <= 0 for atom in inner.dims[1:]):
                continue
            begin = offset + (starts[-2][r] * apart + r - pieces[-2].before) * row
            begin = begin + pack.group * (self.source.features.inputs * feature.stride)
            rows = [*atoms[:-2], Atom(inner.dims[-2].size, row * apart), atoms[-1]]
            source = Block(
                self.source.x.alloc, self.source.x.dtype, begin, (Atom(copies.partitions, feature.stride), *rows)
            )
            target = replace(inner, partition=r * copies.inner * copies.partitions)
            target = replace(target, dims=(Atom(copies.partitions, 1, True), *inner.dims[1:]))
            copy(self.builder, target, source, self.source.stream)

    def _fill(self, pack: PackAt, at: Sequence[RowsAt], tile: Block, padded: bool) -> None:
        """Bring the block to ``tile``."""
        pieces = [rows.piece for rows in at]
        if padded:
            self._zero_borders(tile, pieces)
        if any(not piece.valid for piece in pieces):
            return
        inner = tile
        for axis, piece in enumerate(pieces):
            inner = inner.index(2 + axis, Affine(piece.before), piece.valid)
        if self.source.x.in_sbuf:
            self._copy_resident(inner, self._resident(pack, at))
        elif self.coming.comes.transposed:
            self._turn_positions(pack, at, inner)
        else:
            for segment in self.source.features.segments_of(pack.groups):
                self._load(pack, at, segment, inner.index(1, Affine(segment.first), segment.chunks), padded)

    def _zero_borders(self, tile: Block, pieces: Sequence[Piece]) -> None:
        if any(not piece.valid for piece in pieces):
            self.emitter.over("memset", Stream.GPSIMD, [tile], [], imm=[0.0])
            return
        for axis, piece in enumerate(pieces):
            for start, size in ((0, piece.before), (piece.extent - piece.after, piece.after)):
                if size:
                    strip = tile.index(2 + axis, Affine(start), size)
                    self.emitter.over("memset", Stream.GPSIMD, [strip], [], imm=[0.0])

    def _positions(self, at: Sequence[RowsAt]) -> tuple[Affine, list[Atom]]:
        """Offset and progressions of the input positions of a block that exist."""
        offset, atoms = self.source.x.start, []
        for axis, rows in enumerate(at):
            atom = atom_of(self.source.x, axis if axis == 0 else axis + 1)
            offset = offset + rows.input * atom.stride
            atoms.append(Atom(rows.piece.valid, atom.stride))
        return offset, atoms

    def _resident(self, pack: PackAt, at: Sequence[RowsAt]) -> Block:
        """The block where it lies on chip."""
        offset, atoms = self._positions(at)
        outer = [atom for atom in coalesce(self.source.x.dims[1]) if not atom.partition]
        stride = outer[0].stride if outer else 0
        offset = (
            offset
            + pack.index * (self.source.features.chunks * stride)
            + pack.start * self.source.features.inputs // self._resident_partitions * stride
        )
        partitions = Atom(self.source.features.partitions_of_pack(pack.groups), 1, True)
        return Block(
            self.source.x.alloc,
            self.source.x.dtype,
            offset,
            (partitions, Atom(self.source.features.chunks, stride), *atoms),
        )

    @property
    def _resident_partitions(self) -> int:
        atom = self.source.x.partition_atom
        return atom.size if atom is not None else 1

    def move(self, target: Block, source: Block) -> None:
        """Copy on GpSimd, which no sum waits for: the other engines come to the next block once they have this one's.

        GpSimd moves words as they are; a cast is left to the others.
        """
        if target.dtype == source.dtype:
            self.emitter.over("tensor_copy", Stream.GPSIMD, [target], [source])
        else:
            self.emitter.copy(target, source)

    def _copy_resident(self, target: Block, source: Block) -> None:
        for chunk in self.builder.each(self.source.features.chunks, 4):
            self.move(target.index(1, chunk), source.index(1, chunk))

    # ---- features far apart in HBM ----------------------------------------------------------------------------

    def _partition_pieces(self, pack: PackAt, segment: Segment) -> Iterator[tuple[int, int, Affine, int]]:
        """(first partition, partitions, byte offset, byte stride) of a segment's features in HBM."""
        feature, batch = atom_of(self.source.x, 1).stride, atom_of(self.source.x, 0).stride
        if self.source.batch_groups == 1:
            offset = (pack.group * self.source.features.inputs + segment.start) * feature
            yield 0, segment.partitions, offset, segment.partition_step * feature
            return
        groups = pack.groups if self.source.features.packs_partitions else 1
        each = segment.partitions // groups
        for group in range(groups):
            offset = (pack.group + group) * (self.source.batch * batch) + segment.start * feature
            yield group * each, each, offset, segment.partition_step * feature

    def _load(self, pack: PackAt, at: Sequence[RowsAt], segment: Segment, target: Block, padded: bool) -> None:
        """DMA a segment [partitions, chunks, batch, spatial...] to its place, or beside it when there is padding."""
        offset, atoms = self._positions(at)
        chunk = Atom(segment.chunks, segment.chunk_step * atom_of(self.source.x, 1).stride)
        order = by_stride(self.source.x, target.dims[1:])
        target = replace(target, dims=(Atom(segment.partitions, 1, True), *target.dims[1:])).select(order)
        for first, partitions, partition_offset, stride in self._partition_pieces(pack, segment):
            dims = (Atom(partitions, stride), chunk, *atoms)
            source = Block(self.source.x.alloc, self.source.x.dtype, offset + partition_offset, dims).select(order)
            part = replace(target, partition=first, dims=(Atom(partitions, 1, True), *target.dims[1:]))
            whole = first == 0 and partitions == segment.partitions
            if padded and whole and self.coming.comes is Comes.BESIDE:
                self._load_beside(part, source)
            else:
                copy(self.builder, part, source, self.source.stream)

    def _load_beside(self, target: Block, source: Block) -> None:
        """In long runs to a tile of its own, then engines move it between the padding."""
        sizes = [atom.size for atom in source.dims[1:]]
        left = self.coming.raw_bytes // (prod(sizes[1:]) * itemsize(self.source.dtype))
        if left < sizes[0] and (len(sizes) == 1 or sizes[0] > 1):
            for at, size in self.builder.pieces(sizes[0], max(1, left)):
                self._load_beside(*(block.index(1, at, size) for block in (target, source)))
            return
        if len(sizes) > 1 and sizes[0] == 1:
            self._load_beside(*(block.index(1, Affine()) for block in (target, source)))
            return
        raw = self.tiles.tile(self.source.dtype, sizes, source.dims[0].size, "raw input", ROW_BUFFERS)
        copy(self.builder, raw, source, self.source.stream)
        self.move(target, raw)

    # ---- features adjacent in HBM -----------------------------------------------------------------------------

    def _turn_positions(self, pack: PackAt, at: Sequence[RowsAt], target: Block) -> None:
        """Load positions onto the partitions, transpose them on TensorE: [positions, features] -> ``target``."""
        offset, atoms = self._positions(at)
        source = Block(self.source.x.alloc, self.source.x.dtype, offset, (Atom(1, 0), Atom(1, 0), *atoms))
        self._outer_positions(pack, source, target)

    def _outer_positions(self, pack: PackAt, source: Block, target: Block) -> None:
        """Loop over all position dims (2 and up) but the last two, and over tiles of these."""
        if len(source.dims) > 4:
            for index in self.builder.each(source.dims[2].size):
                self._outer_positions(pack, source.index(2, index), target.index(2, index))
            return
        if len(source.dims) == 3:
            source = replace(source, dims=(*source.dims[:2], Atom(1, 0), source.dims[2]))
            target = replace(target, dims=(*target.dims[:2], Atom(1, 0), target.dims[2]))
        height, width = source.dims[2].size, source.dims[3].size
        columns = -(-width // -(-width // self._height))
        rows = max(1, self._height // columns) if columns == width else 1
        if self.coming.comes is Comes.ROWS and width > 1:
            for first, columns, parts in row_parts(width, self.coming.row_parts):
                cut = (block.index(3, Affine(first), columns) for block in (source, target))
                self._turn_rows_of(pack, *(_in_parts(block, parts) for block in cut))
            return
        if columns < width:
            for row in self.builder.each(height):
                self._turn_tiles(pack, source.index(2, row, 1), target.index(2, row, 1), 3, columns)
            return
        self._turn_tiles(pack, source, target, 2, rows)

    def _turn_rows_of(self, pack: PackAt, source: Block, target: Block) -> None:
        """Load parts of rows [..., rows, parts, columns], each onto one partition, and transpose column by column."""
        rows, parts, columns = source.dims[2:]
        features, feature = pack.groups * self.source.features.inputs, atom_of(self.source.x, 1)
        offset = source.offset + pack.group * (self.source.features.inputs * feature.stride)
        most = max(1, self.coming.row_bytes // (features * itemsize(self.source.dtype)))
        steps = -(-rows.size // (self._height // parts.size)), -(-columns.size // most)
        for row, high in self.builder.pieces(rows.size, -(-rows.size // steps[0])):
            for column, wide in self.builder.pieces(columns.size, -(-columns.size // steps[1])):
                sizes = [wide, features]
                natural = self.tiles.tile(self.source.dtype, sizes, high * parts.size, "positions", ROW_BUFFERS)
                runs = nested(replace(rows, size=high), parts)
                dims = (runs, replace(columns, size=wide), Atom(features, feature.stride))
                at = offset + row * rows.stride + column * columns.stride
                copy(self.builder, natural, Block(source.alloc, source.dtype, at, dims), self.source.stream)
                goal = target.index(2, row, high).index(4, column, wide)
                for plane, part, byte in self.turner.carriers(natural):
                    self._turn_columns(pack, plane, part_of(goal, part, byte))

    def _turn_columns(self, pack: PackAt, plane: Block, goal: Block) -> None:
        """[rows and parts, columns, features] -> ``goal`` [partitions, chunks, rows, parts, columns]."""
        size = itemsize(plane.dtype)
        for segment in self.source.features.segments_of(pack.groups):
            for chunk in range(segment.chunks):
                begin = plane.offset + (segment.start + chunk * segment.chunk_step) * size
                dims = (*plane.dims[:2], Atom(segment.partitions, segment.partition_step * size))
                place = goal.index(1, Affine(segment.first + chunk)).select([0, 3, 1, 2])
                place = replace(place, dims=(Atom(segment.partitions, 1, True), *place.dims[1:]))
                self.turner.turn(replace(plane, offset=begin, dims=dims), place)

    def _turn_tiles(self, pack: PackAt, source: Block, target: Block, dim: int, size: int) -> None:
        """Tiles of ``size`` positions, or lines of them, along ``dim``; as many at a time as are loaded together."""
        full, rest = divmod(source.dims[dim].size, size)
        for first, count in self.builder.pieces(full, self.coming.tiles) if full else ():
            self._turn_tile(pack, *(_tiles_of(block, dim, first * size, count, size) for block in (source, target)))
        if rest:
            last = Affine(full * size)
            self._turn_tile(pack, *(_tiles_of(block, dim, last, 1, rest) for block in (source, target)))

    def _turn_tile(self, pack: PackAt, source: Block, target: Block) -> None:
        """``source`` [1, 1, tiles, lines, positions] -> ``target`` [partitions, chunks, tiles, lines, positions]."""
        tiles, high, wide = source.dims[2:]
        features = pack.groups * self.source.features.inputs
        rows = high.size * wide.size
        natural = self.tiles.tile(self.source.dtype, [tiles.size, features], rows, "positions", ROW_BUFFERS)
        feature, batch = atom_of(self.source.x, 1), atom_of(self.source.x, 0)
        parts = [(0, features, pack.group * self.source.features.inputs * feature.stride)]
        if self.source.batch_groups > 1:
            steps = [(pack.group + j) * (self.source.batch * batch.stride) for j in range(pack.groups)]
            parts = [
                (j * self.source.features.inputs, self.source.features.inputs, step) for j, step in enumerate(steps)
            ]
        merged = high.size == 1 or high.stride == wide.stride * wide.size
        runs = [(0, rows)] if merged else [(row, wide.size) for row in range(high.size)]
        for begin, count, offset in parts:
            for row, partitions in runs:
                dims = (Atom(partitions, wide.stride), tiles, Atom(count, feature.stride))
                at = source.offset + offset + row * high.stride
                part = natural.index(2, Affine(begin), count)
                part = replace(part, partition=row * wide.size, dims=(Atom(partitions, 1, True), *part.dims[1:]))
                copy(self.builder, part, Block(source.alloc, source.dtype, at, dims), self.source.stream)
        for plane, half, byte in self.turner.carriers(natural):
            for segment in self.source.features.segments_of(pack.groups):
                goal = part_of(target, half, byte).index(1, Affine(segment.first), segment.chunks)
                self._turn_segment(segment, plane, goal.of((Atom(segment.partitions, 1, True), *goal.dims[1:])))

    def _turn_segment(self, segment: Segment, plane: Block, goal: Block) -> None:
        """``plane`` [positions, tiles, features] -> ``goal`` [partitions, chunks, tiles, lines, positions].

        Neighbouring tiles of one chunk, or the chunks of a tile, leave PSUM together.
        """
        size = itemsize(plane.dtype)
        rows, tiles, _ = plane.dims
        first = plane.moved(segment.start * size)
        partitions = Atom(segment.partitions, segment.partition_step * size)
        if segment.chunks == 1:
            self.turner.turn(first.of((rows, tiles, partitions)), goal.index(1, Affine()))
            return
        for tile in range(tiles.size):
            chunks = Atom(segment.chunks, segment.chunk_step * size)
            source = first.moved(tile * tiles.stride).of((rows, chunks, partitions))
            self.turner.turn(source, goal.index(2, Affine(tile)))


def _in_parts(block: Block, parts: int) -> Block:
    """[..., rows, parts, columns] of [..., rows, columns]."""
    columns = block.dims[3]
    span = columns.size // parts
    return block.of((*block.dims[:3], Atom(parts, span * columns.stride), replace(columns, size=span)))


def _tiles_of(block: Block, dim: int, first: Affine, count: int, size: int) -> Block:
    """[..., tiles, lines, positions]: ``count`` tiles of ``size`` along ``dim`` from ``first`` on."""
    dims, stride = list(block.dims), block.dims[dim].stride
    dims[dim] = Atom(size, stride)
    dims.insert(2, Atom(count, stride * size))
    return block.moved(first * stride).of(tuple(dims))
