"""Convolutions on TensorE.

A convolution is a sum over kernel positions (taps) of contractions over input features. Blocks of the input lie in SBUF
with features on the partitions; the operand of one tap is a strided window of such a block, so nothing is copied per
tap, and all taps and feature tiles add up in PSUM. Either the kernel is stationary and windows stream past it (output
features land on the partitions, positions are neighbours in the result), or windows are stationary and the kernel
streams (positions land on the partitions, output features are neighbours in the result). A dilated input is computed
phase by phase (``convolutions.axis``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.control.residence import assign
from neuronx_cc.codegen.convolutions import depthwise_kernel
from neuronx_cc.codegen.convolutions import gradient_kernel as conv_gradient_kernel
from neuronx_cc.codegen.convolutions.axis import Taps
from neuronx_cc.codegen.convolutions.finite import FiniteSums
from neuronx_cc.codegen.convolutions.plan import MAX_BANDS, MAX_UNROLLED, Outputs, atom_of
from neuronx_cc.codegen.convolutions.stage import PackAt, RowsAt, by_stride, rows_suit_lanes, store_columns
from neuronx_cc.codegen.convolutions.sums import ConvSums, Features, Terms
from neuronx_cc.codegen.convolutions.weights import OutputsAt
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.emission.views import Atom, coalesce
from neuronx_cc.codegen.movement.halves import carrier_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import FLOATS, itemsize

MAX_LOOPS = 8
"""Loops over tiles of positions for which the sequencer's registers suffice."""


def lower(context: Context, op: hlo.ConvolutionOp, step: int) -> None:
    """Emit the convolution and give its result a home."""
    if op.shape.size and conv_gradient_kernel.applies(op):
        conv_gradient_kernel.lower(context, op, step)
        return
    if depthwise_kernel.lower(context, op):
        return
    _Convolution(context, op, step).emit()


class _Convolution(ConvSums):
    """Emits one convolution."""

    finite: FiniteSums | None = None
    """Where groups share products: whether that spoiled any."""

    def emit(self) -> None:
        if self.op.shape.size == 0:
            self.context.homes[self.result] = [self.context.new_hbm(self.result)]
            return
        # made here because staging asks for it inside loops
        self.context.identity(carrier_of(self.pe_dtype, self.fast(self.pe_dtype)))
        self.choose()
        self._laid_out = {}
        if self.pack > 1 and self.may_be_infinite:
            self.finite = FiniteSums(self.builder)
        self.plan_sizes()
        self.sums = self.make_bank(self.builder.sizes.banks // 2)
        self.turned = self.make_bank(self.builder.sizes.banks // 2)
        self.zeros = self.tile("zeros", self.pe_dtype, [self.tile_columns], 1, 1)
        self.emitter.over("memset", Stream.VECTOR, [self.zeros], [], imm=[0.0])
        for start, count, groups in self.builder.tiles(self.groups, self.pack):
            for index in self.builder.each(count, 1):
                self._pack_blocks(PackAt(start, count, groups, index))
        self.release()
        if self.finite is not None:
            with self.finite.otherwise():
                self._emit_apart()

    def _emit_apart(self) -> None:
        """Once more into the result's home, each group by itself, and without products for transposes."""
        context, (home,) = self.context, self.context.homes[self.result]
        homes, moving = context.homes, context.moving
        with context.scope(f"{context.prefix}{self.op.loc.name}/groups"):
            context.homes.update({value: list(views) for value, views in homes.items() if value is not self.result})
            context.moving.update(moving)
            if not home.in_sbuf:
                context.outputs[self.result] = home
            again = _Convolution(context, self.op, self.step)
            again.apart = True
            again.emit()
            if home.in_sbuf:
                assign(context, home, self.result)

    def _leave(self, target: Block, bank: Block, sizes: Sequence[int]) -> None:
        """Copy a bank of sums, which are of ``sizes`` to ``target``."""
        if self.finite is not None:
            self.finite.look(bank)
        self.emitter.copy(target, replace(bank, dims=(bank.dims[0], *dense(sizes, "f32"))))

    def _pack_blocks(self, pack: PackAt) -> None:
        """All blocks of one pack: the kernel stays while blocks of the input stream by, unless those all fit."""
        total = pack.groups * self.outputs
        blocks = prod(-(-axis.rows // rows) for axis, rows in zip(self.axes, self.rows, strict=True))
        parts = self.builder.tiles(total, min(total, self.block_outputs))
        if blocks == 1 and len(parts) + parts[0][1] > 2:
            for at in self._blocks([]):
                x = self.stage_input(pack, at)
                for start, count, size in parts:
                    for index in self.builder.each(count, 1):
                        self._block(pack, OutputsAt(start, count, size, index), at, x, None)
            return
        for start, count, size in parts:
            for index in self.builder.each(count, 1):
                outs = OutputsAt(start, count, size, index)
                kernel = None if self.streams_kernel else self.stage_kernel(pack, outs)
                for at in self._blocks([]):
                    self._block(pack, outs, at, self.stage_input(pack, at), kernel)

    def _blocks(self, at: list[RowsAt]) -> Iterator[list[RowsAt]]:
        if len(at) == len(self.axes):
            yield at
            return
        unrolls = self.unrolls_bands and bool(at)
        with self.builder.unrolled() if unrolls else nullcontext():
            axis, rows = self.axes[len(at)], self.rows[len(at)]
            for piece in axis.pieces(rows):
                for index in self.builder.each(piece.count, MAX_BANDS if unrolls else 1):
                    yield from self._blocks([*at, RowsAt(piece, index)])

    def _block(self, pack: PackAt, outs: OutputsAt, at: list[RowsAt], x: Block, kernel: Block | None) -> None:
        """All output features ``outs`` at the positions of one block."""
        if kernel is None and not self.streams_kernel:
            kernel = self.stage_kernel(pack, outs)
        terms = Terms(pack, outs, x, kernel)
        if self.positions_on_lanes:
            self._positions_block(terms, at)
            return
        tiles = self._output_tiles(outs.size)
        target = self._feature_target(pack, outs, at, tiles)
        for part in tiles:
            for index in self.builder.each(part.tiles, 1):
                to = target.index(1, index + part.first)
                to = replace(to, dims=(Atom(part.lanes, 1, True), *to.dims[1:]))
                features = Features(index * part.tile_step + part.start, part.lanes, part.lane_step)
                self._feature_tile(terms, features, at, to)
        if not self.out.in_sbuf:
            self._store_features(pack, outs, at, tiles, target)

    # ---- output features on the partitions --------------------------------------------------------------------

    def _output_tiles(self, size: int) -> list[Outputs]:
        """How ``size`` output features are spread over partitions."""
        if self.out.in_sbuf:
            atom = self.out.partition_atom
            lanes = atom.size if atom is not None else 1
            return [Outputs(0, lanes, size // lanes, 1, lanes, 0)]
        tiles = -(-size // self.tile_rows)
        if size % tiles == 0:
            return [Outputs(0, size // tiles, tiles, tiles, 1, 0)]
        full = size // self.tile_rows
        return [
            Outputs(0, self.tile_rows, full, full, 1, 0),
            Outputs(full * self.tile_rows, size % self.tile_rows, 1, 1, 1, full),
        ]

    def _feature_target(self, pack: PackAt, outs: OutputsAt, at: list[RowsAt], tiles: list[Outputs]) -> Block:
        """Where a block's results go: [lanes, tiles, batch, spatial...], resident or a tile to be stored."""
        counts = [rows.piece.outs for rows in at]
        lanes = max(part.lanes for part in tiles)
        count = sum(part.tiles for part in tiles)
        if not self.out.in_sbuf:
            sizes = [count, *counts]
            order = by_stride(self.out, sizes)
            stored = self.tile(
                "result", self.op.shape.dtype, [sizes[dim - 1] for dim in order[1:]], lanes, self.result_buffers
            )
            return stored.select(order)
        outer = [atom for atom in coalesce(self.out.dims[1]) if not atom.partition]
        stride = outer[0].stride if outer else 0
        offset = Affine(self.out.offset)
        # a pack is one tile; without packs, blocks of outputs are whole tiles
        offset = offset + pack.index * (pack.groups * self.outputs // lanes * stride)
        offset = offset + pack.start * self.outputs // lanes * stride
        offset = offset + outs.index * (outs.size // lanes * stride) + outs.start // lanes * stride
        atoms = []
        for axis, rows in enumerate(at):
            atom = atom_of(self.out, axis if axis == 0 else axis + 1)
            offset = offset + rows.row * (rows.piece.axis.phases * atom.stride)
            atoms.append(Atom(rows.piece.outs, atom.stride))
        return Block(self.out.alloc, self.out.dtype, offset, (Atom(lanes, 1, True), Atom(count, stride), *atoms))

    def _store_features(
        self, pack: PackAt, outs: OutputsAt, at: list[RowsAt], tiles: list[Outputs], result: Block
    ) -> None:
        feature = atom_of(self.out, 1).stride
        offset, atoms = self._out_positions(at)
        offset = offset + (pack.group * self.outputs + outs.first) * feature
        order = by_stride(self.out, result.dims[1:])
        for part in tiles:
            dims = (Atom(part.lanes, part.lane_step * feature), Atom(part.tiles, part.tile_step * feature), *atoms)
            target = Block(self.out.alloc, self.out.dtype, offset + part.start * feature, dims)
            source = result.index(1, Affine(part.first), part.tiles)
            source = replace(source, dims=(Atom(part.lanes, 1, True), *source.dims[1:]))
            copy(self.builder, target.select(order), source.select(order), Stream.DMA_STORE)

    def _out_positions(self, at: list[RowsAt]) -> tuple[Affine, list[Atom]]:
        """Offset and progressions of a block's output positions in HBM."""
        offset, atoms = Affine(self.out.offset), []
        for axis, rows in enumerate(at):
            atom = atom_of(self.out, axis if axis == 0 else axis + 1)
            offset = offset + rows.row * (rows.piece.axis.phases * atom.stride)
            atoms.append(Atom(rows.piece.outs, atom.stride))
        return offset, atoms

    def _feature_tile(self, terms: Terms, features: Features, at: list[RowsAt], target: Block) -> None:
        """One tile of output features at all positions of the block; ``target`` is [lanes, batch, spatial...]."""
        for phases, goal, counts in self._phases(at, target, 1):
            taps = [axis.taps[phase] for axis, phase in zip(self.axes, phases, strict=True)]
            if any(tap.count == 0 for tap in taps):
                self._fill_zeros(goal)
                continue
            sums = replace(terms, taps=taps)
            for row_at, sizes in self._position_tiles(counts, self.tile_columns, []):
                bank = self._bank(features.count, prod(sizes))
                self._sum(sums, bank, row_at, sizes, features)
                piece = goal
                for axis, (row, size) in enumerate(zip(row_at, sizes, strict=True)):
                    piece = piece.index(1 + axis, row, size)
                self._leave(piece, bank, sizes)

    def _fill_zeros(self, block: Block) -> None:
        engine = Stream.VECTOR if block.dtype in FLOATS else Stream.GPSIMD
        self.emitter.over("memset", engine, [block], [], imm=[0.0])

    def _phases(
        self, at: list[RowsAt], target: Block, first: int
    ) -> Iterator[tuple[tuple[int, ...], Block, list[int]]]:
        """Combinations of phases: the results of ``target`` (axes from dim ``first`` on) each gives, their counts."""
        for phases in product(*(range(axis.phases) for axis in self.axes)):
            counts = [rows.piece.axis.rows_of(phase, rows.piece.outs) for rows, phase in zip(at, phases, strict=True)]
            if not all(counts):
                continue
            dims, offset = list(target.dims), target.offset
            for axis, (phase, count) in enumerate(zip(phases, counts, strict=True)):
                atom = dims[first + axis]
                offset = offset + phase * atom.stride
                dims[first + axis] = Atom(count, atom.stride * self.axes[axis].phases)
            yield phases, replace(target, offset=offset, dims=tuple(dims)), counts

    def _position_tiles(
        self, counts: Sequence[int], limit: int, at: list[Affine]
    ) -> Iterator[tuple[list[Affine], list[int]]]:
        """Tiles of at most ``limit`` positions: inner axes whole as far as they fit."""
        yield from self._tile_loops(counts, self._tile_shape(counts, limit), [], [])

    def _tile_shape(self, counts: Sequence[int], limit: int) -> list[int]:
        shape: list[int] = []
        left = limit
        for count in reversed(counts):
            size = max(1, min(count, left))
            size = -(-count // -(-count // size))
            shape.insert(0, size)
            left = left // size if size == count else 0
        return shape

    def _tile_loops(
        self, counts: Sequence[int], shape: list[int], at: list[Affine], sizes: list[int]
    ) -> Iterator[tuple[list[Affine], list[int]]]:
        if len(at) == len(counts):
            yield at, sizes
            return
        for start, size in self.builder.pieces(counts[len(at)], shape[len(at)]):
            yield from self._tile_loops(counts, shape, [*at, start], [*sizes, size])

    # ---- positions on the partitions --------------------------------------------------------------------------

    def _positions_block(self, whole: Terms, at: list[RowsAt]) -> None:
        pack, outs = whole.pack, whole.outs
        offset, atoms = self._out_positions(at)
        feature = atom_of(self.out, 1)
        offset = offset + (pack.group * self.outputs + outs.first) * feature.stride
        everything = Block(self.out.alloc, self.out.dtype, offset, (*atoms, Atom(outs.size, feature.stride)))
        for phases, goal, counts in self._phases(at, everything, 0):
            taps = [axis.taps[phase] for axis, phase in zip(self.axes, phases, strict=True)]
            terms = replace(whole, taps=taps)
            groups = self._column_groups(counts, outs.size, taps, goal)
            if groups:
                self._row_tiles(terms, goal, counts, groups)
                continue
            for row_at, sizes in self._position_tiles(counts, self.tile_rows, []):
                result = self.tile("result", self.op.shape.dtype, [outs.size], prod(sizes), 3)
                if any(tap.count == 0 for tap in taps):
                    self._fill_zeros(result)
                else:
                    for first, columns in self.builder.pieces(outs.size, self.tile_columns):
                        bank = self._bank(prod(sizes), columns)
                        self._sum(terms, bank, row_at, sizes, Features(first, columns))
                        self._leave(result.index(1, first, columns), bank, [columns])
                piece = goal
                for axis, (row, size) in enumerate(zip(row_at, sizes, strict=True)):
                    piece = piece.index(axis, row, size)
                self._store_positions(piece, result, 0)

    def _column_groups(self, counts: Sequence[int], outputs: int, taps: Sequence[Taps], goal: Block) -> int:
        """Parts of a row of positions that lie on partitions of their own; 0 to take neighbouring positions instead.

        Rows or parts of them are stored in long runs, but are not as many as positions may be in one product.
        """
        timing, nbytes = self.builder.timing, outputs * itemsize(self.out.dtype)
        if len(counts) < 2 or not rows_suit_lanes(timing, counts[-2], counts[-1], nbytes):
            return 0
        terms = self.chunks * prod(tap.count for tap in (self.copies.grouped() if self.copies else taps))
        each = terms * max(64, outputs) * (4 if self.pe_dtype == "f32" else 1)
        height = -(-counts[-2] // -(-counts[-2] // self.tile_rows))
        even = goal.dims[-3].stride == counts[-1] * goal.dims[-2].stride
        best = 0.0, 0
        for groups in range(1, self.tile_rows // height + 1 if even else 2):
            if counts[-1] % groups == 0:
                span = counts[-1] // groups
                products = prod(counts[:-2]) * -(-counts[-2] // height) * span
                cost = products * each + store_columns(timing, prod(counts) // span, span * nbytes)
                if not best[1] or cost < best[0]:
                    best = cost, groups
        shape = self._tile_shape(counts, self.tile_rows)
        tiles = [-(-count // size) for count, size in zip(counts, shape, strict=True)]
        # loops, which keep their registers until the outermost one is closed
        blocks = prod(len(axis.pieces(rows)) for axis, rows in zip(self.axes, self.rows, strict=True))
        loops = blocks * prod(axis.phases for axis in self.axes) * sum(count > 4 for count in tiles)
        by_tile = prod(tiles) * each + store_columns(timing, prod(counts), nbytes)
        return best[1] if loops > MAX_LOOPS or best[0] <= by_tile else 0

    def _row_tiles(self, terms: Terms, goal: Block, counts: list[int], groups: int) -> None:
        """``groups`` parts of each row of positions on the partitions, column by column, so that they are long runs."""
        outs, taps = terms.outs, terms.taps
        span = counts[-1] // groups
        width = max(1, self.row_bytes // (outs.size * itemsize(self.out.dtype)))
        width = -(-span // -(-span // width))
        height = -(-counts[-2] // -(-counts[-2] // self.tile_rows))
        shape = [*(1 for _ in counts[:-2]), height, width]
        for at, sizes in self._tile_loops([*counts[:-1], span], shape, [], []):
            lanes, positions = sizes[-2] * groups, [*sizes[:-1], groups]
            result = self.tile("result", self.op.shape.dtype, [sizes[-1], outs.size], lanes, 3)
            if any(tap.count == 0 for tap in taps):
                self._fill_zeros(result)
            else:
                for column, several in self.builder.pieces(sizes[-1], self._columns_together(outs, taps)):
                    for place, wide in self.builder.pieces(outs.size, self.tile_columns):
                        whole = self._bank(lanes, several * wide)
                        sums = replace(whole, dims=(whole.dims[0], *dense([several, wide], "f32")))
                        for number in range(several):
                            spot = [*at[:-1], at[-1] + (column + number)]
                            bank = sums.index(1, Affine(number))
                            self._sum(terms, bank, spot, positions, Features(place, wide), span)
                        goal_of = result.index(1, column, several).index(2, place, wide)
                        self._leave(goal_of, whole, [several, wide])
            piece = goal
            for axis, (row, extent) in enumerate(zip(at, sizes, strict=True)):
                piece = piece.index(axis, row, extent)
            *outer, rows, columns, features_of = piece.dims
            assert all(atom.size == 1 for atom in outer), "one image at a time"
            if groups > 1:
                rows = Atom(lanes, span * columns.stride)
            copy(self.builder, replace(piece, dims=(rows, columns, features_of)), result, Stream.DMA_STORE)

    def _columns_together(self, outs: OutputsAt, taps: Sequence[Taps]) -> int:
        """Columns whose sums share a bank, so that fewer instructions read PSUM."""
        terms = self.chunks * prod(tap.count for tap in taps)
        return max(1, min(4, self.tile_columns // outs.size, MAX_UNROLLED // terms))

    def _store_positions(self, target: Block, result: Block, first: int) -> None:
        """DMA [positions, features] to [batch, spatial..., features]; one DMA for each run of even pitch."""
        dims = [atom for atom in target.dims[:-1] if atom.size > 1]
        while len(dims) > 1 and dims[-2].stride == dims[-1].stride * dims[-1].size:
            dims[-2:] = [Atom(dims[-2].size * dims[-1].size, dims[-1].stride)]
        if len(dims) > 1:
            inner = prod(atom.size for atom in dims[1:])
            for index in range(dims[0].size):
                offset = target.offset + index * dims[0].stride
                part = replace(target, offset=offset, dims=(*dims[1:], target.dims[-1]))
                self._store_positions(part, result, first + index * inner)
            return
        lane = dims[0] if dims else Atom(1, 0)
        source = replace(result, partition=first, dims=(Atom(lane.size, 1, True), *result.dims[1:]))
        copy(self.builder, replace(target, dims=(lane, target.dims[-1])), source, Stream.DMA_STORE)
