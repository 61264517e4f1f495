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
from dataclasses import replace
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.budget import RESULT_BUFFERS
from neuronx_cc.codegen.dots.plan import PE_DTYPES, TILE_COLUMNS, TILE_ROWS, Segment, Span
from neuronx_cc.codegen.dots.result import DotResult, Part
from neuronx_cc.codegen.dots.stage import batch_start
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.formation.graph import Kernel, takes_row, takes_sum
from neuronx_cc.codegen.movement.halves import carrier_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.codegen.movement.transpose_kernel import SQUARE, turn_squares
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream

TURNED_CHUNKS = 5
"""Chunks of the contracted dim from which turning sums pays."""
UNROLLED_BATCHES = 16
"""Products of a batch that are written out, of all its dims together."""
UNROLLED_TILES = 96
"""Tiles multiplied or transposed in those of them that stand in a loop over the others: where each has many, what
iterations wait for each other is short beside it."""


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


class _Dot(DotResult):
    """Emits one contraction."""

    _staged: tuple[Part, list[Block], list[Block]] | None = None
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
            rhs = self._dense(1)
        self.context.homes[self.result] = [out]
        self.add = self._addend_view(out)
        self._nest(lhs, rhs, out)
        self._run()
        self.pool.free()
        if self.kept is not None:
            self.builder.hbm.free(self.kept)

    def _run(self) -> None:
        self._budget()
        for side in (self.lhs, self.rhs):
            if side.data is not None and (self.accumulate_in_sbuf or len(self.segments) > 1):
                home = self.context.homes_of_constant(side.value)
                side.view = replace(side.view, alloc=home.alloc, offset=side.view.offset + home.offset)
                side.data = None
        self.acc = self.pool.psum(self.builder.sizes.banks // 2, "partial sums")
        if self.lhs.rows_on_lanes or self.rhs.rows_on_lanes:
            self._make_transposer()
        if self.keeps_turned:
            self._keep_turned(self.lhs if self.rhs_outside else self.rhs)
        self._load_bias()
        self._batches([])
        self._multiply_staged()

    def _batches(self, batch: list[Affine]) -> None:
        if len(batch) < len(self.b_sizes):
            unroll = self._unrolled_batches() // prod(self.b_sizes[len(batch) + 1 :])
            for index in self._each(self.b_sizes[len(batch)], unroll):
                self._batches([*batch, index])
            return
        if self.keeps_rows:
            self._multiply_staged()
            self.rows = self._dense_tile(self.out.dtype, [prod(self.n_sizes)], self.tiled_rows, "rows", 2)
        if self.accumulate_in_sbuf:
            for m_at, m_size in self._positions(self.m_sizes, self.m_dim, self.m_block):
                for n_at, n_size in self._positions(self.n_sizes, self.n_dim, self.n_block):
                    self._k_blocks(Part(batch, m_at, n_at, m_size, n_size))
        elif self.rhs_outside:
            self.kept_filled = False
            for n_at, n_size in self._positions(self.n_sizes, self.n_dim, self.n_block, first=self.kept is not None):
                rhs = self._stage(self.rhs, Span(batch, n_at, self.n_dim, n_size))
                for m_at, m_size in self._row_blocks():
                    lhs = self._stage(self.lhs, Span(batch, m_at, self.m_dim, m_size))
                    self._multiply_later(Part(batch, m_at, n_at, m_size, n_size), lhs, rhs)
                self.kept_filled = True
        else:
            self.kept_filled = False
            for m_at, m_size in self._row_blocks():
                lhs = self._stage(self.lhs, Span(batch, m_at, self.m_dim, m_size))
                for n_at, n_size in self._positions(self.n_sizes, self.n_dim, self.n_block):
                    rhs = self._stage(self.rhs, Span(batch, n_at, self.n_dim, n_size))
                    self._multiply_later(Part(batch, m_at, n_at, m_size, n_size), lhs, rhs)
                self.kept_filled = True
        if self.rows is not None:
            self._multiply_staged()
            head = self.out_m[self.m_dim] if self.m_dim >= 0 else Atom(1, 0)
            target = Block(
                self.out.alloc, self.out.dtype, batch_start(self.out, self.out_batch, batch), (head, self.rows.dims[1])
            )
            copy(self.builder, target, self.rows, Stream.DMA_STORE)

    def _unrolled_batches(self) -> int:
        """Products of a batch that are no loop: all of a small one, else so many that they are worth an iteration."""
        if prod(self.b_sizes) <= UNROLLED_BATCHES:
            return UNROLLED_BATCHES
        chunks, rows, columns = (-(-prod(sizes) // TILE_ROWS) for sizes in (self.k_sizes, self.m_sizes, self.n_sizes))
        products = rows * -(-columns * TILE_ROWS // TILE_COLUMNS)
        turned = rows * self.lhs.rows_on_lanes + columns * self.rhs.rows_on_lanes
        return max(1, min(UNROLLED_BATCHES, UNROLLED_TILES // max(1, chunks * (products + turned))))

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

    def _multiply_later(self, block: Part, lhs: list[Block], rhs: list[Block]) -> None:
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

    def _tiles(self, block: Part, lhs: list[Block], rhs: list[Block]) -> None:
        """All PSUM tiles of a block pair."""
        for row in self._tile_rows(block):
            for start, groups, width in self.builder.tiles(block.columns, self.result_columns):
                for group in self.builder.each(groups):
                    self._tile_row(row.cut_columns(group * width + start, width), lhs, rhs)

    def _tile_rows(self, block: Part) -> Iterator[Part]:
        """The rows of a block, as many at a time as PSUM has partitions for."""
        height = block.rows // self.m_group if self.m_group > 1 else TILE_ROWS
        for start, tiles, rows in self.builder.tiles(block.rows, height):
            for index in self.builder.each(tiles):
                row = block.cut_rows(index * rows + start, rows)
                if self.m_group > 1:
                    row = replace(row, m_at={**row.m_at, self.m_dim - 1: row.m_at[self.m_dim - 1] + index})
                yield row

    def _tile_row(self, part: Part, lhs: list[Block], rhs: list[Block]) -> None:
        """The PSUM tiles of some rows; results for HBM are collected into long rows before they are stored."""
        near = self.out.in_sbuf or self.rows is not None
        turned = self._pays_turned(part.rows, lhs)
        target, addend = self._target(part), self._addend(part)
        result = target
        if not near:
            result = self._dense_tile(self.out.dtype, [part.columns], part.rows, "result", RESULT_BUFFERS)
        for start, tiles, columns in self.builder.tiles(part.columns, TILE_COLUMNS):
            for index in self.builder.each(tiles):
                offset = index * columns + start
                tile = part.cut_columns(offset, columns)
                more = None if addend is None else addend.index(1, offset, columns)
                made = result.index(1, offset, columns)
                if turned:
                    self._accumulate_turned(made, lhs, rhs, tile)
                    if more is not None:
                        self._finish(made, made, more)
                    continue
                bank = self._bank(part.rows, columns)
                self._accumulate(bank, lhs, rhs, tile)
                self._add_bias(bank, tile)
                self._finish(made, bank, more)
        if not near:
            copy(self.builder, target, result, Stream.DMA_STORE)

    def _accumulate(self, bank: Block, lhs: list[Block], rhs: list[Block], part: Part) -> None:
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
        few = rows <= SQUARE and sum(left.dims[1].size for left in lhs) >= TURNED_CHUNKS
        return alike and few and self.rhs.resident is not None and self.bias_rows is None

    def _accumulate_turned(self, result: Block, lhs: list[Block], rhs: list[Block], part: Part) -> None:
        """One tile of the result: sums of [columns, rows], then squares of them turned."""
        for start, tiles, columns in self.builder.tiles(part.columns, TILE_ROWS):
            for tile in range(tiles):
                at = start + tile * columns
                swapped = replace(
                    part, m_offset=part.n_offset + at, rows=columns, n_offset=part.m_offset, columns=part.rows
                )
                bank = self._bank(columns, part.rows)
                self._accumulate(bank, rhs, lhs, swapped)
                turn_squares(self.builder, result.index(1, Affine(at), columns), bank)

    def _multiply(self, bank: Block, stationary: Block, moving: Block, accumulate: bool) -> None:
        self.builder.emit("load_stationary", Stream.TENSOR, [], [stationary])
        flags = (["accumulate"] if accumulate else []) + (["tf32"] if self.tf32 and self.pe_dtype == "f32" else [])
        # an accumulating multiply also reads its bank
        self.builder.emit("multiply_moving", Stream.TENSOR, [bank], [moving], flags=flags)

    # k in several blocks ---------------------------------------------------------------------------------------

    def _k_blocks(self, block: Part) -> None:
        """Partial products of k blocks, added up in SBUF in FP32."""
        m_tiles = -(-block.rows // TILE_ROWS)
        sums = self._dense_tile("f32", [m_tiles, block.columns], min(block.rows, TILE_ROWS), "sums", 2)
        first = True
        for segment, box in zip(self.segments, self.k_boxes, strict=True):
            for terms in self._boxes(self.chunk_sizes(segment), box, first):
                self._k_block(block, segment, terms, sums, not first)
                first = False
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

    def _sums(self, block: Part, sums: Block) -> Iterator[tuple[Part, Block]]:
        """The tiles of a block, each with its sums."""
        for start, tiles, rows in self.builder.tiles(block.rows, TILE_ROWS):
            for tile in range(tiles):
                at = start + tile * rows
                lanes = replace(sums, dims=(Atom(rows, 1, True), *sums.dims[1:]))
                yield block.cut_rows(Affine(at), rows), lanes.index(1, Affine(at // TILE_ROWS))

    def _boxes(self, sizes: Sequence[int], box: Sequence[int], first: bool) -> Iterator[tuple[tuple[Affine, int], ...]]:
        """Loop over boxes of dims of these sizes: where each begins, and its size.

        ``first``: the first box is in no loop.
        """
        if not sizes:
            yield ()
            return
        for start, tiles, size in self.builder.tiles(sizes[0], box[0]):
            if first:
                for rest in self._boxes(sizes[1:], box[1:], first):
                    yield ((Affine(start), size), *rest)
                first, start, tiles = False, start + size, tiles - 1
            if tiles:
                with self.builder.loop(tiles) as index:
                    for rest in self._boxes(sizes[1:], box[1:], False):
                        yield ((index * size + start, size), *rest)

    def _k_block(
        self, block: Part, segment: Segment, terms: tuple[tuple[Affine, int], ...], sums: Block, add: bool
    ) -> None:
        """Add the products of one block of k to ``sums``, or begin them."""
        lhs = self._stage(self.lhs, Span(block.batch, block.m_at, self.m_dim, block.rows, terms), [segment])
        rhs = self._stage(self.rhs, Span(block.batch, block.n_at, self.n_dim, block.columns, terms), [segment])
        for part, total in self._sums(block, sums):
            bank = self._bank(part.rows, part.columns)
            self._accumulate(bank, lhs, rhs, part)
            if add:
                self.emitter.over("tensor_tensor", Stream.VECTOR, [total], [total, bank], alu=["add"])
            else:
                self._add_bias(bank, part)
                self.emitter.copy(total, bank)
