"""Whether all sums that leave PSUM are finite, and what is done when some are not.

A product with zeros between its blocks, or with a unit matrix, gives each output the sum of some products and of zeros
times other values: the same, unless one of those is an infinity or NaN. Then the sum is NaN. So where no sum is an
infinity or NaN all are right, which ScalarE sees as they leave PSUM; else all is computed once more by other means. The
decision is taken once, after the kernel. Finite sums that together exceed FP32 take the second way as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from neuronx_cc.codegen.emission.builder import Block, Builder
from neuronx_cc.codegen.emission.tiles import TilePool, dense, tile_in
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.ir.isa.program import DECIDER, Branch, Space, Stream
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

LOOKS = 2
"""Banks that are looked at at once."""
LOOKED_AT = "bf16"
"""In which their sums are copied, to no other end."""


def checks(sizes: Sizes) -> dict[tuple[str, int], int]:
    """(name, buffers) -> bytes a partition of each buffer, of what ``FiniteSums`` asks for in SBUF."""
    return {("found", 1): 4, ("looked at", LOOKS): sizes.bank_columns * itemsize(LOOKED_AT), ("totals", LOOKS): 4}


class FiniteSums:
    """The checks of one kernel's sums; its tiles must be asked for ahead of those that fill SBUF."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._fixed = TilePool(builder, "found")
        self._pool = TilePool(builder, "looked at", LOOKS)
        self._found = self._fixed.tile([1], "f32", builder.sizes.partitions)
        """0 in each partition, or NaN once a sum of it was not finite."""
        needed = {name: nbytes for (name, _), nbytes in checks(builder.sizes).items()}
        self._scratch, self._totals = (self._pool.ring(needed[name], LOOKS) for name in ("looked at", "totals"))
        builder.emit("memset", Stream.VECTOR, [self._found], [], imm=[0.0])

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

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """What is emitted inside runs where some sum was not finite. All banks of PSUM must be free."""
        builder = self.builder
        ones = self._fixed.tile([1], "f32", builder.sizes.partitions)
        answer = self._fixed.tile([1], "s32", 1)
        builder.emit("memset", Stream.VECTOR, [ones], [], imm=[1.0])
        ring = self._fixed.bank(4)
        assert ring is not None, "PSUM is free after a kernel"
        total = tile_in(builder, ring, [1], "f32")
        builder.multiply(total, self._found, ones)
        builder.emit("tensor_scalar", Stream.VECTOR, [answer], [total], ["not_equal"], [0.0])
        place = View(answer.alloc, "s32", answer.offset, ())
        assert place.alloc.space is Space.SBUF
        register = builder.load_register(place, 0, 1, DECIDER)
        self._fixed.free()
        self._pool.free()
        with builder.region(Branch(register, 2)):
            builder.next_case()
            yield
        builder.release_register(register)
