"""What factorisations of one matrix share: its columns on the partitions, the elements of a column in each partition.

A step takes one column. TensorE repeats it over all partitions, by a product with a column of the unit matrix; all of
them work out the same numbers from it, so that nothing else goes from partition to partition, and each takes its
multiple of the column out of the one that it holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder, Ring
from neuronx_cc.codegen.emission.tiles import TilePool, pieces, tile_in
from neuronx_cc.codegen.emission.views import Atom, Dims, View
from neuronx_cc.codegen.factors.vector import Vector
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

BUFFERS = 2
"""Of PSUM: the column at hand, and the next one."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Memory of a factorisation of ``columns`` columns of ``length`` elements."""

    builder: Builder
    vector: Vector
    pool: TilePool
    partitions: int
    columns: int
    length: int
    unit: Block
    """[partition, partition]"""
    banks: Ring
    copies: Ring | None
    """In SBUF: columns longer than a bank of PSUM, of which Vector reads one at a time."""

    @classmethod
    def of(cls, context: Context, pool: TilePool, partitions: int, columns: int, length: int) -> Panel:
        builder = context.builder
        unit = pool.apart([partitions], "f32", partitions)
        builder.emit("memset", Stream.GPSIMD, [unit], [], imm=[1.0])
        builder.emit("affine_select", Stream.GPSIMD, [unit], [unit], ["is_equal"], [0.0, 0, 1, -1])
        copies = pool.ring(4 * length, BUFFERS) if 4 * length > builder.sizes.bank_bytes else None
        return cls(builder, Vector(builder), pool, partitions, columns, length, unit, pool.psum(BUFFERS), copies)

    def tile(self, size: int, partitions: int = 0, dtype: str = "f32") -> Block:
        """On all partitions, or on the first ones, for the whole kernel."""
        return self.pool.apart([size], dtype, partitions or self.partitions)

    def picked(self, column: Affine, partitions: int = 0) -> Block:
        """1 on the partition of ``column``, else 0."""
        return self.unit.index(1, column, 1).on_partitions(partitions or self.partitions)

    def repeated(self, matrix: Block, column: Affine) -> Block:
        """``column`` of ``matrix`` in every partition."""
        stationary = self.picked(column, self.columns)
        stationary = stationary.of((stationary.dims[0], Atom(self.partitions, 0)))
        matrix = matrix.on_partitions(self.columns)
        if self.copies is None:
            bank = self.bank(self.length, self.partitions)
            self.builder.multiply(bank, stationary, matrix)
            return bank
        whole = tile_in(self.builder, self.copies, [self.length], "f32", self.partitions)
        self.builder.emit("load_stationary", Stream.TENSOR, [], [stationary])
        for start, size in pieces(self.length, self.builder.sizes.bank_bytes // 4):
            bank = self.bank(size, self.partitions, True)
            self.builder.emit("multiply_moving", Stream.TENSOR, [bank], [matrix.index(1, Affine(start), size)])
            part = whole.index(1, Affine(start), size)
            self.builder.emit("activation", Stream.SCALAR, [part], [bank], ["copy"], [1.0])
        return whole

    def bank(self, size: int, partitions: int, several: bool = False) -> Block:
        """The next bank of PSUM."""
        return tile_in(self.builder, self.banks, [size], "f32", partitions, several)

    def transposed(self, out: Block, source: Block) -> None:
        """``out`` [column, row] of ``source`` [row, column], by way of PSUM."""
        rows, columns = source.dims[0].size, source.dims[1].size
        bank = self.bank(rows, columns, True)
        self.builder.multiply(bank, source, self.square(rows))
        self.vector.copied(out, bank)

    def square(self, size: int) -> Block:
        """A unit matrix of ``size``."""
        return self.unit.on_partitions(size).index(1, Affine(), size)


def rows_of(view: View, matrix: Affine, start: int, count: int) -> Block:
    """Rows of a matrix of a dense array [batch, rows, columns] in HBM, or of the one on chip."""
    _, height, width = view.shape
    size = itemsize(view.dtype)
    if view.in_sbuf:
        assert count == height, "a matrix on chip is whole"
        return Block(view.alloc, view.dtype, view.start, (Atom(count, 1, True), Atom(width, size)))
    offset = view.start + matrix * (height * width * size) + start * width * size
    return Block(view.alloc, view.dtype, offset, (Atom(count, width * size), Atom(width, size)))


def on_chip(context: Context, value: hlo.SSAValue) -> Block | None:
    """One matrix whose rows lie on the partitions, if ``value`` is that already."""
    batch, height, width = hlo.shape_of(value).dims
    rows = _rows(height, width, hlo.shape_of(value).dtype)
    for view in context.views(value):
        if batch == 1 and view.in_sbuf and not view.start.terms and view.dims[1:] == rows:
            return rows_of(view, Affine(), 0, height)
    return None


def new_home(context: Context, value: hlo.SSAValue) -> View:
    """Of matrices: on chip for a single one that is used again, if there is room; else in HBM."""
    shape = hlo.shape_of(value)
    batch, height, width = shape.dims
    if batch == 1 and height <= context.sizes.partitions and value not in context.outputs:
        alloc = context.new_resident(value, width * itemsize(shape.dtype))
        if alloc is not None:
            dims = ((), *_rows(height, width, shape.dtype))
            return View(alloc, shape.dtype, Affine(alloc.lo), dims)
    return context.new_hbm(value)


def _rows(height: int, width: int, dtype: str) -> Dims:
    """Rows on the partitions; dims of size 1 have no atoms."""
    partition = (Atom(height, 1, True),) if height > 1 else ()
    return partition, (Atom(width, itemsize(dtype)),) if width > 1 else ()
