"""Long rows that all partitions read, a section at a time: they stay on few partitions, and TensorE repeats sections.

A row on every partition takes as much of SBUF as a tile of its length, and loading it again for each tile moves as many
bytes as the tile. Here equal parts of it lie at the rows at which operands of TensorE may begin; a product of a part of
one of them with ones leaves a section in banks of PSUM, where Vector reads it beside an operand in SBUF at twice the
rate. The product is exact, but -0 becomes 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import TilePool, dense, tile_in
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.maps.between import elements_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import NARROW, itemsize

LEAST_ROW = 1024
"""Elements of a row that is worth it."""
MOST_SECTIONS = 64
"""Sections of a bank, which begin at places that are known: they are no iterations of a loop."""
TYPES = frozenset(["f32", *NARROW])


@dataclass(frozen=True, slots=True)
class PackedRow:
    """A row in equal parts, the last perhaps shorter, each on a partition of its own."""

    source: Block
    """The row in HBM."""
    line: Block
    """[1, elements of a part], on the first of those partitions."""
    apart: int
    """Partitions from one part to the next."""

    def section(self, context: Context, pool: TilePool, block: Block, partitions: int) -> Block | None:
        """The section ``block`` of the row on all ``partitions``, in PSUM: [partition, its varying dims].

        None where it begins at a place that is counted, is no run of neighbours, or PSUM is taken.
        """
        size, sizes = itemsize(block.dtype), [block.dims[dim].size for dim in block.varying]
        start, count = block.offset.const - self.source.offset.const, prod(sizes)
        if block.offset.terms != self.source.offset.terms or not _is_run(block):
            return None
        bank = pool.bank(count * itemsize("f32"))
        if bank is None:
            return None
        builder, target = context.builder, tile_in(context.builder, bank, [count], "f32", partitions)
        for first, piece in self._pieces(start // size, count, context.sizes.bank_columns):
            width = piece.dims[1].size
            ones = _ones(context, partitions, piece.dtype).on_partitions(1, piece.partition)
            builder.multiply(target.index(1, Affine(first), width), ones, piece)
        return target.of((target.dims[0], *dense(sizes, "f32")))

    def _pieces(self, start: int, count: int, most: int) -> Iterator[tuple[int, Block]]:
        """Pieces of ``count`` elements from ``start`` on, within a part and ``most`` elements of the result each: the
        number of the first, and the piece.
        """
        at, part = 0, self.line.dims[1].size
        while at < count:
            number, place = divmod(start + at, part)
            width = min(count - at, part - place, most - at % most)
            yield at, self.line.on_partitions(1, number * self.apart).index(1, Affine(place), width)
            at += width


def packed_bytes(sizes: Sizes, block: Block, dtype: str) -> int:
    """Bytes a partition that the row in HBM ``block`` takes in parts of ``dtype``."""
    return sizes.aligned(ceil(elements_of(block) / sizes.row_tiles) * itemsize(dtype))


def may_be_packed(sizes: Sizes, block: Block) -> bool:
    """Whether all partitions read the long row in HBM ``block``, of neighbours, of a type that TensorE multiplies."""
    most = MOST_SECTIONS * sizes.bank_columns
    repeats = block.alloc.space is Space.HBM and not block.dims[0].stride and block.dims[0].size > 1
    return repeats and block.dtype in TYPES and LEAST_ROW <= elements_of(block) <= most and _is_run(block)


def pack(context: Context, pool: TilePool, block: Block, dtype: str, stream: Stream) -> PackedRow:
    """Load the row in HBM ``block`` as ``dtype``, for all tiles of a kernel."""
    sizes, length, width = context.sizes, elements_of(block), itemsize(block.dtype)
    part, apart = ceil(length / sizes.row_tiles), sizes.rows // sizes.row_tiles
    line = pool.apart([part], dtype, 1)
    flat = block.of((Atom(1, 0), *dense([length], block.dtype)))
    for number in range(ceil(length / part)):
        count = min(part, length - number * part)
        here = line.on_partitions(1, number * apart).index(1, Affine(), count)
        copy(context.builder, here, flat.moved(number * part * width).index(1, Affine(), count), stream)
    _ones(context, sizes.columns, dtype)  # ahead of the loops
    return PackedRow(block, line, apart)


def _ones(context: Context, partitions: int, dtype: str) -> Block:
    """Ones on as many partitions as parts may lie on."""
    sizes = context.sizes
    return context.fixed.ones(partitions, dtype, sizes.rows - sizes.rows // sizes.row_tiles + 1)


def _is_run(block: Block) -> bool:
    return block.select([0, *block.varying]).is_dense
