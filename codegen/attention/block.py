"""The work on a block of rows, or on a section of its columns: operands, scores, exponentials and weighted sums.

What takes long is an iterator with a step for each bank of PSUM, so that stages of several blocks take turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np

from neuronx_cc.codegen.attention.arrays import Arrays
from neuronx_cc.codegen.attention.choose import factor_of
from neuronx_cc.codegen.attention.masks import ALU
from neuronx_cc.codegen.attention.pattern import Attention, Step
from neuronx_cc.codegen.attention.schedule import (
    PIECES,
    TAKEN_AT_ONCE,
    UNDER_WAY,
    Problem,
    Schedule,
    query_buffers,
    taken_columns,
    tiles_of,
)
from neuronx_cc.codegen.attention.stage import Stager, pieces
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.filler import transposer_of
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring
from neuronx_cc.codegen.emission.emitter import Emitter, Splat
from neuronx_cc.codegen.emission.tiles import TilePool, tile_in
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.maps import elementwise
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

LARGEST = float(np.finfo(np.float32).max)
"""Exponentials beside its negative are 0 where all scores of a row so far are -inf."""
UNROLLED_TURNS = 256
"""Banks of transposes that are no loop."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A block of rows: where, and how many of its columns are computed."""

    head: tuple[Affine, ...]
    """Indices of the dims around that keys and values have."""
    group: tuple[Affine, ...]
    """Of the others."""
    start: Affine
    size: int
    columns: int


@dataclass(frozen=True, slots=True)
class Staged:
    """Keys and values of a head, of columns from ``first`` on."""

    head: tuple[Affine, ...]
    first: int
    keys: Block
    values: Block


@dataclass(slots=True)
class Under:
    """A section of the columns of a block of rows under way, and the tiles that hold it."""

    rows: Rows
    first: int
    columns: int
    running: dict[str, Block]
    """Tiles of the whole block."""
    tiles: dict[str, Block] = field(default_factory=dict)

    @property
    def at(self) -> tuple[Affine, ...]:
        """Indices of all dims around."""
        return (*self.rows.head, *self.rows.group)

    @property
    def operands(self) -> tuple[tuple[Affine, ...], int]:
        """Which keys and values: of what head, and from which column on."""
        return self.rows.head, self.first

    @property
    def is_first(self) -> bool:
        """Whether nothing is known of the rows before."""
        return self.first == 0

    @property
    def is_last(self) -> bool:
        """Whether all is known of the rows after."""
        return self.first + self.columns == self.rows.columns


def stagings(under: Sequence[Under | None]) -> int:
    """How often keys and values come for blocks that follow each other."""
    wanted = [each.operands for each in under if each is not None]
    return 1 + sum(one != other for one, other in pairwise(wanted))


@dataclass(slots=True)
class Work:
    """Emits it; what is under way is told by the caller."""

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
    _neighbours: bool = field(init=False)
    """Whether a partition takes values of neighbouring columns, so that chunks are every so many columns, not runs of
    them, of which masks by numbers want the first ones only."""
    _busy: defaultdict[Stream, float] = field(init=False)
    """Time of each engine so far."""
    _scratch: int = 0

    def __post_init__(self) -> None:
        builder, banks = self.context.builder, self.context.sizes.banks
        planned = tiles_of(self.problem, self.schedule, builder.sizes)
        self.tiles = Tiles(builder, self.attention.product.loc.name, planned, self.pool)
        self.emitter = Emitter(builder, self._scratch_tile)
        turns = self.tiles.banks(max(1, (3 * banks) // 8), "transposes")
        self._scores = self.tiles.banks(max(1, (3 * banks) // 8), "scores")
        self._sums = self.tiles.banks(max(1, banks // 4), "weighted sums")
        transposer = transposer_of(self.context, self.emitter, self.tiles, turns, UNROLLED_TURNS)
        self.stager = Stager(self.tiles, transposer, self.context.sizes.rows, self.schedule.loaded)
        self._factor = factor_of(self.context, self.attention)
        dense = self.arrays.values.column.stride == itemsize(self.arrays.values.view.dtype)
        self._neighbours = not self.problem.banded and not dense
        self._busy = defaultdict(float)

    def _scratch_tile(self, like: Block, dtype: str) -> Block:
        self._scratch += 1
        return self._tile(
            f"scratch {self._scratch}", dtype, [atom.size for atom in like.dims[1:]], like.dims[0].size, 1
        )

    def _tile(self, name: str, dtype: str, sizes: Sequence[int], partitions: int, count: int = 0) -> Block:
        return self.tiles.tile(dtype, sizes, partitions, name, count or self.schedule.scores, True)

    @property
    def exponent_dtype(self) -> str:
        """Of exponentials in SBUF: that of their product with the values."""
        return self.problem.weight_dtype

    # ---- operands --------------------------------------------------------------------------------------------

    def stage(self, at: tuple[Affine, ...], first: int) -> Staged:
        """Keys [term, chunk, column] and values [column, chunk, feature] of a section of a head."""
        p, partitions = self.problem, self.context.sizes.rows
        columns = min(self.schedule.section, p.columns - first)
        deep, chunks = -(-p.depth // partitions), -(-columns // partitions)
        count = self.schedule.staged
        keys = self._tile("keys", p.dtype, [deep, columns], min(p.depth, partitions), count)
        values = self._tile("values", p.weight_dtype, [chunks, p.width], min(columns, partitions), count)
        self._fill(at, first, columns, keys, values)
        return Staged(at, first, keys, values)

    def _place(self, head: tuple[Affine, ...]) -> tuple[Affine, ...]:
        """Where the first query of a head is, by indices of all dims around."""
        return (*head, *(Affine() for _ in self.arrays.sizes[len(head) :]))

    def _fill(self, head: tuple[Affine, ...], first: int, columns: int, keys: Block, values: Block) -> None:
        """Bring ``columns`` keys and values of a head from ``first`` on to SBUF."""
        arrays, place = self.arrays, self._place(head)
        self._mark(self.attention.scores)
        section = arrays.keys.at(place).index(1, Affine(first), columns)
        self.stager.fill("keys", keys, section.select([2, 1]), arrays.keys.stream)
        self._mark(self.attention.product)
        section = arrays.values.at(place).index(1, Affine(first), columns)
        if self._neighbours:
            self.stager.fill_neighbours(values, section.select([1, 2]), arrays.values.stream)
        else:
            self.stager.fill("values", values, section.select([1, 2]), arrays.values.stream)

    def queries(self, under: Under) -> Block:
        p, partitions, queries, rows = self.problem, self.context.sizes.rows, self.arrays.queries, under.rows
        self._mark(self.attention.scores)
        count, deep = query_buffers(p, self.schedule), -(-p.depth // partitions)
        tile = self._tile("queries", p.dtype, [deep, rows.size], min(p.depth, partitions), count)
        source = queries.at(under.at).index(0, rows.start, rows.size).select([2, 0])
        self.stager.fill("queries", tile, source, queries.stream)
        return tile

    # ---- scores ----------------------------------------------------------------------------------------------

    def scores(self, under: Under) -> Iterator[None]:
        """The scores of a block, and the greatest of each row, negative; with a step for each bank."""
        attention, rows = self.attention, under.rows
        self._mark(attention.scores)
        queries, keys = under.tiles["queries"], under.tiles["keys"]
        scores = under.tiles["scores"] = self._tile("scores", "f32", [under.columns], rows.size)
        steps = attention.steps[self._factor is not None :]
        taken = taken_columns(self.problem, self.context.sizes)
        count = -(-under.columns // taken)
        parts = self._tile("greatest of parts", "f32", [count], rows.size, UNDER_WAY)
        for number, (start, size) in enumerate(pieces(under.columns, taken)):
            part = scores.index(1, Affine(start), size)
            last = next((at for at in reversed(range(len(steps))) if steps[at].band is None), -1)
            into = part if last < 0 else self._tile("raw scores", "f32", [size], rows.size, 2)
            yield from self._products(into, queries, keys, start)
            for at, step in enumerate(steps):
                self._mark(step.op)
                if step.band is not None:
                    self._mask(step, rows, into, under.first + start)
                    continue
                dtype = "f32" if at == last else step.op.shape.dtype
                out = part if at == last else self._tile(f"step {at}", dtype, [size], rows.size, 2)
                self._apply(step, into, out, partial(self._mask_tile, under.at, rows, under.first + start, size))
                into = out
            self._mark(attention.product)
            self._emit("tensor_reduce", Stream.VECTOR, [parts.index(1, Affine(number), 1)], [part], ["max"])
            yield
        self._mark(attention.product)
        self._greatest(under, parts)

    def _greatest(self, under: Under, parts: Block) -> None:
        """The greatest score of each row, negative, and what sums beside an earlier one are to be multiplied with."""
        size, running = under.rows.size, under.running
        if under.is_first and under.is_last:
            most = under.tiles["most"] = self._tile("greatest", "f32", [1], size, UNDER_WAY)
            self._emit("tensor_reduce", Stream.VECTOR, [most], [parts], ["max"], flags=["negate"])
            return
        own = self._tile("greatest of a section", "f32", [1], size, UNDER_WAY)
        self._emit("tensor_reduce", Stream.VECTOR, [own], [parts], ["max"], flags=["negate"])
        most = self._tile("running greatest", "f32", [1], size, self.schedule.bunch + UNDER_WAY)
        if under.is_first:
            self._emit("tensor_scalar", Stream.VECTOR, [most], [own], ["min"], [LARGEST])
        else:
            before = running["most"]
            self._emit("scalar_tensor_tensor", Stream.VECTOR, [most], [own, before], ["min", "min"], [LARGEST])
            scale = under.tiles["scale"] = self._tile("scale", "f32", [1], size, UNDER_WAY)
            self._emit("activation", Stream.SCALAR, [scale], [before, most], ["exp"], [-1.0], ["bias"])
        running["most"] = under.tiles["most"] = most

    def _products(self, out: Block, queries: Block, keys: Block, first: int) -> Iterator[None]:
        """Scores of columns from ``first`` on, times the factor."""
        builder, depth = self.context.builder, self.problem.depth
        partitions, rows = self.context.sizes.rows, out.dims[0].size
        for start, size in pieces(out.dims[1].size, self.context.sizes.bank_columns):
            bank = tile_in(builder, self._scores, [size], "f32", rows, True)
            for chunk, (_, terms) in enumerate(pieces(depth, partitions)):
                stationary = queries.index(1, Affine(chunk)).on_partitions(terms)
                moving = keys.index(1, Affine(chunk)).index(1, Affine(first + start), size).on_partitions(terms)
                builder.multiply(bank, stationary, moving, ["accumulate"] * (chunk > 0) + [*self.problem.flags])
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

    def _mask(self, step: Step, rows: Rows, block: Block, first: int) -> None:
        """Mask columns from ``first`` on by their numbers, but those that no row of the block masks."""
        band, builder, partitions = step.band, self.context.builder, self.context.sizes.rows
        assert band is not None, "of steps with a band"
        begin = rows.start.const
        for start, size in pieces(block.dims[1].size, partitions):
            if band.keeps_all(begin, begin + rows.size - 1, first + start + size):
                continue
            size = block.dims[1].size - start
            part = block.index(1, Affine(start), size)
            offset = band.rows * begin + band.columns * (first + start) + band.offset
            imm = [step.masked, offset, band.rows, band.columns]
            builder.emit("affine_select", Stream.GPSIMD, [part], [part], [ALU[band.direction]], imm)
            return

    def _apply(self, step: Step, block: Block, out: Block, leaf: Callable[[hlo.SSAValue], Block]) -> None:
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
                ins.append(leaf(operand))
        elementwise.emit(self.emitter, step.op, out, ins)

    def _mask_tile(self, at: tuple[Affine, ...], rows: Rows, first: int, size: int, value: hlo.SSAValue) -> Block:
        """What lies beside the scores, loaded."""
        array = self.arrays.masks[value]
        source = array.at(at).index(0, rows.start, rows.size).index(1, Affine(first), size).select([0, 1])
        tile = self._tile(f"mask {list(self.arrays.masks).index(value)}", source.dtype, [size], rows.size, 2)
        copy(self.context.builder, tile, source, array.stream)
        return tile

    # ---- weights ---------------------------------------------------------------------------------------------

    def exponentials(self, under: Under) -> Iterator[None]:
        """Of a block's scores beside the greatest of their row; and their sums, with a step for each."""
        rows, most, scores = under.rows, under.tiles["most"], under.tiles["scores"]
        taken = TAKEN_AT_ONCE * self.context.sizes.bank_columns
        self._mark(self.attention.product)
        parts = -(-under.columns // taken)
        sums = self._tile("sums", "f32", [parts], rows.size, UNDER_WAY)
        under.tiles["sums"] = sums
        out = self._tile("exponentials", self.exponent_dtype, [under.columns], rows.size)
        under.tiles["exponentials"] = out
        for at, (start, size) in enumerate(pieces(under.columns, taken)):
            self._mark(self.attention.product)
            outs = [out.index(1, Affine(start), size), sums.index(1, Affine(at), 1)]
            ins = [scores.index(1, Affine(start), size), most]
            self._emit("activation", Stream.SCALAR, outs, ins, ["exp"], [1.0], ["bias", "accumulate"])
            yield

    def weights(self, under: Under) -> Iterator[None]:
        """The exponentials with the columns on the partitions, [column, chunk, row]; with a step for each bank."""
        rows, sizes = under.rows, self.context.sizes
        chunks = -(-under.columns // sizes.rows)
        partitions = min(under.columns, sizes.rows)
        transposed = under.tiles["transposed"] = self._tile(
            "transposed", self.problem.weight_dtype, [chunks, rows.size], partitions
        )
        for start, count in pieces(chunks, max(1, sizes.bank_columns // rows.size)):
            self._mark(self.attention.product)
            self._turn(under.tiles["exponentials"], transposed, start, count)
            yield

    def weighted(self, under: Under) -> Iterator[None]:
        """The product with the values; divided by the sums and stored where it is that of all columns.

        What is one number a row comes first, so that nothing waits for it in the end.
        """
        builder, p, rows, partitions = self.context.builder, self.problem, under.rows, self.context.sizes.rows
        self._mark(self.attention.product)
        sums = self._sums_so_far(under)
        inverse = self._tile("inverse", "f32", [1], rows.size, UNDER_WAY)
        if under.is_last:
            self._emit("reciprocal", Stream.VECTOR, [inverse], [sums], [])
        bank = tile_in(builder, self._sums, [p.width], "f32", rows.size, True)
        for start, count in pieces(-(-under.columns // partitions), PIECES):
            self._mark(self.attention.product)
            for chunk in range(start, start + count):
                self._add(bank, under.tiles["transposed"], under.tiles["values"], chunk, under.columns)
            yield
        self._mark(self.attention.product)
        result = self._result_so_far(under, bank)
        if not under.is_last:
            return
        target = self.arrays.result.at(under.at).index(0, rows.start, rows.size).select([0, 2])
        out = self._tile("result", target.dtype, [p.width], rows.size)
        self._emit("activation", Stream.SCALAR, [out], [result, inverse], ["copy"], flags=["scale_ap"])
        copy(builder, target, out, self.arrays.result.stream)

    def _sums_so_far(self, under: Under) -> Block:
        """The sums of the rows of a block up to the end of this section."""
        size, sums = under.rows.size, under.tiles["sums"]
        if sums.dims[1].size > 1:
            parts, sums = sums, self._tile("sums of parts", "f32", [1], size, UNDER_WAY)
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
            running["result"] = self._tile("running result", "f32", [self.problem.width], size, self.schedule.bunch)
            self._emit("activation", Stream.SCALAR, [running["result"]], [bank], ["copy"])
        else:
            self._add_scaled(under, running["result"], bank)
        return running["result"]

    def _add_scaled(self, under: Under, total: Block, more: Block) -> None:
        """``total`` beside the greatest score so far, and ``more``."""
        ins = [total, more, under.tiles["scale"]]
        self._emit("scalar_tensor_tensor", Stream.VECTOR, [total], ins, ["multiply", "add"], [], ["ap0"])

    def _add(self, bank: Block, transposed: Block, values: Block, chunk: int, columns: int) -> None:
        """The product of a chunk of columns."""
        builder, partitions = self.context.builder, self.context.sizes.rows
        terms = min(partitions, columns - chunk * partitions)
        stationary = transposed.index(1, Affine(chunk)).on_partitions(terms)
        moving = values.index(1, Affine(chunk)).on_partitions(terms)
        builder.multiply(bank, stationary, moving, ["accumulate"] * (chunk > 0) + [*self.problem.weight_flags])

    def _turn(self, source: Block, out: Block, first: int, count: int) -> None:
        """Exponentials of so many chunks of columns from the ``first`` on, with the columns on the partitions."""
        partitions, columns, width = self.context.sizes.rows, source.dims[1].size, source.dims[1].stride
        total = columns // partitions
        whole = min(count, total - first)
        rest = columns - partitions * total if whole < count else 0
        near, far = (width, total * width) if self._neighbours else (partitions * width, width)
        parts = (
            (first, whole, partitions, first * near, near, far),
            (total, 1, rest, total * partitions * width, 0, width),
        )
        for start, several, size, offset, between, step in parts:
            if several and size:
                dims = (source.dims[0], Atom(several, between), Atom(size, step))
                chunks = out.index(1, Affine(start), several).on_partitions(size)
                self.stager.transposer.transpose(source.moved(offset).of(dims), chunks)
                left = self.context.timing.transpose(source.dims[0].size, size, source.dtype).times(several)
                self._busy[Stream.SCALAR] += left.scalar
