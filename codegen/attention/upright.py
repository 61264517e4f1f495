"""Few rows, columns on the partitions: Vector multiplies keys with queries as they lie, and nothing is transposed.

A partition has neighbouring columns of every head of a block; keys and values come section by section of the columns,
while the scores of all are there. TensorE copies queries to all partitions, in PSUM; scores
are sums of products there. Greatest scores and sums of exponentials are folded over the partitions by GpSimd, which
copies them back to all. Exponentials are divided before they are multiplied with the values, head by head, as they
stand. Nothing of one head meets what is of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from neuronx_cc.codegen.attention.arrays import Array
from neuronx_cc.codegen.attention.block import LARGEST, Work
from neuronx_cc.codegen.attention.geometry import runs
from neuronx_cc.codegen.attention.operands import Staged, Under, over, partitions_of
from neuronx_cc.codegen.attention.schedule import (
    PRODUCT_BUFFERS,
    QUERY_BUFFERS,
    UNDER_WAY,
    multiplied_at_once,
    spread_at_once,
)
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import pieces, tile_in
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream

NONE = float("-inf")
"""The score of what is no column."""


@dataclass(frozen=True, slots=True)
class Zone:
    """Chunks of columns that fill the same partitions."""

    partitions: int
    first: int
    count: int

    def of(self, block: Block, dim: int) -> Block:
        """Of a tile whose chunks are ``dim``."""
        return block.index(dim, Affine(self.first), self.count).on_partitions(self.partitions)


@dataclass(frozen=True, slots=True)
class Section:
    """Columns whose keys, or values, come at once."""

    first: int
    columns: int
    chunk: int
    """The first of its chunks among all."""

    def zones(self, rows: int) -> list[Zone]:
        """Columns that each of ``rows`` partitions has as many of, and those that are left; chunks are its own."""
        whole, rest = divmod(self.columns, rows)
        zones = Zone(rows, 0, whole), Zone(rest, whole, 1)
        return [zone for zone in zones if zone.partitions and zone.count]

    def among_all(self, zone: Zone) -> Zone:
        """A zone of it, with chunks as all have them."""
        return replace(zone, first=self.chunk + zone.first)


@dataclass(slots=True)
class Upright(Work):
    """The work on a block of ``schedule.pack`` heads, with all rows of each, whose columns are on the partitions."""

    @property
    def _own(self) -> int:
        """Rows of a head."""
        return self.problem.groups * self.problem.rows

    def _rows_of(self, array: Array) -> tuple[Atom, ...]:
        """The rows of a head."""
        return (*array.outer[self.arrays.heads :], replace(array.row, size=self.problem.rows))

    @property
    def _chunks(self) -> int:
        return -(-self.problem.columns // self.context.sizes.rows)

    @property
    def _partitions(self) -> int:
        return min(self.problem.columns, self.context.sizes.rows)

    def _sections(self) -> list[Section]:
        rows = self.context.sizes.rows
        return [
            Section(first, size, first // rows) for first, size in pieces(self.problem.columns, self.schedule.streamed)
        ]

    def _zones(self, section: Section) -> list[Zone]:
        return section.zones(self.context.sizes.rows)

    def _all_zones(self) -> list[Zone]:
        """Of all columns."""
        return Section(0, self.problem.columns, 0).zones(self.context.sizes.rows)

    def _scores_tile(self, name: str, dtype: str = "f32", count: int = 0) -> Block:
        """[column, head, row, chunk]."""
        return self._tile(name, dtype, [self.schedule.pack, self._own, self._chunks], self._partitions, count)

    # ---- operands --------------------------------------------------------------------------------------------

    def stage(self, at: tuple[Affine, ...], first: int) -> Staged:
        """Keys and values come section by section, when scores and weighted sums are made."""
        return Staged(at, first, {})

    def _brought(self, name: str, head: tuple[Affine, ...], section: Section) -> Block:
        """Keys, or values, of a section [column, head, chunk, feature], neighbouring columns on each partition."""
        p, keys = self.problem, name == "keys"
        array, dtype, terms = (
            (self.arrays.keys, p.dtype, p.depth) if keys else (self.arrays.values, p.weight_dtype, p.width)
        )
        self._mark(self.attention.scores if keys else self.attention.product)
        tile = self._tile_of_columns(name, array, dtype, section.columns, terms)
        source = array.at(self._place(head)).index(1, Affine(section.first), section.columns).select([1, 2])
        for into, part in self._by_runs(array, tile, source):
            self.stager.fill_neighbours(into, part, array.stream)
        return tile.select([0, 2, 1, 3])

    def queries(self, under: Under) -> Block:
        """Queries [1, head, row, term]."""
        p, array, heads = self.problem, self.arrays.queries, self.schedule.pack
        self._mark(self.attention.scores)
        tile = self._tile("queries", p.dtype, [heads, self._own, p.depth], 1, QUERY_BUFFERS)
        source = array.at(self._place(under.rows.head))
        for row, beyond, rows in runs(self._rows_of(array)):
            for head, offset, several in runs(self._heads_of(array)):
                part = source.of((Atom(1, 0), several, rows, source.dims[2])).moved(beyond + offset)
                into = tile.index(1, Affine(head), several.size).index(2, Affine(row), rows.size)
                copy(self.context.builder, into, part, array.stream)
        return tile

    def _mask_block(self, value: hlo.SSAValue, at: tuple[Affine, ...]) -> Block:
        """What lies beside the scores [column, head, row, chunk], loaded once for heads and rows that share it."""
        array = self.arrays.masks[value]
        rows = self._rows_of(array)
        of_rows, heads = any(row.stride for row in rows), self._heads_of(array)
        own, several = self._own if of_rows else 1, [atom.size if atom.stride else 1 for atom in heads]
        name = f"mask {list(self.arrays.masks).index(value)}"
        tile = self._tile(name, array.view.dtype, [prod(several), own, self._chunks], self._partitions, 2)
        source = array.at(self._place(at))
        for number, place in enumerate(product(*map(range, several))):
            offset = sum(index * atom.stride for index, atom in zip(place, heads, strict=True))
            for section, (first, beyond, atom) in product(self._sections(), list(runs(rows if of_rows else ()))):
                column = replace(array.column, size=section.columns)
                beyond += section.first * column.stride
                part = source.of((column, Atom(1, 0), atom)).moved(offset + beyond)
                into = tile.index(1, Affine(number), 1).index(2, Affine(first), atom.size).select([0, 3, 1, 2])
                chunks = into.index(1, Affine(section.chunk), sum(zone.count for zone in self._zones(section)))
                self.stager.fill_neighbours(chunks, part, array.stream)
        if len(set(map(bool, (atom.stride for atom in heads)))) > 1:
            tile = self._of_each(f"{name} of each", tile, heads)
        head, row = (atom if atom.size > 1 else Atom(1, 0) for atom in tile.dims[1:3])
        return tile.of((tile.dims[0], over(head, self.schedule.pack), over(row, self._own), tile.dims[3]))

    def _of_each(self, name: str, tile: Block, heads: tuple[Atom, ...]) -> Block:
        """``tile`` of heads that differ along one dim around, for those of both dims: a copy, as heads are one dim."""
        outer, inner = (atom.size for atom in heads)
        sizes = [self.schedule.pack, *(atom.size for atom in tile.dims[2:])]
        out = self._tile(name, tile.dtype, sizes, self._partitions, 2)
        for zone in self._all_zones():  # of the others nothing is there
            into, (column, step, *rest) = zone.of(out, 3), zone.of(tile, 3).dims
            apart = Atom(outer, into.dims[1].stride * inner), Atom(inner, into.dims[1].stride)
            along = [replace(step, size=atom.size) if atom.stride else Atom(atom.size, 0) for atom in heads]
            self._emit(
                "tensor_copy",
                Stream.VECTOR,
                [into.of((column, *apart, *into.dims[2:]))],
                [zone.of(tile, 3).of((column, *along, *rest))],
                [],
            )
        return out

    # ---- scores and weights ----------------------------------------------------------------------------------

    def scores(self, under: Under) -> Iterator[None]:
        """Products of keys and queries, added up term by term; -inf for what is no column."""
        steps = self.attention.steps[self._factor is not None :]
        scores = self._empty_scores(under)
        raw = self._scores_tile("raw scores", count=2) if steps or self._factor is not None else scores
        made: list[tuple[Block, Block]] = []
        for section in self._sections():
            loaded = self._brought("keys", under.rows.head, section)
            for spread, head, row in self._spread(under.tiles["queries"]):
                yield
                for zone in self._zones(section):
                    into = raw.index(1, Affine(head), spread.dims[1].size).index(2, Affine(row), spread.dims[2].size)
                    keys = zone.of(loaded.index(1, Affine(head), spread.dims[1].size), 2)
                    yield from self._multiplied(section.among_all(zone).of(into, 3), keys, spread, made)
        self._sum(made)
        leaves = {leaf: self._mask_block(leaf, under.at) for leaf in self.arrays.masks}
        for zone in self._all_zones():
            self._stepped(zone.of(raw, 3), zone.of(scores, 3), {x: zone.of(leaf, 3) for x, leaf in leaves.items()})
        yield

    def _empty_scores(self, under: Under) -> Block:
        """Where scores go, with -inf for what is no column."""
        scores, zones = self._scores_tile("scores"), self._all_zones()
        under.tiles["scores"] = scores
        if len(zones) > 1:
            self._mark(self.attention.scores)
            self._emit("memset", Stream.GPSIMD, [scores.index(3, Affine(zones[0].count), 1)], [], [], [NONE])
        return scores

    def _spread(self, queries: Block) -> Iterator[tuple[Block, int, int]]:
        """Queries on all partitions [column, head, row, term] in banks of PSUM; the first head and row of each."""
        p, builder, own = self.problem, self.context.builder, self._own
        heads, rows = spread_at_once(p, self.schedule, self.context.sizes)
        ones = self.context.fixed.ones(self._partitions, p.dtype)
        for head, several in pieces(self.schedule.pack, heads):
            for row, count in pieces(own, rows):
                self._mark(self.attention.scores)
                bank = tile_in(builder, self._scores, [several, count, p.depth], "f32", self._partitions, True)
                moving = queries.index(1, Affine(head), several).index(2, Affine(row), count)
                builder.multiply(bank, ones, moving)
                yield bank, head, row

    def _multiplied(self, out: Block, keys: Block, queries: Block, made: list[tuple[Block, Block]]) -> Iterator[None]:
        """``out[column, head, row, chunk] = sum_t keys[column, head, chunk, t] queries[column, head, row, t]``.

        ``made``: products that are still to be added up, and where. They wait until the next are made, for Vector would
        wait for them.
        """
        heads, rows, chunks = (atom.size for atom in out.dims[1:])
        partitions, steps = out.dims[0].size, multiplied_at_once(self.problem, self.schedule, self.context.sizes)
        boxes = product(*map(pieces, (heads, rows, chunks), steps))
        for head, row, chunk in boxes:
            self._mark(self.attention.scores)
            left = keys.index(1, Affine(head[0]), head[1]).index(2, Affine(chunk[0]), chunk[1])
            right = (
                queries.index(1, Affine(head[0]), head[1]).index(2, Affine(row[0]), row[1]).on_partitions(partitions)
            )
            into = out.index(1, Affine(head[0]), head[1]).index(2, Affine(row[0]), row[1])
            sizes = head[1], row[1], chunk[1], self.problem.depth
            tile = self._tile("products", "f32", sizes, partitions, PRODUCT_BUFFERS)
            left = left.of((*left.dims[:2], Atom(row[1], 0), *left.dims[2:]))
            right = right.of((left.dims[0], *right.dims[1:3], Atom(chunk[1], 0), right.dims[3]))
            self._emit("tensor_tensor", Stream.VECTOR, [tile], [left, right], ["multiply"])
            self._sum(made)
            made.append((into.index(3, Affine(chunk[0]), chunk[1]), tile))
            yield

    def _sum(self, made: list[tuple[Block, Block]]) -> None:
        """Add up products term by term."""
        while made:
            sums, products = made.pop()
            self._emit("tensor_reduce", Stream.VECTOR, [sums], [products], ["add"])

    def _stepped(self, raw: Block, scores: Block, leaves: dict[hlo.SSAValue, Block]) -> None:
        """What is made of the sums before the softmax."""
        steps = self.attention.steps[self._factor is not None :]
        if self._factor is not None:
            self._mark(self.attention.scores)
            into = raw if steps else scores
            self._emit("tensor_scalar", Stream.VECTOR, [into], [raw], ["multiply"], [self._factor])
        for at, step in enumerate(steps):
            self._mark(step.op)
            last = at == len(steps) - 1
            sizes = [atom.size for atom in raw.dims[1:]]
            out = scores if last else self._tile(f"step {at}", step.op.shape.dtype, sizes, raw.dims[0].size, 2)
            self._apply(step, raw, out, lambda value, *_: leaves[value])
            raw = out

    def exponentials(self, under: Under) -> Iterator[None]:
        """Of scores beside the greatest of their row."""
        self._mark(self.attention.product)
        scores = under.tiles["scores"]
        most = self._over_columns("greatest", scores, "max")
        if self.attention.zero_rows:
            self._emit("tensor_scalar", Stream.VECTOR, [most], [most], ["max"], [-LARGEST])
        yield
        shifted = self._scores_tile("shifted")
        everywhere = self._everywhere("greatest everywhere", most)
        yield
        self._mark(self.attention.product)
        self._emit("tensor_tensor", Stream.VECTOR, [shifted], [scores, everywhere], ["subtract"])
        under.tiles["exponentials"] = out = self._scores_tile("exponentials")
        self._emit("activation", Stream.SCALAR, [out.flat()], [shifted.flat()], ["exp"], [1.0])
        yield

    def weights(self, under: Under) -> Iterator[None]:
        """Exponentials divided by their sums, in the type of the values."""
        self._mark(self.attention.product)
        exponentials = under.tiles["exponentials"]
        sums = self._over_columns("sums", exponentials, "add")
        yield
        self._mark(self.attention.product)
        everywhere = self._everywhere("inverse everywhere", self._inverse(sums))
        yield
        self._mark(self.attention.product)
        under.tiles["shares"] = shares = self._scores_tile("shares", self.problem.weight_dtype)
        self._emit("tensor_tensor", Stream.VECTOR, [shares], [exponentials, everywhere], ["multiply"])
        yield

    def _over_columns(self, name: str, block: Block, op: str) -> Block:
        """[1, head and row]: what ``op`` makes of all columns."""
        rows = self.schedule.pack * self._own
        parts = self._tile(f"{name} of partitions", "f32", [rows], self._partitions, UNDER_WAY)
        rest = block.of((block.dims[0], Atom(rows, block.dims[2].stride), block.dims[3]))
        self._emit("tensor_reduce", Stream.VECTOR, [parts], [rest], [op])
        out = self._tile(name, "f32", [rows], 1, UNDER_WAY)
        self._emit("partition_reduce", Stream.GPSIMD, [out], [parts], [op])
        return out

    def _everywhere(self, name: str, row: Block) -> Block:
        """[column, head, row, chunk]: ``row`` [1, head and row] on all partitions, repeated for each chunk."""
        tile = self._tile(name, "f32", [self.schedule.pack, self._own], self._partitions, UNDER_WAY)
        self._emit("partition_broadcast", Stream.GPSIMD, [tile.flat()], [row], [])
        return tile.of((*tile.dims, Atom(self._chunks, 0)))

    # ---- products with the values ----------------------------------------------------------------------------

    def weighted(self, under: Under) -> Iterator[None]:
        """The products with the values, stored."""
        p, own, heads, array = self.problem, self._own, self.schedule.pack, self.arrays.result
        target = array.at(self._place(under.rows.head)).select([0, 2])
        out, sections = self._tile("result", target.dtype, [heads, p.width], own), self._sections()
        total = self._tile("sums of sections", "f32", [heads, p.width], own) if len(sections) > 1 else out
        for section in sections:
            values, first, last = (
                self._brought("values", under.rows.head, section),
                section is sections[0],
                section is sections[-1],
            )
            for head, several in pieces(heads, max(1, self.context.sizes.bank_columns // p.width)):
                bank = self._weighted(under, section, values, (head, several))
                so_far, into = (each.index(1, Affine(head), several) for each in (total, out if last else total))
                if first:
                    self._emit("activation", Stream.SCALAR, [into], [bank], ["copy"], [1.0])
                else:
                    self._emit("tensor_tensor", Stream.VECTOR, [into], [so_far, bank], ["add"])
                yield
        self._store(out, target)

    def _weighted(self, under: Under, section: Section, values: Block, heads: tuple[int, int]) -> Block:
        """The sums of a section [row, head, feature], in a bank of PSUM."""
        self._mark(self.attention.product)
        bank = tile_in(self.context.builder, self._sums, [heads[1], self.problem.width], "f32", self._own, True)
        chunks = -(-section.columns // self.context.sizes.rows)
        shares = under.tiles["shares"].index(3, Affine(section.chunk), chunks)
        for number in range(heads[1]):
            head = Affine(heads[0] + number)
            weights = shares.index(1, head).select([0, 2, 1])
            for chunk in range(chunks):
                self._add(bank.index(1, Affine(number)), weights, values.index(1, head), chunk, section.columns)
        return bank

    def _store(self, out: Block, target: Block) -> None:
        """Rows [row, head, feature] to where those of the first head and row begin: ``target`` [row, feature]."""
        array = self.arrays.result
        for row, beyond, rows in runs(self._rows_of(array)):
            for head, offset, heads in runs(self._heads_of(array)):
                part = target.of((rows, heads, target.dims[1])).moved(beyond + offset)
                source = partitions_of(out.index(1, Affine(head), heads.size), row, rows.size)
                copy(self.context.builder, part, source, array.stream)
