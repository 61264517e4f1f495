"""Operands of blocks of rows in SBUF: queries, keys, values and what is read beside the scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from neuronx_cc.codegen.attention.arrays import Array, Arrays
from neuronx_cc.codegen.attention.choose import factor_of
from neuronx_cc.codegen.attention.geometry import runs
from neuronx_cc.codegen.attention.pattern import Attention
from neuronx_cc.codegen.attention.schedule import (
    MASK_BUFFERS,
    Problem,
    Schedule,
    query_buffers,
    tiles_of,
)
from neuronx_cc.codegen.attention.stage import Stager, is_turned
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.filler import transposer_of
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

UNROLLED_TURNS = 256
"""Banks of transposes that are no loop."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A block of rows, the same of all heads that are taken together: where, and how many columns are computed."""

    head: tuple[Affine, ...]
    """Indices of the dims around that keys and values have, of the first head."""
    group: tuple[Affine, ...]
    """Of the others."""
    start: Affine
    size: int
    columns: int
    span: tuple[Affine, int]
    """The first of the rows whose queries are loaded at once, and how many they are."""
    within: int = 0
    """Of these, the first of this block."""
    step: int = 1
    """From each row to the next; blocks whose rows alternate are of the same ``span``."""

    @property
    def is_last(self) -> bool:
        """Whether those that alternate with it have all gone before."""
        return self.step == 1 or self.within == self.step - 1

    def of(self, block: Block, dim: int, start: Affine) -> Block:
        """The rows from ``start`` on, along ``dim`` of ``block``."""
        rows = block.index(dim, start, self.size)
        atoms = list(rows.dims)
        atoms[dim] = replace(atoms[dim], stride=atoms[dim].stride * self.step)
        return rows.of(tuple(atoms))


@dataclass(frozen=True, slots=True)
class Staged:
    """Keys and values of heads that are taken together, of columns from ``first`` on."""

    head: tuple[Affine, ...]
    first: int
    tiles: dict[str, Block]


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


def once_a_row(source: Block) -> Block:
    """[row, column] of what lies beside the scores: one column where all are the same, for which a DMA would have a
    descriptor each.
    """
    return source if source.dims[1].stride else source.of((source.dims[0], Atom(1, 0)))


def over(column: Atom, size: int) -> Atom:
    """``column`` of a tile of such, for ``size`` columns."""
    return column if column.size == size else Atom(size, 0)


def partitions_of(block: Block, first: int, count: int) -> Block:
    """``count`` partitions of a tile from ``first`` on."""
    return replace(block.on_partitions(count), partition=block.partition + first)


def stagings(under: Sequence[Under | None]) -> int:
    """How often keys and values come for blocks that follow each other."""
    wanted = [each.operands for each in under if each is not None]
    return 1 + sum(one != other for one, other in pairwise(wanted))


@dataclass(slots=True)
class Operands:
    """Brings them there, for blocks of which the caller says when they come."""

    context: Context
    attention: Attention
    arrays: Arrays
    problem: Problem
    schedule: Schedule
    pool: TilePool
    tiles: Tiles = field(init=False)
    emitter: Emitter = field(init=False)
    stager: Stager = field(init=False)
    _turns: Ring = field(init=False)
    _scores: Ring = field(init=False)
    _sums: Ring = field(init=False)
    _factor: float | None = field(init=False)
    """The first op on the scores, if it is a product with a constant."""
    _scaled: bool = field(init=False)
    """Whether queries are multiplied with it, not scores."""
    _neighbours: bool = field(init=False)
    """Whether a partition takes values of neighbouring columns, so that chunks are every so many columns, not runs of
    them, of which masks by numbers want the first ones only."""
    _busy: defaultdict[Stream, float] = field(init=False)
    """Time of each engine so far."""
    _loaded: dict[str, tuple[object, Block]] = field(default_factory=dict)
    """What was loaded last under a name: what it is, and the tile."""
    _scratch: int = 0

    def __post_init__(self) -> None:
        builder, banks = self.context.builder, self.context.sizes.banks
        planned = tiles_of(self.problem, self.schedule, builder.sizes)
        self.tiles = Tiles(builder, self.attention.product.loc.name, planned, self.pool)
        self.emitter = Emitter(builder, self._scratch_tile)
        self._turns = self.tiles.banks(max(1, (3 * banks) // 8), "transposes")
        self._scores = self.tiles.banks(max(1, (3 * banks) // 8), "scores")
        self._sums = self.tiles.banks(max(1, banks // 4), "weighted sums")
        transposer = transposer_of(self.context, self.emitter, self.tiles, self._turns, UNROLLED_TURNS)
        self.stager = Stager(self.tiles, transposer, self.context.sizes.rows, self.schedule.loaded)
        self._factor = factor_of(self.context, self.attention)
        queries = self._of_heads(self.arrays.queries, self.arrays.queries.at(self._place(())).select([2, 0]), 1)
        self._scaled = self.problem.direct and not self.schedule.pack and is_turned(queries)
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

    @property
    def _value_terms(self) -> int:
        """Of a column in the tile of values."""
        return self.problem.width

    # ---- operands --------------------------------------------------------------------------------------------

    def stage(self, at: tuple[Affine, ...], first: int) -> Staged:
        """Keys [term, chunk, head, column] and values [column, chunk, head, feature] of a section of heads."""
        p, partitions, heads = self.problem, self.context.sizes.rows, self.schedule.heads
        columns, deep = min(self.schedule.section, p.columns - first), -(-p.depth // partitions)
        keys = self._tile("keys", p.dtype, [deep, heads, columns], min(p.depth, partitions), self.schedule.staged)
        values = self._tile_of_columns("values", self.arrays.values, p.weight_dtype, columns, self._value_terms)
        self._fill(at, first, columns, keys, values.index(3, Affine(), p.width))
        return Staged(at, first, {"keys": keys, "values": values})

    def _tile_of_columns(self, name: str, array: Array, dtype: str, columns: int, terms: int) -> Block:
        """[column, chunk, head, term], in the order in which neighbouring columns come from memory: all heads of one,
        where these lie beside each other, or all of a head.
        """
        rows, heads, count = self.context.sizes.rows, self.schedule.heads, self.schedule.staged
        chunks, partitions = -(-columns // rows), min(columns, rows)
        beside = array.outer[self.arrays.heads - 1].stride < array.column.stride if self.arrays.heads else True
        if beside or not self._neighbours:
            return self._tile(name, dtype, [chunks, heads, terms], partitions, count)
        return self._tile(name, dtype, [heads, chunks, terms], partitions, count).select([0, 2, 1, 3])

    def _place(self, head: tuple[Affine, ...]) -> tuple[Affine, ...]:
        """Where the first query of a head is, by indices of all dims around."""
        return (*head, *(Affine() for _ in self.arrays.sizes[len(head) :]))

    def _heads_of(self, array: Array) -> tuple[Atom, ...]:
        """The heads of a block, by the dims around that it has several of, outermost first."""
        heads, count = self.arrays.heads, self.schedule.heads
        inner = min(count, self.arrays.sizes[heads - 1]) if heads else count
        atoms = [Atom(inner, array.outer[heads - 1].stride if heads else 0)]
        if inner < count:
            atoms.insert(0, Atom(count // inner, array.outer[heads - 2].stride))
        return tuple(atoms)

    def _of_heads(self, array: Array, source: Block, count: int) -> Block:
        """``source`` [other..., last], of a first head, as [other..., head, last]."""
        heads = self.arrays.heads
        beside = Atom(count, array.outer[heads - 1].stride if heads else 0)
        return source.of((*source.dims[:-1], beside, source.dims[-1]))

    def _fill(self, head: tuple[Affine, ...], first: int, columns: int, keys: Block, values: Block) -> None:
        """Bring ``columns`` keys and values of a head, and those after it, from ``first`` on to SBUF."""
        arrays, place = self.arrays, self._place(head)
        self._mark(self.attention.scores)
        section = arrays.keys.at(place).index(1, Affine(first), columns).select([2, 1])
        for into, source in self._by_runs(arrays.keys, keys, section):
            self.stager.fill("keys", into, source, arrays.keys.stream)
        self._mark(self.attention.product)
        section = arrays.values.at(place).index(1, Affine(first), columns).select([1, 2])
        for into, source in self._by_runs(arrays.values, values, section):
            if self._neighbours:
                self.stager.fill_neighbours(into, source, arrays.values.stream)
            else:
                self.stager.fill("values", into, source, arrays.values.stream)

    def _by_runs(self, array: Array, tile: Block, source: Block) -> Iterator[tuple[Block, Block]]:
        """Parts of ``tile`` [., ., head, .], and what goes there [., head, .]; ``source`` [., .]: of the first head."""
        for first, offset, heads in runs(self._heads_of(array)):
            part = source.of((source.dims[0], heads, source.dims[1])).moved(offset)
            yield tile.index(2, Affine(first), heads.size), part

    def begin(self) -> None:
        """What was loaded for blocks before is no longer there."""
        self._loaded.clear()

    def _once(self, name: str, what: object, load: Callable[[], Block]) -> Block:
        """The last that was loaded as ``name``, if that is the same."""
        if name not in self._loaded or self._loaded[name][0] != what:
            self._loaded[name] = what, load()
        return self._loaded[name][1]

    def queries(self, under: Under) -> Block:
        """Queries [term, chunk, head, row]."""
        rows = under.rows
        tile = self._once("queries", (rows.head, rows.group, rows.span), lambda: self._spanned(under))
        return rows.of(tile, 3, Affine(rows.within))

    def _spanned(self, under: Under) -> Block:
        """Of all rows that are loaded at once."""
        p, partitions, queries = self.problem, self.context.sizes.rows, self.arrays.queries
        first, size = under.rows.span
        self._mark(self.attention.scores)
        count, heads, deep = query_buffers(p, self.schedule), self.schedule.together, -(-p.depth // partitions)
        tile = self._tile("queries", p.dtype, [deep, heads, size], min(p.depth, partitions), count)
        source = queries.at(under.at).index(0, first, size).select([2, 0])
        stager, factor = self.stager, self._factor
        if self._scaled and factor is not None:
            stager = replace(stager, transposer=replace(stager.transposer, factor=factor))
        stager.fill("queries", tile, self._of_heads(queries, source, heads), queries.stream)
        return tile

    def _mask_tile(self, under: Under, head: int, start: int, value: hlo.SSAValue, beside: int, size: int) -> Block:
        """What lies beside the scores of heads from ``head`` on [row, head, column], loaded; once for all heads that
        are taken together, and for blocks that share it.
        """
        array, rows = self.arrays.masks[value], under.rows
        shared = self.arrays.heads == 0 or not array.outer[self.arrays.heads - 1].stride
        every = 1 if shared else self.schedule.together
        source = rows.of(array.at(under.at), 0, rows.start)
        source = once_a_row(source.index(1, Affine(under.first + start), size).select([0, 1]))

        def load() -> Block:
            name = f"mask {list(self.arrays.masks).index(value)}"
            tile = self._tile(name, source.dtype, [every, source.dims[1].size], rows.size, MASK_BUFFERS)
            copy(self.context.builder, tile, self._of_heads(array, source, every), array.stream)
            return tile

        tile = self._once(f"{value}", (source.offset, source.dims), load)
        here = tile.index(1, Affine(head), beside) if every > 1 else tile
        return here.of((tile.dims[0], here.dims[1] if every > 1 else Atom(beside, 0), over(tile.dims[2], size)))

    # ---- results ---------------------------------------------------------------------------------------------

    def result_of(self, under: Under) -> Block:
        """Where the result of a block goes, [row, head, feature]: its home on chip, or a tile."""
        array, rows = self.arrays.result, under.rows
        if self.problem.stays:
            return self._of_heads(array, array.rows(under.at, rows.start, rows.size), self.schedule.together)
        tile = self._results(rows).index(1, Affine(rows.within if rows.step > 1 else 0))
        return tile.on_partitions(rows.size)

    def store(self, under: Under, out: Block) -> None:
        """What is in such a tile: of blocks whose rows alternate once all are there, in runs of neighbouring rows."""
        array, rows = self.arrays.result, under.rows
        if self.problem.stays or not rows.is_last:
            return
        if rows.step == 1:
            target = array.rows(under.at, rows.start, rows.size)
            copy(self.context.builder, self._of_heads(array, target, self.schedule.together), out, array.stream)
            return
        first, size = rows.span
        target = self._of_heads(array, array.rows(under.at, first, size), self.schedule.together)
        row, *rest = target.dims
        order = [0, 1, 2, 3] if self._heads_beside else [0, 2, 1, 3]
        whole, left = divmod(size, rows.step)
        for partition, partitions, count in ((0, whole, rows.step), (whole, 1, left)):
            if count:
                dims = Atom(partitions, row.stride * rows.step), Atom(count, row.stride), *rest
                there = target.moved(partition * rows.step * row.stride).of(dims)
                source = partitions_of(self._results(rows).index(1, Affine(0), count), partition, partitions)
                copy(self.context.builder, there.select(order), source.select(order), array.stream)

    @property
    def _heads_beside(self) -> bool:
        """Whether a row of the result has those of all heads beside each other in HBM."""
        array, heads = self.arrays.result, self.arrays.heads
        return heads == 0 or array.outer[heads - 1].stride < array.row.stride

    def _results(self, rows: Rows) -> Block:
        """A tile of the results of all blocks that alternate, [row, block, head, feature], as they lie in HBM."""
        heads, width, dtype = self.schedule.together, self.problem.width, self.arrays.result.view.dtype

        def tile(*sizes: int) -> Block:
            return self._tile("result", dtype, sizes, rows.size)

        if rows.step == 1:
            return tile(1, heads, width)
        what = rows.head, rows.group, rows.span
        if self._heads_beside:
            return self._once("result", what, lambda: tile(rows.step, heads, width))
        return self._once("result", what, lambda: tile(heads, rows.step, width)).select([0, 2, 1, 3])

    def _emit(
        self, op: str, stream: Stream, outs: Sequence[Block], ins: Sequence[Block], alu: Sequence[str],
        imm: Sequence[float] = (), flags: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """An instruction whose time counts when work is dealt out."""
        instr = self.context.builder.emit(op, stream, outs, ins, alu, imm, flags)
        self._busy[stream] += self.context.timing.of(instr).bound

    def _mark(self, op: hlo.HloOp) -> None:
        self.context.builder.mark(op.loc)
