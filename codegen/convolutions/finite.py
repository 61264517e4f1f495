"""Whether all sums that leave PSUM are finite.

A product with zeros between its blocks, or with a unit matrix, gives each output the sum of some products and of zeros
times other values: the same, unless one of those is an infinity or NaN. Then the sum is NaN. So where no sum is an
infinity or NaN all are right, which ScalarE sees as they leave PSUM; else all is computed once more by other means
(``control.recovery``). Finite sums that together exceed FP32 take the second way as well.
"""

from __future__ import annotations

from neuronx_cc.codegen.emission.builder import Block, Builder
from neuronx_cc.codegen.emission.tiles import TilePool, dense
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

LOOKS = 2
"""Banks that are looked at at once."""
LOOKED_AT = "bf16"
"""In which their sums are copied, to no other end."""


def checks(sizes: Sizes) -> dict[tuple[str, int], int]:
    """(name, buffers) -> bytes a partition of each buffer, of what ``FiniteSums`` asks for in SBUF."""
    return {("looked at", LOOKS): sizes.bank_columns * itemsize(LOOKED_AT), ("totals", LOOKS): 4}


class FiniteSums:
    """The checks of one kernel's sums; its tiles must be asked for ahead of those that fill SBUF."""

    def __init__(self, builder: Builder, found: Block) -> None:
        """``found``: 0 in each partition; NaN is added once a sum of it is not finite."""
        self.builder, self._found = builder, found
        self._pool = TilePool(builder, "looked at", LOOKS)
        needed = {name: nbytes for (name, _), nbytes in checks(builder.sizes).items()}
        self._scratch, self._totals = (self._pool.ring(needed[name], LOOKS) for name in ("looked at", "totals"))

    def look(self, bank: Block) -> None:
        """Note whether all of ``bank`` [partitions, columns], dense FP32 in PSUM, is finite."""
        builder, (partitions, columns) = self.builder, bank.dims
        scratch, total = (
            Block(ring.alloc, dtype, builder.slot(ring), (partitions, *dense([size], dtype)))
            for ring, dtype, size in ((self._scratch, LOOKED_AT, columns.size), (self._totals, "f32", 1))
        )
        builder.emit("activation", Stream.SCALAR, [scratch, total], [bank], ["copy"], [1.0], ["accumulate"])
        found = self._found.of((partitions, self._found.dims[1]))
        builder.emit("scalar_tensor_tensor", Stream.VECTOR, [found], [total, found], ["multiply", "add"], [0.0])

    def free(self) -> None:
        """Give back what it needs for looking."""
        self._pool.free()
