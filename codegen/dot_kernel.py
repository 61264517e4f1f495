"""Contractions on TensorE.

``out[b, m, n] = sum_k lhs[b, m, k] * rhs[b, n, k]``: the array wants k on the partitions of both
operands; lhs tiles are stationary, rhs tiles stream through, and m lands on the partitions of PSUM.
An operand with k on its partitions (in SBUF, or loaded so from HBM) is used as it is; one whose rows
lie on the partitions is transposed by TensorE, 128 x 128 at a time and bit for bit. Blocks of both
operands are staged in SBUF; partial sums stay in PSUM over all of k, or are added up in SBUF where k
needs several blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from neuronx_cc.codegen.builder import Affine, Block
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dot_budget import RESULT_BUFFERS, RESULT_COLUMNS
from neuronx_cc.codegen.dot_plan import PE_DTYPES, TILE_COLUMNS, TILE_ROWS
from neuronx_cc.codegen.dot_stage import DotStaging, Span, batch_start, narrow_parts, strided
from neuronx_cc.codegen.graph import Kernel, takes_row, takes_sum
from neuronx_cc.codegen.halves import carrier_of
from neuronx_cc.codegen.map_plan import is_given
from neuronx_cc.codegen.tiles import dense
from neuronx_cc.codegen.transfer import copy
from neuronx_cc.codegen.views import Atom, View, align
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.program import Stream

TURNED_SIDE = 32
"""Rows and columns of the squares that Vector turns."""
TURNED_CHUNKS = 5
"""Chunks of the contracted dim from which turning sums pays."""


def lower(context: Context, kernel: Kernel, step: int) -> None:
    """Emit the contraction (and the bias that the kernel adds to it) and give the result a home."""
    op = kernel.ops[0]
    assert isinstance(op, hlo.DotOp)
    bias = addend = None
    if len(kernel.ops) > 1:
        bias = takes_row(Kernel(0, [op]), kernel.ops[1])
        addend = takes_sum(Kernel(0, [op]), kernel.ops[1]) if bias is None else None
        assert bias is not None or addend is not None, "kernel formation found what is added"
    _Dot(context, op, kernel.ops[-1].results[0], bias, step, addend).emit()


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows and columns of the result."""

    batch: list[Affine]
    m_at: dict[int, Affine]
    """Where the block of rows begins, along each dim of the rows."""
    n_at: dict[int, Affine]
    rows: int
    columns: int
    m_offset: Affine = field(default_factory=Affine)
    """From the beginning of the block to the first row."""
    n_offset: Affine = field(default_factory=Affine)

    def cut_rows(self, offset: Affine, rows: int) -> _Part:
        """``rows`` of these, from ``offset`` on."""
        return replace(self, m_offset=self.m_offset + offset, rows=rows)

    def cut_columns(self, offset: Affine, columns: int) -> _Part:
        """``columns`` of these, from ``offset`` on."""
        return replace(self, n_offset=self.n_offset + offset, columns=columns)


class _Dot(DotStaging):
    """Emits one contraction."""

    rows: Block | None = None
    """All columns of the results of the current batch index, where they are stored together."""
    _staged: tuple[_Part, list[Block], list[Block]] | None = None
    """A block pair that is still to be multiplied."""

    def emit(self) -> None:
        if self.op.shape.size == 0:
            self.context.homes[self.result] = [self.context.new_hbm(self.result)]
            return
        lhs, rhs = self._choose()
        for dtype in sorted({self.pe_dtype, *(view.dtype for view in (lhs, rhs) if view.dtype in PE_DTYPES)}):
            # made here because staging asks for them inside loops
            self.context.identity(carrier_of(dtype, self.fast(dtype)))
        out = self._choose_output(lhs)
        if self._scatters(rhs, out):
            rhs = self._dense(self.op.rhs, self.rhs_order)
        self.context.homes[self.result] = [out]
        for attempt in range(3):
            if self._refine(lhs, rhs, out):
                break
            lhs = self._dense(self.op.lhs, self.lhs_order)
            if attempt:
                rhs = self._dense(self.op.rhs, self.rhs_order)
        else:
            raise CompileError("IDOT001", "operand layouts of the dot do not nest", "report this", self.op.loc)
        self._run()
        for ring in self.rings:
            self.builder.sbuf.free(ring.alloc)
        for ring in self.psum_rings:
            self.builder.psum.free(ring.alloc)
        if self.kept is not None:
            self.builder.hbm.free(self.kept)

    def _run(self) -> None:
        self._budget()
        for side in (self.lhs, self.rhs):
            if side.data is not None and (self.accumulate_in_sbuf or len(self.segments) > 1):
                home = self.context.homes_of_constant(side.value)
                side.view = replace(side.view, alloc=home.alloc, offset=side.view.offset + home.offset)
                side.data = None
        self.acc = self._psum_ring(4)
        needs_transpose = self.lhs.rows_on_lanes or self.rhs.rows_on_lanes
        self.turn = self._psum_ring(4) if needs_transpose else None
        if self.keeps_turned:
            self._keep_turned(self.lhs if self.rhs_outside else self.rhs)
        self._load_bias()
        self._batches([])
        self._multiply_staged()

    def _load_bias(self) -> None:
        """The whole row of the bias in the order of the refined n dims: FP32 on partition 0, or narrow parts of it."""
        self.bias_rows: Block | None = None
        if self.bias is None:
            return
        free = len(self.n_dims)
        literal = self.context.literal(self.bias)
        view = self.context.hbm(self.bias) if literal is None else literal[0]
        view = replace(view, dims=view.dims[-free:])
        space = align([view, replace(self.out, dims=self.out.dims[-free:])], view.shape)
        assert space is not None, "the row aligns with the result"
        parts = None
        if literal is not None:
            parts = narrow_parts(strided(literal[1], view.offset, space.atoms[0]).reshape(-1))
            if parts is None:
                home = self.context.homes_of_constant(self.bias)
                view = replace(view, alloc=home.alloc, offset=view.offset + home.offset)
        total = prod(space.sizes)
        if parts is None:
            source = Block(view.alloc, view.dtype, Affine(view.offset), (Atom(1, 0), *space.atoms[0]))
        else:
            home = self.context.constant(parts, "bf16", f"{hlo.loc_of(self.bias).name}.parts")
            rows = (Atom(len(parts), 2 * total), *dense(space.sizes, "bf16"))
            source = Block(home.alloc, "bf16", Affine(home.offset), rows)
        dtype, terms = ("f32", 1) if parts is None else ("bf16", len(parts))
        self.context.ones(1, dtype, terms)
        self.bias_rows = self._dense_tile(dtype, [total], terms, "bias", 1)
        target = replace(self.bias_rows, dims=(Atom(terms, 1, True), *dense(space.sizes, dtype)))
        copy(self.builder, target, source, Stream.DMA_WEIGHT)

    def _add_bias(self, bank: Block, part: _Part) -> None:
        """Accumulate ones[rows] x bias[columns] into a PSUM tile."""
        if self.bias_rows is None:
            return
        position, stride = Affine(), 1
        for dim in reversed(range(len(self.n_sizes))):
            position = position + part.n_at[dim] * stride
            if dim == self.n_dim:
                position = position + part.n_offset * stride
                step = stride
            stride *= self.n_sizes[dim]
        lanes, along = self.bias_rows.dims
        row = replace(
            self.bias_rows,
            offset=self.bias_rows.offset + position * along.stride,
            dims=(lanes, Atom(part.columns, along.stride * step if self.n_sizes else along.stride)),
        )
        ones = self.context.ones(part.rows, row.dtype, lanes.size)
        self.builder.emit("load_stationary", Stream.TENSOR, [], [ones])
        self.builder.emit("multiply_moving", Stream.TENSOR, [bank], [row], flags=["accumulate"])

    def _batches(self, batch: list[Affine]) -> None:
        if len(batch) < len(self.b_sizes):
            for index in self._each(self.b_sizes[len(batch)], 16):
                self._batches([*batch, index])
            return
        if self.keeps_rows:
            self._multiply_staged()
            lanes = self.m_sizes[self.m_dim] if self.m_dim >= 0 else 1
            self.rows = self._dense_tile(self.out.dtype, [prod(self.n_sizes)], lanes, "rows", 2)
        if self.accumulate_in_sbuf:
            for m_at, m_size in self._positions(self.m_sizes, self.m_dim, self.m_block):
                for n_at, n_size in self._positions(self.n_sizes, self.n_dim, self.n_block):
                    self._k_blocks(_Part(batch, m_at, n_at, m_size, n_size))
        elif self.rhs_outside:
            self.kept_filled = False
            for n_at, n_size in self._positions(self.n_sizes, self.n_dim, self.n_block, first=self.kept is not None):
                rhs = self._stage(self.rhs, Span(batch, n_at, self.n_dim, n_size))
                for m_at, m_size in self._row_blocks():
                    lhs = self._stage(self.lhs, Span(batch, m_at, self.m_dim, m_size))
                    self._multiply_later(_Part(batch, m_at, n_at, m_size, n_size), lhs, rhs)
                self.kept_filled = True
        else:
            self.kept_filled = False
            for m_at, m_size in self._row_blocks():
                lhs = self._stage(self.lhs, Span(batch, m_at, self.m_dim, m_size))
                for n_at, n_size in self._positions(self.n_sizes, self.n_dim, self.n_block):
                    rhs = self._stage(self.rhs, Span(batch, n_at, self.n_dim, n_size))
                    self._multiply_later(_Part(batch, m_at, n_at, m_size, n_size), lhs, rhs)
                self.kept_filled = True
        if self.rows is not None:
            self._multiply_staged()
            head = self.out_m[self.m_dim] if self.m_dim >= 0 else Atom(1, 0)
            target = Block(
                self.out.alloc, self.out.dtype, batch_start(self.out, self.out_batch, batch), (head, self.rows.dims[1])
            )
            copy(self.builder, target, self.rows, Stream.DMA_STORE)

    def _row_blocks(self) -> Iterator[tuple[dict[int, Affine], int]]:
        """As ``_positions`` for the rows, several tiles of them where these are staged together."""
        outside, sizes = self.m_dim - 1, list(self.m_sizes)
        if self.m_group == 1:
            first = self.kept is not None and not self.rhs_outside
            yield from self._positions(sizes, self.m_dim, self.m_block, first=first)
            return
        sizes[outside] //= self.m_group
        for m_at, m_size in self._positions(sizes, self.m_dim, self.m_block):
            yield {**m_at, outside: m_at[outside] * self.m_group}, m_size * self.m_group

    def _positions(
        self,
        sizes: Sequence[int],
        tile_dim: int,
        block: int,
        at: dict[int, Affine] | None = None,
        first: bool = False,
    ) -> Iterator[tuple[dict[int, Affine], int]]:
        """Loop over all dims of one side: the index of each, and the size of the block along ``tile_dim``.

        ``first``: the first block is not part of a loop.
        """
        at, unroll = at or {}, self.unrolled_blocks
        left = [dim for dim in range(len(sizes)) if dim != tile_dim and dim not in at]
        if left:
            for index in self._each(sizes[left[0]], unroll):
                yield from self._positions(sizes, tile_dim, block, {**at, left[0]: index})
            return
        pieces = self.builder.tiles(sizes[tile_dim] if tile_dim >= 0 else 1, block)
        if first and pieces[0][1] > unroll:
            _, tiles, size = pieces[0]
            pieces[:1] = [(0, 1, size), (size, tiles - 1, size)]
        for start, tiles, size in pieces:
            for index in self._each(tiles, unroll):
                yield {**at, tile_dim: index * size + start}, size

    def _each(self, count: int, unroll: int) -> Iterator[Affine]:
        """As the builder's; what is staged in one pass of a loop is multiplied in the same."""
        if count > unroll:
            self._multiply_staged()
        for index in self.builder.each(count, unroll):
            yield index
            if count > unroll:
                self._multiply_staged()

    def _multiply_later(self, block: _Part, lhs: list[Block], rhs: list[Block]) -> None:
        """Multiply a block pair once the next one is staged: TensorE then has work while transposes leave PSUM."""
        self._multiply_staged()
        self._staged = block, lhs, rhs

    def _unread(self) -> list[Block]:
        return [] if self._staged is None else [*self._staged[1], *self._staged[2]]

    def _multiply_staged(self) -> None:
        staged, self._staged = self._staged, None
        if staged is not None:
            self._tiles(*staged)

    # the array -------------------------------------------------------------------------------------------------

    def _tiles(self, block: _Part, lhs: list[Block], rhs: list[Block]) -> None:
        """All PSUM tiles of a block pair; results for HBM are collected into long rows before they are stored."""
        near = self.out.in_sbuf or self.rows is not None
        for m_start, m_tiles, rows in self.builder.tiles(
            block.rows, block.rows // self.m_group if self.m_group > 1 else TILE_ROWS
        ):
            for m_index in self.builder.each(m_tiles):
                row = block.cut_rows(m_index * rows + m_start, rows)
                if self.m_group > 1:
                    row = replace(row, m_at={**row.m_at, self.m_dim - 1: row.m_at[self.m_dim - 1] + m_index})
                for start, groups, width in self.builder.tiles(block.columns, RESULT_COLUMNS):
                    for group in self.builder.each(groups):
                        part = row.cut_columns(group * width + start, width)
                        target = self._target(part)
                        addend = self._addend(part)
                        result = target
                        if not near:
                            result = self._dense_tile(self.out.dtype, [width], rows, "result", RESULT_BUFFERS)
                        for n_start, n_tiles, columns in self.builder.tiles(width, TILE_COLUMNS):
                            for n_index in self.builder.each(n_tiles):
                                n_offset = n_index * columns + n_start
                                tile = part.cut_columns(n_offset, columns)
                                more = None if addend is None else addend.index(1, n_offset, columns)
                                made = result.index(1, n_offset, columns)
                                if self._pays_turned(rows, lhs):
                                    self._accumulate_turned(made, lhs, rhs, tile)
                                    if more is not None:
                                        self._finish(made, made, more)
                                    continue
                                bank = self._bank(rows, columns)
                                self._accumulate(bank, lhs, rhs, tile)
                                self._add_bias(bank, tile)
                                self._finish(made, bank, more)
                        if not near:
                            copy(self.builder, target, result, Stream.DMA_STORE)

    def _bank(self, rows: int, columns: int) -> Block:
        return Block(self.acc.alloc, "f32", self.builder.slot(self.acc), (Atom(rows, 1, True), Atom(columns, 4)))

    def _accumulate(self, bank: Block, lhs: list[Block], rhs: list[Block], part: _Part) -> None:
        """One PSUM tile over all chunks of all segments."""
        first = True
        for left, right in zip(lhs, rhs, strict=True):
            chunks = left.dims[1].size
            left = left.index(2, part.m_offset, part.rows)
            right = right.index(2, part.n_offset, part.columns)
            if chunks > 8:
                self._multiply(bank, left.index(1, Affine(0)), right.index(1, Affine(0)), not first)
                first = False
                with self.builder.loop(chunks - 1) as index:
                    self._multiply(bank, left.index(1, index + 1), right.index(1, index + 1), True)
                continue
            for chunk in range(chunks):
                self._multiply(bank, left.index(1, Affine(chunk)), right.index(1, Affine(chunk)), not first)
                first = False

    def _pays_turned(self, rows: int, lhs: list[Block]) -> bool:
        """Whether the few rows should stream past the columns, and Vector turn the sums.

        In FP32 that halves TensorE's time, and takes Vector as long as what is left of four or five chunks. Where the
        columns are not on chip already, they take longer to arrive.
        """
        alike = self.pe_dtype == self.out.dtype == "f32" and not self.tf32 and self.m_group == 1
        few = rows <= TURNED_SIDE and sum(left.dims[1].size for left in lhs) >= TURNED_CHUNKS
        return alike and few and self.rhs.resident is not None and self.bias_rows is None

    def _accumulate_turned(self, result: Block, lhs: list[Block], rhs: list[Block], part: _Part) -> None:
        """One tile of the result: sums of [columns, rows], then squares of them turned."""
        for start, tiles, columns in self.builder.tiles(part.columns, TILE_ROWS):
            for tile in range(tiles):
                at = start + tile * columns
                swapped = replace(
                    part, m_offset=part.n_offset + at, rows=columns, n_offset=part.m_offset, columns=part.rows
                )
                bank = self._bank(columns, part.rows)
                self._accumulate(bank, rhs, lhs, swapped)
                for first in range(0, columns, TURNED_SIDE):
                    side = min(TURNED_SIDE, columns - first)
                    square = replace(bank, partition=first, dims=(Atom(side, 1, True), bank.dims[1]))
                    turned = result.index(1, Affine(at + first), side)
                    self.builder.emit("transpose", Stream.VECTOR, [turned], [square])

    def _multiply(self, bank: Block, stationary: Block, moving: Block, accumulate: bool) -> None:
        self.builder.emit("load_stationary", Stream.TENSOR, [], [stationary])
        flags = (["accumulate"] if accumulate else []) + (["tf32"] if self.tf32 and self.pe_dtype == "f32" else [])
        # an accumulating multiply also reads its bank
        self.builder.emit("multiply_moving", Stream.TENSOR, [bank], [moving], flags=flags)

    def _target(self, part: _Part) -> Block:
        """Where a part of the result is written."""
        if self.rows is None:
            return self._part(self.out, (self.out_batch, self.out_m, self.out_n), part)
        kept = replace(self.out, alloc=self.rows.alloc, offset=self.rows.offset.const, terms=self.rows.offset.terms)
        lanes = [Atom(atom.size, 1, True) for atom in self.out_m]
        return self._part(kept, ([], lanes, self.out_n), replace(part, batch=[]))

    def _addend(self, at: _Part) -> Block | None:
        """What is added to a part of the result: where it lies on chip, or loaded."""
        if self.addend is None:
            return None
        source = self._part(self.add, (self.add_batch, self.add_m, self.add_n), at)
        if self.add.in_sbuf:
            return source
        tile = self._dense_tile(self.add.dtype, [at.columns], at.rows, "addend", RESULT_BUFFERS)
        copy(self.builder, tile, source, Stream.DMA_WEIGHT if is_given(self.addend) else Stream.DMA_LOAD)
        return tile

    def _finish(self, result: Block, sums: Block, addend: Block | None) -> None:
        """``result = sums``, with what the kernel adds."""
        if addend is None:
            self._leave_psum(result, sums)
        else:
            self.emitter.over("tensor_tensor", Stream.VECTOR, [result], [sums, addend], alu=["add"])

    def _part(self, view: View, atoms: tuple[Sequence[Atom], Sequence[Atom], Sequence[Atom]], at: _Part) -> Block:
        """Rows and columns of an array with the dims of the result."""
        offset = batch_start(view, atoms[0], at.batch)
        lanes = Atom(at.rows, 1 if view.in_sbuf else 0, view.in_sbuf)
        for dim, atom in enumerate(atoms[1]):
            if atom.partition:
                continue
            offset = offset + at.m_at[dim] * atom.stride
            if dim == self.m_dim:
                offset = offset + at.m_offset * atom.stride
                lanes = Atom(at.rows, atom.stride)
        free = Atom(at.columns, 0)
        for dim, atom in enumerate(atoms[2]):
            offset = offset + at.n_at[dim] * atom.stride
            if dim == self.n_dim:
                offset = offset + at.n_offset * atom.stride
                free = Atom(at.columns, atom.stride)
        if view.in_sbuf and not lanes.partition:
            raise AssertionError("an on-chip result has its rows on the partitions")
        return Block(view.alloc, view.dtype, offset, (lanes, free))

    # k in several blocks ---------------------------------------------------------------------------------------

    def _k_blocks(self, block: _Part) -> None:
        """Partial products of k blocks, added up in SBUF in FP32."""
        m_tiles = -(-block.rows // TILE_ROWS)
        sums = self._dense_tile("f32", [m_tiles, block.columns], min(block.rows, TILE_ROWS), "sums", 2)
        whole = self.segments
        first = True
        for segment in whole:
            for start, tiles, size in self.builder.tiles(segment.outer, self.k_block):
                self.segments = [segment]
                if first:
                    self._k_block(block, Affine(start), size, sums, False)
                    first = False
                    start, tiles = start + size, tiles - 1
                if tiles:
                    with self.builder.loop(tiles) as index:
                        self._k_block(block, index * size + start, size, sums, True)
        self.segments = whole
        for part, total in self._sums(block, sums):
            target = self._target(part)
            addend = self._addend(part)
            if self.out.in_sbuf:
                self._finish(target, total, addend)
                continue
            if addend is not None:
                self._finish(total, total, addend)
            if self.out.dtype != "f32":
                cast = self._dense_tile(self.out.dtype, [part.columns], part.rows, "result", 2)
                self.emitter.copy(cast, total)
                total = cast
            copy(self.builder, target, total, Stream.DMA_STORE)

    def _sums(self, block: _Part, sums: Block) -> Iterator[tuple[_Part, Block]]:
        """The tiles of a block, each with its sums."""
        for start, tiles, rows in self.builder.tiles(block.rows, TILE_ROWS):
            for tile in range(tiles):
                at = start + tile * rows
                lanes = replace(sums, dims=(Atom(rows, 1, True), *sums.dims[1:]))
                yield block.cut_rows(Affine(at), rows), lanes.index(1, Affine(at // TILE_ROWS))

    def _k_block(self, block: _Part, first: Affine, steps: int, sums: Block, add: bool) -> None:
        lhs = self._stage(self.lhs, Span(block.batch, block.m_at, self.m_dim, block.rows, first, steps))
        rhs = self._stage(self.rhs, Span(block.batch, block.n_at, self.n_dim, block.columns, first, steps))
        for part, total in self._sums(block, sums):
            bank = self._bank(part.rows, part.columns)
            self._accumulate(bank, lhs, rhs, part)
            if add:
                self.emitter.over("tensor_tensor", Stream.VECTOR, [total], [total, bank], alu=["add"])
            else:
                self._add_bias(bank, part)
                self.emitter.copy(total, bank)
