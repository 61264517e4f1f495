"""Sums of the rows of an array that have the same number, as a product: segments, gradients of small tables.

Input: the form that ``scatter_forms`` makes: operand [R, W] of zeros, indices [N], finite updates [N, W], added
in FP32. Vector makes a matrix of ones and zeros from 128 numbers at a time (a number outside equals no row), TensorE
multiplies it with their updates, which lie one a partition as they come from HBM, and adds up in PSUM. Elements that
stand alone (W = 1) are dealt out over the values of the lower digit of their number; the upper digit counts rows.
"""

from __future__ import annotations

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.indexing.gather_kernel import deal
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.passes.indexing.costs import Costs

TILE_SHARE = (5, 22)
"""Of a partition of SBUF: the operands of one tile's products."""
MOST = 256
"""Rows of a partition in one tile."""


def lower(context: Context, op: hlo.ScatterOp) -> None:
    """The sums [R, W] in HBM."""
    target = context.new_hbm(op.result)
    context.homes[op.result] = [target]
    _Sum(context, context.dense(op.args[1]), context.dense(op.args[2]), target).emit()


class _Sum:
    def __init__(self, context: Context, numbers: View, updates: View, target: View) -> None:
        self.builder = context.builder
        self.numbers, self.updates, self.target = numbers, updates, target
        self.entries, self.width = updates.shape
        self.sizes = self.builder.sizes
        self.height = target.shape[0]
        self.digits = Costs(context.timing).lower_sums(self.height, self.width)
        """Values of the lower digit."""
        self.upper = -(-self.height // self.digits)
        self.columns = self.digits * self.width
        self.fixed = TilePool(self.builder, "digits")
        self.pool = TilePool(self.builder, "sums", 2)
        self.sums = self._banks()

    def _banks(self) -> list[tuple[int, int, Block]]:
        """(first row, first column, sums) of every piece of the result that one product makes."""
        most, wide = self.sizes.partitions, self.sizes.bank_columns
        rows = [(at, min(most, self.upper - at)) for at in range(0, self.upper, most)]
        parts = [(at, min(wide, self.columns - at)) for at in range(0, self.columns, wide)]
        ring = self.fixed.bank(self.sizes.bank_bytes * len(rows) * len(parts))
        assert ring is not None, "PSUM is free between kernels"
        found: list[tuple[int, int, Block]] = []
        for row, partitions in rows:
            for column, size in parts:
                offset = Affine(ring.alloc.lo + self.sizes.bank_bytes * len(found))
                found.append(
                    (row, column, Block(ring.alloc, "f32", offset, (Atom(partitions, 1, True), Atom(size, 4))))
                )
        return found

    def emit(self) -> None:
        builder = self.builder
        values = self.fixed.tile([max(self.upper, self.digits)], "f32", self.sizes.partitions)
        builder.emit("iota", Stream.GPSIMD, [values], [], imm=[0, 0, 1])
        zeros = self.fixed.tile([self.sizes.bank_columns], "bf16", self.sizes.partitions)
        builder.emit("memset", Stream.GPSIMD, [zeros], [], imm=[0])
        for _, _, sums in self.sums:
            partitions, size = (atom.size for atom in sums.dims)
            builder.multiply(sums, zeros.index(1, Affine(), partitions), zeros.index(1, Affine(), size))
        room = min(builder.sizes.sbuf_share(TILE_SHARE), builder.sbuf.largest_gap() // 3)
        most = max(1, min(MOST, room // (4 * (self.upper + self.columns + 3))))
        for start, tiles, partitions, deep in deal(self.entries, 1 << most.bit_length() - 1):
            with builder.loop(tiles) as tile:
                self._tile(tile * (partitions * deep) + start, partitions, deep, values)
        for row, column, sums in self.sums:
            self._store(row, column, sums)
        self.pool.free()
        self.fixed.free()

    def _tile(self, first: Affine, partitions: int, deep: int, values: Block) -> None:
        """``deep`` rows of each of ``partitions``, from ``first`` on."""
        numbers = self._loaded(self.numbers, first, partitions, deep, 1)
        updates = self._loaded(self.updates, first, partitions, deep, self.width)
        upper, moving, made = numbers, updates, [numbers, updates]
        if self.digits > 1:
            upper, lower = (self.pool.tile([deep], "s32", partitions) for _ in range(2))
            shift = self.digits.bit_length() - 1
            for digit, alu, number in ((lower, "bitwise_and", self.digits - 1), (upper, "logical_shift_right", shift)):
                self.builder.emit("tensor_scalar", Stream.VECTOR, [digit], [numbers.flat()], [alu], [number])
            dealt = self.pool.tile([self.digits, deep], "f32", partitions)
            with self.builder.loop(self.digits) as value:
                ins = [lower, updates.flat(), values.index(1, value, 1).on_partitions(partitions)]
                out = dealt.index(1, value)
                self.builder.emit(
                    "scalar_tensor_tensor", Stream.VECTOR, [out], ins, ["is_equal", "multiply"], [], ["ap0"]
                )
            moving = dealt.select([0, 2, 1])
            made += [upper, lower, dealt]
        ones = self._ones(upper.flat(), partitions, deep, values)
        with self.builder.loop(deep) as index:
            loaded = -1
            for row, column, sums in self.sums:
                size, width = (atom.size for atom in sums.dims)
                if row != loaded:
                    part = ones.index(1, index).index(1, Affine(row), size)
                    self.builder.emit("load_stationary", Stream.TENSOR, [], [part])
                    loaded = row
                part = moving.index(1, index).index(1, Affine(column), width)
                self.builder.emit("multiply_moving", Stream.TENSOR, [sums], [part], flags=["accumulate"])
        for block in (*made, ones):
            self.pool.give_back(block)

    def _loaded(self, array: View, first: Affine, partitions: int, deep: int, width: int) -> Block:
        """A tile [partitions, deep, width] of a dense array's rows."""
        tile = self.pool.tile([deep, width], array.dtype, partitions)
        offset = array.start + first * (4 * width)
        source = Block(array.alloc, array.dtype, offset, (Atom(partitions, 4 * deep * width), Atom(deep * width, 4)))
        self.builder.emit("dma_copy", Stream.DMA_LOAD, [tile.flat()], [source])
        return tile

    def _ones(self, numbers: Block, partitions: int, deep: int, values: Block) -> Block:
        """[partitions, deep, upper]: 1 where a number [partitions, deep] is the value."""
        if self.upper > deep:
            ones = self.pool.tile([deep, self.upper], "f32", partitions)
            row = values.of((Atom(partitions, 1, True), Atom(self.upper, 4)))
            with self.builder.loop(deep) as index:
                self._equal(ones.index(1, index), row, numbers.index(1, index, 1).on_partitions(partitions))
            return ones
        ones = self.pool.tile([self.upper, deep], "f32", partitions)
        with self.builder.loop(self.upper) as value:
            self._equal(ones.index(1, value), numbers, values.index(1, value, 1).on_partitions(partitions))
        return ones.select([0, 2, 1])

    def _equal(self, out: Block, row: Block, one: Block) -> None:
        self.builder.emit("tensor_scalar", Stream.VECTOR, [out], [row, one], ["is_equal"], [], ["ap0"])

    def _store(self, row: int, column: int, sums: Block) -> None:
        partitions, size = (atom.size for atom in sums.dims)
        result = self.fixed.tile([size], "f32", partitions)
        self.builder.emit("tensor_copy", Stream.VECTOR, [result], [sums])
        whole = min(partitions, (self.height * self.width - row * self.columns) // self.columns)
        rest = min(size, self.height * self.width - (row + whole) * self.columns) if whole < partitions else 0
        for partition, count, columns in ((0, whole, size), (whole, 1, rest)):
            if count and columns > 0:
                offset = self.target.start + 4 * ((row + partition) * self.columns + column)
                out = Block(self.target.alloc, "f32", offset, (Atom(count, 4 * self.columns), Atom(columns, 4)))
                part = Block(result.alloc, "f32", result.offset, (Atom(count, 1, True), Atom(columns, 4)), partition)
                self.builder.emit("dma_copy", Stream.DMA_STORE, [out], [part])
