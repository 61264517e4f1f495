"""Results of a convolution: where blocks of them lie, how sums leave PSUM, and how they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from neuronx_cc.codegen.convolutions.finite import FiniteSums
from neuronx_cc.codegen.convolutions.folding import Folded
from neuronx_cc.codegen.convolutions.problem import Problem, atom_of
from neuronx_cc.codegen.convolutions.schedule import POSITION_BUFFERS, Schedule
from neuronx_cc.codegen.convolutions.stage import PackAt, RowsAt, by_stride
from neuronx_cc.codegen.convolutions.weights import OutputsAt
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.movement.transfer import copy
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
class Results:
    """Takes the sums of one convolution."""

    out: View
    """Where all results go, in canonical order."""
    problem: Problem
    schedule: Schedule
    emitter: Emitter
    tiles: Tiles
    finite: FiniteSums | None
    """Where groups share products: whether that spoiled any."""

    @property
    def height(self) -> int:
        """Partitions of a tile of results."""
        sizes = self.emitter.builder.sizes
        return min(sizes.rows, sizes.columns)

    def leave(self, target: Block, bank: Block, sizes: Sequence[int]) -> None:
        """Copy a bank of sums, which are of ``sizes``, to ``target``."""
        if self.finite is not None:
            self.finite.look(bank)
        self.emitter.copy(target, bank.of((bank.dims[0], *dense(sizes, "f32"))))

    def fill_zeros(self, block: Block) -> None:
        engine = Stream.VECTOR if block.dtype in FLOATS else Stream.GPSIMD
        self.emitter.over("memset", engine, [block], [], imm=[0.0])

    # ---- output features on the partitions --------------------------------------------------------------------

    def output_tiles(self, size: int) -> list[Outputs]:
        """How ``size`` output features are spread over partitions."""
        if self.out.in_sbuf:
            atom = self.out.partition_atom
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

    def feature_target(self, pack: PackAt, outs: OutputsAt, at: list[RowsAt], tiles: list[Outputs]) -> Block:
        """Where a block's results go: [partitions, tiles, batch, spatial...], resident or a tile to be stored."""
        counts = [rows.piece.outs for rows in at]
        partitions = max(part.partitions for part in tiles)
        count = sum(part.tiles for part in tiles)
        if not self.out.in_sbuf:
            sizes = [count, *counts]
            order = by_stride(self.out, sizes)
            stored = self.tiles.tile(
                self.out.dtype,
                [sizes[dim - 1] for dim in order[1:]],
                partitions,
                "result",
                self.schedule.result_buffers,
            )
            return stored.select(order)
        outer = [atom for atom in coalesce(self.out.dims[1]) if not atom.partition]
        stride = outer[0].stride if outer else 0
        offset = self.out.start
        # a pack is one tile; without packs, blocks of outputs are whole tiles
        offset = offset + pack.index * (pack.groups * self.problem.outputs // partitions * stride)
        offset = offset + pack.start * self.problem.outputs // partitions * stride
        offset = offset + outs.index * (outs.size // partitions * stride) + outs.start // partitions * stride
        atoms = []
        for axis, rows in enumerate(at):
            atom = atom_of(self.out, axis if axis == 0 else axis + 1)
            offset = offset + rows.row * (rows.piece.axis.phases * atom.stride)
            atoms.append(Atom(rows.piece.outs, atom.stride))
        return Block(
            self.out.alloc,
            self.out.dtype,
            offset,
            (Atom(partitions, 1, True), Atom(count, stride), *atoms),
        )

    def store_features(
        self, pack: PackAt, outs: OutputsAt, at: list[RowsAt], tiles: list[Outputs], result: Block
    ) -> None:
        feature = atom_of(self.out, 1).stride
        offset, atoms = self._out_positions(at)
        offset = offset + (pack.group * self.problem.given.outputs + outs.first) * feature
        if self.problem.folded is not None:
            self._store_folded(self.problem.folded, at, offset, atoms, result)
            return
        order = by_stride(self.out, result.dims[1:])
        for part in tiles:
            dims = (
                Atom(part.partitions, part.partition_step * feature),
                Atom(part.tiles, part.tile_step * feature),
                *atoms,
            )
            target = Block(self.out.alloc, self.out.dtype, offset + part.start * feature, dims)
            source = result.index(1, Affine(part.first), part.tiles)
            source = replace(source, dims=(Atom(part.partitions, 1, True), *source.dims[1:]))
            copy(self.emitter.builder, target.select(order), source.select(order), Stream.DMA_STORE)

    def _store_folded(self, folded: Folded, at: list[RowsAt], offset: Affine, atoms: list[Atom], result: Block) -> None:
        """Features that are outputs at neighbouring positions, those that do not exist left out."""
        fold, each = self.problem.fold, self.problem.given.pack_outputs
        assert fold is not None
        axis, feature = 1 + fold.axis, atom_of(self.out, 1).stride
        rows, step = at[axis].piece, atoms[axis].stride // fold.count
        ends = rows.start + rows.rows * rows.count >= rows.axis.rows
        cut = folded.of.out % fold.count if ends else 0

        def store(partition: int, lies: Atom, start: Affine, first: int, count: int) -> None:
            """``count`` positions from ``first`` on of the features on some partitions."""
            if count <= 0 or not lies.size:
                return
            dims = list(atoms)
            dims[axis] = replace(dims[axis], size=count)
            target = Block(self.out.alloc, self.out.dtype, start + first * atoms[axis].stride, (lies, *dims))
            source = result.index(1, Affine()).index(1 + axis, Affine(first), count)
            source = replace(source, partition=partition, dims=(Atom(lies.size, 1, True), *source.dims[1:]))
            copy(self.emitter.builder, target, source, Stream.DMA_STORE)

        if fold.outputs_first:
            for number in range(fold.count):
                missing = bool(cut) and number >= cut
                store(number * each, Atom(each, feature), offset + number * step, 0, rows.outs - missing)
            return
        whole = rows.outs - bool(cut)
        for number in range(each):
            start = offset + number * feature
            store(number * fold.count, Atom(fold.count, step), start, 0, whole)
            store(number * fold.count, Atom(cut, step), start, whole, rows.outs - whole)

    def _out_positions(self, at: list[RowsAt]) -> tuple[Affine, list[Atom]]:
        """Offset and progressions of a block's output positions in HBM."""
        offset, atoms = self.out.start, []
        for axis, rows in enumerate(at):
            atom = self.problem.out.dims[axis if axis == 0 else axis + 1]
            offset = offset + rows.row * (rows.piece.axis.phases * atom.stride)
            atoms.append(Atom(rows.piece.outs, atom.stride))
        return offset, atoms

    # ---- positions on the partitions --------------------------------------------------------------------------

    def positions_target(self, pack: PackAt, outs: OutputsAt, at: list[RowsAt]) -> Block:
        """Where a block's results go in HBM: [batch, spatial..., features]."""
        offset, atoms = self._out_positions(at)
        feature = atom_of(self.out, 1)
        offset = offset + (pack.group * self.problem.given.outputs + outs.first) * feature.stride
        dims = (*atoms, Atom(outs.size, feature.stride))
        return Block(self.out.alloc, self.out.dtype, offset, dims)

    def tile(self, sizes: Sequence[int], partitions: int) -> Block:
        """Room for results with positions on the partitions."""
        return self.tiles.tile(self.out.dtype, sizes, partitions, "result", POSITION_BUFFERS)

    def store_rows(self, target: Block, result: Block) -> None:
        """DMA [rows, columns, features] to HBM; of a last column that is several outputs, those that exist."""
        folded, builder = self.problem.folded, self.emitter.builder
        if folded is None or folded.whole:
            copy(builder, target, result, Stream.DMA_STORE)
            return
        before = target.dims[1].size - 1
        left = folded.of.out % folded.count * self.problem.given.pack_outputs
        if before:
            copy(builder, target.index(1, Affine(), before), result.index(1, Affine(), before), Stream.DMA_STORE)
        last = [block.index(1, Affine(before)).index(1, Affine(), left) for block in (target, result)]
        copy(builder, last[0], last[1], Stream.DMA_STORE)

    def store_positions(self, target: Block, result: Block, first: int) -> None:
        """DMA [positions, features] to [batch, spatial..., features]; one DMA for each run of even pitch."""
        dims = [atom for atom in target.dims[:-1] if atom.size > 1]
        while len(dims) > 1 and dims[-2].stride == dims[-1].stride * dims[-1].size:
            dims[-2:] = [Atom(dims[-2].size * dims[-1].size, dims[-1].stride)]
        if len(dims) > 1:
            inner = prod(atom.size for atom in dims[1:])
            for index in range(dims[0].size):
                offset = target.offset + index * dims[0].stride
                part = replace(target, offset=offset, dims=(*dims[1:], target.dims[-1]))
                self.store_positions(part, result, first + index * inner)
            return
        partition = dims[0] if dims else Atom(1, 0)
        source = replace(result, partition=first, dims=(Atom(partition.size, 1, True), *result.dims[1:]))
        copy(self.emitter.builder, replace(target, dims=(partition, target.dims[-1])), source, Stream.DMA_STORE)
