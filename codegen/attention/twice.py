"""Scores computed twice: once for the greatest of each row, then with the columns on the partitions.

The second product is what TensorE multiplies with the values, so nothing is transposed, and no score leaves PSUM but as
an exponential. The greatest score of a row lies along the free dim there: TensorE subtracts it, as one more term of the
contraction, in ``PARTS`` numbers of BF16 whose sum is near enough; whatever is subtracted, it is the same for all of a
row. A column of ones beside the values adds up the exponentials. Rows that are not finite stay by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neuronx_cc.codegen.attention.block import Work
from neuronx_cc.codegen.attention.masks import ALU
from neuronx_cc.codegen.attention.operands import Rows, Staged, Under
from neuronx_cc.codegen.attention.schedule import PARTS, RAW_BUFFERS, UNDER_WAY
from neuronx_cc.codegen.attention.steps import Step, first_with_weight
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import pieces, tile_in
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.isa.program import Stream

MOST = (2 - 2.0**-7) * 2.0**127
"""The largest number of BF16."""


@dataclass(slots=True)
class Twice(Work):
    """The work on a block of rows; between its stages are as many blocks as between those of other forms."""

    @property
    def _value_terms(self) -> int:
        """A one after the features of each value."""
        return self.problem.width + 1

    def stage(self, at: tuple[Affine, ...], first: int) -> Staged:
        """Keys [term, chunk, head, column] and values [column, chunk, head, feature], with ones after them."""
        staged = Work.stage(self, at, first)
        ones = staged.tiles["values"].index(3, Affine(self.problem.width), 1)
        self._emit("memset", Stream.GPSIMD, [ones], [], [], [1.0])
        return staged

    @property
    def _scores_factor(self) -> float:
        """Exponentials are of the scores times the factor."""
        return 1.0

    # ---- the greatest scores ---------------------------------------------------------------------------------

    def scores(self, under: Under) -> Iterator[None]:
        """The greatest score of each row [row, head], negative; with a step for each bank."""
        rows, heads, bank = under.rows, self.schedule.together, self.context.sizes.bank_columns
        begin = self._begin(under)
        places = [(begin + start, size) for start, size in pieces(under.columns - begin, bank)]
        cut = [(start, self._cut(rows, start, size)) for start, size in places]
        cut = cut[::-1]  # what masks leave something out of comes late by its numbers, and has a longer way
        count = sum(len(parts) for _, parts in cut)
        greatest = self._tile("greatest of parts", "f32", [heads, count], rows.size, UNDER_WAY)
        negative = ["negate"] * (count == 1)
        later: list[tuple[Block, Block]] = []
        for head, beside in pieces(heads, max(1, bank // (under.columns - begin))):
            queries, keys = self._operands(under, head, beside)
            number = 0
            for start, parts in cut:
                self._mark(self.attention.scores)
                sizes = [beside, sum(size for size, _ in parts)]
                scores = tile_in(self.context.builder, self._scores, sizes, "f32", rows.size, True)
                yield from self._products(scores, queries, keys, start)
                place = 0
                for size, masked in parts:
                    part = scores.index(2, Affine(place), size)
                    most = greatest.index(1, Affine(head), beside).index(2, Affine(number))
                    if masked:
                        if len(later) == RAW_BUFFERS:
                            self._greatest_of(*later.pop(0), negative)
                        later.append((most, self._without(masked, rows, part, start + place)))
                    else:
                        self._greatest_of(most, part, negative)
                    place, number = place + size, number + 1
        for most, part in later:
            self._greatest_of(most, part, negative)
        under.tiles["most"] = greatest.index(2, Affine())
        if count > 1:
            own = under.tiles["most"] = self._tile("greatest", "f32", [heads], rows.size, UNDER_WAY)
            self._emit("tensor_reduce", Stream.VECTOR, [own], [greatest], ["max"], flags=["negate"])

    def _greatest_of(self, most: Block, scores: Block, flags: list[str]) -> None:
        self._mark(self.attention.product)
        self._emit("tensor_reduce", Stream.VECTOR, [most], [scores], ["max"], flags=flags)

    def _cut(self, rows: Rows, first: int, size: int) -> list[tuple[int, list[Step]]]:
        """Sizes of parts of ``size`` columns from ``first`` on, and the masks that leave something out of them: chunks
        that all rows of the block keep, and others.
        """
        found: list[tuple[int, list[Step]]] = []
        for start, part in pieces(size, self.context.sizes.rows):
            masked = self._masks(rows, first + start, part)
            if found and bool(found[-1][1]) == bool(masked):
                before, others = found[-1]
                found[-1] = before + part, others + [step for step in masked if step not in others]
            else:
                found.append((part, masked))
        return found

    def _masks(self, rows: Rows, first: int, size: int) -> list[Step]:
        """Those that leave something out of ``size`` columns from ``first`` on."""
        begin, end = rows.start.const, rows.start.const + rows.size - 1
        bands = [(step, step.band) for step in self.attention.steps if step.band is not None]
        return [step for step, band in bands if not band.keeps_all(begin, end, first, first + size)]

    def _begin(self, under: Under) -> int:
        """The first column of a block, a multiple of a chunk, that may have weight."""
        rows, step = under.rows, self.context.sizes.rows
        if not self.problem.banded:
            return 0
        first = first_with_weight(self.attention.steps, rows.start.const, rows.start.const + rows.size - 1)
        return min(first, under.columns - 1) // step * step

    def _without(self, masked: list[Step], rows: Rows, scores: Block, first: int) -> Block:
        """Scores of columns from ``first`` on, in SBUF, without those that masks leave out."""
        part = self._tile("raw scores", "f32", [atom.size for atom in scores.dims[1:]], rows.size, RAW_BUFFERS)
        self._leave(part, scores)
        for step in masked:
            self._mark(step.op)
            self._mask(step, rows, part, first)
        return part

    def exponentials(self, under: Under) -> Iterator[None]:
        """The greatest scores as TensorE subtracts them, rows along the free dim: [part, head, row].

        They are the sum of ``PARTS`` numbers of BF16, and 0 for what is no number. Each of these few instructions waits
        for the one before, so that Vector has others between them.
        """
        own, size, builder = under.tiles["most"], under.rows.size, self.context.builder
        heads = own.dims[1].size
        known = self._tile("known", "u32", [heads], size, 2)
        left = self._tile("left", "f32", [heads], size, 2)
        parts = self._tile("parts", "bf16", [heads, PARTS], size, 2)
        self._mark(self.attention.product)
        self._emit("tensor_tensor", Stream.VECTOR, [known], [own, own], ["is_equal"])
        self._emit("tensor_scalar", Stream.VECTOR, [left], [own], ["min", "max"], [MOST, -MOST])
        yield
        self._mark(self.attention.product)
        self._emit("copy_predicated", Stream.VECTOR, [left], [known], [], [0.0], ["reverse"])
        for number in range(PARTS):
            part = parts.index(2, Affine(number))
            self._emit("tensor_copy", Stream.VECTOR, [part], [left], [])
            yield
            self._mark(self.attention.product)
            if number + 1 < PARTS:
                self._emit("tensor_tensor", Stream.VECTOR, [left], [left, part], ["subtract"])
        shifts = under.tiles["shifts"] = self._tile("shifts", "bf16", [heads, size], PARTS)
        for head, beside in pieces(heads, max(1, builder.sizes.bank_columns // size)):
            here = [parts.index(1, Affine(head + number)) for number in range(beside)]
            bank = self.context.fixed.transposes(self._turns, here, True)
            self.emitter.leave(shifts.index(1, Affine(head), beside), bank)
        yield

    # ---- exponentials and sums -------------------------------------------------------------------------------

    def weights(self, under: Under) -> Iterator[None]:
        """Exponentials with the columns on the partitions, [column, head, chunk, row], with a step for each bank."""
        sizes, rows = self.context.sizes, under.rows
        queries, keys, shifts = (under.tiles[name] for name in ("queries", "keys", "shifts"))
        heads, begin = self.schedule.together, self._begin(under)
        chunks = -(-(under.columns - begin) // sizes.rows)
        out = under.tiles["transposed"] = self._tile(
            "transposed", self.problem.weight_dtype, [heads, chunks, rows.size], min(under.columns, sizes.rows)
        )
        keys = keys.index(3, Affine(begin), under.columns - begin)
        at_once = max(1, sizes.bank_columns // rows.size)
        for first, count, size, offset, between, step in self._chunks_of(keys.index(1, Affine())):
            # keys of a chunk [term, chunk, head, group of columns, column]
            chunked = keys.moved(offset).of((*keys.dims[:3], Atom(count, between), Atom(size, step)))
            for head, beside in pieces(heads, max(1, at_once // count)):
                for start, part in pieces(count, at_once):
                    self._mark(self.attention.product)
                    made = out.index(1, Affine(head), beside).index(2, Affine(first + start), part).on_partitions(size)
                    here, asked, keyed = (
                        shifts.index(1, Affine(head), beside),
                        queries.index(2, Affine(head), beside),
                        chunked.index(2, Affine(head), beside),
                    )
                    self._bank(made, here, asked, keyed, start)
                    self._masked(rows, made, begin + (first + start) * sizes.rows)
                    yield

    def _bank(self, out: Block, shifts: Block, queries: Block, keys: Block, first: int) -> None:
        """``out`` [column, head, chunk, row] of heads and chunks, from ``first`` on, that a bank holds."""
        builder, p = self.context.builder, self.problem
        size, beside, part, rows = (atom.size for atom in out.dims)
        bank = tile_in(builder, self._turns, [beside, part, rows], "f32", size, True)
        ones = self.context.fixed.ones(size, "bf16", PARTS)
        for number in range(beside):
            here, place = shifts.index(1, Affine(number)), bank.index(1, Affine(number))
            builder.multiply(place, ones, here.of((here.dims[0], Atom(part, 0), here.dims[1])))
            for chunk in range(part):
                for deep, (_, terms) in enumerate(pieces(p.depth, builder.sizes.rows)):
                    stationary = keys.index(1, Affine(deep)).index(1, Affine(number)).index(1, Affine(first + chunk))
                    moving = queries.index(1, Affine(deep)).index(1, Affine(number))
                    operands = stationary.on_partitions(terms), moving.on_partitions(terms)
                    builder.multiply(place.index(1, Affine(chunk)), *operands, ["accumulate", *p.flags])
        factor = 1.0 if self._factor is None else self._factor
        self._emit("activation", Stream.SCALAR, [out], [bank], ["exp"], [factor])

    def _masked(self, rows: Rows, out: Block, first: int) -> None:
        """No weight for what masks leave out of chunks [column, head, chunk, row], of columns from ``first`` on."""
        begin, partitions, size = rows.start.const, self.context.sizes.rows, out.dims[0].size
        for number in range(out.dims[2].size):
            column = first + number * partitions
            part = out.index(2, Affine(number))
            for step in self._masks(rows, column, size):
                assert step.band is not None, "one of the masks"
                self._mark(step.op)
                offset = step.band.rows * begin + step.band.columns * column + step.band.offset
                imm = [0.0, offset, step.band.columns, 0, step.band.rows]
                self._emit("affine_select", Stream.GPSIMD, [part], [part], [ALU[step.band.direction]], imm)

    def weighted(self, under: Under) -> Iterator[None]:
        """The product with the values, divided by the sums and stored."""
        builder, p, rows = self.context.builder, self.problem, under.rows
        heads, begin, partitions = self.schedule.together, self._begin(under), self.context.sizes.rows
        columns = under.columns - begin
        out = self.result_of(under)
        for head, beside in pieces(heads, max(1, builder.sizes.bank_columns // (p.width + 1))):
            bank = tile_in(builder, self._sums, [beside, p.width + 1], "f32", rows.size, True)
            for number in range(beside):
                weights = under.tiles["transposed"].index(1, Affine(head + number))
                values = under.tiles["values"].index(2, Affine(head + number))
                seen = values.index(1, Affine(begin // partitions), values.dims[1].size - begin // partitions)
                yield from self._add_up(bank.index(1, Affine(number)), weights, seen, columns)
            self._mark(self.attention.product)
            inverse = self._inverse(bank.index(2, Affine(p.width)))
            self._divide(out.index(1, Affine(head), beside), bank.index(2, Affine(0), p.width), inverse)
        self.store(under, out)
