"""Attention: scores, softmax and their product with the values, block of rows by block of rows.

``out[g, h, r] = sum_c softmax_c(steps(q[g, h, r] . k[h, c])) v[h, c]``. The scores of a block of rows have the rows on
the partitions. Exponentials are multiplied with the values as they are, cast to the type of that product; the sums of
each row divide its result. Rows without any score but -inf are NaN, as apart. Columns that a comparison of row and
column numbers masks for a whole block are not computed where they have no weight: what keys and values hold there, even
if it is not finite, does not matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, product, zip_longest

from neuronx_cc.codegen.attention.arrays import Arrays, arrays_of
from neuronx_cc.codegen.attention.choose import factor_of, problem_of
from neuronx_cc.codegen.attention.masks import ALU, NEGLIGIBLE
from neuronx_cc.codegen.attention.pattern import Attention, Step
from neuronx_cc.codegen.attention.schedule import Problem, Schedule, choose
from neuronx_cc.codegen.attention.stage import Stager, pieces, replace_lanes
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.stage import transposer_of
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring
from neuronx_cc.codegen.emission.emitter import Emitter, Splat
from neuronx_cc.codegen.emission.tiles import TilePool, tile_in
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.maps import elementwise
from neuronx_cc.codegen.movement.halves import carrier_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.program import Stream

UNROLLED_BLOCKS = 32
"""Blocks of rows of one head that are no loop."""
BUNCH = 4
"""Blocks of rows that an iteration takes."""
SMALL_BUFFERS = 4
"""Of what is one number a row."""
UNROLLED_TURNS = 256
"""Banks of transposes that are no loop."""


def lower(context: Context, attention: Attention) -> None:
    """Emit the kernel and give its result a home."""
    builder = context.builder
    for operand in (*attention.scores.operands, *attention.product.operands):
        dtype = hlo.shape_of(operand).dtype
        context.identity(carrier_of(dtype, context.moves_values(dtype)))
    arrays = arrays_of(context, attention)
    problem = problem_of(context, attention, builder.sbuf.largest_gap())
    schedule = choose(problem, context.timing)
    if schedule is None:
        raise CompileError(
            "EXSP001",
            f"SBUF has no room for the scores of a block of rows: {problem.room} bytes a partition are left",
            "a smaller batch may fit",
            attention.product.loc,
        )
    builder.program.schedules[builder.kernel] = schedule.line(problem)
    with TilePool(builder, f"attention {attention.product.loc.name}") as pool:
        _Kernel(context, attention, arrays, problem, schedule, pool).emit()


@dataclass(frozen=True, slots=True)
class _Rows:
    """A block of rows: where, and how many of its columns are computed."""

    at: tuple[Affine, ...]
    """Of the dims around that keys and values do not have."""
    start: Affine
    size: int
    columns: int


@dataclass(slots=True)
class _Under:
    """A block of rows under way, and the tiles that hold it."""

    rows: _Rows
    tiles: dict[str, Block] = field(default_factory=dict)


@dataclass(slots=True)
class _Kernel:
    context: Context
    attention: Attention
    arrays: Arrays
    problem: Problem
    schedule: Schedule
    pool: TilePool
    tiles: Tiles = field(init=False)
    emitter: Emitter = field(init=False)
    stager: Stager = field(init=False)
    _scores: Ring = field(init=False)
    _sums: Ring = field(init=False)
    _factor: float | None = field(init=False)
    _busy: dict[Stream, float] = field(init=False)
    """Time of Vector and Scalar so far."""
    _scratch: int = 0

    def __post_init__(self) -> None:
        builder, banks = self.context.builder, self.context.sizes.banks
        self.tiles = Tiles(builder, self.attention.product.loc.name, {}, self.pool)
        self.emitter = Emitter(builder, self._scratch_tile)
        self._scores = self.tiles.banks(max(1, banks // 2), "scores")
        turns = self.tiles.banks(max(1, banks // 4), "transposes")
        self._sums = self.tiles.banks(max(1, banks // 4), "weighted sums")
        transposer = transposer_of(self.context, self.emitter, self.tiles, turns, UNROLLED_TURNS)
        self.stager = Stager(self.tiles, transposer, self.context.sizes.rows)
        self._factor = factor_of(self.context, self.attention)
        self._busy = {Stream.VECTOR: 0.0, Stream.SCALAR: 0.0}

    def _scratch_tile(self, like: Block, dtype: str) -> Block:
        self._scratch += 1
        return self._tile(
            f"scratch {self._scratch}", dtype, [atom.size for atom in like.dims[1:]], like.dims[0].size, 1
        )

    def _tile(self, name: str, dtype: str, sizes: Sequence[int], lanes: int, count: int = 0) -> Block:
        return self.tiles.tile(dtype, sizes, lanes, name, count or self.schedule.scores, True)

    # ---- loops -----------------------------------------------------------------------------------------------

    def emit(self) -> None:
        self._heads(())

    def _heads(self, at: tuple[Affine, ...]) -> None:
        if len(at) < self.arrays.heads:
            for index in self.context.builder.each(self.arrays.sizes[len(at)], 1):
                self._heads((*at, index))
            return
        keys, values = self._stage(at)
        groups = self.arrays.sizes[len(at) :]
        blocks = -(-self.problem.rows // self.context.sizes.columns)
        self._groups(at, (), groups, blocks, keys, values)

    def _groups(
        self, head: tuple[Affine, ...], at: tuple[Affine, ...], groups: Sequence[int], blocks: int, keys: Block,
        values: Block,
    ) -> None:  # fmt: skip
        builder, total = self.context.builder, blocks
        for size in groups:
            total *= size
        if groups and total > UNROLLED_BLOCKS:
            with builder.loop(groups[0]) as index:
                self._groups(head, (*at, index), groups[1:], blocks, keys, values)
            return
        if total <= UNROLLED_BLOCKS or self.problem.banded:
            with builder.unrolled():
                places = [(*at, *map(Affine, place)) for place in product(*map(range, groups))]
                self._bunch(head, [rows for place in places for rows in self._blocks(place, 0, blocks)], keys, values)
            return
        bunches = self.problem.rows // (BUNCH * self.context.sizes.columns)
        with builder.loop(bunches) as index:
            start = index * (BUNCH * self.context.sizes.columns)
            self._bunch(head, self._blocks(at, start, BUNCH), keys, values)
        with builder.unrolled():
            first = bunches * BUNCH
            rest = self._blocks(at, Affine(first * self.context.sizes.columns), blocks - first)
            self._bunch(head, rest, keys, values)

    def _blocks(self, at: tuple[Affine, ...], start: Affine | int, count: int) -> list[_Rows]:
        step, first = self.context.sizes.columns, start if isinstance(start, Affine) else Affine(start)
        found = []
        for block in range(count):
            begin = first + block * step
            size = step if begin.terms else min(step, self.problem.rows - begin.const)
            found.append(_Rows(at, begin, size, self._columns(begin, size)))
        return found

    def _columns(self, start: Affine, size: int) -> int:
        """How many of the first columns a block of rows is computed for; the others have no weight."""
        columns = self.problem.columns
        for step in self.attention.steps:
            if step.band is None or step.masked > NEGLIGIBLE:
                continue
            ends = [step.band.last_column(row) for row in (start.const, start.const + size - 1)]
            if all(end is not None and end >= 0 for end in ends):
                columns = min(columns, 1 + max(end for end in ends if end is not None))
        return columns

    def _bunch(self, head: tuple[Affine, ...], blocks: Sequence[_Rows], keys: Block, values: Block) -> None:
        """Blocks of rows, one after the other.

        With room for the scores of two, those of one are made while the exponentials of the one before are, and the
        one before that is multiplied with the values: no engine waits for another within a step.
        """
        under = [_Under(rows) for rows in blocks]
        if self.schedule.scores == 1:
            for each in under:
                deque(self._scores_of(head, each, keys), 0)
                self._exponentials(each)
                deque(self._weighted(head, each, values), 0)
            return
        for at in range(len(under) + 2):
            new, old = under[at : at + 1], under[max(0, at - 2) : max(0, at - 1)]
            stages = [self._scores_of(head, each, keys) for each in new]
            stages += [self._weighted(head, each, values) for each in old]
            steps = chain.from_iterable(zip_longest(*stages))
            half = max(each.rows.columns for each in (*new, *old, *under[:1])) // self.context.sizes.bank_columns
            deque(islice(steps, half), 0)
            if 0 < at <= len(under):
                self._exponentials(under[at - 1])
            deque(steps, 0)

    # ---- operands --------------------------------------------------------------------------------------------

    def _stage(self, at: tuple[Affine, ...]) -> tuple[Block, Block]:
        """Keys [term, chunk, column] and values [column, chunk, feature] of a head."""
        p, arrays, lanes = self.problem, self.arrays, self.context.sizes.rows
        place = (*at, *(Affine() for _ in arrays.sizes[len(at) :]))
        deep, chunks = -(-p.depth // lanes), -(-p.columns // lanes)
        count = self.schedule.staged
        keys = self.tiles.tile(p.dtype, [deep, p.columns], min(p.depth, lanes), "keys", count)
        self.stager.fill("keys", keys, arrays.keys.at(place).select([2, 1]), arrays.keys.stream)
        values = self.tiles.tile(p.weight_dtype, [chunks, p.width], min(p.columns, lanes), "values", count)
        self.stager.fill("values", values, arrays.values.at(place).select([1, 2]), arrays.values.stream)
        return keys, values

    def _queries(self, head: tuple[Affine, ...], rows: _Rows) -> Block:
        p, lanes, queries = self.problem, self.context.sizes.rows, self.arrays.queries
        tile = self._tile("queries", p.dtype, [-(-p.depth // lanes), rows.size], min(p.depth, lanes))
        source = queries.at((*head, *rows.at)).index(0, rows.start, rows.size).select([2, 0])
        self.stager.fill("queries", tile, source, queries.stream)
        return tile

    # ---- scores ----------------------------------------------------------------------------------------------

    def _scores_of(self, head: tuple[Affine, ...], under: _Under, keys: Block) -> Iterator[None]:
        """The scores of a block, and the greatest of each row, negative; with a step for each bank."""
        attention, rows = self.attention, under.rows
        self._mark(attention.scores)
        queries = self._queries(head, rows)
        scores = under.tiles["scores"] = self._tile("scores", "f32", [rows.columns], rows.size)
        steps = attention.steps[self._factor is not None :]
        taken = self.context.sizes.bank_columns if any(step.band is None for step in steps) else rows.columns
        for start, size in pieces(rows.columns, taken):
            part = scores.index(1, Affine(start), size)
            last = next((at for at in reversed(range(len(steps))) if steps[at].band is None), -1)
            into = part if last < 0 else self._tile("raw scores", "f32", [size], rows.size, 2)
            yield from self._products(into, queries, keys, start)
            for at, step in enumerate(steps):
                self._mark(step.op)
                if step.band is not None:
                    self._mask(step, rows, into, start)
                    continue
                dtype = "f32" if at == last else step.op.shape.dtype
                out = part if at == last else self._tile(f"step {at}", dtype, [size], rows.size, 2)
                self._step(step, (*head, *rows.at), rows, into, out, start)
                into = out
        self._mark(attention.product)
        most = under.tiles["most"] = self._tile("greatest", "f32", [1], rows.size, SMALL_BUFFERS)
        self._emit("tensor_reduce", Stream.VECTOR, [most], [scores], ["max"], flags=["negate"])

    def _products(self, out: Block, queries: Block, keys: Block, first: int) -> Iterator[None]:
        """Scores of columns from ``first`` on, times the factor."""
        builder, depth = self.context.builder, self.problem.depth
        lanes, rows = self.context.sizes.rows, out.dims[0].size
        for start, size in pieces(out.dims[1].size, self.context.sizes.bank_columns):
            bank = tile_in(builder, self._scores, [size], "f32", rows, True)
            for chunk, (_, terms) in enumerate(pieces(depth, lanes)):
                stationary = replace_lanes(queries.index(1, Affine(chunk)), terms)
                moving = replace_lanes(keys.index(1, Affine(chunk)).index(1, Affine(first + start), size), terms)
                builder.emit("load_stationary", Stream.TENSOR, [], [stationary])
                flags = ["accumulate"] * (chunk > 0)
                builder.emit("multiply_moving", Stream.TENSOR, [bank], [moving], flags=flags)
            self._leave(out.index(1, Affine(start), size), bank)
            yield

    def _emit(
        self, op: str, stream: Stream, outs: Sequence[Block], ins: Sequence[Block], alu: Sequence[str],
        imm: Sequence[float] = (), flags: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """An instruction whose time counts when work is dealt out."""
        instr = self.context.builder.emit(op, stream, outs, ins, alu, imm, flags)
        self._busy[stream] += self.context.timing.of(instr).bound

    def _mark(self, op: hlo.HloOp) -> None:
        self.context.builder.mark(op.loc)

    def _leave(self, out: Block, bank: Block) -> None:
        """Scores leave PSUM by the engine that has less to do."""
        factor = 1.0 if self._factor is None else self._factor
        if self._busy[Stream.VECTOR] <= self._busy[Stream.SCALAR]:
            self._emit("tensor_scalar", Stream.VECTOR, [out], [bank], ["multiply"], [factor])
        else:
            self._emit("activation", Stream.SCALAR, [out], [bank], ["copy"], [factor])

    def _mask(self, step: Step, rows: _Rows, block: Block, first: int) -> None:
        """Mask columns from ``first`` on by their numbers, but those that no row of the block masks."""
        band, builder, lanes = step.band, self.context.builder, self.context.sizes.rows
        assert band is not None, "of steps with a band"
        begin = rows.start.const
        for start, size in pieces(block.dims[1].size, lanes):
            if band.keeps_all(begin, begin + rows.size - 1, first + start + size):
                continue
            size = block.dims[1].size - start
            part = block.index(1, Affine(start), size)
            offset = band.rows * begin + band.columns * (first + start) + band.offset
            imm = [step.masked, offset, band.rows, band.columns]
            builder.emit("affine_select", Stream.GPSIMD, [part], [part], [ALU[band.direction]], imm)
            return

    def _step(self, step: Step, at: tuple[Affine, ...], rows: _Rows, block: Block, out: Block, first: int) -> None:
        """Any other elementwise op on columns from ``first`` on."""
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
                ins.append(self._mask_tile(operand, at, rows, first, out.dims[1].size))
        elementwise.emit(self.emitter, step.op, out, ins)

    def _mask_tile(self, value: hlo.SSAValue, at: tuple[Affine, ...], rows: _Rows, first: int, size: int) -> Block:
        """What lies beside the scores, loaded."""
        array = self.arrays.masks[value]
        source = array.at(at).index(0, rows.start, rows.size).index(1, Affine(first), size).select([0, 1])
        tile = self._tile(f"mask {list(self.arrays.masks).index(value)}", source.dtype, [size], rows.size, 2)
        copy(self.context.builder, tile, source, array.stream)
        return tile

    # ---- weights ---------------------------------------------------------------------------------------------

    def _exponentials(self, under: _Under) -> None:
        """Of a block's scores beside the greatest of their row; and their sums."""
        self._mark(self.attention.product)
        rows, most, scores = under.rows, under.tiles["most"], under.tiles["scores"]
        sums = under.tiles["sums"] = self._tile("sums", "f32", [1], rows.size, SMALL_BUFFERS)
        out = self._tile("exponentials", self.problem.weight_dtype, [rows.columns], rows.size)
        under.tiles["exponentials"] = out
        self._emit("activation", Stream.SCALAR, [out, sums], [scores, most], ["exp"], [1.0], ["bias", "accumulate"])

    def _weighted(self, head: tuple[Affine, ...], under: _Under, values: Block) -> Iterator[None]:
        """The product with the values, divided by the sums and stored; with a step for each bank of exponentials."""
        builder, p, rows = self.context.builder, self.problem, under.rows
        lanes = self.context.sizes.rows
        chunks = -(-rows.columns // lanes)
        inverse = self._tile("inverse", "f32", [1], rows.size, SMALL_BUFFERS)
        self._mark(self.attention.product)
        self._emit("reciprocal", Stream.VECTOR, [inverse], [under.tiles["sums"]], [])
        bank = tile_in(builder, self._sums, [p.width], "f32", rows.size, True)
        turned = self._tile("turned", p.weight_dtype, [chunks, rows.size], min(rows.columns, lanes))
        together = max(1, self.context.sizes.bank_columns // rows.size)
        before = 0
        for start, count in pieces(chunks, together):
            self._mark(self.attention.product)
            self._turn(under.tiles["exponentials"], turned, start, count)
            for chunk in range(before, start):
                self._add(bank, turned, values, chunk, rows.columns)
            before = start
            yield
        self._mark(self.attention.product)
        for chunk in range(before, chunks):
            self._add(bank, turned, values, chunk, rows.columns)
        target = self.arrays.result.at((*head, *rows.at)).index(0, rows.start, rows.size).select([0, 2])
        out = self._tile("result", target.dtype, [p.width], rows.size)
        self._emit("activation", Stream.SCALAR, [out], [bank, inverse], ["copy"], flags=["scale_ap"])
        copy(builder, target, out, self.arrays.result.stream)

    def _add(self, bank: Block, turned: Block, values: Block, chunk: int, columns: int) -> None:
        """The product of a chunk of columns."""
        builder, lanes = self.context.builder, self.context.sizes.rows
        terms = min(lanes, columns - chunk * lanes)
        builder.emit("load_stationary", Stream.TENSOR, [], [replace_lanes(turned.index(1, Affine(chunk)), terms)])
        moving = replace_lanes(values.index(1, Affine(chunk)), terms)
        builder.emit("multiply_moving", Stream.TENSOR, [bank], [moving], flags=["accumulate"] * (chunk > 0))

    def _turn(self, source: Block, out: Block, first: int, count: int) -> None:
        """Exponentials of so many chunks of columns from the ``first`` on, with the columns on the partitions."""
        lanes, columns, width = self.context.sizes.rows, source.dims[1].size, source.dims[1].stride
        whole = min(count, columns // lanes - first)
        rest = columns - lanes * (first + whole) if whole < count else 0
        for start, several, size in ((first, whole, lanes), (first + whole, 1, rest)):
            if several and size:
                dims = (source.dims[0], Atom(several, lanes * width), Atom(size, width))
                chunks = replace_lanes(out.index(1, Affine(start), several), size)
                self.stager.transposer.transpose(source.moved(start * lanes * width).of(dims), chunks)
                left = self.context.timing.transpose(source.dims[0].size, size, source.dtype).times(several)
                self._busy[Stream.SCALAR] += left.scalar
