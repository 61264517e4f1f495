"""Whether all that TensorE transposed as values was finite, for a host that else runs the program once more.

A transpose multiplies with a unit matrix, so an infinity or NaN among 16- or 8-bit values makes its whole row of the
transposed tile NaN, and that row's sum, which ScalarE adds up as it copies the tile from PSUM. Vector gathers these
sums, a number a partition for the whole program, and the program's last result says what was found. Rows of huge
finite values whose sum exceeds FP32 count as not finite.
"""

from __future__ import annotations

from neuronx_cc.codegen.emission.builder import Affine, Block, Builder, merge_free
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.ir.isa.program import Stream

TOTALS = 8
"""Sums under way from Scalar to Vector."""


class Watch:
    """What one program found; made ahead of its kernels."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.used = False
        partitions = Atom(builder.sizes.partitions, 1, True)
        alloc = builder.sbuf.reserve(4 * (2 + TOTALS), "watch")
        self._found = Block(alloc, "f32", Affine(alloc.lo), (partitions, Atom(1, 4)))
        """0 in each partition, or NaN once a sum of it was not finite."""
        self._ones = self._found.moved(4 * (1 + TOTALS))
        self._turn = 0
        builder.emit("memset", Stream.VECTOR, [self._found], [], imm=[0.0])
        builder.emit("memset", Stream.VECTOR, [self._ones], [], imm=[1.0])

    def leave(self, out: Block, bank: Block, factor: float = 1.0) -> None:
        """Copy ``factor`` times what TensorE transposed to ``out``, and note whether all of it is finite."""
        self.used = True
        self._turn = self._turn % TOTALS + 1
        partitions = (out.dims[0], self._found.dims[1])
        total, found = self._found.moved(4 * self._turn).of(partitions), self._found.of(partitions)
        out, bank = merge_free([out, bank])
        self.builder.emit("activation", Stream.SCALAR, [out, total], [bank], ["copy"], [factor], ["accumulate"])
        self.builder.emit("scalar_tensor_tensor", Stream.VECTOR, [found], [total, found], ["multiply", "add"], [0.0])

    def store(self, target: View) -> None:
        """Write what was found, 0 or NaN, to the single element ``target`` in HBM. All banks of PSUM must be free."""
        builder = self.builder
        ring = builder.ring(builder.psum, 4, 1, "watch")
        bank = Block(ring.alloc, "f32", Affine(ring.alloc.lo), (Atom(1, 1, True), Atom(1, 4)))
        made = self._found.moved(4).of(bank.dims)
        builder.multiply(bank, self._found, self._ones)
        builder.emit("activation", Stream.SCALAR, [made], [bank], ["copy"], [1.0])
        place = Block(target.alloc, "f32", target.start, (Atom(1, 0), Atom(1, 4)))
        builder.emit("dma_copy", Stream.DMA_STORE, [place], [made])
        builder.psum.free(ring.alloc)
