"""Operands of TensorE brought to SBUF: the contracted dim on the partitions, loaded so or transposed there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from neuronx_cc.codegen.attention.schedule import at_once
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.dots.transpose import Transposer
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import pieces
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize


def is_turned(source: Block) -> bool:
    """Whether rows [contracted, heads, free] are loaded and transposed: the terms of each lie dense."""
    contracted, *_, free = source.dims
    return contracted.size > 1 and contracted.stride == itemsize(source.dtype) and free.stride != contracted.stride


@dataclass(frozen=True, slots=True)
class Stager:
    """Fills tiles [contracted, chunks, free] of one kernel."""

    tiles: Tiles
    transposer: Transposer
    rows: int
    """Contracted terms of a chunk."""
    loaded: int
    """Buffers of rows that are loaded to be transposed."""

    def fill(self, name: str, out: Block, source: Block, stream: Stream) -> None:
        """``out[term, chunk, head, free] = source[chunk * rows + term, head, free]``, cast on the way."""
        contracted, heads, free = source.dims
        if is_turned(source):
            self._turn(name, out, source, stream)
            return
        if heads.size > 1 and heads.stride > max(contracted.stride, free.stride):
            for number in range(heads.size):
                self.fill(name, out.index(2, Affine(number), 1), source.index(1, Affine(number), 1), stream)
            return
        whole, rest = divmod(contracted.size, self.rows)
        if whole:
            target = out.on_partitions(self.rows).index(1, Affine(0), whole)
            dims = (replace(contracted, size=self.rows), Atom(whole, contracted.stride * self.rows), heads, free)
            copy(self.tiles.builder, target, source.of(dims), stream)
        if rest:
            last = source.of((replace(contracted, size=rest), heads, free)).moved(whole * self.rows * contracted.stride)
            copy(self.tiles.builder, out.on_partitions(rest).index(1, Affine(whole)), last, stream)

    def fill_neighbours(self, out: Block, source: Block, stream: Stream) -> None:
        """``out[part, chunk, head, free] = source[part * chunks + chunk, head, free]``, cast on the way.

        A partition takes neighbouring terms, in one run where they lie dense; heads that do not lie beside each other
        come one after the other. What is too little for a row of all partitions is a last chunk.
        """
        contracted, heads, free = source.dims
        if heads.size > 1 and heads.stride > contracted.stride:
            for number in range(heads.size):
                head = source.index(1, Affine(number), 1)
                self.fill_neighbours(out.index(2, Affine(number), 1), head, stream)
            return
        whole, rest = divmod(contracted.size, self.rows)
        parts = ((0, self.rows, whole), (whole, rest, 1))
        for chunk, size, count in parts:
            if not size or not count:
                continue
            dims = (Atom(size, contracted.stride * count), Atom(count, contracted.stride), heads, free)
            target = out.on_partitions(size).index(1, Affine(chunk), count)
            part = source.of(dims).moved(chunk * self.rows * contracted.stride)
            order = [0, 2, 3, 1] if free.stride > contracted.stride else [0, 1, 2, 3]
            copy(self.tiles.builder, target.select(order), part.select(order), stream)

    def _turn(self, name: str, out: Block, source: Block, stream: Stream) -> None:
        """The same of rows that lie dense in HBM: they are loaded, and transposed on TensorE.

        What follows each other in memory, rows of all heads or of one, comes in runs of several rows a partition; rows
        of heads that lie beside each other come in one run.
        """
        contracted, heads, free = source.dims
        beside = heads.stride == free.size * free.stride
        together = out.dims[2].stride == free.size * out.dims[3].stride  # not beside a column of ones
        if heads.size == 1 or (beside and together):  # all rows are those of one
            free = replace(free, size=heads.size * free.size)
            heads, out = (
                replace(heads, size=1),
                out.of((*out.dims[:2], Atom(1, 0), replace(out.dims[3], size=free.size))),
            )
        elif beside or (heads.stride > free.size * free.stride and free.size > self.rows):
            for number in range(heads.size):
                self._turn(name, out.index(2, Affine(number), 1), source.index(1, Affine(number), 1), stream)
            return
        several = at_once(heads.size * contracted.size, self.tiles.builder.sizes)
        dense = free.stride == heads.size * heads.stride == heads.size * contracted.size * contracted.stride
        if heads.size > 1 and not (dense and several > 1 and free.size > self.rows):
            self._turn_beside(name, out, source, stream)
            return
        for start, size in pieces(free.size, several * self.rows):
            part = source.of((contracted, heads, replace(free, size=size))).moved(start * free.stride)
            self._turn_rows(name, out.index(3, Affine(start), size), part, stream)

    def _turn_beside(self, name: str, out: Block, source: Block, stream: Stream) -> None:
        """Rows of several heads, a row of each on a partition."""
        contracted, heads, free = source.dims
        for start, size in pieces(free.size, self.rows):
            rows = self.tiles.tile(out.dtype, [heads.size, contracted.size], size, f"rows of {name}", self.loaded, True)
            part = source.of((replace(free, size=size), heads, contracted)).moved(start * free.stride)
            copy(self.tiles.builder, rows, part, stream)
            for chunk, (first, terms) in enumerate(pieces(contracted.size, self.rows)):
                into = out.index(1, Affine(chunk)).index(2, Affine(start), size).on_partitions(terms)
                self.transposer.transpose(rows.index(2, Affine(first), terms), into)

    def _turn_rows(self, name: str, out: Block, source: Block, stream: Stream) -> None:
        """Rows that follow each other, not many of them, of one head or of several without others between: a partition
        takes neighbouring ones, which come in one run.
        """
        contracted, heads, free = source.dims
        whole, rest = divmod(free.size, self.rows)
        for first, count, size in ((0, whole, self.rows), (whole * self.rows, 1, rest)):
            if not count or not size:
                continue
            sizes = [count, heads.size, contracted.size]
            rows = self.tiles.tile(out.dtype, sizes, size, f"rows of {name}", self.loaded, True)
            dims = (Atom(size, free.stride * count), Atom(count, free.stride), heads, contracted)
            copy(self.tiles.builder, rows, source.of(dims).moved(first * free.stride), stream)
            for head, (chunk, (start, terms)) in product(
                range(heads.size), enumerate(pieces(contracted.size, self.rows))
            ):
                into = out.index(1, Affine(chunk)).index(1, Affine(head)).index(1, Affine(first), count * size)
                into, step = into.on_partitions(terms), into.dims[1].stride
                lies = into.of((into.dims[0], Atom(count, step), Atom(size, count * step)))
                self.transposer.transpose(rows.index(2, Affine(head)).index(2, Affine(start), terms), lies)
