"""Rows spread over the partitions: each partition folds its part, and TensorE adds up the partitions.

The product of a matrix of ones with what the partitions have folded is the sum of all, on every partition, where ops on
values of a row find it. Sums only, in FP32, are exact that way. Few long rows fill the partitions so, and what has its
features on the partitions, as convolutions leave it, is normalised over these where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring, merge_free
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import TilePool, tile_in
from neuronx_cc.codegen.epilogues.work import leave
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.plan import MapPlan
from neuronx_cc.codegen.maps.spread import Partitions, partition_divisor
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import MAX_FREE_DIMS, Space, Stream
from neuronx_cc.ir.isa.timing import Stage, Timing

BUFFERS = 2
"""Of sums."""
MOST_ADDED = 8
"""Elements of a row on a partition that TensorE adds up: it takes a little less time for each than Vector, which is the
busier one, takes for elements that lie apart.
"""
LEAST_FILLED = 2
"""Few rows are spread where they fill one part in so many of the partitions."""
MOST_ELEMENTS = 4096
"""Of one row on each of these, so that its tiles fit."""


def takes(context: Context, op: hlo.ReduceOp, rows: int, row: int) -> bool:
    """Whether ``op`` folds few rows that are so long that they fill the partitions, ``row`` elements each."""
    partitions = _partitions(context, row) if adds(context, op) and rows <= context.sizes.bank_columns else 0
    return partitions * LEAST_FILLED >= context.sizes.rows and rows * row <= MOST_ELEMENTS * partitions


def candidates(context: Context, kernel: Kernel) -> Iterator[Partitions]:
    """An axis that is folded on the partitions: runs of it, or every so many elements as convolutions do.

    That is the last one of rows that are one axis, another one where some array repeats its elements along an axis.
    """
    row = prod(kernel.shape[len(kernel.rows) :])
    apart = bool(kernel.reduced) and not kernel.folded and kernel.scanned < 0
    if apart and all(adds(context, op) for op in folds_of(kernel)):
        for axis in range(len(kernel.rows), len(kernel.shape)):
            size = _partitions(context, kernel.shape[axis])
            if size and row <= MOST_ELEMENTS * size:
                for inner in sorted({1, kernel.shape[axis] // size}):
                    yield Partitions(axis, size, inner)


def adds(context: Context, op: hlo.ReduceOp) -> bool:
    types = {hlo.shape_of(value).dtype for value in (op.sources[0], op.results[0])}
    return types == {"f32"} and context.combiners.get(op.to_apply.data[0]) == "add"


def _partitions(context: Context, row: int) -> int:
    """How many hold equal parts of a row."""
    return partition_divisor(row, context.sizes.rows) if row > 1 else 0


def folds_of(kernel: Kernel) -> list[hlo.ReduceOp]:
    """The reductions of a kernel."""
    return [op for op in kernel.ops if isinstance(op, hlo.ReduceOp)]


def tile_rows(kernel: Kernel, timing: Timing) -> int:
    """Rows of a tile at most, whose sums fill a bank."""
    return min(prod(kernel.rows), timing.sizes.bank_columns)


def ops_of(kernel: Kernel, partitions: int, whole: int) -> int:
    """How many ops on whole tiles take as long as all: ``whole`` are, TensorE folds rows of few elements a partition,
    and all partitions have the values of a row.
    """
    folds, each = len(folds_of(kernel)), prod(kernel.shape[len(kernel.rows) :]) // partitions
    rows = sum(kernel.is_row(op.shape) for op in kernel.ops) - folds
    return whole - folds * (each <= MOST_ADDED) + ceil(rows / each)


def stage(kernel: Kernel, partitions: int, timing: Timing) -> Stage:
    """Sums of a tile over the partitions, for each of which everything waits."""
    rows, each = tile_rows(kernel, timing), prod(kernel.shape[len(kernel.rows) :]) // partitions
    products = timing.product(partitions, rows, "f32").times(each if each <= MOST_ADDED else 1)
    added = products + leave(rows, "f32", timing)
    latency = timing.latency(Stream.TENSOR) + timing.latency(Stream.SCALAR)
    folds = len(folds_of(kernel))
    return Stage(added.times(folds), folds * (added.bound + latency))


@dataclass(frozen=True, slots=True)
class Crossing:
    """Adds up what the partitions of one kernel have folded."""

    context: Context
    banks: Ring

    @classmethod
    def of(cls, context: Context, plan: MapPlan, pool: TilePool) -> Crossing | None:
        """None where rows lie on a partition each."""
        return cls(context, pool.psum(BUFFERS, "sums over the partitions")) if plan.spreads_rows else None

    def add(self, emitter: Emitter, out: Block, parts: Block) -> None:
        """Let ``out`` be the sum of ``parts`` [partitions, rows..., a few elements...] over the partitions and those
        elements, on each partition.
        """
        builder, partitions = self.context.builder, parts.dims[0].size
        bank = out
        if out.alloc.space is not Space.PSUM:
            bank = tile_in(builder, self.banks, [atom.size for atom in out.dims[1:]], "f32", partitions)
        ones = self.context.fixed.ones(partitions, parts.dtype, partitions)
        builder.emit("load_stationary", Stream.TENSOR, [], [ones])
        for number, part in enumerate(parts.at_each(len(out.dims), len(parts.dims) - len(out.dims))):
            self._multiply(bank, part, ["accumulate"] if number else [])
        if bank is not out:
            emitter.leave(out, bank)

    def _multiply(self, bank: Block, part: Block, flags: Sequence[str]) -> None:
        bank, part = merge_free([bank, part])
        if len(part.dims) <= MAX_FREE_DIMS + 1:
            self.context.builder.emit("multiply_moving", Stream.TENSOR, [bank], [part], flags=flags)
            return
        for at in range(part.dims[1].size):
            self._multiply(bank.index(1, Affine(at)), part.index(1, Affine(at)), flags)
