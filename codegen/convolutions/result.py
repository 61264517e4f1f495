"""Results of a convolution, and what its epilogue reads with them: where blocks lie, and how they are moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.convolutions.finish import Finish
from neuronx_cc.codegen.convolutions.folding import Folded
from neuronx_cc.codegen.convolutions.placement import Placed
from neuronx_cc.codegen.convolutions.problem import Operand, Problem, atom_of
from neuronx_cc.codegen.convolutions.schedule import POSITION_BUFFERS, Schedule, tile_buffers
from neuronx_cc.codegen.convolutions.stage import PackAt, RowsAt, by_stride
from neuronx_cc.codegen.convolutions.weights import OutputsAt
from neuronx_cc.codegen.dots.schedule import EPILOGUE_BUFFERS, array_name
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.maps.plan import load_stream
from neuronx_cc.codegen.movement import column_kernel
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import FLOATS


@dataclass(frozen=True, slots=True)
class Outputs:
    """Output features ``start + partition * partition_step + tile * tile_step`` of ``tiles`` of ``partitions``."""

    start: int
    partitions: int
    tiles: int
    partition_step: int
    tile_step: int
    first: int
    """Its first tile in the result."""


@dataclass(frozen=True, slots=True)
class Array:
    """The result, or what is read with it, in canonical order: its memory, and as a schedule sees it."""

    view: View
    lies: Operand
    stream: Stream
    """What moves it."""
    name: str
    """Of its tiles."""

    @property
    def stored(self) -> bool:
        return self.stream is Stream.DMA_STORE

    def at(self, rows: Sequence[RowsAt]) -> tuple[Affine, list[Atom]]:
        """Offset and progressions of the positions of a block."""
        offset, atoms = self.view.start, []
        for axis, each in enumerate(rows):
            atom = self.lies.dims[axis if axis == 0 else axis + 1]
            offset = offset + each.row * (each.piece.axis.phases * atom.stride)
            atoms.append(Atom(each.piece.outs, atom.stride))
        return offset, atoms

    def varying(self, rows: Sequence[RowsAt]) -> tuple[Affine, list[Atom]]:
        """The same, but only one of the positions along axes at which it repeats."""
        offset, atoms = self.at(rows)
        return offset, [atom if atom.stride else Atom(1, 0) for atom in atoms]


@dataclass(frozen=True, slots=True)
class Results:
    """Moves the results of one convolution, and what its epilogue reads."""

    out: Array
    arrays: tuple[Array, ...]
    problem: Problem
    schedule: Schedule
    tiles: Tiles
    finish: Finish

    @classmethod
    def of(cls, placed: Placed, problem: Problem, schedule: Schedule, tiles: Tiles, finish: Finish) -> Results:
        """``problem`` is what the schedule makes of the one that is posed."""
        read = () if placed.chain is None else placed.chain.arrays
        arrays = tuple(
            Array(view, lies, load_stream(value), array_name(number))
            for number, (value, view, lies) in enumerate(zip(read, placed.adds, problem.arrays, strict=True))
        )
        return cls(Array(placed.out, problem.out, Stream.DMA_STORE, "result"), arrays, problem, schedule, tiles, finish)

    @property
    def builder(self) -> Builder:
        return self.tiles.builder

    @property
    def height(self) -> int:
        """Partitions of a tile of results."""
        return min(self.builder.sizes.rows, self.builder.sizes.columns)

    def fill_zeros(self, block: Block) -> None:
        engine = Stream.VECTOR if block.dtype in FLOATS else Stream.GPSIMD
        self.finish.emitter.over("memset", engine, [block], [], imm=[0.0])

    def columns(self, pack: PackAt, outs: OutputsAt) -> tuple[Block | None, ...]:
        """Tiles of those arrays that are the same at all positions; None for the others, and those that are there."""
        return tuple(
            self._column(array, pack, outs) if array.lies.stays and not array.lies.on_chip else None
            for array in self.arrays
        )

    def _column(self, array: Array, pack: PackAt, outs: OutputsAt) -> Block:
        if not self.problem.positions_on_partitions:
            parts = self.output_tiles(outs.size)
            tile = self._feature_tile(array, parts, [1] * len(self.problem.axes))
            self._move_features(array, pack, outs, parts, tile, None)
            return tile
        feature, each = atom_of(array.view, 1).stride, self.problem.given.pack_outputs
        wide = 1 if self.problem.repeats(array.lies) else outs.size
        tile = self.tiles.tile(self.problem.loaded(array.lies), [wide], self.height, array.name, EPILOGUE_BUFFERS)
        start = array.view.start + self._first_feature(pack, outs) * feature
        for at in range(0, wide, each if self.problem.fold is not None else wide):
            part = tile.index(1, Affine(at), min(wide, each) if self.problem.fold is not None else wide)
            dims = (Atom(self.height, 0), Atom(part.dims[1].size, feature))
            self._copy(array, Block(array.view.alloc, array.view.dtype, start, dims), part)
        return tile

    def _first_feature(self, pack: PackAt, outs: OutputsAt) -> Affine:
        return pack.group * self.problem.given.outputs + outs.first

    def _copy(self, array: Array, lies: Block, tile: Block) -> None:
        """By DMA, to where the array ``lies`` or from there."""
        if array.stored:
            copy(self.builder, lies, tile, array.stream)
        else:
            column_kernel.copy(self.builder, tile, lies, array.stream)

    # ---- output features on the partitions --------------------------------------------------------------------

    def output_tiles(self, size: int) -> list[Outputs]:
        """How ``size`` output features are spread over partitions."""
        if self.out.view.in_sbuf:
            atom = self.out.view.partition_atom
            partitions = atom.size if atom is not None else 1
            return [Outputs(0, partitions, size // partitions, 1, partitions, 0)]
        tiles = -(-size // self.height)
        if size % tiles == 0:
            return [Outputs(0, size // tiles, tiles, tiles, 1, 0)]
        full = size // self.height
        return [
            Outputs(0, self.height, full, full, 1, 0),
            Outputs(full * self.height, size % self.height, 1, 1, 1, full),
        ]

    def feature_blocks(
        self,
        pack: PackAt,
        outs: OutputsAt,
        at: list[RowsAt],
        tiles: list[Outputs],
        columns: Sequence[Block | None],
    ) -> list[Block]:
        """A block's results, and what is read with them: [partitions, tiles, batch, spatial...], on chip."""
        found = [self._feature_block(self.out, pack, outs, at, tiles)]
        for array, column in zip(self.arrays, columns, strict=True):
            block = column if column is not None else self._feature_block(array, pack, outs, at, tiles)
            if column is None and not array.lies.on_chip:
                self._move_features(array, pack, outs, tiles, block, at)
            found.append(_repeated(block, found[0].dims, 2))
        return found

    def _feature_tile(self, array: Array, tiles: list[Outputs], counts: list[int]) -> Block:
        sizes = [sum(part.tiles for part in tiles), *counts]
        partitions = max(part.partitions for part in tiles)
        order = by_stride(array.view, sizes)
        dtype, buffers = array.view.dtype, self.schedule.result_buffers
        if not array.stored:
            dtype, buffers = self.problem.loaded(array.lies), EPILOGUE_BUFFERS
        stored = self.tiles.tile(dtype, [sizes[dim - 1] for dim in order[1:]], partitions, array.name, buffers)
        return stored.select(order)

    def _feature_block(
        self, array: Array, pack: PackAt, outs: OutputsAt, at: list[RowsAt], tiles: list[Outputs]
    ) -> Block:
        """On chip where it lies, else a tile to be moved."""
        offset, atoms = array.at(at)
        if not array.lies.on_chip:
            return self._feature_tile(array, tiles, [atom.size for atom in array.varying(at)[1]])
        partitions, count = tiles[0].partitions, sum(part.tiles for part in tiles)
        stride = array.lies.dims[1].stride
        # a pack is one tile; without packs, blocks of outputs are whole tiles
        offset = offset + pack.index * (pack.groups * self.problem.outputs // partitions * stride)
        offset = offset + pack.start * self.problem.outputs // partitions * stride
        offset = offset + outs.index * (outs.size // partitions * stride) + outs.start // partitions * stride
        return Block(
            array.view.alloc, array.view.dtype, offset, (Atom(partitions, 1, True), Atom(count, stride), *atoms)
        )

    def store_features(
        self, pack: PackAt, outs: OutputsAt, at: list[RowsAt], tiles: list[Outputs], result: Block
    ) -> None:
        self._move_features(self.out, pack, outs, tiles, result, at)

    def _move_features(
        self,
        array: Array,
        pack: PackAt,
        outs: OutputsAt,
        tiles: list[Outputs],
        tile: Block,
        at: list[RowsAt] | None,
    ) -> None:
        """DMA [partitions, tiles, batch, spatial...] between a tile and HBM. ``at``: None for any position."""
        feature = atom_of(array.view, 1).stride
        offset, atoms = (
            array.varying(at) if at is not None else (array.view.start, [Atom(1, 0)] * len(self.problem.axes))
        )
        offset = offset + self._first_feature(pack, outs) * feature
        if self.problem.folded is not None:
            self._move_folded(array, offset, atoms, tile, self._missing(self.problem.folded, at, atoms))
            return
        order = by_stride(array.view, tile.dims[1:])
        for part in tiles:
            dims = (
                Atom(part.partitions, part.partition_step * feature),
                Atom(part.tiles, part.tile_step * feature),
                *atoms,
            )
            lies = Block(array.view.alloc, array.view.dtype, offset + part.start * feature, dims)
            here = tile.index(1, Affine(part.first), part.tiles)
            here = replace(here, dims=(Atom(part.partitions, 1, True), *here.dims[1:]))
            self._copy(array, lies.select(order), here.select(order))

    def _move_folded(self, array: Array, offset: Affine, atoms: list[Atom], tile: Block, cut: int) -> None:
        """Features that are outputs at neighbouring positions. ``cut``: outputs of the last position; 0: all."""
        fold, each, feature = self.problem.fold, self.problem.given.pack_outputs, atom_of(array.view, 1).stride
        assert fold is not None
        axis = 1 + fold.axis
        step, outs = atoms[axis].stride // fold.count, atoms[axis].size
        if cut and not array.stored:
            self.fill_zeros(tile)

        def move(partition: int, lies: Atom, start: Affine, first: int, count: int) -> None:
            """``count`` positions from ``first`` on of the features on some partitions."""
            if count <= 0 or not lies.size:
                return
            dims = list(atoms)
            dims[axis] = replace(dims[axis], size=count)
            there = Block(array.view.alloc, array.view.dtype, start + first * atoms[axis].stride, (lies, *dims))
            here = tile.index(1, Affine()).index(1 + axis, Affine(first), count)
            here = replace(here, partition=partition, dims=(Atom(lies.size, 1, True), *here.dims[1:]))
            self._copy(array, there, here)

        if fold.outputs_first:
            for number in range(fold.count):
                missing = bool(cut) and number >= cut
                move(number * each, Atom(each, feature), offset + number * step, 0, outs - missing)
            return
        whole = outs - bool(cut)
        for number in range(each):
            start = offset + number * feature
            move(number * fold.count, Atom(fold.count, step), start, 0, whole)
            move(number * fold.count, Atom(cut, step), start, whole, outs - whole)

    def _missing(self, folded: Folded, at: list[RowsAt] | None, atoms: list[Atom]) -> int:
        """Outputs of the last position of a block, if it has not all of them; else 0."""
        assert self.problem.fold is not None
        axis = 1 + self.problem.fold.axis
        if at is None or not atoms[axis].stride:
            return 0  # what repeats has as many as are wanted
        piece = at[axis].piece
        ends = piece.start + piece.rows * piece.count >= piece.axis.rows
        return folded.of.out % folded.count if ends else 0

    # ---- positions on the partitions --------------------------------------------------------------------------

    def position_blocks(self, pack: PackAt, outs: OutputsAt, size: int, at: list[RowsAt]) -> list[Block]:
        """Where results of a block go, and what is read with them lies: [batch, spatial..., ``size`` features]."""
        found = []
        for array in (self.out, *self.arrays):
            feature, (offset, atoms) = atom_of(array.view, 1).stride, array.at(at)
            offset = offset + self._first_feature(pack, outs) * feature
            found.append(Block(array.view.alloc, array.view.dtype, offset, (*atoms, Atom(size, feature))))
        return found

    def tile(self, sizes: Sequence[int], partitions: int, several: bool = False) -> Block:
        """Room for results with positions on the partitions. ``several``: tiles follow each other in straight-line
        code, here and below.
        """
        buffers = self._buffers(POSITION_BUFFERS)
        return self.tiles.tile(self.out.view.dtype, sizes, partitions, "result", buffers, several)

    def _buffers(self, least: int) -> int:
        return tile_buffers(self.problem, self.schedule, self.builder.sizes, least)

    def read_positions(
        self, pieces: Sequence[Block], columns: Sequence[Block | None], result: Block, several: bool = False
    ) -> list[Block]:
        """What is read with ``result`` [positions, features]; ``pieces`` as of ``position_blocks``."""
        return self._read(
            pieces, columns, result, lambda array, piece, tile: self._move_positions(array, piece, tile, 0), several
        )

    def read_rows(self, pieces: Sequence[Block], columns: Sequence[Block | None], result: Block) -> list[Block]:
        """What is read with ``result`` [rows, columns, features]; ``pieces`` lie so, too."""
        return self._read(pieces, columns, result, self._move_rows)

    def _read(
        self,
        pieces: Sequence[Block],
        columns: Sequence[Block | None],
        result: Block,
        move: Callable[[Array, Block, Block], None],
        several: bool = False,
    ) -> list[Block]:
        partitions, *free = result.dims
        found = []
        for array, piece, tile in zip(self.arrays, pieces, columns, strict=True):
            repeats = self.problem.repeats(array.lies)
            if tile is None:
                sizes = [atom.size for atom in free[:-1]] + [1 if repeats else free[-1].size]
                dtype = self.problem.loaded(array.lies)
                buffers = self._buffers(EPILOGUE_BUFFERS)
                tile = self.tiles.tile(dtype, sizes, partitions.size, array.name, buffers, several)
                move(array, piece.index(len(piece.dims) - 1, Affine(), sizes[-1]), tile)
            else:
                tile = tile.of((partitions, *(Atom(1, 0) for _ in free[:-1]), tile.dims[1]))
            found.append(_repeated(tile, result.dims, 1))
        return found

    def store_rows(self, target: Block, result: Block) -> None:
        self._move_rows(self.out, target, result)

    def _move_rows(self, array: Array, lies: Block, tile: Block) -> None:
        """DMA [rows, columns, features]; of a last column that is several outputs, those that exist."""
        folded = self.problem.folded
        if folded is None or folded.whole:
            self._copy(array, lies, tile)
            return
        before = lies.dims[1].size - 1
        left = folded.of.out % folded.count * self.problem.given.pack_outputs
        if not array.stored:
            self.fill_zeros(tile)
        if before:
            self._copy(array, lies.index(1, Affine(), before), tile.index(1, Affine(), before))
        last = [block.index(1, Affine(before)).index(1, Affine(), left) for block in (lies, tile)]
        self._copy(array, last[0], last[1])

    def store_positions(self, target: Block, result: Block) -> None:
        self._move_positions(self.out, target, result, 0)

    def _move_positions(self, array: Array, lies: Block, tile: Block, first: int) -> None:
        """DMA between [positions, features] and [batch, spatial..., features]: one for each run of even pitch."""
        dims = [atom for atom in lies.dims[:-1] if atom.size > 1]
        while len(dims) > 1 and dims[-2].stride == dims[-1].stride * dims[-1].size:
            dims[-2:] = [Atom(dims[-2].size * dims[-1].size, dims[-1].stride)]
        if len(dims) > 1:
            inner = prod(atom.size for atom in dims[1:])
            for index in range(dims[0].size):
                offset = lies.offset + index * dims[0].stride
                part = replace(lies, offset=offset, dims=(*dims[1:], lies.dims[-1]))
                self._move_positions(array, part, tile, first + index * inner)
            return
        partition = dims[0] if dims else Atom(1, 0)
        here = replace(tile, partition=first, dims=(Atom(partition.size, 1, True), *tile.dims[1:]))
        self._copy(array, replace(lies, dims=(partition, lies.dims[-1])), here)


def _repeated(block: Block, like: Sequence[Atom], first: int) -> Block:
    """``block`` with the sizes of ``like`` from dim ``first`` on: those of 1 repeat."""
    pairs = zip(block.dims[first:], like[first:], strict=True)
    dims = (atom if atom.size == other.size else Atom(other.size, 0) for atom, other in pairs)
    return block.of((*block.dims[:first], *dims))
