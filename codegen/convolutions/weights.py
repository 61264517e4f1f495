"""Kernels of a convolution in SBUF: contracted features on the partitions, taps and output features along them.

Constants are laid out at compile time, one contiguous run a partition. Other kernels are loaded so, or with output
features on the partitions and transposed on TensorE. Packs of several groups become block-diagonal matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from neuronx_cc.codegen.convolutions.plan import atom_of
from neuronx_cc.codegen.convolutions.stage import ConvStaging, PackAt
from neuronx_cc.codegen.emission.builder import Affine, Block, merge_free
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.maps.plan import is_given
from neuronx_cc.codegen.movement.halves import part_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import NUMPY_DTYPE, itemsize


@dataclass(frozen=True, slots=True)
class OutputsAt:
    """Block ``index`` of ``count`` blocks of ``size`` output features of a pack from feature ``start`` on."""

    start: int
    count: int
    size: int
    index: Affine

    @property
    def first(self) -> Affine:
        return self.index * self.size + self.start


class ConvWeights(ConvStaging):
    """Stages the kernel."""

    _laid_out: dict[tuple[int, int, int, int], View]

    def stage_kernel(self, pack: PackAt, outs: OutputsAt, taps: Sequence[Affine] | None = None) -> Block:
        """A block [lanes, chunks, kernel spatial..., outputs]; with ``taps`` only one kernel position of it."""
        if self.data is not None:
            kernel = self._constant(pack, outs, taps)
        elif self.kernel_is_direct:
            kernel = self._direct(outs, taps)
        else:
            kernel = self._transposed(pack, outs, taps)
        if self.copies is None:
            return kernel
        groups = [tap.count for tap in self.copies.grouped()[1:]]
        lanes = self.inputs * self.copies.count
        spread = self.tile("copies of kernel", self.pe_dtype, [1, *groups, outs.size], lanes, self.weight_buffers)
        between = None
        if self.copies.in_steps:
            sizes = [1, *self.copies.inner_sizes(self.kernel), outs.size]
            lanes = self.inputs * self.copies.inner
            between = self.tile("inner copies of kernel", self.pe_dtype, sizes, lanes, self.weight_buffers)
        self.copies.spread_kernel(self.builder, spread, kernel, between)
        return spread

    @property
    def _weight_stream(self) -> Stream:
        return Stream.DMA_WEIGHT if is_given(self.weights) else Stream.DMA_LOAD

    # ---- constants --------------------------------------------------------------------------------------------

    def _constant(self, pack: PackAt, outs: OutputsAt, taps: Sequence[Affine] | None) -> Block:
        key = (pack.start, pack.groups, outs.start, outs.size)
        if key not in self._laid_out:
            self._laid_out[key] = self._lay_out(pack, outs)
        view = self._laid_out[key]
        lanes, size = self.lanes_of_pack(pack.groups), itemsize(self.pe_dtype)
        sizes = [self.chunks, *self.kernel, outs.size]
        row = prod(sizes) * size
        offset = (pack.index * outs.count + outs.index) * (lanes * row) + view.offset
        source = Block(view.alloc, self.pe_dtype, offset, (Atom(lanes, row), *dense(sizes, self.pe_dtype)))
        if taps is not None:
            for axis, tap in enumerate(taps):
                source = source.index(2 + axis, tap, 1)
            sizes = [self.chunks, *(1 for _ in self.kernel), outs.size]
        tile = self.tile("kernel", self.pe_dtype, sizes, lanes, self.weight_buffers)
        copy(self.builder, tile, source, Stream.DMA_WEIGHT)
        return tile

    def _lay_out(self, pack: PackAt, outs: OutputsAt) -> View:
        """Register the constant as [packs, blocks of outputs, lanes, chunks, kernel..., outputs]."""
        assert self.data is not None
        raw = self.data.reshape(-1)
        atoms = [atom_of(self.w, axis) for axis in range(len(self.w.dims))]
        sizes = self.w.shape
        strides = [atom.stride for atom in atoms]
        array = np.lib.stride_tricks.as_strided(
            raw[self.w.offset // raw.itemsize :], sizes, strides, writeable=False
        ).astype(NUMPY_DTYPE[self.pe_dtype])
        array = array.reshape(self.groups, self.outputs, self.inputs, *self.kernel)
        array = array[pack.start : pack.start + pack.count * pack.groups]
        lanes = self.lanes_of_pack(pack.groups)
        shape = (pack.count, outs.count, lanes, self.chunks, *self.kernel, outs.size)
        out = np.zeros(shape, array.dtype)
        if pack.groups > 1:
            array = array.reshape(pack.count, pack.groups, self.outputs, self.inputs, *self.kernel)
            for group in range(pack.groups):
                rows = slice(group * self.inputs, (group + 1) * self.inputs)
                columns = slice(group * self.outputs, (group + 1) * self.outputs)
                out[:, 0, rows, 0, ..., columns] = np.moveaxis(array[:, group], 1, -1)
        else:
            array = array[:, outs.start : outs.start + outs.count * outs.size]
            array = array.reshape(pack.count, outs.count, outs.size, self.inputs, *self.kernel)
            array = np.moveaxis(array, 2, -1)
            for s in self.segments:
                index = s.start + np.arange(s.lanes)[:, None] * s.lane_step + np.arange(s.chunks) * s.chunk_step
                out[:, :, : s.lanes, s.first : s.first + s.chunks] = array[:, :, index]
        name = f"{hlo.loc_of(self.weights).name}.{pack.start}.{outs.start}"
        return self.context.constant(out, self.pe_dtype, name)

    # ---- contracted features far apart ------------------------------------------------------------------------

    def _direct(self, outs: OutputsAt, taps: Sequence[Affine] | None) -> Block:
        """DMA with the contracted features on the partitions; the tile keeps the order of dims in HBM."""
        output, feature = atom_of(self.w, 0), atom_of(self.w, 1)
        spatial = [atom_of(self.w, 2 + axis) for axis in range(len(self.kernel))]
        offset = outs.first * output.stride + self.w.offset
        if taps is not None:
            for axis, tap in enumerate(taps):
                offset = offset + tap * spatial[axis].stride
                spatial[axis] = Atom(1, 0)
        lanes = self.lanes_of_pack(1)
        step = self.segments[0].chunk_step
        free = [Atom(self.chunks, step * feature.stride), *spatial, Atom(outs.size, output.stride)]
        order = sorted(range(len(free)), key=lambda dim: -abs(free[dim].stride))
        stored = self.tile("kernel", self.pe_dtype, [free[dim].size for dim in order], lanes, self.weight_buffers)
        tile = stored.select([0, *(1 + order.index(dim) for dim in range(len(free)))])
        for segment in self.segments:
            lane = Atom(segment.lanes, segment.lane_step * feature.stride)
            chunk = Atom(segment.chunks, segment.chunk_step * feature.stride)
            source = Block(
                self.w.alloc, self.w.dtype, offset + segment.start * feature.stride, (lane, chunk, *free[1:])
            )
            target = tile.index(1, Affine(segment.first), segment.chunks)
            target = replace(target, dims=(Atom(segment.lanes, 1, True), *target.dims[1:]))
            order_here = [0, *(1 + dim for dim in order)]
            copy(self.builder, target.select(order_here), source.select(order_here), self._weight_stream)
        return tile

    # ---- output features on the partitions, to be transposed --------------------------------------------------

    def _transposed(self, pack: PackAt, outs: OutputsAt, taps: Sequence[Affine] | None) -> Block:
        source = self._natural(pack, outs, taps)
        kernel = [atom.size for atom in source.dims[1:-1]]
        lanes = self.lanes_of_pack(pack.groups)
        tile = self.tile("kernel", self.pe_dtype, [self.chunks, *kernel, outs.size], lanes, self.weight_buffers)
        for start in range(0, outs.size, self.tile_rows):
            rows = min(self.tile_rows, outs.size - start)
            target = tile.index(len(tile.dims) - 1, Affine(start), rows)
            self._turn_kernel(pack, start, source.index(0, Affine(start), rows), target, 0)
        return tile

    def _natural(self, pack: PackAt, outs: OutputsAt, taps: Sequence[Affine] | None) -> Block:
        """The kernel of ``outs`` as it lies in HBM: [outputs, kernel spatial..., inputs], of ``taps`` if given."""
        output, feature = atom_of(self.w, 0), atom_of(self.w, 1)
        spatial = [atom_of(self.w, 2 + axis).stride for axis in range(len(self.kernel))]
        offset = (pack.group * self.outputs + outs.first) * output.stride + self.w.offset
        sizes = self.kernel
        if taps is not None:
            sizes = [1 for _ in self.kernel]
            for tap, stride in zip(taps, spatial, strict=True):
                offset = offset + tap * stride
        kernel = (Atom(size, stride) for size, stride in zip(sizes, spatial, strict=True))
        dims = (Atom(outs.size, output.stride), *kernel, Atom(self.inputs, feature.stride))
        return Block(self.w.alloc, self.w.dtype, offset, dims)

    def _turn_kernel(self, pack: PackAt, start: int, source: Block, target: Block, done: int) -> None:
        """Loop over kernel dims (from ``1 + done`` on) until a part is small enough to be loaded at once."""
        spatial = len(source.dims) - 2
        small = prod(atom.size for atom in source.dims[1:]) * itemsize(self.pe_dtype) <= self.natural_bytes
        if done < spatial and not small:
            for index in self.builder.each(source.dims[1 + done].size):
                inner = source.index(1 + done, index, 1)
                self._turn_kernel(pack, start, inner, target.index(2 + done, index, 1), done + 1)
            return
        free = source.dims[1:]
        order = sorted(range(len(free)), key=lambda dim: -abs(free[dim].stride))
        stored = self.tile("natural kernel", self.pe_dtype, [free[dim].size for dim in order], source.dims[0].size, 2)
        natural = stored.select([0, *(1 + order.index(dim) for dim in range(len(free)))])
        by_stride = [0, *(1 + dim for dim in order)]
        copy(self.builder, natural.select(by_stride), source.select(by_stride), self._weight_stream)
        if pack.groups > 1:
            self._turn_pack(pack, start, natural, target, 0)
            return
        for plane, part, byte in self.carriers(natural):
            self._turn_taps(plane, part_of(target, part, byte))

    def _turn_taps(self, plane: Block, target: Block) -> None:
        """``plane`` [rows, kernel..., inputs] -> ``target`` [lanes, chunks, kernel..., rows]."""
        *_, inputs = plane.dims
        taps = merge_free([plane.of(plane.dims[:-1]), target.of((target.dims[0], *target.dims[2:-1]))])
        if len(taps[0].dims) > 2:
            for tap in self.builder.each(plane.dims[1].size):
                self._turn_taps(plane.index(1, tap), target.index(2, tap))
            return
        count = taps[0].dims[1].size if len(taps[0].dims) > 1 else 1
        loops = len(self.segments) == 1 and self.loops_pay(count)
        for tap in self.builder.each(count, 1 if loops else 4):
            source, goal = (block.index(1, tap) if count > 1 else block for block in taps)
            for segment in self.segments:
                chunks = Atom(segment.chunks, segment.chunk_step * inputs.stride)
                dims = (plane.dims[0], chunks, Atom(segment.lanes, segment.lane_step * inputs.stride))
                natural = source.moved(segment.start * inputs.stride).of(dims)
                place = goal.of(
                    (Atom(segment.lanes, 1, True), Atom(segment.chunks, target.dims[1].stride), target.dims[-1])
                )
                self.turn(natural, place.moved(segment.first * target.dims[1].stride), loops)

    def _turn_pack(self, pack: PackAt, start: int, natural: Block, target: Block, done: int) -> None:
        """Tap by tap: spread [rows, inputs] to the columns of each row's group, then transpose."""
        if len(natural.dims) > 2:
            for tap in self.builder.each(natural.dims[1].size):
                self._turn_pack(pack, start, natural.index(1, tap), target.index(2, tap), done + 1)
            return
        rows = natural.dims[0].size
        wide = self.tile("spread kernel", self.pe_dtype, [pack.groups, self.inputs], rows, 2)
        repeated = replace(natural, dims=(natural.dims[0], Atom(pack.groups, 0), natural.dims[1]))
        steps = [1, -self.outputs, 0]
        below = [0.0, start, *steps]
        above = [0.0, self.outputs - 1 - start, *(-step for step in steps)]
        self.builder.emit("affine_select", Stream.GPSIMD, [wide], [repeated], ["is_ge"], below)
        self.builder.emit("affine_select", Stream.GPSIMD, [wide], [wide], ["is_ge"], above)
        flat = replace(wide, dims=(wide.dims[0], Atom(pack.groups * self.inputs, itemsize(self.pe_dtype))))
        for plane, part, byte in self.carriers(flat):
            one = replace(plane, dims=(plane.dims[0], Atom(1, 0), plane.dims[1]))
            self.turn(one, part_of(target, part, byte))
