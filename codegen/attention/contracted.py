"""Few rows, columns on the partitions: TensorE transposes keys and multiplies them with queries.

As ``Upright``, but for the scores: a chunk of transposed keys is stationary while the few queries of its head move, so
that scores leave PSUM with columns on the partitions. Better than products on Vector where several queries share a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from neuronx_cc.codegen.attention.arrays import Array
from neuronx_cc.codegen.attention.geometry import runs
from neuronx_cc.codegen.attention.operands import Rows, Staged, Under, partitions_of
from neuronx_cc.codegen.attention.schedule import QUERY_BUFFERS, TRANSPOSED_BUFFERS
from neuronx_cc.codegen.attention.upright import Section, Upright, Zone
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import pieces, tile_in
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream


@dataclass(slots=True)
class Contracted(Upright):
    """The work on such a block."""

    def stage(self, at: tuple[Affine, ...], first: int) -> Staged:
        """The keys of the first section."""
        return Staged(at, first, {"keys": self._transposed(at, self._sections()[0])})

    def queries(self, under: Under) -> Block:
        """Queries [term, deep, head and row]."""
        p, partitions, array, size = self.problem, self.context.sizes.rows, self.arrays.queries, under.rows.size
        self._mark(self.attention.scores)
        rows = self._tile("rows of queries", p.dtype, [1, p.depth], size, QUERY_BUFFERS)
        self._gather(array, under.rows, array.at(self._place(under.rows.head)).select([0, 2]), rows.index(1, Affine()))
        tile = self._tile("queries", p.dtype, [-(-p.depth // partitions), size], min(p.depth, partitions))
        for chunk, (start, terms) in enumerate(pieces(p.depth, partitions)):
            into = tile.index(1, Affine(chunk), 1).on_partitions(terms)
            self.stager.transposer.transpose(rows.index(2, Affine(start), terms), into)
        return tile

    def _gather(self, array: Array, rows: Rows, source: Block, tile: Block) -> None:
        """Bring the rows of all heads of a block, of which ``source`` is the first head's, to their partitions."""
        for first, offset, atom in runs((*self._heads_of(array), *self._rows_of(array))):
            part = source.of((atom, *source.dims[1:])).moved(offset)
            copy(self.context.builder, partitions_of(tile, first, atom.size), part, array.stream)

    def scores(self, under: Under) -> Iterator[None]:
        """Sums leave a bank of PSUM as soon as it is full. The keys of a section are transposed ahead of the products
        of the one before, whose keys leave PSUM meanwhile.
        """
        scores, own = self._empty_scores(under), self._own
        leaves = {leaf: self._mask_block(leaf, under.at) for leaf in self.arrays.masks}
        most = max(1, self.context.sizes.bank_columns // own)
        sections, ahead = self._sections(), under.tiles["keys"]
        for number, section in enumerate(sections):
            keys, chunks = ahead, -(-section.columns // self.context.sizes.rows)
            if number + 1 < len(sections):
                ahead = self._transposed(under.rows.head, sections[number + 1])
            yield
            for heads in pieces(self.schedule.pack, max(1, most // chunks)):
                for zone in self._zones(section):
                    for start, count in pieces(zone.count, most):
                        part = replace(zone, first=zone.first + start, count=count)
                        raw = self._contracted(keys, under.tiles["queries"], part, heads)
                        yield
                        into, *beside = (
                            section.among_all(part).of(each.index(1, Affine(heads[0]), heads[1]), 3)
                            for each in (scores, *leaves.values())
                        )
                        self._stepped(raw, into, dict(zip(leaves, beside, strict=True)))
        yield

    def _transposed(self, head: tuple[Affine, ...], section: Section) -> Block:
        """Keys of a section [term, deep, head, chunk, column]."""
        p, rows, loaded = self.problem, self.context.sizes.rows, self._brought("keys", head, section)
        partitions = min(section.columns, rows)
        sizes = [-(-p.depth // rows), self.schedule.pack, -(-section.columns // rows), partitions]
        tile = self._tile("transposed keys", p.dtype, sizes, min(p.depth, rows), TRANSPOSED_BUFFERS)
        for part, (start, terms) in enumerate(pieces(p.depth, rows)):
            into = tile.index(1, Affine(part)).on_partitions(terms)
            for number, zone in product(range(self.schedule.pack), self._zones(section)):
                keys = zone.of(loaded.index(1, Affine(number)), 1).index(2, Affine(start), terms)
                out = into.index(1, Affine(number)).index(1, Affine(zone.first), zone.count)
                self.stager.transposer.transpose(keys, out.index(2, Affine(), zone.partitions))
        return tile

    def _contracted(self, keys: Block, queries: Block, zone: Zone, heads: tuple[int, int]) -> Block:
        """Scores [column, head, row, chunk] of some heads and chunks, in a bank of PSUM."""
        builder, own = self.context.builder, self._own
        self._mark(self.attention.scores)
        bank = tile_in(builder, self._scores, [heads[1], own, zone.count], "f32", zone.partitions, True)
        for head, chunk in product(range(heads[1]), range(zone.count)):
            for part, (_, terms) in enumerate(pieces(self.problem.depth, self.context.sizes.rows)):
                stationary = keys.index(1, Affine(part)).index(1, Affine(heads[0] + head)).on_partitions(terms)
                stationary = stationary.index(1, Affine(zone.first + chunk)).index(1, Affine(), zone.partitions)
                moving = queries.index(1, Affine(part)).index(1, Affine((heads[0] + head) * own), own)
                flags = [*["accumulate"] * (part > 0), *self.problem.flags]
                into = bank.index(1, Affine(head)).index(2, Affine(chunk))
                builder.multiply(into, stationary, moving.on_partitions(terms), flags)
        return bank

    def _stepped(self, raw: Block, scores: Block, leaves: dict[hlo.SSAValue, Block]) -> None:
        if self._factor is None and not self.attention.steps:
            self._mark(self.attention.scores)
            self._emit("activation", Stream.SCALAR, [scores], [raw], ["copy"], [1.0])
            return
        Upright._stepped(self, raw, scores, leaves)
