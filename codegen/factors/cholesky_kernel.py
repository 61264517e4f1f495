"""Cholesky factorisation: two instructions of Vector a column, and one that keeps it (``panel``).

Of the column, divided by its pivot, each partition takes its multiple out of its own. The rows that are kept are those
of the upper factor, but for the roots of the pivots, which divide them at the end. What is not definite has a pivot
that is not positive; its columns are divided by nothing, the last pivot is no number, and nor is any element then.
"""

from __future__ import annotations

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.factors import cholesky_many, choose
from neuronx_cc.codegen.factors.panel import Panel, new_home, on_chip, rows_of
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream


def lower(context: Context, op: hlo.CustomCallOp, step: int) -> None:
    """A custom call with the target ``CHOLESKY``."""
    del step
    (operand,) = op.operands
    batch, size, _ = hlo.shape_of(operand).dims
    if choose.are_choleskys_side_by_side(context.timing, batch, size, context.builder.sbuf.largest_gap()):
        cholesky_many.lower(context, op)
        return
    given = on_chip(context, operand)
    source = context.dense(operand) if given is None else None
    target = context.homes[op.result] = [new_home(context, op.result)]
    with TilePool(context.builder, "cholesky", 2) as pool:
        kernel = _Cholesky(Panel.of(context, pool, size, size, size))
        with context.builder.loop(batch) as matrix:
            if source is not None:
                given = kernel.panel.tile(size)
                context.builder.emit("dma_copy", Stream.DMA_LOAD, [given], [rows_of(source, matrix, 0, size)])
            assert given is not None, "it lies on chip or was loaded"
            kernel.symmetric(given)
            kernel.factor()
            kernel.finish(target[0].in_sbuf, rows_of(target[0], matrix, 0, size))


class _Cholesky:
    def __init__(self, panel: Panel) -> None:
        self.panel, self.builder, self.size = panel, panel.builder, panel.columns
        self.left, self.kept, self.numbers = panel.tile(self.size), panel.tile(self.size), panel.tile(3)
        self.ones = panel.tile(self.size)
        self.builder.emit("memset", Stream.GPSIMD, [self.ones], [], imm=[1.0])

    def symmetric(self, given: Block) -> None:
        """``left`` with the lower triangle of ``given`` on both sides."""
        builder, size = self.builder, self.size
        for out, alu in ((self.left, "is_ge"), (self.kept, "is_gt")):
            builder.emit("affine_select", Stream.GPSIMD, [out], [given], [alu], [0.0, 0, 1, -1])
        bank = self.panel.bank(size, size, True)
        builder.multiply(bank, self.panel.unit, self.left)
        builder.multiply(bank, self.kept, self.panel.unit, ["accumulate"])
        self.panel.vector.copied(self.left, bank)

    def factor(self) -> None:
        """Column by column."""
        panel, left, kept = self.panel, self.left, self.kept
        panel.vector.filled(kept, 0.0)
        share = self.numbers.index(1, Affine(0), 1)
        with self.builder.loop(self.size) as at:
            column = panel.repeated(left, at)
            # of a pivot below zero as of zero: infinity or NaN
            panel.vector.combined(
                share, column.index(1, at, 1), "max", 0.0, "divide", left.index(1, at, 1), reverse=True
            )
            panel.vector.combined(left, column, "multiply", share, "subtract", left, reverse=True)
            panel.vector.combined(kept, column, "multiply", panel.picked(at), "add", kept)

    def finish(self, stays: bool, target: Block) -> None:
        """The factor, by way of its transpose; NaN everywhere if a pivot has no root."""
        panel, builder, left = self.panel, self.builder, self.left
        pivot, root, flaw = (self.numbers.index(1, Affine(at), 1) for at in range(3))
        panel.vector.both(left, self.kept, "multiply", panel.unit)
        panel.vector.folded(pivot, left, "add")
        builder.emit("activation", Stream.SCALAR, [root], [pivot], ["sqrt"], [1.0])
        panel.vector.scaled(left, self.kept, ["divide"], root)
        panel.vector.scaled(flaw, pivot, ["divide", "multiply"], root, 0.0)
        builder.emit("affine_select", Stream.GPSIMD, [left], [left], ["is_ge"], [0.0, 0, -1, 1])
        bank = panel.bank(self.size, self.size, True)
        builder.multiply(bank, left, panel.unit)
        flaws = flaw.of((flaw.dims[0], Atom(self.size, 0)))
        builder.multiply(bank, self.ones, flaws, ["accumulate"])
        if stays:
            panel.vector.copied(target, bank)
            return
        panel.vector.copied(self.kept, bank)
        builder.emit("dma_copy", Stream.DMA_STORE, [target], [self.kept])
