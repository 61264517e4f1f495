"""The two orders of loops: sums in PSUM over all of k, or sums in SBUF over blocks of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from neuronx_cc.codegen.dots import splitting
from neuronx_cc.codegen.dots.nest import At, Nest
from neuronx_cc.codegen.dots.problem import Problem
from neuronx_cc.codegen.dots.products import Pair, Products
from neuronx_cc.codegen.dots.result import Finished, Output
from neuronx_cc.codegen.dots.schedule import ROW_BUFFERS, SUM_BUFFERS, Leaves, Schedule, Sums
from neuronx_cc.codegen.dots.span import Part, Span, Terms, heights, in_a_row
from neuronx_cc.codegen.dots.stage import Stage
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.dots.turned import Bank, Turned
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.tiles import dense, in_long_runs
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream

FEW_TILES = 8
"""Tiles of rows that are multiplied one by one while the next block is staged."""


@dataclass(frozen=True, slots=True)
class Loops:
    """What the loops of one contraction do their work with."""

    nest: Nest
    lhs: Stage
    rhs: Stage
    products: Products
    output: Output
    tiles: Tiles
    turned: Turned

    @property
    def problem(self) -> Problem:
        """What is computed."""
        return self.nest.problem

    @property
    def schedule(self) -> Schedule:
        """How."""
        return self.nest.schedule

    @property
    def builder(self) -> Builder:
        """What emits instructions."""
        return self.nest.builder

    def emit(self) -> None:
        """Compute the result."""
        for batch in self.nest.batches():
            if self.schedule.sums is Sums.SBUF:
                for m_at, rows in self.nest.rows():
                    for n_at, columns in self.nest.columns():
                        self._in_k_blocks(Part(batch, m_at, n_at, rows, columns))
            elif self.schedule.sums is Sums.BANKS:
                self._in_open_banks(batch)
            elif self.schedule.leaves is Leaves.ROWS:
                self._collecting_rows(batch)
            else:
                self._whole_k(batch, None)
        self.nest.waiting.multiply()

    def _stage_lhs(self, batch: Sequence[Affine], at: At, rows: int, again: bool = False) -> Sequence[Block]:
        return self.lhs.blocks(self._lhs_span(batch, at, rows), self.problem.segments, again)

    def _lhs_span(self, batch: Sequence[Affine], at: At, rows: int, terms: Terms | None = None) -> Span:
        return Span(batch, at, self.problem.m_dim, rows, terms, self.schedule.group, self.problem.m_around)

    def _stage_rhs(self, batch: Sequence[Affine], at: At, columns: int, again: bool = False) -> Sequence[Block]:
        return self.rhs.blocks(Span(batch, at, self.problem.n_dim, columns), self.problem.segments, again)

    # ---- k whole ----------------------------------------------------------------------------------------------

    def _collecting_rows(self, batch: Sequence[Affine]) -> None:
        """Collect all columns of one batch index, then store them."""
        problem, waiting = self.problem, self.nest.waiting
        waiting.multiply()
        rows = self.tiles.tile(problem.out.dtype, [prod(problem.n)], problem.m_tiled, "rows", ROW_BUFFERS)
        self._whole_k(batch, rows)
        waiting.multiply()
        self.output.store_rows(rows, batch)

    def _whole_k(self, batch: Sequence[Affine], collected: Block | None) -> None:
        """Blocks of one operand stay while those of the other stream past."""
        if self.schedule.stays == "rhs":
            for number, (n_at, columns) in enumerate(self.nest.columns()):
                rhs = self._stage_rhs(batch, n_at, columns)
                output = self.output.begun(batch, n_at, columns)
                for m_at, rows in self.nest.rows():
                    lhs = self._stage_lhs(batch, m_at, rows, again=number > 0)
                    self._multiply_later(output, Part(batch, m_at, n_at, rows, columns), Pair(lhs, rhs), collected)
            return
        for number, (m_at, rows) in enumerate(self.nest.rows()):
            lhs = self._stage_lhs(batch, m_at, rows)
            for n_at, columns in self.nest.columns():
                rhs = self._stage_rhs(batch, n_at, columns, again=number > 0)
                output = self.output.begun(batch, n_at, columns)
                self._multiply_later(output, Part(batch, m_at, n_at, rows, columns), Pair(lhs, rhs), collected)

    def _multiply_later(self, output: Output, block: Part, pair: Pair, collected: Block | None) -> None:
        if self._is_turned(block):
            self.nest.waiting.follow_in_steps(pair, self._in_steps(output, block, pair, collected))
            return
        if (scaling := self.rhs.scaling) is not None and self._has_few_tiles(block):
            steps = self._tiles_in_steps(scaling.steps(block.columns), output, block, pair, collected)
            self.nest.waiting.follow_in_steps(pair, steps)
            return
        if not self._has_few_sums(block):
            self.nest.waiting.follow(pair, partial(self._block, output, block, pair, collected))
            return
        steps = self._sums_first(output, block, pair, collected)
        self.nest.waiting.follow(pair, partial(_exhaust, steps), partial(next, steps))

    def _is_turned(self, block: Part) -> bool:
        """Whether all rows of a block stream past its columns, which are transposed meanwhile."""
        schedule = self.schedule
        few = schedule.group == schedule.beside == 1 and block.rows <= schedule.swapped
        return few and self.problem.rhs.transposed and block.columns <= schedule.columns

    def _has_few_tiles(self, block: Part) -> bool:
        """Whether the tiles of rows of a block are so few that no loop need go through them."""
        schedule, most = self.schedule, FEW_TILES * self.builder.sizes.columns
        return schedule.group == schedule.beside == 1 and schedule.swapped < block.rows <= most

    def _tiles_in_steps(
        self, steps: int, output: Output, block: Part, pair: Pair, collected: Block | None
    ) -> Iterator[None]:
        """A block in so many steps. TensorE has a part in staging the next one, for which all products would wait."""
        most, tall = self.builder.sizes.bank_columns, self.builder.sizes.columns
        chunks = -(-(-(-block.rows // tall) * -(-block.columns // most)) * self.problem.products // steps)
        for row, at in product(block.tiles(tall), range(0, block.columns, self.schedule.columns)):
            part = row.cut_columns(Affine(at), min(self.schedule.columns, block.columns - at))
            target, arrays = output.target(part, collected), output.arrays(part)
            result = self._made_at(target)
            for begin in range(0, part.columns, most):
                offset, columns = Affine(begin), min(most, part.columns - begin)
                tile, bank = part.cut_columns(offset, columns), self.products.bank(part.rows, columns)
                here, *more = (each.index(1, offset, columns) for each in (result, *arrays))
                for first, some in pair.pieces(chunks):
                    self.products.accumulate(bank, tile, some, first)
                    yield
                self.products.add_row(bank, tile)
                output.finish([(here, bank, more)])
            self._store(target, result)

    def _in_steps(self, output: Output, block: Part, pair: Pair, collected: Block | None) -> Iterator[None]:
        """Such a block, a tile of columns at a time; no loop, for what is staged meanwhile is no part of it."""
        target, arrays = output.target(block, collected), output.arrays(block)
        result, most = self._made_at(target), self.builder.sizes.bank_columns
        for start in range(0, block.columns, most):
            offset, columns = Affine(start), min(most, block.columns - start)
            tile = block.cut_columns(offset, columns)
            here, *more = (each.index(1, offset, columns) for each in (result, *arrays))
            banks = self.turned.banks(tile)
            for bank in banks:
                for number in range(bank.tiles):
                    self.turned.add(tile, [bank.tile(number)], pair, True)
                    yield
            sums = output.transposed_sums(here, self.turned.finishes)
            self._turn(sums, banks)
            if sums is not here:
                output.finish([(here, sums, more)], self.turned.scales)
            yield
        self._store(target, result)

    def _turn(self, result: Block, banks: Sequence[Bank]) -> None:
        for bank in banks:
            for start, some in self.turned.pieces(bank, self.turned.whole(bank)):
                self.turned.turn(result.index(1, Affine(start), some.dims[0].size * some.dims[1].size), some)

    def _has_few_sums(self, block: Part) -> bool:
        """Whether a block is one tile of rows whose sums PSUM has room for, all at once."""
        schedule, sizes, ring = self.schedule, self.builder.sizes, self.products.ring
        if schedule.group > 1 or schedule.beside > 1 or not schedule.swapped < block.rows <= sizes.columns:
            return False
        return block.columns <= min(schedule.columns, ring.count // ring.phases * sizes.bank_columns)

    def _sums_first(self, output: Output, block: Part, pair: Pair, collected: Block | None) -> Iterator[None]:
        """The sums of such a block, and then what is made of them."""
        target, arrays = output.target(block, collected), output.arrays(block)
        result = self._made_at(target)
        made = list(self._sum_row(output, block, pair, arrays, result))
        yield
        for start in range(0, len(made), output.together):
            output.finish(made[start : start + output.together])
        self._store(target, result)

    def _block(self, output: Output, block: Part, pair: Pair, collected: Block | None) -> None:
        """All PSUM tiles of a block pair."""
        for row in self._tile_rows(block):
            if row.beside > 1:
                self._tiles_beside(output, row, pair)
                continue
            for start, width in self.builder.pieces(block.columns, self.schedule.columns):
                self._tile_row(output, row.cut_columns(start, width), pair, collected)

    def _tile_rows(self, block: Part) -> Iterator[Part]:
        """The rows of a block, as many at a time as PSUM has partitions for."""
        if self.schedule.group == 1:
            pieces = heights(block.rows, self.builder.sizes.columns, self.schedule.beside)
            with self.builder.unrolled_if(len(pieces) > 1):
                for start, tiles, rows, beside in pieces:
                    for index in self.builder.each(tiles, body=self.schedule.row_body):
                        yield replace(block.cut_rows(index * rows + start, rows), beside=beside)
            return
        for index, count in self.builder.pieces(self.schedule.group, self.schedule.beside):
            yield self._of_group(block, index, count)

    def _of_group(self, block: Part, index: Affine, count: int = 1) -> Part:
        """Some of the tiles that are staged together."""
        around, height = self.problem.m_around, block.rows // self.schedule.group
        at = {**block.m_at, around: block.m_at[around] + index}
        return replace(block, m_at=at, rows=height * count, staged=index * height, beside=count)

    def _tile_row(self, output: Output, part: Part, pair: Pair, collected: Block | None) -> None:
        """The PSUM tiles of some rows; results for HBM are collected into long rows before they are stored."""
        target, arrays = output.target(part, collected), output.arrays(part)
        scaled = part.rows <= self.schedule.swapped and self.turned.scales
        self._leave(output, target, partial(self._sum_row, output, part, pair, arrays), scaled)

    def _tiles_beside(self, output: Output, part: Part, pair: Pair) -> None:
        """The PSUM tiles of neighbouring rows on each partition, stored in one run."""
        target, arrays = output.target(part), output.arrays(part)
        self._leave(output, target, partial(self._sum_beside, part, pair, arrays))

    def _leave(
        self, output: Output, target: Block, sums: Callable[[Block], Iterator[Finished]], scaled: bool = False
    ) -> None:
        """Finish the tiles of ``sums(result)`` as they are made, and store what does not stay where it is made."""
        result = self._made_at(target)
        made: list[Finished] = []
        for tile in sums(result):
            made.append(tile)
            if len(made) == output.together:
                output.finish(made, scaled)
                made = []
        output.finish(made, scaled)
        self._store(target, result)

    def _made_at(self, target: Block) -> Block:
        """Where a part of the result is made: in the order in which the DMA writes long runs."""
        if self.schedule.leaves is not Leaves.TILES:
            return target
        order, rows = in_long_runs(target), target.dims[0].size
        sizes = [target.dims[dim].size for dim in order]
        kept = self.tiles.tile(self.problem.out.dtype, sizes, rows, "result", self.schedule.result_buffers)
        return kept.select([0, *(1 + order.index(dim) for dim in range(1, len(target.dims)))])

    def _store(self, target: Block, result: Block) -> None:
        """What does not stay where it was made."""
        if result is not target:
            order = [0, *in_long_runs(target)]
            copy(self.builder, target.select(order), result.select(order), Stream.DMA_STORE)

    def _sum_row(
        self, output: Output, part: Part, pair: Pair, arrays: Sequence[Block], result: Block
    ) -> Iterator[Finished]:
        """Tiles as wide as a bank. Vector transposes those of short rows, straight to the result if nothing follows."""
        for offset, columns in self.builder.pieces(part.columns, self.builder.sizes.bank_columns):
            tile = part.cut_columns(offset, columns)
            here, *more = (block.index(1, offset, columns) for block in (result, *arrays))
            if part.rows > self.schedule.swapped:
                yield here, self.products.tile(tile, pair), more
                continue
            sums = output.transposed_sums(here, self.turned.finishes)
            banks = self.turned.banks(tile)
            self.turned.add(tile, banks, pair, True)
            self._turn(sums, banks)
            if sums is not here:
                yield here, sums, more

    def _sum_beside(self, part: Part, pair: Pair, arrays: Sequence[Block], result: Block) -> Iterator[Finished]:
        """Tiles of as many neighbours as a bank holds."""
        rows, most = part.rows // part.beside, self.schedule.rows_a_bank(self.problem, self.builder.sizes)
        for start in range(0, part.beside, most):
            count = min(most, part.beside - start)
            bank = self.products.bank(rows, count * part.columns, several=part.beside > most)
            sums = bank.of((bank.dims[0], *dense([count, part.columns], bank.dtype)))
            for number in range(count):
                self.products.accumulate(sums.index(1, Affine(number)), part.of_each_partition(start + number), pair)
            here, *more = (block.index(1, Affine(start), count) for block in (result, *arrays))
            yield here, sums, more

    # ---- k in blocks, sums in open banks ----------------------------------------------------------------------

    def _in_open_banks(self, batch: Sequence[Affine]) -> None:
        """Few tiles of rows, all of their terms on chip; blocks of columns and terms of rhs stream past."""
        (((m_at, rows),)) = tuple(self.nest.rows())
        lhs = self._stage_lhs(batch, m_at, rows)
        for n_at, columns in self.nest.columns():
            block = Part(batch, m_at, n_at, rows, columns)
            output = self.output.begun(batch, n_at, columns)
            if self.problem.out.across:
                self._stream_across(output, block, lhs)
                continue
            if self.schedule.swapped:
                turned = self.turned.banks(block)
                add, leave = partial(self.turned.add, block, turned), partial(self._leave_turned, output, block, turned)
                self._stream(block, lhs, add, leave)
                continue
            banks = [
                [(part, self.products.bank(part.rows, part.columns, several=True)) for part in self._bank_parts(row)]
                for row in self._row_tiles(block)
            ]
            self._stream(block, lhs, partial(self._add_to_banks, banks), partial(self._leave_all, output, block, banks))

    def _stream(
        self,
        block: Part,
        lhs: Sequence[Block],
        add: Callable[[Pair, bool], None],
        leave: Callable[[], None],
    ) -> None:
        """Stage the blocks of k of a block of columns; ``add`` the products of each, of the first ones as such, and let
        the sums ``leave`` after the last.
        """
        segments, first = self.problem.segments, True
        with self.builder.unrolled():
            for segment, terms, last in self.nest.terms():
                span = Span(block.batch, block.n_at, self.problem.n_dim, block.columns, terms)
                right = self.rhs.blocks(span, [segment], False)
                chunks = in_a_row(terms, self.problem.chunks(segment))
                left = [each.index(1, *chunks) for each in lhs[segments.index(segment) :: len(segments)]]
                steps: list[Callable[[], None]] = [partial(add, Pair(left, right), first)]
                self.nest.waiting.follow(Pair(lhs, right), partial(_each, [*steps, leave] if last else steps))
                first = False

    def _stream_across(self, output: Output, block: Part, lhs: Sequence[Block]) -> None:
        """Columns are stationary, and rows stream past them: sums [columns, rows] lie side by side in one bank."""
        problem, rows = self.problem, block.rows
        columns, most = block.columns // problem.out.across, problem.columns_a_bank(self.builder.sizes)
        banks: list[Block] = []
        for start in range(0, columns, most):
            sizes = [min(most, columns - start), problem.side_by_side, rows]
            bank = self.products.bank(problem.out.across, prod(sizes), several=columns > most)
            banks.append(bank.of((bank.dims[0], *dense(sizes, bank.dtype))))
        sums = [bank.index(1, Affine(column)) for bank in banks for column in range(bank.dims[1].size)]
        self._stream(
            block, lhs, partial(self._add_across, sums), partial(self._leave_across, output, block, banks, sums)
        )

    def _add_across(self, sums: Sequence[Block], pair: Pair, first: bool) -> None:
        self.products.add_up(list(zip(sums, pair.across(self.problem.out), strict=True)), first)

    def _leave_across(self, output: Output, block: Part, banks: Sequence[Block], sums: Sequence[Block]) -> None:
        if self.products.bias is not None:
            self.products.bias.add_across([each.index(1, Affine(0)) for each in sums], block)
        if self.problem.side_by_side > 1:
            made = splitting.sum_up(output.emitter, self.tiles, banks)
        else:
            (made,) = banks
        target = output.target(block)
        sizes = [atom.size for atom in target.dims[1:]]
        output.finish([(target, made.of((made.dims[0], *dense(sizes, made.dtype))), output.arrays(block))])

    def _row_tiles(self, block: Part) -> Iterator[Part]:
        grouped = self.schedule.group > 1
        for tile in (self._of_group(block, Affine(at)) for at in range(self.schedule.group)) if grouped else (block,):
            for start in range(0, tile.rows, self.builder.sizes.columns):
                yield tile.cut_rows(Affine(start), min(tile.rows - start, self.builder.sizes.columns))

    def _bank_parts(self, row: Part) -> Iterator[Part]:
        for start in range(0, row.columns, self.builder.sizes.bank_columns):
            yield row.cut_columns(Affine(start), min(row.columns - start, self.builder.sizes.bank_columns))

    def _add_to_banks(self, banks: Sequence[Sequence[tuple[Part, Block]]], pair: Pair, first: bool) -> None:
        """``banks``: of each tile of rows.

        What is converted is there piece by piece; else sums of one bank leave while those of the next are made.
        """
        for row in banks:
            for tiles in [row] if self.problem.rhs.converted else [[each] for each in row]:
                self.products.accumulate_all(tiles, pair, first)

    def _leave_all(self, output: Output, block: Part, banks: Sequence[Sequence[tuple[Part, Block]]]) -> None:
        for tile, row in zip(self._row_tiles(block), banks, strict=True):
            self._leave_banks(output, tile, row)

    def _leave_banks(self, output: Output, block: Part, banks: Sequence[tuple[Part, Block]]) -> None:
        """Sums go where the result wants them, with what the kernel adds."""
        chip = self.schedule.leaves is Leaves.CHIP
        target, arrays = output.target(block), output.arrays(block)
        result = target
        if not chip:
            result = self._result_tile(block)
        made = []
        for part, bank in banks:
            if self.products.bias is not None:
                self.products.bias.add(bank, part)
            more = [array.index(1, part.n_offset, part.columns) for array in arrays]
            made.append((result.index(1, part.n_offset, part.columns), bank, more))
        output.finish(made)
        if not chip:
            copy(self.builder, target, result, Stream.DMA_STORE)

    def _leave_turned(self, output: Output, block: Part, banks: Sequence[Bank]) -> None:
        """The same of sums that are to be transposed."""
        target, arrays = output.target(block), output.arrays(block)
        result = target if self.schedule.leaves is Leaves.CHIP else self._result_tile(block)
        for bank in banks:
            for start, some in self.turned.pieces(bank, self.turned.whole(bank)):
                at, size = Affine(start), some.dims[0].size * some.dims[1].size
                here, *more = (each.index(1, at, size) for each in (result, *arrays))
                sums = output.transposed_sums(here, self.turned.finishes)
                self.turned.turn(sums, some)
                if sums is not here:
                    output.finish([(here, sums, more)], self.turned.scales)
        if result is not target:
            copy(self.builder, target, result, Stream.DMA_STORE)

    def _result_tile(self, block: Part) -> Block:
        dtype, buffers = self.problem.out.dtype, self.schedule.result_buffers
        return self.tiles.tile(dtype, [block.columns], block.rows, "result", buffers)

    # ---- k in blocks ------------------------------------------------------------------------------------------

    def _in_k_blocks(self, block: Part) -> None:
        """Partial products of blocks of k, added up in SBUF in FP32."""
        height = min(self.builder.sizes.columns, block.rows // self.schedule.group)
        dims = [-(-block.rows // height), block.columns]
        output = self.output.begun(block.batch, block.n_at, block.columns)
        sums = self.tiles.tile("f32", dims, height, "sums", SUM_BUFFERS)
        add = False
        with self.builder.unrolled():
            for segment, terms, last in self.nest.terms():
                spans = (
                    self._lhs_span(block.batch, block.m_at, block.rows, terms),
                    Span(block.batch, block.n_at, self.problem.n_dim, block.columns, terms),
                )
                lhs, rhs = (
                    stage.blocks(span, [segment], False)
                    for stage, span in zip((self.lhs, self.rhs), spans, strict=True)
                )
                pair = Pair(lhs, rhs)
                work = partial(self._leave_block, output) if last else self._add_block
                self.nest.waiting.follow(pair, partial(work, block, pair, sums, add))
                add = True
            self.nest.waiting.multiply()

    def _sums(self, block: Part, sums: Block) -> Iterator[tuple[Part, Block]]:
        """The rows of a block, as many at a time as PSUM has partitions for, each with its sums."""
        height = sums.dims[0].size
        for number in range(sums.dims[1].size):
            start = number * height
            rows = block.cut_rows(Affine(start), min(height, block.rows - start))
            part = rows if self.schedule.group == 1 else self._of_group(block, Affine(number))
            partitions = sums.of((Atom(part.rows, 1, True), *sums.dims[1:]))
            yield part, partitions.index(1, Affine(number))

    def _add_block(self, block: Part, pair: Pair, sums: Block, add: bool) -> None:
        """Add the products of one block of k to ``sums``, or begin them."""
        for rows, total in self._sums(block, sums):
            self._add_rows(rows, pair, total, total if add else None)

    def _leave_block(self, output: Output, block: Part, pair: Pair, sums: Block, add: bool) -> None:
        """Products of the last block of k, with ``sums``, go where the result wants them."""
        dtype, chip = self.problem.out.dtype, self.schedule.leaves is Leaves.CHIP
        for rows, total in self._sums(block, sums):
            target, arrays = output.target(rows), output.arrays(rows)
            result = target
            if not chip:
                result = self.tiles.tile(dtype, [rows.columns], rows.rows, "result", self.schedule.result_buffers)
            direct = self.problem.epilogue is None and self.problem.factor == 1
            into = result if direct else total
            self._add_rows(rows, pair, into, total if add else None)
            if not direct:
                output.finish([(result, into, arrays)])
            if not chip:
                copy(self.builder, target, result, Stream.DMA_STORE)

    def _add_rows(self, rows: Part, pair: Pair, into: Block, total: Block | None) -> None:
        """``into = products``, with the bias, or ``total + products``; a bank at a time."""
        for start, tiles, columns in self.builder.tiles(rows.columns, self.builder.sizes.bank_columns):
            for tile in range(tiles):
                at = Affine(start + tile * columns)
                bank = self.products.tile(rows.cut_columns(at, columns), pair, biased=total is None)
                more = None if total is None else total.index(1, at, columns)
                self.output.add(into.index(1, at, columns), bank, more)


def _exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def _each(steps: Sequence[Callable[[], None]]) -> None:
    for step in steps:
        step()
