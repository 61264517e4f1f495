"""Blocks of a convolution's input in SBUF: features on the partitions, positions between their padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from neuronx_cc.codegen.convolutions.axis import Piece
from neuronx_cc.codegen.convolutions.copies import Copies
from neuronx_cc.codegen.convolutions.plan import (
    ConvPlan,
    Segment,
    atom_of,
    rows_are_cheap,
    stride_of,
)
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.maps.plan import is_given
from neuronx_cc.codegen.movement.halves import halves_of, part_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

SPARE_REGISTERS = 32
"""Registers that are left for what else a convolution has to loop over."""


def rows_suit_lanes(timing: Timing, height: int, width: int, nbytes: int) -> bool:
    """Whether to move whole rows of positions of ``nbytes`` each: several of them, and positions are short runs."""
    return nbytes < timing.long_run and height > 1 and width > 1


def columns_saved(timing: Timing, positions: int, nbytes: int) -> float:
    """Columns of a product in the time that ``positions`` of ``nbytes`` save as parts of long runs."""
    alone, together = (timing.transfer(positions * nbytes, run).bound for run in (nbytes, timing.long_run))
    return (alone - together) / timing.column("bf16")


def by_stride(view: View, free: Sequence[object]) -> list[int]:
    """The order of the dims [lanes, chunks, batch, spatial...] of a tile in which those in HBM follow each other.

    The chunks of an image are neighbours, or the images of a chunk. ``free``: all dims but the lanes.
    """
    behind = list(range(3, len(free) + 1))
    return [0, 2, 1, *behind] if stride_of(view, 0) > stride_of(view, 1) else [0, 1, 2, *behind]


def store_columns(timing: Timing, runs: int, nbytes: int) -> float:
    """Columns of a product in the time that ``runs`` of ``nbytes`` each take."""
    return timing.transfer(runs * nbytes, nbytes, "write").bound / timing.column("bf16")


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


class ConvStaging(ConvPlan):
    """Stages the input."""

    turned: Ring
    """The banks of PSUM that transposes go through."""
    moves_ahead = True
    """Whether blocks are staged while the sums of others are read."""

    def tile(self, name: str, dtype: str, sizes: Sequence[int], lanes: int, buffers: int) -> Block:
        """An uninitialised tile [lanes, sizes...], dense in its free dims."""
        ring = self.ring(name, prod(sizes) * itemsize(dtype), buffers)
        return Block(ring.alloc, dtype, self.builder.slot(ring), (Atom(lanes, 1, True), *dense(sizes, dtype)))

    def stage_input(self, pack: PackAt, at: Sequence[RowsAt]) -> Block:
        """A block [lanes, chunks, batch, spatial...] that has zeros where the padding lies."""
        lanes, pieces = self.lanes_of_pack(pack.groups), [rows.piece for rows in at]
        padded = any(piece.before or piece.after for piece in pieces)
        if self.x.in_sbuf and not padded and self.x.dtype == self.pe_dtype and self.copies is None:
            return self._resident(pack, at)
        extents = [piece.extent for piece in pieces]
        if self.copies is not None:
            extents = self.copies.packed(extents)
        order = by_stride(self.x, [self.chunks, *extents])
        sizes = [[self.chunks, *extents][dim - 1] for dim in order[1:]]
        stored = self.tile("input", self.pe_dtype, sizes, lanes, self.input_buffers)
        # either order is its own inverse
        tile = stored.select(order)
        if self.copies is not None and self.copies.residues > 1:
            self._load_residues(self.copies, at, tile)
        else:
            self._fill(pack, at, tile, padded)
        if self.copies is not None:
            self.copies.spread_input(self.builder, tile, stored)
        return tile

    def _load_residues(self, copies: Copies, at: Sequence[RowsAt], tile: Block) -> None:
        """DMA the rows of each residue to partitions of their own; zeros lie where one of them has padding."""
        pieces, apart = [rows.piece for rows in at], copies.residues
        starts = [[piece.before] * apart for piece in pieces]
        ends = [[piece.before + piece.valid] * apart for piece in pieces]
        starts[-2] = [max(0, -(-(pieces[-2].before - r) // apart)) for r in range(apart)]
        ends[-2] = [-(-(ends[-2][0] - r) // apart) for r in range(apart)]
        lanes = Atom((apart - 1) * copies.inner * copies.lanes + copies.lanes, 1, True)
        for axis, atom in enumerate(tile.dims[2:]):
            first, last = max(starts[axis]), min(ends[axis])
            for start, end in ((0, first), (last, atom.size)):
                if start < end:
                    strip = tile.index(2 + axis, Affine(start), end - start)
                    strip = replace(strip, dims=(lanes, *strip.dims[1:]))
                    self.emitter.over("memset", Stream.GPSIMD, [strip], [], imm=[0.0])
        offset, atoms = self._positions(at)
        feature, row = atom_of(self.x, 1), atoms[-2].stride
        for r in range(apart):
            inner = tile.index(1, Affine())
            for axis in range(len(pieces)):
                inner = inner.index(1 + axis, Affine(starts[axis][r]), ends[axis][r] - starts[axis][r])
            if any(atom.size <= 0 for atom in inner.dims[1:]):
                continue
            begin = offset + (starts[-2][r] * apart + r - pieces[-2].before) * row
            rows = [*atoms[:-2], Atom(inner.dims[-2].size, row * apart), atoms[-1]]
            source = Block(self.x.alloc, self.x.dtype, begin, (Atom(copies.lanes, feature.stride), *rows))
            target = replace(inner, partition=r * copies.inner * copies.lanes)
            target = replace(target, dims=(Atom(copies.lanes, 1, True), *inner.dims[1:]))
            copy(self.builder, target, source, self._stream)

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
        if self.x.in_sbuf:
            self._copy_resident(inner, self._resident(pack, at))
        elif self.turns_input:
            self._turn_positions(pack, at, inner)
        else:
            for segment in self.segments_of(pack.groups):
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
        offset, atoms = Affine(self.x.offset), []
        for axis, rows in enumerate(at):
            atom = atom_of(self.x, axis if axis == 0 else axis + 1)
            offset = offset + rows.input * atom.stride
            atoms.append(Atom(rows.piece.valid, atom.stride))
        return offset, atoms

    def _resident(self, pack: PackAt, at: Sequence[RowsAt]) -> Block:
        """The block where it lies on chip."""
        offset, atoms = self._positions(at)
        outer = [atom for atom in coalesce(self.x.dims[1]) if not atom.partition]
        stride = outer[0].stride if outer else 0
        offset = (
            offset + pack.index * (self.chunks * stride) + pack.start * self.inputs // self._resident_lanes * stride
        )
        lanes = Atom(self.lanes_of_pack(pack.groups), 1, True)
        return Block(self.x.alloc, self.x.dtype, offset, (lanes, Atom(self.chunks, stride), *atoms))

    @property
    def _resident_lanes(self) -> int:
        atom = self.x.partition_atom
        return atom.size if atom is not None else 1

    def move(self, target: Block, source: Block) -> None:
        """Copy on GpSimd, which no sum waits for: the other engines come to the next block once they have this one's.

        GpSimd moves words as they are; a cast is left to the others.
        """
        if self.moves_ahead and target.dtype == source.dtype:
            self.emitter.over("tensor_copy", Stream.GPSIMD, [target], [source])
        else:
            self.emitter.copy(target, source)

    def _copy_resident(self, target: Block, source: Block) -> None:
        for chunk in self.builder.each(self.chunks, 4):
            self.move(target.index(1, chunk), source.index(1, chunk))

    # ---- features far apart in HBM ----------------------------------------------------------------------------

    @property
    def _stream(self) -> Stream:
        return Stream.DMA_WEIGHT if is_given(self.input) else Stream.DMA_LOAD

    def _lane_pieces(self, pack: PackAt, segment: Segment) -> Iterator[tuple[int, int, Affine, int]]:
        """(first partition, partitions, byte offset, byte stride) of a segment's features in HBM."""
        feature, batch = atom_of(self.x, 1).stride, atom_of(self.x, 0).stride
        if self.batch_groups == 1:
            offset = (pack.group * self.inputs + segment.start) * feature
            yield 0, segment.lanes, offset, segment.lane_step * feature
            return
        groups = pack.groups if self.packs_lanes else 1
        each = segment.lanes // groups
        for group in range(groups):
            offset = (pack.group + group) * (self.batch * batch) + segment.start * feature
            yield group * each, each, offset, segment.lane_step * feature

    def _load(self, pack: PackAt, at: Sequence[RowsAt], segment: Segment, target: Block, padded: bool) -> None:
        """DMA a segment [lanes, chunks, batch, spatial...] to its place, or beside it first when there is padding."""
        offset, atoms = self._positions(at)
        chunk = Atom(segment.chunks, segment.chunk_step * atom_of(self.x, 1).stride)
        order = by_stride(self.x, target.dims[1:])
        target = replace(target, dims=(Atom(segment.lanes, 1, True), *target.dims[1:])).select(order)
        # as much as a block away from the borders has, which comes behind one with padding
        extent = prod(min(rows.piece.extent, rows.piece.axis.size) for rows in at)
        most = min(self.raw_bytes, segment.chunks * extent * itemsize(self.pe_dtype))
        for first, lanes, lane_offset, stride in self._lane_pieces(pack, segment):
            dims = (Atom(lanes, stride), chunk, *atoms)
            source = Block(self.x.alloc, self.x.dtype, offset + lane_offset, dims).select(order)
            part = replace(target, partition=first, dims=(Atom(lanes, 1, True), *target.dims[1:]))
            if (
                padded
                and first == 0
                and lanes == segment.lanes
                and not rows_are_cheap(self.builder.timing, lanes, source.dims[-1].size)
            ):
                self._load_beside(part, source, most)
            else:
                copy(self.builder, part, source, self._stream)

    def _load_beside(self, target: Block, source: Block, room: int) -> None:
        """In long runs to a tile of its own, of ``room`` bytes, then engines move it between the padding."""
        sizes = [atom.size for atom in source.dims[1:]]
        if len(sizes) > 1 and prod(sizes) * itemsize(self.pe_dtype) > self.raw_bytes and sizes[0] > 1:
            most = max(1, self.raw_bytes // (prod(sizes[1:]) * itemsize(self.pe_dtype)))
            for at, size in self.builder.pieces(sizes[0], most):
                self._load_beside(target.index(1, at, size), source.index(1, at, size), room)
            return
        if len(sizes) > 1 and sizes[0] == 1:
            self._load_beside(target.index(1, Affine()), source.index(1, Affine()), room)
            return
        self.ring("raw input", max(room, prod(sizes) * itemsize(self.pe_dtype)), 2)
        raw = self.tile("raw input", self.pe_dtype, sizes, source.dims[0].size, 2)
        copy(self.builder, raw, source, self._stream)
        self.move(target, raw)

    # ---- features adjacent in HBM -----------------------------------------------------------------------------

    def _turn_positions(self, pack: PackAt, at: Sequence[RowsAt], target: Block) -> None:
        """Load positions onto the partitions, transpose them on TensorE: [positions, features] -> ``target``."""
        offset, atoms = self._positions(at)
        source = Block(self.x.alloc, self.x.dtype, offset, (Atom(1, 0), Atom(1, 0), *atoms))
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
        features = pack.groups * self.inputs
        columns = -(-width // -(-width // self.tile_rows))
        rows = max(1, self.tile_rows // columns) if columns == width else 1
        nbytes = features * itemsize(source.dtype)
        if self.batch_groups == 1 and rows_suit_lanes(self.builder.timing, height, width, nbytes):
            tiles = -(-height // rows) * -(-width // columns)
            # transposes of whole tiles and of single columns, with the time of loading them
            more = width * -(-height // self.tile_rows) * 96 - tiles * 160
            passes = 1 if self.fast(self.pe_dtype) else 2 * itemsize(self.pe_dtype)
            if more * self.chunks * passes <= columns_saved(self.builder.timing, height * width, nbytes):
                self._turn_rows_of(pack, source, target)
                return
        for column, wide in self.builder.pieces(width, columns):
            part, goal = (b.index(3, column, wide) for b in (source, target))
            for row, high in self.builder.pieces(height, rows):
                self._turn_tile(pack, part.index(2, row, high), goal.index(2, row, high))

    def _turn_rows_of(self, pack: PackAt, source: Block, target: Block) -> None:
        """Load whole rows of positions, each onto one partition, and transpose them column by column."""
        height, width = source.dims[2].size, source.dims[3].size
        features, feature = pack.groups * self.inputs, atom_of(self.x, 1)
        offset = source.offset + pack.group * (self.inputs * feature.stride)
        most = max(1, self.row_bytes // (features * itemsize(self.pe_dtype)))
        for row, high in self.builder.pieces(height, -(-height // -(-height // self.tile_rows))):
            for column, wide in self.builder.pieces(width, -(-width // -(-width // most))):
                natural = self.tile("positions", self.pe_dtype, [wide, features], high, 2)
                pixels = (replace(source.dims[2], size=high), replace(source.dims[3], size=wide))
                dims = (*pixels, Atom(features, feature.stride))
                at = offset + row * source.dims[2].stride + column * source.dims[3].stride
                copy(self.builder, natural, Block(source.alloc, source.dtype, at, dims), self._stream)
                goal = target.index(2, row, high).index(3, column, wide)
                for plane, part, byte in self.carriers(natural):
                    self._turn_columns(pack, plane, part_of(goal, part, byte))

    def _turn_columns(self, pack: PackAt, plane: Block, goal: Block) -> None:
        """[rows, columns, features] -> ``goal`` [lanes, chunks, rows, columns]."""
        size = itemsize(plane.dtype)
        for segment in self.segments_of(pack.groups):
            for chunk in range(segment.chunks):
                begin = plane.offset + (segment.start + chunk * segment.chunk_step) * size
                dims = (*plane.dims[:2], Atom(segment.lanes, segment.lane_step * size))
                place = goal.index(1, Affine(segment.first + chunk)).select([0, 2, 1])
                place = replace(place, dims=(Atom(segment.lanes, 1, True), *place.dims[1:]))
                self.turn(replace(plane, offset=begin, dims=dims), place)

    def _turn_tile(self, pack: PackAt, source: Block, target: Block) -> None:
        high, wide = source.dims[2], source.dims[3]
        features = pack.groups * self.inputs
        natural = self.tile("positions", self.pe_dtype, [features], high.size * wide.size, 2)
        feature, batch = atom_of(self.x, 1), atom_of(self.x, 0)
        parts = [(0, features, pack.group * self.inputs * feature.stride)]
        if self.batch_groups > 1:
            steps = [(pack.group + j) * (self.batch * batch.stride) for j in range(pack.groups)]
            parts = [(j * self.inputs, self.inputs, step) for j, step in enumerate(steps)]
        merged = high.size == 1 or high.stride == wide.stride * wide.size
        runs = [(0, high.size * wide.size)] if merged else [(row, wide.size) for row in range(high.size)]
        for begin, count, offset in parts:
            for row, lanes in runs:
                dims = (Atom(lanes, wide.stride), Atom(count, feature.stride))
                at = source.offset + offset + row * high.stride
                rows = natural.index(1, Affine(begin), count)
                rows = replace(rows, partition=row * wide.size, dims=(Atom(lanes, 1, True), rows.dims[1]))
                copy(self.builder, rows, Block(source.alloc, source.dtype, at, dims), self._stream)
        for plane, part, byte in self.carriers(natural):
            goal = part_of(target, part, byte)
            for segment in self.segments_of(pack.groups):
                size = itemsize(plane.dtype)
                first = replace(
                    plane,
                    offset=plane.offset + segment.start * size,
                    dims=(
                        plane.dims[0],
                        Atom(segment.chunks, segment.chunk_step * size),
                        Atom(segment.lanes, segment.lane_step * size),
                    ),
                )
                chunks = goal.index(1, Affine(segment.first), segment.chunks)
                self.turn(first, replace(chunks, dims=(Atom(segment.lanes, 1, True), *chunks.dims[1:])))

    # ---- transposes -------------------------------------------------------------------------------------------

    def fast(self, dtype: str) -> bool:
        """Whether TensorE transposes values of ``dtype`` as such."""
        return not self.apart and itemsize(dtype) < 4

    def carriers(self, natural: Block) -> Iterator[tuple[Block, str, int]]:
        """Blocks that TensorE carries exactly, the type of the parts that they hold, and their byte in an element."""
        if self.fast(natural.dtype):
            return iter([(natural, natural.dtype, 0)])
        lanes, *free = natural.dims

        def room(carrier: str, _: int) -> Block:
            plane = self.tile("bits", carrier, [atom.size for atom in free], lanes.size, 2)
            wider, width = itemsize(carrier), itemsize(natural.dtype)
            return plane.of((lanes, *(Atom(atom.size, atom.stride // width * wider) for atom in free)))

        return halves_of(natural, room, self.emitter.copy)

    def loops_pay(self, count: int) -> bool:
        """Whether ``count`` equal parts are worth a loop, and a register and its phase are left for it.

        Those of loops inside others are free again behind the outermost one only.
        """
        return count > 2 and self.builder.registers_left > SPARE_REGISTERS

    def turn(self, source: Block, target: Block, alone: bool = False) -> None:
        """Transpose [rows, chunks, lanes] into ``target`` [lanes, chunks, rows...], as many chunks as a bank holds.

        ``alone``: nothing else is transposed in an iteration of the loop around.
        """
        rows, lanes, total = source.dims[0].size, source.dims[2].size, source.dims[1].size
        identity = self.context.identity(source.dtype)
        identity = replace(identity, dims=(replace(identity.dims[0], size=rows), replace(identity.dims[1], size=rows)))
        sizes = [atom.size for atom in target.dims[2:]]
        pieces = self.builder.tiles(total, max(1, self.tile_columns // rows))
        alone = alone and len(pieces) == pieces[0][1] == 1
        for start, tiles, count in pieces:
            loops = self.loops_pay(tiles)
            for tile in self.builder.each(tiles, 1 if loops else 8):
                first = tile * count + start
                slot = self.builder.slot(self.turned, several=not (alone or loops))
                bank = Block(self.turned.alloc, "f32", slot, (Atom(lanes, 1, True), *dense([count, rows], "f32")))
                for position in range(count):
                    self.builder.emit("load_stationary", Stream.TENSOR, [], [source.index(1, first + position)])
                    piece = bank.index(1, Affine(position))
                    self.builder.emit("multiply_moving", Stream.TENSOR, [piece], [identity])
                split = replace(bank, dims=(bank.dims[0], *dense([count, *sizes], "f32")))
                self.emitter.copy(target.index(1, first, count), split)
