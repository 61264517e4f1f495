"""Constant operands of contractions, laid out at compile time so that each partition reads one contiguous run a block.

A constant is stored as [batch..., other free dims..., blocks, lanes, chunks, rows of a block]: the dim of its rows that
is tiled is cut into blocks, the contracted dim on the partitions into chunks of as many lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.plan import Segment, Side, Span, strided
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import NUMPY_DTYPE, itemsize


@dataclass(frozen=True, slots=True)
class ConstantLayout:
    """What the layout of constants follows from: the contracted dims, all in one segment."""

    context: Context
    k_sizes: Sequence[int]
    k_dim: int
    """The contracted dim on the partitions, -1 without any."""
    segment: Segment

    def block(self, side: Side, span: Span, most: int) -> Block:
        """The block [lanes, chunks, rows] of ``span`` in HBM. ``most``: rows of a block, unless it is the last."""
        tile_dim, size, segment = span.tile_dim, span.size, self.segment
        total = side.free[tile_dim].size if tile_dim >= 0 else 1
        start = 0 if size == min(most, total) else total // most * most
        if (start, size) not in side.laid_out:
            side.laid_out[start, size] = self._lay_out(side, tile_dim, start, size)
        view = side.laid_out[start, size]
        width = itemsize(side.dtype)
        chunks = prod(count for dim, count in enumerate(self.k_sizes) if dim != self.k_dim) * segment.outer
        row_bytes = segment.lanes * chunks * width
        outer = [(atom.size, index) for atom, index in zip(side.batch, span.batch, strict=True)]
        outer += [(atom.size, span.at[dim]) for dim, atom in enumerate(side.free) if dim != tile_dim]
        offset, stride = Affine(view.offset), (total - start) // size * size * row_bytes
        for count, index in reversed(outer):
            offset = offset + index * stride
            stride *= count
        if tile_dim >= 0:
            offset = offset + (span.at[tile_dim] + -start) * row_bytes
        dims = (Atom(segment.lanes, chunks * size * width), Atom(chunks, size * width), Atom(size, width))
        return Block(view.alloc, side.dtype, offset, dims)

    def _lay_out(self, side: Side, tile_dim: int, start: int, size: int) -> View:
        """Register the rows from ``start`` on, in blocks of ``size``, as a constant of the program."""
        assert side.data is not None
        array = strided(side.data, side.view.offset, [*side.batch, *side.free, *side.contracted])
        batch, free = len(side.batch), len(side.free)
        if tile_dim >= 0:
            stop = start + (side.free[tile_dim].size - start) // size * size
            array = array[(slice(None),) * (batch + tile_dim) + (slice(start, stop),)]
        array = array.astype(NUMPY_DTYPE[side.dtype])
        lane_axis = batch + free + self.k_dim
        shape = list(array.shape)
        if self.k_dim >= 0:
            shape[lane_axis : lane_axis + 1] = [self.segment.outer, self.segment.lanes]
        else:
            lane_axis = len(shape)
            shape += [1, 1]
        row_axis = batch + tile_dim if tile_dim >= 0 else len(shape)
        if tile_dim >= 0:
            shape[row_axis : row_axis + 1] = [shape[row_axis] // size, size]
            lane_axis += 1
        else:
            shape += [1, 1]
        array = array.reshape(shape)
        placed = (row_axis, row_axis + 1, lane_axis, lane_axis + 1)
        others = [axis for axis in range(batch + free + (tile_dim >= 0)) if axis not in placed]
        rest = [axis for axis in range(len(shape)) if axis not in (*others, *placed)]
        order = [*others, row_axis, lane_axis + 1, *rest, lane_axis, row_axis + 1]
        laid_out = np.ascontiguousarray(array.transpose(order))
        return self.context.constant(laid_out, side.dtype, f"{hlo.loc_of(side.value).name}.{start}")
