"""The arrays of a chain in HBM: by heads, rows or columns dealt out over the partitions, and terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neuronx_cc.codegen.attention.arrays import wanted_order
from neuronx_cc.codegen.chains.pattern import Chain, Sink
from neuronx_cc.codegen.chains.schedule import Schedule
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.problem import order_of
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.formation.graph import squeeze
from neuronx_cc.codegen.movement.transfer import copy, transfer
from neuronx_cc.codegen.view_ops import squeezed
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import Loc
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.stored import is_given


@dataclass(frozen=True, slots=True)
class Array:
    """One array, as [partition, neighbour, term] of a head; without neighbours where it has no rows of its own."""

    view: View
    outer: tuple[int, ...]
    """Strides of the dims around."""
    rows: int
    parts: int
    """Rows are ``parts`` partitions of ``each`` neighbours, or, in order, ``each`` blocks of one on a partition."""
    each: int
    in_order: bool
    row: int
    """Bytes from row to row."""
    last: Atom
    stream: Stream
    loc: Loc
    name: str
    rowed: bool = True

    @property
    def terms(self) -> int:
        """Elements of a row."""
        return self.last.size

    @property
    def key(self) -> object:
        """Equal for equal arrays."""
        return self.view.alloc, self.view.start, self.view.dtype, self.outer, self.parts, self.each, self.row, self.last

    @property
    def abreast(self) -> bool:
        """Whether rows of several heads lie beside each other, dense."""
        dense = self.rowed and self.last.stride == itemsize(self.view.dtype)
        return dense and self.outer[-1:] == (self.terms * self.last.stride,)

    def together(self, indices: Sequence[Affine], count: int) -> Block:
        """The rows of ``count`` heads, [partition, neighbour, head, term]."""
        rows = self.at(indices)
        return rows.of((*rows.dims[:-1], Atom(count, self.outer[-1]), rows.dims[-1]))

    def copy(self, builder: Builder, out: Block, source: Block) -> None:
        """Rows [partition, neighbour, ...] from HBM or there; the last block in order may have fewer."""
        whole, rest = divmod(self.rows, self.parts)
        for start, count, size in ((0, whole, self.parts), (whole, 1, rest)):
            if size and count:
                blocks = [x.index(1, Affine(start), count) for x in (out, source)]
                into, part = (x.of((replace(x.dims[0], size=size), *x.dims[1:])) for x in blocks)
                copy(builder, into, part, self.stream)

    def at(self, indices: Sequence[Affine]) -> Block:
        """The rows of a head."""
        offset = self.view.start
        for stride, index in zip(self.outer, indices, strict=True):
            offset = offset + index * stride
        far, near = (self.row, self.row * self.parts) if self.in_order else (self.row * self.each, self.row)
        dims = (Atom(self.parts, far), Atom(self.each, near), self.last)
        return Block(self.view.alloc, self.view.dtype, offset, dims)


class Parts(NamedTuple):
    """How rows, or columns, lie on the partitions."""

    rows: int
    parts: int
    each: int
    in_order: bool


@dataclass(frozen=True, slots=True)
class Arrays:
    """All of them."""

    operands: dict[tuple[hlo.DotOp, int], Array]
    """Of the first contractions."""
    others: dict[Sink, Array]
    """What the chain is multiplied with in the end."""
    results: dict[Sink, Array]
    read: dict[hlo.SSAValue, Array]
    """What is read beside."""
    stored: dict[hlo.SSAValue, Array]
    """What is stored of what is made between."""


def arrays_of(context: Context, chain: Chain, schedule: Schedule) -> Arrays:
    """Find or make a home of each."""
    s = schedule
    rows = Parts(s.rows, s.row_parts, s.row_blocks, s.in_order)
    columns = Parts(s.columns, s.column_parts, s.column_chunks, s.in_order)
    operands, others, results = {}, {}, {}
    for op in chain.sources:
        for index, parts in enumerate((rows, columns)):
            batch, free, terms = order_of(op, index)
            operands[op, index] = _read(context, op.operands[index], [*batch, *free, *terms], parts, op.loc)
    for sink in chain.sinks:
        batch, free, terms = order_of(sink.op, 1 - sink.weights)
        parts = rows if sink.across else columns
        others[sink] = _read(context, sink.other, [*batch, *terms, *free], parts, sink.op.loc)
        results[sink] = _written(context, sink, columns if sink.across else rows)
    read = {}
    for value in chain.read:
        if context.splat(value) is None:
            order = list(range(hlo.shape_of(value).rank))
            wide = squeeze(hlo.shape_of(value).dims) == chain.dims
            read[value] = _read(context, value, order, rows, hlo.loc_of(value), wide, beside=True)
    stored = {}
    for value in chain.stored:
        home = context.new_hbm(value) if value in context.outputs else context.own_hbm(value, hlo.shape_of(value))
        context.homes[value] = [home]
        name, loc = hlo.loc_of(value).name, hlo.loc_of(value)
        stored[value] = _array(squeezed(home), rows, True, Stream.DMA_STORE, loc, name)
    return Arrays(operands, others, results, read, stored)


def _read(
    context: Context, value: hlo.SSAValue, order: Sequence[int], parts: Parts, loc: Loc, wide: bool = True,
    beside: bool = False,
) -> Array:  # fmt: skip
    """``value``, whose dims in ``order`` are those around, rows and, if it is ``wide``, what rows have."""
    source = context.source_of(value)
    dims = hlo.shape_of(source).dims
    view = context.hbm(source).transpose(order)
    dense = beside or _stride(view.dims[-1]) == itemsize(view.dtype)
    if not dense or any(len(coalesce(atoms)) > 1 for atoms in view.dims):
        target = context.own_hbm(source, hlo.Shape(view.dtype, tuple(dims[axis] for axis in order)))
        transfer(context.builder, target, view, Stream.DMA_LOAD, force=True)
        view = target
    stream = Stream.DMA_WEIGHT if is_given(source) else Stream.DMA_LOAD
    return _array(squeezed(view), parts, wide, stream, loc, hlo.loc_of(source).name)


def _array(view: View, parts: Parts, wide: bool, stream: Stream, loc: Loc, name: str) -> Array:
    """``view``: by dims around, rows and what these have."""
    *around, row, last = [*map(_stride, view.dims), *([] if wide else [0])]
    return Array(view, tuple(around), *parts, row, Atom(view.shape[-1] if wide else 1, last), stream, loc, name)


def _written(context: Context, sink: Sink, parts: Parts) -> Array:
    """The result, stored as its only reader wants it."""
    value, shape = sink.op.result, sink.op.shape
    free, wide = [axis for axis, size in enumerate(shape.dims) if size != 1][-2:]
    row, last = (free, wide) if sink.weights == 0 else (wide, free)
    home = context.new_hbm(value) if value in context.outputs and last == wide else None
    if home is None or any(len(coalesce(atoms)) > 1 for atoms in home.dims):
        order = [axis for axis in wanted_order(value) if axis != last] + [last]  # rows are stored as they are made
        stored = context.own_hbm(value, hlo.Shape(shape.dtype, tuple(shape.dims[axis] for axis in order)))
        home = stored.transpose([order.index(axis) for axis in range(shape.rank)])
    context.homes[value] = [home]
    around = (axis for axis in range(shape.rank) if axis not in (row, last))
    view = squeezed(home.transpose([*around, row, last]))
    return _array(view, parts, True, Stream.DMA_STORE, sink.op.loc, sink.op.loc.name)


def _stride(atoms: tuple[Atom, ...]) -> int:
    merged = coalesce(atoms)
    assert len(merged) <= 1, "looked at"
    return merged[0].stride if merged else 0
