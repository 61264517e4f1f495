"""Few long rows spread over the partitions: each partition folds its part, and TensorE adds up the partitions.

The product of a matrix of ones with what the partitions have folded is the sum of all, on every partition, where ops on
values of a row find it. Sums only, in FP32, are exact that way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Block, Ring
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import TilePool, tile_in
from neuronx_cc.codegen.epilogues.work import leave
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.plan import MapPlan, Partitions, partition_divisor
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing

BUFFERS = 2
"""Of sums."""
LEAST_FILLED = 2
"""Rows are spread where they fill one part in so many of the partitions."""
MOST_ELEMENTS = 4096
"""Of all rows on each of these, so that their tiles fit."""


def takes(context: Context, op: hlo.ReduceOp, rows: int, row: int) -> bool:
    """Whether ``rows`` rows of ``row`` elements that ``op`` folds may be spread over the partitions: their sums are in
    one bank of PSUM.
    """
    types = {hlo.shape_of(value).dtype for value in (op.sources[0], op.results[0])}
    adds = types == {"f32"} and context.combiners.get(op.to_apply.data[0]) == "add"
    partitions = _partitions(context, row) if adds and rows <= context.sizes.bank_columns else 0
    return partitions * LEAST_FILLED >= context.sizes.rows and rows * row <= MOST_ELEMENTS * partitions


def candidates(context: Context, kernel: Kernel) -> Iterator[Partitions]:
    """Runs of the last axis, which is folded, on the partitions."""
    rows, row = prod(kernel.rows), prod(kernel.shape[len(kernel.rows) :])
    apart = bool(kernel.reduced) and not kernel.folded and kernel.scanned < 0
    if apart and all(takes(context, op, rows, row) for op in folds_of(kernel)):
        size = _partitions(context, kernel.shape[-1])
        yield Partitions(len(kernel.shape) - 1, size, kernel.shape[-1] // size)


def _partitions(context: Context, row: int) -> int:
    """How many hold equal parts of a row, at least two elements each, so that they have something to fold."""
    return partition_divisor(row, min(context.sizes.rows, row // 2)) if row > 1 else 0


def folds_of(kernel: Kernel) -> list[hlo.ReduceOp]:
    """The reductions of a kernel."""
    return [op for op in kernel.ops if isinstance(op, hlo.ReduceOp)]


def nanoseconds(rows: int, partitions: int, timing: Timing) -> float:
    """Of one sum over the partitions, for which everything waits."""
    added = timing.product(partitions, rows, "f32").bound + timing.latency(Stream.TENSOR)
    return added + leave(rows, "f32", timing).bound + timing.latency(Stream.SCALAR)


@dataclass(frozen=True, slots=True)
class Crossing:
    """Adds up what the partitions of one kernel have folded."""

    context: Context
    banks: Ring

    @classmethod
    def of(cls, context: Context, plan: MapPlan, pool: TilePool) -> Crossing | None:
        """None where rows lie on a partition each."""
        return cls(context, pool.psum(BUFFERS, "sums over the partitions")) if plan.spreads_rows else None

    def add(self, emitter: Emitter, parts: Block) -> None:
        """Replace ``parts`` [partitions, rows...] by their sum over the partitions, on each of these."""
        builder, partitions = self.context.builder, parts.dims[0].size
        sizes = [atom.size for atom in parts.dims[1:]]
        bank = tile_in(builder, self.banks, sizes, "f32", partitions)
        builder.multiply(bank, self.context.fixed.ones(partitions, terms=partitions), parts)
        emitter.leave(parts, bank)
