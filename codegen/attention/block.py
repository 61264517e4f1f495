"""The work on a block of rows, or on a section of its columns: operands, scores, exponentials and weighted sums.

What takes long is an iterator with a step for each bank of PSUM, so that stages of several blocks take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from neuronx_cc.codegen.attention.masks import ALU
from neuronx_cc.codegen.attention.operands import Operands, Rows, Under
from neuronx_cc.codegen.attention.schedule import (
    PIECES,
    TAKEN_AT_ONCE,
    UNDER_WAY,
    taken_columns,
)
from neuronx_cc.codegen.attention.steps import Step, leaves_of
from neuronx_cc.codegen.emission.builder import Affine, Block, merge_free
from neuronx_cc.codegen.emission.emitter import Splat
from neuronx_cc.codegen.emission.tiles import pieces, tile_in
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.maps import elementwise
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Space, Stream

LARGEST = float(np.finfo(np.float32).max)
"""Exponentials beside its negative are 0 where all scores of a row so far are -inf."""
LEAST_SUM = 2 * float(np.finfo(np.float32).tiny)
"""Changes no sum but 0, whose inverse is finite with it."""


@dataclass(slots=True)
class Work(Operands):
    """Emits it; what is under way is told by the caller."""

    # ---- scores ----------------------------------------------------------------------------------------------

    def scores(self, under: Under) -> Iterator[None]:
        """The scores of a block [row, head, column], and the greatest of each row, negative; with a step for each
        bank.
        """
        attention, rows, heads = self.attention, under.rows, self.schedule.together
        self._mark(attention.scores)
        scores = under.tiles["scores"] = self._tile("scores", "f32", [heads, under.columns], rows.size)
        columns = taken_columns(self.problem, self.context.sizes)
        several, count = max(1, columns // under.columns), -(-under.columns // columns)
        parts = self._tile("greatest of parts", "f32", [heads, count], rows.size, UNDER_WAY) if count > 1 else None
        if parts is None:
            parts = under.tiles["most"] = self._tile("greatest", "f32", [heads, 1], rows.size, UNDER_WAY)
        negative = ["negate"] if count == 1 else []
        for head, beside in pieces(heads, several):
            for number, (start, size) in enumerate(pieces(under.columns, columns)):
                part = scores.index(1, Affine(head), beside).index(2, Affine(start), size)
                yield from self._part(under, part, head, start)
                self._mark(attention.product)
                most = parts.index(1, Affine(head), beside).index(2, Affine(number), 1)
                self._emit("tensor_reduce", Stream.VECTOR, [most.select([0, 1])], [part], ["max"], flags=negative)
                yield
        self._mark(attention.product)
        self._greatest(under, parts)

    def _part(self, under: Under, part: Block, head: int, start: int) -> Iterator[None]:
        """Scores of heads from ``head`` on, of columns from ``start`` on, and what is made of them."""
        steps, rows = self.attention.steps[self._factor is not None :], under.rows
        beside, size = (atom.size for atom in part.dims[1:])
        queries, keys = self._operands(under, head, beside)
        last = next((at for at in reversed(range(len(steps))) if steps[at].band is None), -1)
        into = part if last < 0 else self._raw(steps[0], [beside, size], rows.size)
        yield from self._products(into, queries, keys, start)
        for at, step in enumerate(steps):
            self._mark(step.op)
            if step.band is not None:
                self._mask(step, rows, into, under.first + start)
                continue
            dtype = "f32" if at == last else step.op.shape.dtype
            out = part if at == last else self._tile(f"step {at}", dtype, [beside, size], rows.size, 2)
            self._apply(step, into, out, partial(self._mask_tile, under, head, start))
            into = out

    def _operands(self, under: Under, head: int, beside: int) -> tuple[Block, ...]:
        """Queries and keys of heads from ``head`` on."""
        return tuple(under.tiles[name].index(2, Affine(head), beside) for name in ("queries", "keys"))

    def _raw(self, step: Step, sizes: Sequence[int], rows: int) -> Block:
        """Where scores go ahead of ``step``: to PSUM where Vector reads something beside them, which takes half the
        time then.
        """
        reads = any(self.context.splat(leaf) is None for leaf in leaves_of(step))
        if reads and step.band is None and self._scores.count > 1:
            return tile_in(self.context.builder, self._scores, sizes, "f32", rows, True)
        return self._tile("raw scores", "f32", sizes, rows, 2)

    def _greatest(self, under: Under, parts: Block) -> None:
        """The greatest score of each row, negative, and what sums beside an earlier one are to be multiplied with."""
        size, running, (heads, count) = under.rows.size, under.running, (atom.size for atom in parts.dims[1:])
        own = parts
        if count > 1:
            own = under.tiles["most"] = self._tile("greatest", "f32", [heads, 1], size, UNDER_WAY)
            self._emit("tensor_reduce", Stream.VECTOR, [own.select([0, 1])], [parts], ["max"], flags=["negate"])
        own = own.select([0, 1])
        if under.is_first and under.is_last:
            if self.attention.zero_rows:
                self._emit("tensor_scalar", Stream.VECTOR, [own], [own], ["min"], [LARGEST])
            return
        most = self._tile("running greatest", "f32", [1], size, self.schedule.bunch + UNDER_WAY)
        if under.is_first:
            self._emit("tensor_scalar", Stream.VECTOR, [most], [own], ["min"], [LARGEST])
        else:
            before = running["most"]
            self._emit("scalar_tensor_tensor", Stream.VECTOR, [most], [own, before], ["min", "min"], [LARGEST])
            scale = under.tiles["scale"] = self._tile("scale", "f32", [1], size, UNDER_WAY)
            self._emit("activation", Stream.SCALAR, [scale], [before, most], ["exp"], [-1.0], ["bias"])
        running["most"], under.tiles["most"] = most, most.of((*most.dims, Atom(1, 0)))

    def _products(self, out: Block, queries: Block, keys: Block, first: int) -> Iterator[None]:
        """Scores [row, head, column] of columns from ``first`` on, times the factor."""
        builder, sizes, rows = self.context.builder, self.context.sizes, out.dims[0].size
        for head, beside in pieces(out.dims[1].size, max(1, sizes.bank_columns // out.dims[2].size)):
            for start, size in pieces(out.dims[2].size, sizes.bank_columns):
                target = out.index(1, Affine(head), beside).index(2, Affine(start), size)
                left = self._scores_factor != 1.0 or out.alloc.space is Space.SBUF
                bank = tile_in(builder, self._scores, [beside, size], "f32", rows, True) if left else target
                for number in range(beside):
                    for chunk, (_, terms) in enumerate(pieces(self.problem.depth, sizes.rows)):
                        stationary = (
                            queries.index(2, Affine(head + number)).index(1, Affine(chunk)).on_partitions(terms)
                        )
                        moving = keys.index(2, Affine(head + number)).index(1, Affine(chunk))
                        moving = moving.index(1, Affine(first + start), size).on_partitions(terms)
                        flags = ["accumulate"] * (chunk > 0) + [*self.problem.flags]
                        builder.multiply(bank.index(1, Affine(number)), stationary, moving, flags)
                if left:
                    self._leave(target, bank)
                yield

    @property
    def _scores_factor(self) -> float:
        """What scores are multiplied with as they leave PSUM."""
        return 1.0 if self._factor is None or self._scaled else self._factor

    def _leave(self, out: Block, bank: Block) -> None:
        """Scores leave PSUM by the engine that has less to do."""
        factor, in_psum = self._scores_factor, out.alloc.space is Space.PSUM
        out, bank = merge_free([out, bank])
        if not in_psum and self._busy[Stream.VECTOR] <= self._busy[Stream.SCALAR]:
            self._emit("tensor_scalar", Stream.VECTOR, [out], [bank], ["multiply"], [factor])
        else:
            self._emit("activation", Stream.SCALAR, [out], [bank], ["copy"], [factor])

    def _mask(self, step: Step, rows: Rows, block: Block, first: int) -> None:
        """Mask columns from ``first`` on by their numbers, but those that no row of the block masks."""
        band, builder, partitions = step.band, self.context.builder, self.context.sizes.rows
        assert band is not None, "of steps with a band"
        begin = rows.start.const
        for start, size in pieces(block.dims[2].size, partitions):
            if band.keeps_all(begin, begin + rows.size - 1, first + start, first + start + size):
                continue
            part = block.index(2, Affine(start), block.dims[2].size - start)
            offset = band.rows * begin + band.columns * (first + start) + band.offset
            imm = [step.masked, offset, band.rows, 0, band.columns]
            builder.emit("affine_select", Stream.GPSIMD, [part], [part], [ALU[band.direction]], imm)
            return

    def _apply(self, step: Step, block: Block, out: Block, leaf: Callable[..., Block]) -> None:
        """An elementwise op on the scores ``block``; ``leaf`` gives its other operands."""
        main = step.op.operands[step.main]
        self._scratch = 0
        ins: list[Block | Splat] = []
        for operand in step.op.operands:
            splat = self.context.splat(operand)
            if operand is main:
                ins.append(Block(block.alloc, block.dtype, block.offset, block.dims))
            elif splat is not None:
                ins.append(Splat(splat, hlo.shape_of(operand).dtype))
            else:
                ins.append(leaf(operand, *(atom.size for atom in out.dims[1:])))
        elementwise.emit(self.emitter, step.op, out, ins)

    # ---- weights ---------------------------------------------------------------------------------------------

    def exponentials(self, under: Under) -> Iterator[None]:
        """Of a block's scores beside the greatest of their row; and their sums, with a step for some of them."""
        rows, most, scores = under.rows, under.tiles["most"], under.tiles["scores"]
        heads, taken = scores.dims[1].size, TAKEN_AT_ONCE * self.context.sizes.bank_columns
        self._mark(self.attention.product)
        parts = -(-under.columns // taken)
        sums = under.tiles["sums"] = self._tile("sums", "f32", [heads, parts], rows.size, UNDER_WAY)
        out = self._tile("exponentials", self.exponent_dtype, [heads, under.columns], rows.size)
        under.tiles["exponentials"] = out
        several = max(1, self.context.sizes.bank_columns // under.columns)
        for head in range(heads):
            for at, (start, size) in enumerate(pieces(under.columns, taken)):
                self._mark(self.attention.product)
                made, read = (x.index(1, Affine(head)).index(1, Affine(start), size) for x in (out, scores))
                total = sums.index(1, Affine(head)).index(1, Affine(at), 1)
                ins = [read, most.index(1, Affine(head))]
                self._emit("activation", Stream.SCALAR, [made, total], ins, ["exp"], [1.0], ["bias", "accumulate"])
                if not (head + 1) % several or at or size < under.columns:
                    for _ in pieces(size, self.context.sizes.bank_columns):  # as other stages take for these columns
                        yield
        yield

    def weights(self, under: Under) -> Iterator[None]:
        """The exponentials with the columns on the partitions, [column, head, chunk, row], with a step a bank."""
        rows, sizes, source = under.rows, self.context.sizes, under.tiles["exponentials"]
        heads, partitions = source.dims[1].size, min(under.columns, sizes.rows)
        chunks = -(-under.columns // sizes.rows)
        transposed = under.tiles["transposed"] = self._tile(
            "transposed", self.problem.weight_dtype, [heads, chunks, rows.size], partitions
        )
        for first, count, size, offset, between, step in self._chunks_of(source):
            at_once = max(1, sizes.bank_columns // rows.size)
            several = at_once // count if count == chunks or count == 1 else 1
            for head, beside in pieces(heads, max(1, several)):
                for start, part in pieces(count, at_once):
                    self._mark(self.attention.product)
                    out = transposed.index(1, Affine(head), beside).index(2, Affine(first + start), part)
                    out = out.on_partitions(size)
                    outer = Atom(beside, source.dims[1].stride)
                    dims = (source.dims[0], outer, Atom(part, between), Atom(size, step))
                    taken = source.moved(head * outer.stride + offset + start * between).of(dims)
                    flat = Atom(beside * part, out.dims[1 if part == 1 else 2].stride)
                    self._turn(taken, out.of((out.dims[0], flat, out.dims[3])))
                    yield

    def _chunks_of(self, source: Block) -> Iterator[tuple[int, int, int, int, int, int]]:
        """First, count, columns, and bytes to the first, between two, and from column to column, of chunks that have as
        many columns as each other.
        """
        partitions, columns, width = self.context.sizes.rows, source.dims[2].size, source.dims[2].stride
        whole, rest = divmod(columns, partitions)
        near, far = (width, whole * width) if self._neighbours else (partitions * width, width)
        if whole:
            yield 0, whole, partitions, 0, near, far
        if rest:
            yield whole, 1, rest, whole * partitions * width, 0, width

    def weighted(self, under: Under) -> Iterator[None]:
        """The product with the values; divided by the sums and stored where it is that of all columns.

        What is one number a row comes first, so that nothing waits for it in the end.
        """
        builder, p, rows = self.context.builder, self.problem, under.rows
        self._mark(self.attention.product)
        sums, heads = self._sums_so_far(under), self.schedule.together
        inverse = self._inverse(sums) if under.is_last else None
        out = self.result_of(under) if under.is_last else None
        for head, beside in pieces(heads, max(1, self.context.sizes.bank_columns // p.width)):
            bank = tile_in(builder, self._sums, [beside, p.width], "f32", rows.size, True)
            for number in range(beside):
                weights = under.tiles["transposed"].index(1, Affine(head + number))
                values = under.tiles["values"].index(2, Affine(head + number))
                yield from self._add_up(bank.index(1, Affine(number)), weights, values, under.columns)
            self._mark(self.attention.product)
            result = self._result_so_far(under, bank)
            if out is not None and inverse is not None:
                self._divide(out.index(1, Affine(head), beside), result, inverse.index(1, Affine(head), beside))
        if out is not None:
            self.store(under, out)

    def _divide(self, out: Block, result: Block, inverse: Block) -> None:
        """``out = result`` [row, head, feature] times what is one number a row and head."""
        heads, width = (atom.size for atom in out.dims[1:])
        if heads > 1 and self._busy[Stream.VECTOR] < self._busy[Stream.SCALAR]:
            repeated = inverse.of((*inverse.dims, Atom(width, 0)))
            self._emit("tensor_tensor", Stream.VECTOR, [out], [result, repeated], ["multiply"])
            return
        for head in range(heads):
            ins = [result.index(1, Affine(head)), inverse.index(1, Affine(head), 1)]
            self._emit("activation", Stream.SCALAR, [out.index(1, Affine(head))], ins, ["copy"], flags=["scale_ap"])

    def _inverse(self, sums: Block) -> Block:
        """One by ``sums``; where rows without a score are zeros, sums of 0 count as least ones."""
        inverse = self._tile("inverse", "f32", [atom.size for atom in sums.dims[1:]], sums.dims[0].size, UNDER_WAY)
        if self.attention.zero_rows:
            self._emit("tensor_scalar", Stream.VECTOR, [inverse], [sums], ["add"], [LEAST_SUM])
            sums = inverse
        self._emit("reciprocal", Stream.VECTOR, [inverse], [sums], [])
        return inverse

    def _sums_so_far(self, under: Under) -> Block:
        """The sums of the rows of a block up to the end of this section."""
        size, parts = under.rows.size, under.tiles["sums"]
        sums = parts.select([0, 1])
        if parts.dims[2].size > 1:
            sums = self._tile("sums of parts", "f32", [parts.dims[1].size], size, UNDER_WAY)
            self._emit("tensor_reduce", Stream.VECTOR, [sums], [parts], ["add"])
        if under.is_first and under.is_last:
            return sums
        if under.is_first:
            under.running["sums"] = self._tile("running sums", "f32", [1], size, self.schedule.bunch)
            self._emit("tensor_copy", Stream.VECTOR, [under.running["sums"]], [sums], [])
        else:
            self._add_scaled(under, under.running["sums"], sums)
        return under.running["sums"]

    def _result_so_far(self, under: Under, bank: Block) -> Block:
        """The product of a block with the values up to the end of this section, of which ``bank`` is its own."""
        size, running = under.rows.size, under.running
        if under.is_first and under.is_last:
            return bank
        if under.is_first:
            sizes = [1, self.problem.width]
            running["result"] = self._tile("running result", "f32", sizes, size, self.schedule.bunch)
            self._emit("activation", Stream.SCALAR, [running["result"]], [bank], ["copy"])
        else:
            self._add_scaled(under, running["result"], bank)
        return running["result"]

    def _add_scaled(self, under: Under, total: Block, more: Block) -> None:
        """``total`` beside the greatest score so far, and ``more``."""
        ins = [total, more, under.tiles["scale"]]
        self._emit("scalar_tensor_tensor", Stream.VECTOR, [total], ins, ["multiply", "add"], [], ["ap0"])

    def _add_up(self, bank: Block, transposed: Block, values: Block, columns: int) -> Iterator[None]:
        """The products of all chunks of ``columns``, with a step for some of them."""
        for start, count in pieces(-(-columns // self.context.sizes.rows), PIECES):
            self._mark(self.attention.product)
            for chunk in range(start, start + count):
                self._add(bank, transposed, values, chunk, columns)
            yield

    def _add(self, bank: Block, transposed: Block, values: Block, chunk: int, columns: int) -> None:
        """The product of a chunk of columns."""
        builder, partitions = self.context.builder, self.context.sizes.rows
        terms = min(partitions, columns - chunk * partitions)
        stationary = transposed.index(1, Affine(chunk)).on_partitions(terms)
        moving = values.index(1, Affine(chunk)).on_partitions(terms)
        builder.multiply(bank, stationary, moving, ["accumulate"] * (chunk > 0) + [*self.problem.weight_flags])

    def _turn(self, source: Block, out: Block) -> None:
        """Exponentials of chunks of columns, with the columns on the partitions."""
        self.stager.transposer.transpose(source, out)
        left = self.context.timing.transpose(source.dims[0].size, source.dims[-1].size, source.dtype)
        self._busy[Stream.SCALAR] += left.times(prod(atom.size for atom in source.dims[1:-1])).scalar
