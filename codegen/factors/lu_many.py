"""LU factorisations of many matrices, one in each partition (``many``), rows chosen as in ``lu_kernel``.

A matrix lies column by column. Factors take the place of its elements, row for row as they were given; the DMA puts the
rows in order at the end. Columns are taken in segments, so that few instructions say all of them; in a segment, the
multiples of a row that belong to columns before the one at hand are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.tiles import TilePool, dense, pieces, tile_in
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.factors.many import columns_of, element, groups, matrices
from neuronx_cc.codegen.factors.ranks import PLACE, renumber, take_largest
from neuronx_cc.codegen.factors.vector import Vector
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream

SEGMENT = 8
"""Columns whose steps are one loop."""


def lower(context: Context, op: hlo.CustomCallOp, source: View, targets: dict[int, View]) -> None:
    """A custom call with the target ``LU``."""
    batch, rows, columns = source.shape
    raw = context.own_hbm(op.result, hlo.Shape("f32", (min(batch, context.sizes.partitions) * rows, columns)))
    order = context.own_hbm(op.result, hlo.Shape("s32", (raw.shape[0],)))
    for first, count in groups(context.builder, batch):
        with TilePool(context.builder, "lu", 2) as pool:
            kernel = _Lu(context.builder, Vector(context.builder), pool, count, rows, columns)
            kernel.load(source, first)
            for start, width in pieces(min(rows, columns), SEGMENT):
                kernel.segment(start, width)
            kernel.store(targets, first, raw, order)


@dataclass
class _Lu:
    builder: Builder
    vector: Vector
    pool: TilePool
    count: int
    rows: int
    columns: int

    def __post_init__(self) -> None:
        rows, columns, steps = self.rows, self.columns, min(self.rows, self.columns)
        self.left = self._tile(columns, rows)
        self.work = self._tile(max(rows * columns, 1))
        self.numbers, self.active, self.places = self._tile(rows), self._tile(rows), self._tile(max(rows, steps))
        self.indices, self.size, self.multiples, self.change = (self._tile(rows) for _ in range(4))
        self.chosen, self.order, self.after = self._tile(steps), self._tile(rows), self._tile(2 * columns)
        self.shares = self._tile(columns)
        self.top, self.divisor, self.step, self.rest = (self._tile(1) for _ in range(4))

    def _tile(self, *sizes: int, dtype: str = "f32") -> Block:
        return self.pool.apart(list(sizes), dtype, self.count)

    def _work(self, *sizes: int) -> Block:
        """The scratch tile with other dims."""
        return self.work.of((self.work.dims[0], *dense(sizes, "f32")))

    def load(self, source: View, first: Affine) -> None:
        """Columns one after the other, and the numbers that all start with."""
        given = self._work(self.rows, self.columns)
        self.builder.emit("dma_copy", Stream.DMA_LOAD, [given.flat()], [matrices(source, first, self.count)])
        self.vector.copied(self.left, columns_of(given))
        self.vector.filled(self.active, 1.0)
        for out in (self.indices, self.places):
            self.builder.emit("iota", Stream.GPSIMD, [out], [], imm=[0, 0, 1])
        self.builder.emit("iota", Stream.GPSIMD, [self.after], [], imm=[-self.columns, 0, 1])
        self.vector.scaled(self.after, self.after, ["is_gt"], 0.0)
        self.vector.scaled(self.places, self.places, ["multiply"], PLACE)
        self.vector.copied(self.numbers, self.places.index(1, Affine(), self.rows))

    def segment(self, start: int, width: int) -> None:
        """The columns ``start`` to ``start + width``."""
        vector, beyond = self.vector, self.columns - start
        shares = self.shares.index(1, Affine(), beyond)
        with self.builder.loop(width) as at:
            column = self.left.index(1, at + start)
            chosen, place = element(self.chosen, at + start), element(self.places, at + start)
            vector.scaled(self.size, column, ["abs"])
            vector.both(self.size, self.size, "multiply", self.active)
            take_largest(vector, chosen, self.size, self.numbers, self.top)
            vector.combined(self.active, self.numbers, "is_equal", chosen, "subtract", self.active, reverse=True)
            picked = self._work(beyond, self.rows)
            with self.builder.loop(beyond) as other:
                values = self.left.index(1, other + start)
                vector.combined(picked.index(1, other), self.numbers, "is_equal", chosen, "multiply", values)
            vector.folded(shares, picked, "add")
            pivot = element(self.shares, at)
            vector.combined(self.divisor, pivot, "is_equal", 0.0, "add", pivot)
            vector.combined(self.multiples, column, "divide", self.divisor, "multiply", self.active)
            # of columns up to this one: nothing
            after = self.after.index(1, at * -1 + self.columns, beyond)
            vector.both(shares, shares, "multiply", after)
            with self.builder.loop(beyond) as other:
                values, share = self.left.index(1, other + start), element(self.shares, other)
                vector.combined(values, self.multiples, "multiply", share, "subtract", values, reverse=True)
            bits = Block(self.active.alloc, "s32", self.active.offset, self.active.dims)
            self.builder.emit("copy_predicated", Stream.VECTOR, [column], [bits, self.multiples])
            self._note(chosen, element(self.order, at + start))
            renumber(vector, self.numbers, (chosen, place), (self.step, self.rest), (self.size, self.change))

    def _note(self, chosen: Block, out: Block) -> None:
        """Which row has the number ``chosen``."""
        self.vector.combined(self.size, self.numbers, "is_equal", chosen, "multiply", self.indices)
        self.vector.folded(out, self.size, "add")

    def store(self, targets: dict[int, View], first: Affine, raw: View, order: View) -> None:
        """Rows in order, the pivots, and which row each is."""
        builder, vector, steps = self.builder, self.vector, min(self.rows, self.columns)
        if self.rows > steps:
            with builder.loop(self.rows - steps) as at:
                self._note(element(self.places, at + steps), element(self.order, at + steps))
        rows = self._work(self.rows, self.columns)
        vector.copied(rows, columns_of(self.left))
        each = 4 * self.rows * self.columns
        whole = Block(raw.alloc, "f32", raw.start, (Atom(self.count, each), Atom(each // 4, 4)))
        builder.emit("dma_copy", Stream.DMA_STORE, [whole], [rows.flat()])
        numbers, base = self._tile(self.rows, dtype="s32"), self.top
        if 2 in targets:
            vector.copied(numbers, self.order)
            builder.emit("dma_copy", Stream.DMA_STORE, [matrices(targets[2], first, self.count)], [numbers])
        if 1 in targets:
            pivots = self._tile(steps, dtype="s32")
            vector.scaled(pivots, self.chosen, ["multiply", "add"], 1 / PLACE, 1.0)
            builder.emit("dma_copy", Stream.DMA_STORE, [matrices(targets[1], first, self.count)], [pivots])
        builder.emit("iota", Stream.GPSIMD, [base], [], imm=[0, self.rows, 0])
        listed = self._tile(self.rows, dtype="s32")
        vector.scaled(listed, self.order, ["add"], base)
        lines = Block(order.alloc, "s32", order.start, (Atom(self.count, 4 * self.rows), Atom(self.rows, 4)))
        builder.emit("dma_copy", Stream.DMA_STORE, [lines], [listed])
        self._gather(targets[0], first, raw, order)

    def _gather(self, target: View, first: Affine, raw: View, order: View) -> None:
        """Rows of ``raw`` to ``target``, in ``order``."""
        builder, width = self.builder, 4 * self.columns
        rings = self.pool.ring(4, 2), self.pool.ring(width, 2)
        table = Block(raw.alloc, "f32", raw.start, (Atom(self.count * self.rows, width), Atom(self.columns, 4)))
        for start, loops, size in builder.tiles(self.count * self.rows, builder.sizes.partitions):
            with builder.loop(loops) as index:
                at = index * size + start
                index_tile = tile_in(builder, rings[0], [1], "s32", size)
                rows = tile_in(builder, rings[1], [self.columns], "f32", size)
                there = Block(order.alloc, "s32", order.start + at * 4, (Atom(size, 4), Atom(1, 4)))
                builder.emit("dma_copy", Stream.DMA_LOAD, [index_tile], [there])
                builder.emit("dma_gather", Stream.DMA_DYNAMIC, [rows], [table, index_tile], flags=["clamp"])
                offset = target.start + (first * self.rows + at) * width
                out = Block(target.alloc, "f32", offset, (Atom(size, width), Atom(self.columns, 4)))
                builder.emit("dma_copy", Stream.DMA_STORE, [out], [rows])
