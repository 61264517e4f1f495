"""Constant operands of contractions, laid out at compile time so that a partition reads one contiguous run a block.

A constant is stored as [batch..., other free dims..., blocks, partitions, chunks, rows of a block]: the dim of its
rows that is tiled is cut into blocks, the contracted dim on the partitions into chunks of as many elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.contraction import Bound
from neuronx_cc.codegen.dots.copies import strided
from neuronx_cc.codegen.dots.problem import Operand, Segment
from neuronx_cc.codegen.dots.span import Span
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import NUMPY_DTYPE, itemsize


@dataclass(slots=True)
class ConstantLayout:
    """A constant operand, and what its layout follows from: the contracted dims, all in one segment."""

    context: Context
    bound: Bound
    operand: Operand
    k: Sequence[int]
    k_dim: int
    """The contracted dim on the partitions, -1 without any."""
    segment: Segment
    _laid_out: dict[tuple[int, int], View] = field(default_factory=dict)
    """(first row, rows of a block) -> the blocks."""

    def block(self, span: Span, most: int) -> Block:
        """The block [partitions, chunk dims..., rows] of ``span`` in HBM.

        ``most``: rows of a block, unless it is the last.
        """
        operand, tiled, size, segment = self.operand, span.tiled, span.size, self.segment
        total = operand.free[tiled].size if tiled >= 0 else 1
        start = 0 if size == min(most, total) else total // most * most
        if (start, size) not in self._laid_out:
            self._laid_out[start, size] = self._lay_out(tiled, start, size)
        view = self._laid_out[start, size]
        width = itemsize(operand.loaded)
        counts = [*(count for dim, count in enumerate(self.k) if dim != self.k_dim), segment.steps]
        row_bytes = segment.partitions * prod(counts) * width
        outer = [(atom.size, index) for atom, index in zip(operand.batch, span.batch, strict=True)]
        outer += [(atom.size, span.at[dim]) for dim, atom in enumerate(operand.free) if dim != tiled]
        offset, stride = view.start, (total - start) // size * size * row_bytes
        for count, index in reversed(outer):
            offset = offset + index * stride
            stride *= count
        if tiled >= 0:
            offset = offset + (span.at[tiled] + -start) * row_bytes
        stride, chunks = size * width, []
        for count in reversed(counts):
            chunks.append(Atom(count, stride))
            stride *= count
        offset, chunks = span.within(offset, chunks[::-1])
        dims = (Atom(segment.partitions, stride), *chunks, Atom(size, width))
        return Block(view.alloc, operand.loaded, offset, dims)

    def _lay_out(self, tiled: int, start: int, size: int) -> View:
        """Register the rows from ``start`` on, in blocks of ``size``, as a constant of the program."""
        operand, data = self.operand, self.bound.data
        assert data is not None
        array = strided(data, self.bound.view.start.const, [*operand.batch, *operand.free, *operand.contracted])
        batch, free = len(operand.batch), len(operand.free)
        if tiled >= 0:
            stop = start + (operand.free[tiled].size - start) // size * size
            array = array[(slice(None),) * (batch + tiled) + (slice(start, stop),)]
        array = array.astype(NUMPY_DTYPE[operand.loaded])
        partition_axis = batch + free + self.k_dim
        shape = list(array.shape)
        if self.k_dim >= 0:
            shape[partition_axis : partition_axis + 1] = [self.segment.steps, self.segment.partitions]
        else:
            partition_axis = len(shape)
            shape += [1, 1]
        row_axis = batch + tiled if tiled >= 0 else len(shape)
        if tiled >= 0:
            shape[row_axis : row_axis + 1] = [shape[row_axis] // size, size]
            partition_axis += 1
        else:
            shape += [1, 1]
        array = array.reshape(shape)
        placed = (row_axis, row_axis + 1, partition_axis, partition_axis + 1)
        others = [axis for axis in range(batch + free + (tiled >= 0)) if axis not in placed]
        rest = [axis for axis in range(len(shape)) if axis not in (*others, *placed)]
        order = [*others, row_axis, partition_axis + 1, *rest, partition_axis, row_axis + 1]
        laid_out = np.ascontiguousarray(array.transpose(order))
        return self.context.constant(laid_out, operand.loaded, f"{hlo.loc_of(self.bound.value).name}.{start}")
