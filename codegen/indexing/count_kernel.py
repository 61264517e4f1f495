"""Counts of integers: a histogram is a product of two matrices, one row of which is made of each integer.

Input: a scatter that adds 1.0 into an FP32 table of zeros. The number of a bin has two digits. Vector compares the low
one with each of its values (1 or 0), ScalarE the upper one (its sign beside each value: 1 or -1), both for 128 integers
at a time, and TensorE adds up the outer products in PSUM. What two neighbouring values of the upper digit differ by is
twice the count. All sums are integers below 2^24, so the counts are exact; a number outside the table differs nowhere.
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
"""Of a partition of SBUF: the digits of one tile."""
MOST = 256
"""Integers of a partition in one tile."""


def applies(context: Context, op: hlo.ScatterOp) -> bool:
    """Whether ``op`` (tables [1, R, 1]) counts, in less time than one index after the other takes."""
    operand, indices, updates = op.args
    count, height, width = hlo.shape_of(operand).dims
    entries, costs = hlo.shape_of(indices).dims[1], Costs(context.timing)
    return (
        (count, width, op.shape.dtype) == (1, 1, "f32")
        and context.splat(operand) == 0
        and context.splat(updates) == 1
        and context.combiners.get(op.to_apply.data[0]) == "add"
        and costs.counted(height, entries) < costs.groups(1, height, 4, entries, True)
    )


def lower(context: Context, op: hlo.ScatterOp) -> None:
    """The counts [1, R, 1] in HBM."""
    target = context.new_hbm(op.result)
    context.homes[op.result] = [target]
    _Count(context, context.dense(op.args[1]), target).emit()


class _Count:
    def __init__(self, context: Context, numbers: View, target: View) -> None:
        self.builder = context.builder
        self.numbers, self.target = numbers, target
        self.height, self.entries = target.shape[1], numbers.shape[1]
        self.lower = Costs(context.timing).lower_digits(self.height)
        self.upper = -(-self.height // self.lower)
        self.fixed = TilePool(self.builder, "digits")
        self.pool = TilePool(self.builder, "counts", 2)

    def emit(self) -> None:
        builder, steps = self.builder, self.upper + 1
        values = self.fixed.tile([self.lower], "f32", builder.sizes.partitions)
        builder.emit("iota", Stream.GPSIMD, [values], [], imm=[0, 0, 1])
        bounds = self.fixed.tile([steps], "f32", builder.sizes.partitions)
        builder.emit("iota", Stream.GPSIMD, [bounds], [], imm=[0, 0, -1])
        builder.emit("tensor_scalar", Stream.VECTOR, [bounds], [bounds], ["add"], [0.5])
        zeros = self.fixed.tile([max(steps, self.lower)], "bf16", builder.sizes.partitions)
        builder.emit("memset", Stream.GPSIMD, [zeros], [], imm=[0])
        sums = self._bank(steps)
        builder.multiply(sums, zeros.index(1, Affine(), steps), zeros.index(1, Affine(), self.lower))
        room = min(builder.sizes.sbuf_share(TILE_SHARE), builder.sbuf.largest_gap() // 3)
        most = max(1, min(MOST, room // (2 * (steps + self.lower))))
        for start, tiles, partitions, deep in deal(self.entries, 1 << most.bit_length() - 1):
            with builder.loop(tiles) as tile:
                self._tile(tile * (partitions * deep) + start, partitions, deep, values, bounds, sums)
        self._differences(sums)
        self.pool.free()
        self.fixed.free()

    def _bank(self, partitions: int) -> Block:
        ring = self.fixed.bank(4 * self.lower)
        assert ring is not None, "PSUM is free between kernels"
        return Block(ring.alloc, "f32", Affine(ring.alloc.lo), (Atom(partitions, 1, True), Atom(self.lower, 4)))

    def _tile(self, first: Affine, partitions: int, deep: int, values: Block, bounds: Block, sums: Block) -> None:
        """``deep`` integers of each of ``partitions``, from ``first`` on."""
        builder, steps = self.builder, self.upper + 1
        numbers, upper, lower = (self.pool.tile([deep], "s32", partitions) for _ in range(3))
        stride = self.numbers.dims[1][0].stride if self.numbers.dims[1] else 0
        offset = self.numbers.start + first * stride
        source = Block(self.numbers.alloc, "s32", offset, (Atom(partitions, deep * stride), Atom(deep, stride)))
        builder.emit("dma_copy", Stream.DMA_LOAD, [numbers], [source])
        shift = self.lower.bit_length() - 1
        # the lower digit first: what waits for it comes two instructions later
        for digit, alu, number in ((lower, "bitwise_and", self.lower - 1), (upper, "logical_shift_right", shift)):
            builder.emit("tensor_scalar", Stream.VECTOR, [digit], [numbers], [alu], [number])
        above = self.pool.tile([steps, deep], "bf16", partitions)
        with builder.loop(steps) as step:
            bound = bounds.index(1, step, 1).on_partitions(partitions)
            out = above.index(1, step)
            builder.emit("activation", Stream.SCALAR, [out], [upper, bound], ["sign"], [1.0], ["bias"])
        same = self.pool.tile([self.lower, deep], "bf16", partitions)
        with builder.loop(self.lower) as value:
            wanted = values.index(1, value, 1).on_partitions(partitions)
            builder.emit(
                "tensor_scalar", Stream.VECTOR, [same.index(1, value)], [lower, wanted], ["is_equal"], [], ["ap0"]
            )
        with builder.loop(deep) as index:
            builder.multiply(sums, above.index(2, index), same.index(2, index), ["accumulate"])
        for block in (numbers, upper, lower, above, same):
            self.pool.give_back(block)

    def _differences(self, sums: Block) -> None:
        """Half of what each row of ``sums`` is more than the next one, to HBM."""
        builder, steps = self.builder, self.upper + 1
        copied = self.fixed.tile([self.lower], "f32", steps)
        builder.emit("tensor_copy", Stream.VECTOR, [copied], [sums])
        counts = self._bank(self.upper)
        for place, (factor, flags) in enumerate(((0.5, []), (-0.5, ["accumulate"]))):
            unit = self.fixed.tile([self.upper], "f32", steps)
            builder.emit("memset", Stream.GPSIMD, [unit], [], imm=[factor])
            builder.emit("affine_select", Stream.GPSIMD, [unit], [unit], ["is_equal"], [0.0, -place, 1, -1])
            builder.multiply(counts, unit, copied, flags)
        result = self.fixed.tile([self.lower], "f32", self.upper)
        builder.emit("tensor_copy", Stream.VECTOR, [result], [counts])
        full, rest = divmod(self.height, self.lower)
        for partition, partitions, columns in ((0, full, self.lower), (full, 1, rest)):
            if partitions and columns:
                offset = self.target.start + 4 * partition * self.lower
                out = Block(self.target.alloc, "f32", offset, (Atom(partitions, 4 * self.lower), Atom(columns, 4)))
                atoms = (Atom(partitions, 1, True), Atom(columns, 4))
                part = Block(result.alloc, "f32", result.offset, atoms, partition)
                builder.emit("dma_copy", Stream.DMA_STORE, [out], [part])
