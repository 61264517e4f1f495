"""Results of a convolution: where blocks of them lie, how sums leave PSUM, and how they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from neuronx_cc.codegen.convolutions.finite import FiniteSums
from neuronx_cc.codegen.convolutions.placement import Placed
from neuronx_cc.codegen.convolutions.problem import atom_of
from neuronx_cc.codegen.convolutions.schedule import POSITION_BUFFERS, Schedule
from neuronx_cc.codegen.convolutions.stage import PackAt, RowsAt, by_stride
from neuronx_cc.codegen.convolutions.weights import OutputsAt
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.emission.views import Atom, coalesce
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

    placed: Placed
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
        if self.placed.out.in_sbuf:
            atom = self.placed.out.partition_atom
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
        if not self.placed.out.in_sbuf:
            sizes = [count, *counts]
            order = by_stride(self.placed.out, sizes)
            stored = self.tiles.tile(
                self.placed.out.dtype,
                [sizes[dim - 1] for dim in order[1:]],
                partitions,
                "result",
                self.schedule.result_buffers,
            )
            return stored.select(order)
        outer = [atom for atom in coalesce(self.placed.out.dims[1]) if not atom.partition]
        stride = outer[0].stride if outer else 0
        offset = Affine(self.placed.out.offset)
        # a pack is one tile; without packs, blocks of outputs are whole tiles
        offset = offset + pack.index * (pack.groups * self.placed.problem.outputs // partitions * stride)
        offset = offset + pack.start * self.placed.problem.outputs // partitions * stride
        offset = offset + outs.index * (outs.size // partitions * stride) + outs.start // partitions * stride
        atoms = []
        for axis, rows in enumerate(at):
            atom = atom_of(self.placed.out, axis if axis == 0 else axis + 1)
            offset = offset + rows.row * (rows.piece.axis.phases * atom.stride)
            atoms.append(Atom(rows.piece.outs, atom.stride))
        return Block(
            self.placed.out.alloc,
            self.placed.out.dtype,
            offset,
            (Atom(partitions, 1, True), Atom(count, stride), *atoms),
        )

    def store_features(
        self, pack: PackAt, outs: OutputsAt, at: list[RowsAt], tiles: list[Outputs], result: Block
    ) -> None:
        feature = atom_of(self.placed.out, 1).stride
        offset, atoms = self._out_positions(at)
        offset = offset + (pack.group * self.placed.problem.outputs + outs.first) * feature
        order = by_stride(self.placed.out, result.dims[1:])
        for part in tiles:
            dims = (
                Atom(part.partitions, part.partition_step * feature),
                Atom(part.tiles, part.tile_step * feature),
                *atoms,
            )
            target = Block(self.placed.out.alloc, self.placed.out.dtype, offset + part.start * feature, dims)
            source = result.index(1, Affine(part.first), part.tiles)
            source = replace(source, dims=(Atom(part.partitions, 1, True), *source.dims[1:]))
            copy(self.emitter.builder, target.select(order), source.select(order), Stream.DMA_STORE)

    def _out_positions(self, at: list[RowsAt]) -> tuple[Affine, list[Atom]]:
        """Offset and progressions of a block's output positions in HBM."""
        offset, atoms = Affine(self.placed.out.offset), []
        for axis, rows in enumerate(at):
            atom = atom_of(self.placed.out, axis if axis == 0 else axis + 1)
            offset = offset + rows.row * (rows.piece.axis.phases * atom.stride)
            atoms.append(Atom(rows.piece.outs, atom.stride))
        return offset, atoms

    # ---- positions on the partitions --------------------------------------------------------------------------

    def positions_target(self, pack: PackAt, outs: OutputsAt, at: list[RowsAt]) -> Block:
        """Where a block's results go in HBM: [batch, spatial..., features]."""
        offset, atoms = self._out_positions(at)
        feature = atom_of(self.placed.out, 1)
        offset = offset + (pack.group * self.placed.problem.outputs + outs.first) * feature.stride
        dims = (*atoms, Atom(outs.size, feature.stride))
        return Block(self.placed.out.alloc, self.placed.out.dtype, offset, dims)

    def tile(self, sizes: Sequence[int], partitions: int) -> Block:
        """Room for results with positions on the partitions."""
        return self.tiles.tile(self.placed.out.dtype, sizes, partitions, "result", POSITION_BUFFERS)

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
