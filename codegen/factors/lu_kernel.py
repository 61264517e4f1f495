"""LU factorisation with partial pivoting, row for row as LAPACK chooses them, without exchanging rows (``panel``).

Each row has a number in every partition: where it stands, as a fraction, or two more once it was a pivot. Of the rows
with the largest element of a column, that is chosen which stands first, and the one that stands in its place takes its
number. The multiple of the column that each partition takes out of its own makes the chosen row zero, so that it takes
no part from there on. At the end the rows are put in order by products with ones and zeros.
"""

from __future__ import annotations

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import TilePool, pieces
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.factors import choose, lu_many
from neuronx_cc.codegen.factors.panel import Panel, new_home, on_chip, rows_of
from neuronx_cc.codegen.factors.ranks import DONE, PLACE, renumber, take_largest
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream


def lower(context: Context, op: hlo.CustomCallOp, step: int) -> None:
    """A custom call with the target ``LU``."""
    del step
    (operand,) = op.operands
    batch, rows, columns = hlo.shape_of(operand).dims
    together = choose.are_lus_side_by_side(context.timing, batch, rows, columns, context.builder.sbuf.largest_gap())
    targets: dict[int, View] = {}
    for number, values in context.elements(op.result).items():
        stays = number == 0 and not together
        targets[number] = new_home(context, values[0]) if stays else context.new_hbm(values[0])
        for value in values:
            context.lies_within(value, values[0])
            context.homes[value] = [targets[number]]
    if 0 not in targets:
        targets[0] = context.own_hbm(op.result, hlo.Shape("f32", (batch, rows, columns)))
    if together:
        lu_many.lower(context, op, context.dense(operand), targets)
        return
    given = on_chip(context, operand) if rows <= context.sizes.partitions else None
    source = context.dense(operand) if given is None else None
    with TilePool(context.builder, "lu", 2) as pool:
        partitions = max(columns, min(rows, context.sizes.partitions))
        kernel = _Lu(Panel.of(context, pool, partitions, columns, rows), targets)
        with context.builder.loop(batch) as matrix:
            kernel.load(source, matrix, given)
            kernel.factor()
            kernel.store(matrix)


class _Lu:
    def __init__(self, panel: Panel, targets: dict[int, View]) -> None:
        self.panel, self.builder, self.targets = panel, panel.builder, targets
        self.rows, self.columns, self.count = panel.length, panel.columns, min(panel.length, panel.columns)
        self.chunks = pieces(self.rows, panel.builder.sizes.partitions)
        self.left, self.lower, self.work = (panel.tile(self.rows) for _ in range(3))
        self.upper, self.chosen, self.places = panel.tile(self.count), panel.tile(self.count), panel.tile(self.count)
        self.numbers, self.start = panel.tile(self.rows), panel.tile(self.rows)
        self.both = panel.pool.apart([2, self.rows], "f32", panel.partitions)
        self.loaded, self.packed = panel.tile(self.columns), panel.tile(self.columns)
        self.found = panel.tile(self.chunks[0][1], 1, "s32")
        for out in (self.start, self.places):
            self.builder.emit("iota", Stream.GPSIMD, [out], [], imm=[0, 0, 1])
            panel.vector.scaled(out, out, ["multiply"], PLACE)

    def load(self, source: View | None, matrix: Affine, given: Block | None) -> None:
        """The columns on the partitions, from HBM or of what is ``given`` on chip."""
        panel = self.panel
        for out in (self.lower, *([self.left] if panel.partitions > self.columns else [])):
            panel.vector.filled(out, 0.0)
        panel.vector.copied(self.numbers, self.start)
        for start, count in self.chunks:
            part = self.loaded.on_partitions(count) if given is None else given
            if source is not None:
                self.builder.emit("dma_copy", Stream.DMA_LOAD, [part], [rows_of(source, matrix, start, count)])
            panel.transposed(self.left.on_partitions(self.columns).index(1, Affine(start), count), part)

    def factor(self) -> None:
        """Column by column."""
        panel, numbers = self.panel, self.numbers
        top, pivots, divisor, other, step, rest = (panel.tile(size) for size in (1, 2, 1, 1, 1, 1))
        with self.builder.loop(self.count) as at:
            column = panel.repeated(self.left, at)
            chosen, place = self.chosen.index(1, at, 1), self.places.index(1, at, 1)
            panel.vector.scaled(self.work, column, ["abs"])
            take_largest(panel.vector, chosen, self.work, numbers, top)
            for part, values in enumerate((self.left, column)):
                panel.vector.combined(self.both.index(1, Affine(part)), numbers, "is_equal", chosen, "multiply", values)
            panel.vector.folded(pivots, self.both, "add")
            upper, pivot = pivots.index(1, Affine(0), 1), pivots.index(1, Affine(1), 1)
            panel.vector.combined(divisor, pivot, "is_equal", 0.0, "add", pivot)
            # a pivot of zero makes its row no zeros, as it divides nothing: the row's own multiple is one
            panel.vector.scaled(other, pivot, ["not_equal", "add"], 0.0, chosen)
            panel.vector.scaled(self.work, numbers, ["is_equal"], other)
            multiples = self.both.index(1, Affine(0))
            panel.vector.combined(multiples, column, "divide", divisor, "add", self.work)
            panel.vector.combined(self.left, multiples, "multiply", upper, "subtract", self.left, reverse=True)
            # what nothing waits for
            panel.vector.combined(self.lower, multiples, "multiply", panel.picked(at), "add", self.lower)
            self.builder.emit("activation", Stream.SCALAR, [self.upper.index(1, at, 1)], [upper], ["copy"], [1.0])
            changes = self.work, self.both.index(1, Affine(1))
            renumber(panel.vector, numbers, (chosen, place), (step, rest), changes)

    def store(self, matrix: Affine) -> None:
        """Factors in the order of the pivots, the pivots, and which row each is."""
        panel, builder = self.panel, self.builder
        panel.vector.scaled(self.work, self.numbers, ["is_ge", "multiply"], DONE, -DONE)
        panel.vector.both(self.numbers, self.numbers, "add", self.work)
        parts = [self._part(start, count) for start, count in self.chunks]
        builder.emit("affine_select", Stream.GPSIMD, [self.upper], [self.upper], ["is_ge"], [0.0, 0, 1, -1])
        order = [panel.tile(self.chunks[0][1], count) for _, count in self.chunks]
        for start, count in self.chunks:
            here = [each.index(1, Affine(), count) for each in order]
            self._rows(matrix, start, count, parts, here)
        if 1 in self.targets:
            pivots = panel.tile(self.count, 1, "s32")
            panel.vector.scaled(pivots, self.chosen.on_partitions(1), ["multiply", "add"], 1 / PLACE, 1.0)
            builder.emit("dma_copy", Stream.DMA_STORE, [_line(self.targets[1], matrix, 0, self.count)], [pivots])

    def _part(self, start: int, count: int) -> tuple[Block, Block, Block]:
        """Of ``count`` rows: their multiples [row, column], where each stands, and their numbers."""
        panel = self.panel
        multiples, place, number = panel.tile(self.count, count), panel.tile(1, count), panel.tile(1, count)
        cut = [each.index(1, Affine(start), count) for each in (self.lower, self.numbers, self.work)]
        lower, places, work = (each.on_partitions(count) for each in cut)
        panel.transposed(multiples, lower.on_partitions(self.count))
        panel.vector.both(work, places, "multiply", panel.square(count))
        panel.vector.folded(place, work, "add")
        self.builder.emit("iota", Stream.GPSIMD, [number], [], imm=[start, 1, 0])
        return multiples, place, number

    def _rows(
        self, matrix: Affine, start: int, count: int, parts: list[tuple[Block, Block, Block]], order: list[Block]
    ) -> None:
        """Rows of the result; ``order`` is for the ones and zeros that pick them of each part."""
        panel, builder = self.panel, self.builder
        here = self.start.index(1, Affine(start), count)
        for out, (_, place, _) in zip(order, parts, strict=True):
            panel.vector.scaled(out, here.on_partitions(place.dims[0].size), ["is_equal"], place)
        target = rows_of(self.targets[0], matrix, start, count)
        stays = self.targets[0].in_sbuf
        packed = target if stays else self.packed.on_partitions(count)
        strict = packed.index(1, Affine(), self.count)
        self._summed(strict, order, [multiples for multiples, _, _ in parts])
        builder.emit("affine_select", Stream.GPSIMD, [strict], [strict], ["is_gt"], [0.0, start, 1, -1])
        above = min(count, self.count - start)
        if above > 0:
            bank = panel.bank(self.columns, above, True)
            upper = self.upper.on_partitions(self.columns).index(1, Affine(start), above)
            builder.multiply(bank, upper, panel.square(self.columns))
            inner = strict.on_partitions(above)
            panel.vector.both(inner, inner, "add", bank.index(1, Affine(), self.count))
            if self.columns > self.count:
                wide = [each.index(1, Affine(self.count), self.columns - self.count) for each in (packed, bank)]
                panel.vector.copied(wide[0].on_partitions(above), wide[1])
        if not stays:
            builder.emit("dma_copy", Stream.DMA_STORE, [target], [packed])
        if 2 in self.targets:
            numbers = self.found.index(1, Affine(), count)
            self._summed(numbers, [number for _, _, number in parts], order)
            builder.emit("dma_copy", Stream.DMA_STORE, [_line(self.targets[2], matrix, start, count)], [numbers])

    def _summed(self, out: Block, stationary: list[Block], moving: list[Block]) -> None:
        """``out`` = the sum of the products of both."""
        bank = self.panel.bank(moving[0].dims[1].size, stationary[0].dims[1].size, True)
        for at, (left, right) in enumerate(zip(stationary, moving, strict=True)):
            self.builder.multiply(bank, left, right, ["accumulate"] if at else [])
        self.panel.vector.copied(out, bank)


def _line(view: View, matrix: Affine, start: int, count: int) -> Block:
    """Elements of a row of a dense array [batch, row] in HBM."""
    width = view.shape[-1]
    offset = view.start + matrix * (4 * width) + 4 * start
    return Block(view.alloc, view.dtype, offset, (Atom(1, 4 * width), Atom(count, 4)))
