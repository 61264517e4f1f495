"""Few rows: those of several heads lie beside each other on the partitions, so that an instruction takes them all.

The scores of each head are a product of its own, which TensorE leaves on the first partitions; DMA brings them to
theirs. Exponentials are divided by their sums before they are multiplied with the values, head by head, which leaves
results on the first partitions again. Nothing of one head meets what is of another, so that what is not finite stays in
its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neuronx_cc.codegen.attention.arrays import Array
from neuronx_cc.codegen.attention.block import Work
from neuronx_cc.codegen.attention.geometry import runs
from neuronx_cc.codegen.attention.operands import Rows, Under, once_a_row, over, partitions_of
from neuronx_cc.codegen.attention.schedule import HEADS_UNDER_WAY, MASK_BUFFERS, QUERY_BUFFERS
from neuronx_cc.codegen.attention.steps import Step
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import pieces, tile_in
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream


@dataclass(slots=True)
class Packed(Work):
    """The work on a block of the rows of ``schedule.pack`` heads, head by head, query by query, row by row."""

    @property
    def exponent_dtype(self) -> str:
        """They are divided, and rounded, once more."""
        return "f32"

    @property
    def _own(self) -> int:
        """Rows of a head."""
        return self.problem.groups * self.problem.rows

    def _rows_of(self, array: Array) -> tuple[Atom, ...]:
        """The rows of a head."""
        return (*array.outer[self.arrays.heads :], replace(array.row, size=self.problem.rows))

    # ---- operands --------------------------------------------------------------------------------------------

    def _as_head(self, block: Block) -> Block:
        """[partition, chunk, free] as the only head of a block."""
        return block.of((*block.dims[:2], Atom(1, 0), block.dims[2]))

    def queries(self, under: Under) -> Block:
        """Queries [term, chunk, row]."""
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

    def _mask_tile(self, under: Under, head: int, start: int, value: hlo.SSAValue, beside: int, size: int) -> Block:
        array = self.arrays.masks[value]
        source = once_a_row(array.at(self._place(under.at)).index(1, Affine(under.first + start), size).select([0, 1]))
        name = f"mask {list(self.arrays.masks).index(value)}"
        tile = self._tile(name, source.dtype, [source.dims[1].size], under.rows.size, MASK_BUFFERS)
        self._gather(array, under.rows, source, tile)
        return tile.of((tile.dims[0], Atom(1, 0), over(tile.dims[1], size)))

    # ---- scores and weights ----------------------------------------------------------------------------------

    def _operands(self, under: Under, head: int, beside: int) -> tuple[Block, ...]:
        return under.tiles["queries"], under.tiles["keys"]

    def _raw(self, step: Step, sizes: Sequence[int], rows: int) -> Block:
        """In SBUF, where DMA puts them."""
        return self._tile("raw scores", "f32", sizes, rows, 2)

    def _products(self, out: Block, queries: Block, keys: Block, first: int) -> Iterator[None]:
        """Scores of all heads, of columns from ``first`` on."""
        own, heads, columns = self._own, self.schedule.pack, out.dims[2].size
        for number in range(heads):
            moving = keys.index(2, Affine(number), 1)
            stationary = self._as_head(queries.index(2, Affine(number * own), own))
            if heads == 1:
                yield from Work._products(self, out, stationary, moving, first)
                return
            tile = self._tile("scores of a head", "f32", [1, columns], own, HEADS_UNDER_WAY)
            yield from Work._products(self, tile, stationary, moving, first)
            copy(self.context.builder, partitions_of(out, number * own, own), tile, Stream.DMA_STORE)

    def exponentials(self, under: Under) -> Iterator[None]:
        """Divided by their sums."""
        yield from Work.exponentials(self, under)
        inverse = self._inverse(self._sums_so_far(under))
        shares = self._tile("shares", self.problem.weight_dtype, [1, under.columns], under.rows.size)
        ins = [under.tiles["exponentials"], inverse]
        self._emit("activation", Stream.SCALAR, [shares], ins, ["copy"], flags=["scale_ap"])
        under.tiles["exponentials"] = shares

    def weighted(self, under: Under) -> Iterator[None]:
        """The products with the values, stored."""
        p, own, heads, array = self.problem, self._own, self.schedule.pack, self.arrays.result
        target = array.at(self._place(under.rows.head)).select([0, 2])
        out = self._tile("result", target.dtype, [heads, p.width], own)
        for number in range(heads):
            self._mark(self.attention.product)
            weights = under.tiles["transposed"].index(1, Affine()).index(2, Affine(number * own), own)
            values = under.tiles["values"].index(2, Affine(number))
            bank = tile_in(self.context.builder, self._sums, [p.width], "f32", own, True)
            for chunk in range(values.dims[1].size):
                self._add(bank, weights, values, chunk, under.columns)
            self._emit("activation", Stream.SCALAR, [out.index(1, Affine(number))], [bank], ["copy"], [1.0])
            yield
        self._store(out, target)

    def _store(self, out: Block, target: Block) -> None:
        """Rows [row, head, feature] to where those of the first head and row begin: ``target`` [row, feature]."""
        array = self.arrays.result
        for row, beyond, rows in runs(self._rows_of(array)):
            for head, offset, heads in runs(self._heads_of(array)):
                part = target.of((rows, heads, target.dims[1])).moved(beyond + offset)
                source = partitions_of(out.index(1, Affine(head), heads.size), row, rows.size)
                copy(self.context.builder, part, source, array.stream)
