"""Transposes on TensorE of what a contraction stages: rows on the partitions in, k on the partitions out.

TensorE multiplies up to 128 x 128 elements with a unit matrix; as many results as fit a bank of PSUM leave it together.
It is exact: values are moved as such where that is allowed, else the parts of their bit patterns (``halves``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.halves import halves_of, part_of
from neuronx_cc.ir.types import itemsize

UNROLLED_CHUNKS = 64
"""Chunks with several strides that are transposed by instructions of their own; those of more take turns by strides."""


@dataclass(frozen=True, slots=True)
class Transposer:
    """Transposes tiles of one contraction."""

    context: Context
    emitter: Emitter
    banks: Ring
    """Of PSUM."""
    unrolled: int
    """Most banks of one tile that are no loop."""
    bits: Callable[[str, Sequence[int], int], Block]
    """``bits(dtype, sizes, partitions)``: a tile for parts of bit patterns."""
    factor: float = 1.0
    """What values, not parts of bit patterns, are multiplied with on their way out of PSUM."""
    leaves: Callable[[Block, Block], None] | None = None
    """``leaves(out, bank)``: what values become as they leave it, where they are not copied."""

    def transpose(self, rows: Block, out: Block) -> None:
        """``out[partition, chunk, row] = rows[row, chunk, partition]``; the chunks of ``rows`` may be several dims.

        Or ``out[partition, chunk, beside, row] = rows[row, chunk, beside, partition]``.
        """
        for plane, place in self._planes(rows):
            self._values(plane, place(out), several=plane is not rows)

    def transpose_segments(self, rows: Block, outs: Sequence[Block]) -> None:
        """The same of rows [row, other chunks..., k] whose last dim holds the chunks of each of ``outs``, one after the
        other; or [row, other chunks..., beside, k].
        """
        for plane, place in self._planes(rows):
            for chunks, out in _segments(plane, outs):
                self._values(chunks, place(out), several=plane is not rows or len(outs) > 1)

    def _planes(self, rows: Block) -> Iterator[tuple[Block, Callable[[Block], Block]]]:
        """What TensorE transposes, and where in a target it goes: values, or the parts of their bit patterns."""
        if self._moves_values(rows.dtype):
            yield rows, lambda out: out
            return
        sizes, partitions = [atom.size for atom in rows.dims[1:]], rows.dims[0].size

        def room(carrier: str, _: int) -> Block:
            return self.bits(carrier, sizes, partitions)

        for plane, part, byte in halves_of(rows, room, self.emitter.copy):
            yield plane, partial(part_of, part=part, byte=byte)

    def _moves_values(self, dtype: str) -> bool:
        return self.context.moves_values(dtype)

    def _values(self, rows: Block, out: Block, several: bool) -> None:
        """The same for values that TensorE moves as they are, a bank of PSUM at a time.

        ``several``: others follow in straight-line code.
        """
        if len(out.dims) > 3:
            chunks = out.dims[1].size
            for position, piece in enumerate(_each(rows, len(rows.dims) - 3)):
                self._values(piece, out.index(1, Affine(position)), several or chunks > 1)
            return
        height, builder = rows.dims[0].size, self.emitter.builder
        flat = _flatten_chunks(rows)
        if flat is None and out.dims[1].size > UNROLLED_CHUNKS:
            outermost, *inner = (atom.size for atom in rows.dims[1:-1])
            for index in range(outermost):
                self._values(rows.index(1, Affine(index)), out.index(1, Affine(index * prod(inner)), prod(inner)), True)
            return
        if flat is None:
            pieces, count = list(_each(rows, len(rows.dims) - 2)), max(1, builder.sizes.bank_columns // height)
            for start in range(0, len(pieces), count):
                part = pieces[start : start + count]
                self._bank(part, out.index(1, Affine(start), len(part)), several=True)
            return
        groups = builder.tiles(flat.dims[1].size, max(1, builder.sizes.bank_columns // max(height, 1)))
        several = several or len(groups) > 1  # a whole row of tiles follows
        for start, tiles, count in groups:
            for tile in builder.each(tiles, self.unrolled):
                first = tile * count + start
                pieces = [flat.index(1, first + position) for position in range(count)]
                self._bank(pieces, out.index(1, first, count), several and tiles == 1)

    def _bank(self, pieces: Sequence[Block], out: Block, several: bool) -> None:
        """Transpose pieces [row, partition] that fit a bank together into ``out`` [partition, piece, row].

        ``several``: more banks follow in straight-line code.
        """
        bank, dtype = self.context.fixed.transposes(self.banks, pieces, several), pieces[0].dtype
        if self.leaves is not None:
            self.leaves(out, bank)
            return
        watch = self.context.watch
        if watch is not None and itemsize(dtype) < 4 and self._moves_values(dtype):
            watch.leave(out, bank, self.factor)
        else:
            self.emitter.leave(out, bank, self.factor)


def _segments(rows: Block, outs: Sequence[Block]) -> Iterator[tuple[Block, Block]]:
    """The part of ``rows`` that each of ``outs`` takes, with its chunks in a dim of their own."""
    beside, start = len(outs[0].dims) - 3, 0
    at = len(rows.dims) - 1 - beside
    others = prod(atom.size for atom in rows.dims[1:at])
    for out in outs:
        height, steps = out.dims[0].size, out.dims[1].size // others
        part = rows.index(len(rows.dims) - 1, Affine(start), steps * height)
        *dims, terms = part.dims
        chunks = (Atom(steps, terms.stride * height),) if steps > 1 else ()
        yield part.of((*dims[:at], *chunks, *dims[at:], Atom(height, terms.stride))), out
        start += steps * height


def _each(rows: Block, count: int) -> Iterator[Block]:
    """``rows`` at each index of the ``count`` dims after the first."""
    for index in product(*(range(atom.size) for atom in rows.dims[1 : 1 + count])):
        piece = rows
        for at in index:
            piece = piece.index(1, Affine(at))
        yield piece


def _flatten_chunks(block: Block) -> Block | None:
    """Merge the chunk dims between the first and the last dim into one; None when their strides differ."""
    dims = list(block.dims[1:-1])
    if not dims:
        return block.of((block.dims[0], Atom(1, 0), block.dims[-1]))
    while len(dims) > 1:
        if dims[0].stride != dims[1].stride * dims[1].size:
            return None
        dims[0:2] = [Atom(dims[0].size * dims[1].size, dims[1].stride)]
    return block.of((block.dims[0], dims[0], block.dims[-1]))
