"""Kernels of a convolution in SBUF: contracted features on the partitions, taps and output features along them.

Constants are laid out at compile time, one contiguous run a partition. Other kernels are loaded so, or with output
features on the partitions and transposed on TensorE. Packs of several groups become block-diagonal matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.convolutions.folding import Folded
from neuronx_cc.codegen.convolutions.placement import Placed
from neuronx_cc.codegen.convolutions.problem import Problem, Segment, atom_of
from neuronx_cc.codegen.convolutions.schedule import (
    ROW_BUFFERS,
    Kernel,
    Schedule,
    kernel_buffers,
    kernel_way,
)
from neuronx_cc.codegen.convolutions.stage import PackAt
from neuronx_cc.codegen.convolutions.turn import Turner
from neuronx_cc.codegen.dots import conversion
from neuronx_cc.codegen.dots.copies import strided
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block, merge_free
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import dense, in_long_runs
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.maps.plan import load_stream
from neuronx_cc.codegen.movement.halves import part_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
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


@dataclass(frozen=True, slots=True)
class PartAt:
    """A part of a kernel: ``count`` chunks of a segment from ``chunk`` on, one position of each of the first axes."""

    segment: Segment
    chunk: Affine
    count: int
    taps: tuple[Affine, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernels:
    """Stages the kernel of one convolution."""

    context: Context
    emitter: Emitter
    tiles: Tiles
    turner: Turner
    placed: Placed
    """Poses the problem whose kernel is given."""
    solved: Problem
    """What the schedule makes of it."""
    schedule: Schedule
    _laid_out: dict[tuple[int, int, int, int], View] = field(default_factory=dict)
    _groups: dict[int, Block] = field(default_factory=dict)
    """First output -> [partitions, outputs]: ones where the output is of the feature's group."""

    def block(self, pack: PackAt, outs: OutputsAt) -> Block:
        """The kernel [partitions, chunks, kernel spatial..., outputs], spread as the copies of the input are."""
        problem, copies, buffers = self.solved, self.schedule.copies, self.schedule.weight_buffers
        if problem.folded is None:
            kernel = self._whole(pack, outs)
        else:
            whole = self._whole(pack, OutputsAt(0, 1, self.placed.problem.pack_outputs, Affine()))
            kernel = self._folded(problem.folded, whole, outs)
        if copies is None:
            return kernel
        groups = [tap.count for tap in copies.grouped()[1:]]
        spread = self.tiles.tile(
            problem.dtype, [1, *groups, outs.size], copies.partitions * copies.count, "copies of kernel", buffers
        )
        between = None
        if copies.in_steps:
            sizes = [1, *copies.inner_sizes(problem.kernel), outs.size]
            partitions = copies.partitions * copies.inner
            between = self.tiles.tile(problem.dtype, sizes, partitions, "inner copies of kernel", buffers)
        copies.spread_kernel(self.emitter.builder, spread, kernel, between)
        return spread

    def _whole(self, pack: PackAt, outs: OutputsAt) -> Block:
        """The kernel as it is given."""
        problem, way = self.placed.problem, kernel_way(self.placed.problem)
        if way is Kernel.LAID_OUT:
            kernel = self._constant(pack, outs, None)
        elif way is Kernel.LOADED:
            kernel = self._tile(pack, outs, problem.chunks, problem.kernel)
            for segment in problem.features.segments:
                part = PartAt(segment, Affine(), segment.chunks)
                self._load(pack, outs, part, kernel.index(1, Affine(segment.first), segment.chunks))
        else:
            kernel = self._tile(pack, outs, problem.chunks, problem.kernel)
            (self._spread if way is Kernel.SPREAD else self._transpose)(pack, outs, kernel)
        return kernel

    def _folded(self, folded: Folded, kernel: Block, outs: OutputsAt) -> Block:
        """For each output that is a feature the kernel, where it meets the input; zeros elsewhere."""
        assert self.solved.fold is not None
        axis, each = 2 + self.solved.fold.axis, self.placed.problem.pack_outputs
        sizes = [self.solved.chunks, *self.solved.kernel, outs.size]
        wide = self.tiles.tile(
            self.solved.dtype, sizes, kernel.dims[0].size, "folded kernel", self.schedule.weight_buffers
        )
        self.emitter.over("memset", Stream.GPSIMD, [wide], [], imm=[0.0])
        for number, taps in enumerate(folded.outputs):
            first, step, count = folded.places(number)
            if not count:
                continue
            source = _progression(kernel, axis, taps.first, taps.step, count)
            target = _progression(wide, axis, first, step, count)
            goal = _progression(target, len(sizes), *self.solved.fold.features(number, each), each)
            for whole, part in zip(self._by_segment(goal), self._by_segment(source), strict=True):
                self.emitter.over("tensor_copy", Stream.GPSIMD, [whole], [part])
        return wide

    def _by_segment(self, kernel: Block) -> list[Block]:
        """What is there of a kernel: the last tile of features may be on fewer partitions."""
        segments = self.placed.problem.features.segments
        return [kernel] if len(segments) == 1 else [_of_segment(kernel, segment) for segment in segments]

    def part(self, pack: PackAt, outs: OutputsAt, at: PartAt) -> Block:
        """One part of it: [partitions, 1, positions..., outputs]."""
        problem, way = self.placed.problem, kernel_way(self.placed.problem)
        if way is Kernel.LAID_OUT:
            return self._constant(pack, outs, at)
        sizes = [1] * len(at.taps) + list(problem.kernel[len(at.taps) :])
        kernel = self._tile(pack, outs, at.count, sizes)
        if way is Kernel.LOADED:
            self._load(pack, outs, at, kernel)
        else:
            self._turn_part(pack, outs, at, kernel)
        return kernel

    def _tile(self, pack: PackAt, outs: OutputsAt, chunks: int, kernel: Sequence[int]) -> Block:
        """Room for a kernel; what is loaded as it lies keeps the order of its dims in HBM."""
        problem = self.placed.problem
        partitions, sizes = problem.features.partitions_of_pack(pack.groups), [chunks, *kernel, outs.size]
        order = list(range(len(sizes)))
        if kernel_way(problem) is Kernel.LOADED:
            w = problem.w.dims
            strides = [problem.features.segments[0].chunk_step * w[1].stride, *(a.stride for a in w[2:]), w[0].stride]
            order.sort(key=lambda dim: -abs(strides[dim]))
        stored = self.tiles.tile(
            problem.dtype, [sizes[dim] for dim in order], partitions, "kernel", self.schedule.weight_buffers
        )
        return stored.select([0, *(1 + order.index(dim) for dim in range(len(sizes)))])

    @property
    def _stream(self) -> Stream:
        return load_stream(self.placed.weights)

    @property
    def _buffers(self) -> int:
        return kernel_buffers(self.solved, self.schedule, self.emitter.builder.sizes)

    def _fill(self, target: Block, source: Block, stream: Stream) -> None:
        """Load ``source``, and convert it on chip where it is stored in 8 bits."""
        problem, builder = self.placed.problem, self.emitter.builder
        if not problem.converts_kernel:
            copy(builder, target, source, stream)
            return
        partitions, *sizes = (atom.size for atom in target.dims)
        raw = self.tiles.tile(problem.kernel_stored, sizes, partitions, "unconverted kernel", ROW_BUFFERS)
        copy(builder, raw, source, stream)
        conversion.cast(self.emitter, target, raw)

    # ---- constants --------------------------------------------------------------------------------------------

    def _constant(self, pack: PackAt, outs: OutputsAt, part: PartAt | None) -> Block:
        problem, key = self.placed.problem, (pack.start, pack.groups, outs.start, outs.size)
        if key not in self._laid_out:
            self._laid_out[key] = self._lay_out(pack, outs)
        view = self._laid_out[key]
        partitions, stored = problem.features.partitions_of_pack(pack.groups), problem.kernel_stored
        sizes = [problem.chunks, *problem.kernel, outs.size]
        row = prod(sizes) * itemsize(stored)
        offset = (pack.index * outs.count + outs.index) * (partitions * row) + view.start
        source = Block(view.alloc, stored, offset, (Atom(partitions, row), *dense(sizes, stored)))
        if part is not None:
            source = source.index(1, part.chunk + part.segment.first, part.count)
            for axis, tap in enumerate(part.taps):
                source = source.index(2 + axis, tap, 1)
        sizes = [atom.size for atom in source.dims[1:]]
        tile = self.tiles.tile(problem.dtype, sizes, partitions, "kernel", self.schedule.weight_buffers)
        self._fill(tile, source, Stream.DMA_WEIGHT)
        return tile

    def _lay_out(self, pack: PackAt, outs: OutputsAt) -> View:
        """Register the constant as [packs, blocks of outputs, partitions, chunks, kernel..., outputs]."""
        problem = self.placed.problem
        assert self.placed.data is not None
        atoms = [replace(atom_of(self.placed.w, axis), size=n) for axis, n in enumerate(self.placed.w.shape)]
        array = strided(self.placed.data, self.placed.w.start.const, atoms).astype(NUMPY_DTYPE[problem.kernel_stored])
        array = array.reshape(problem.groups, problem.outputs, problem.inputs, *problem.kernel)
        array = array[pack.start : pack.start + pack.count * pack.groups]
        partitions = problem.features.partitions_of_pack(pack.groups)
        shape = (pack.count, outs.count, partitions, problem.chunks, *problem.kernel, outs.size)
        out = np.zeros(shape, array.dtype)
        if pack.groups > 1:
            array = array.reshape(pack.count, pack.groups, problem.outputs, problem.inputs, *problem.kernel)
            for group in range(pack.groups):
                rows = slice(group * problem.inputs, (group + 1) * problem.inputs)
                columns = slice(group * problem.outputs, (group + 1) * problem.outputs)
                out[:, 0, rows, 0, ..., columns] = np.moveaxis(array[:, group], 1, -1)
        else:
            array = array[:, outs.start : outs.start + outs.count * outs.size]
            array = array.reshape(pack.count, outs.count, outs.size, problem.inputs, *problem.kernel)
            array = np.moveaxis(array, 2, -1)
            for s in problem.features.segments:
                index = (
                    s.start + np.arange(s.partitions)[:, None] * s.partition_step + np.arange(s.chunks) * s.chunk_step
                )
                out[:, :, : s.partitions, s.first : s.first + s.chunks] = array[:, :, index]
        name = f"{hlo.loc_of(self.placed.weights).name}.{pack.start}.{outs.start}"
        return self.context.constant(out, problem.kernel_stored, name)

    # ---- other kernels ----------------------------------------------------------------------------------------

    def _source(self, pack: PackAt, first: Affine, rows: int, part: PartAt) -> Block:
        """A part in HBM for outputs ``first + [0, rows)``: [outputs, chunks, partitions, kernel spatial...]."""
        problem, w, segment = self.placed.problem, self.placed.w, part.segment
        output, feature = atom_of(w, 0).stride, atom_of(w, 1).stride
        spatial = [atom_of(w, 2 + axis) for axis in range(len(problem.kernel))]
        offset = (pack.group * problem.outputs + first) * output + w.start
        offset = offset + (part.chunk * segment.chunk_step + segment.start) * feature
        for axis, tap in enumerate(part.taps):
            offset = offset + tap * spatial[axis].stride
            spatial[axis] = Atom(1, 0)
        chunks, partitions = (
            Atom(part.count, segment.chunk_step * feature),
            Atom(segment.partitions, segment.partition_step * feature),
        )
        return Block(w.alloc, w.dtype, offset, (Atom(rows, output), chunks, partitions, *spatial))

    def _load(self, pack: PackAt, outs: OutputsAt, part: PartAt, target: Block) -> None:
        """DMA with the contracted features on the partitions; those of each group of a pack between zeros."""
        inputs, size = part.segment.partitions, outs.size // pack.groups
        order = in_long_runs(target)
        if pack.groups > 1:
            self.emitter.over("memset", Stream.GPSIMD, [target], [], imm=[0.0])
        for group in range(pack.groups):
            dims = (source := self._source(pack, outs.first + group * size, size, part)).dims
            source = source.of((dims[2], dims[1], *dims[3:], dims[0]))
            goal = target.index(len(target.dims) - 1, Affine(group * size), size)
            goal = replace(goal, partition=group * inputs, dims=(Atom(inputs, 1, True), *goal.dims[1:]))
            self._fill(goal.select([0, *order]), source.select([0, *order]), self._stream)

    def _spread(self, pack: PackAt, outs: OutputsAt, target: Block) -> None:
        """Of kernels [groups, positions, outputs] each on the columns of its group, zeros on those of the others."""
        problem = self.placed.problem
        sizes = [problem.taps, problem.outputs]
        each = self.tiles.tile(problem.dtype, sizes, pack.groups, "kernel of each group", self._buffers)
        (segment,) = problem.features.segments
        source = self._source(pack, outs.first, pack.groups * problem.outputs, PartAt(segment, Affine(), 1))
        (features, _, _, *spatial), output = source.dims, atom_of(self.placed.w, 0).stride
        if problem.kernel_in_rows:
            self._turn_rows(source.of((*spatial, features)), each)
        else:
            groups, outputs = Atom(pack.groups, output * problem.outputs), Atom(problem.outputs, output)
            goal = each.of((each.dims[0], *dense([*problem.kernel, problem.outputs], problem.dtype)))
            order = [
                0,
                *sorted(range(1, len(goal.dims)), key=lambda dim: -abs(([groups, *spatial, outputs])[dim].stride)),
            ]
            loaded = source.of((groups, *spatial, outputs))
            self._fill(goal.select(order), loaded.select(order), self._stream)
        repeated = each.of((*each.dims[:2], Atom(pack.groups, 0), each.dims[2]))
        wide = target.of((target.dims[0], *dense([problem.taps, pack.groups, problem.outputs], problem.dtype)))
        imm = [0.0, 0, 1, 0, -1, 0]
        self.emitter.builder.emit("affine_select", Stream.GPSIMD, [wide], [repeated], ["is_equal"], imm)

    def _turn_rows(self, source: Block, target: Block) -> None:
        """[positions..., outputs of all groups] in HBM -> ``target`` [groups, positions, outputs]."""
        *spatial, features = source.dims
        columns, height = coalesce(tuple(atom for atom in spatial if atom.size > 1)), self.emitter.builder.sizes.rows
        groups, outputs = target.dims[0].size, target.dims[2].size
        for start, count, rows in self.emitter.builder.tiles(target.dims[1].size, height):
            for number in range(count):
                first = start + number * rows
                natural = self.tiles.tile(target.dtype, [features.size], rows, "natural kernel", ROW_BUFFERS)
                for row, size, offset in _runs(columns, first, rows):
                    step = columns[-1].stride if columns else 0
                    loaded = source.moved(offset).of((Atom(size, step), features))
                    self._fill(
                        replace(natural, partition=row, dims=(Atom(size, 1, True), natural.dims[1])),
                        loaded,
                        self._stream,
                    )
                for plane, part, byte in self.turner.carriers(natural):
                    carried = itemsize(plane.dtype)
                    for output in range(outputs):
                        taken = plane.moved(output * carried)
                        taken = taken.of((plane.dims[0], Atom(1, 0), Atom(groups, outputs * carried)))
                        goal = part_of(target.index(1, Affine(first), rows).index(2, Affine(output)), part, byte)
                        self.turner.turn(taken, goal.of((goal.dims[0], Atom(1, 0), goal.dims[1])))

    def _transpose(self, pack: PackAt, outs: OutputsAt, target: Block) -> None:
        """All of the kernel, as much at a time as is loaded together."""
        problem, natural, builder = self.placed.problem, self.schedule.natural, self.emitter.builder
        for segment in problem.features.segments:
            within = _of_segment(target, segment) if pack.groups == 1 else target
            for chunk, count in builder.pieces(segment.chunks, natural.chunks):
                self._turn_axes(pack, outs, PartAt(segment, chunk, count), within.index(1, chunk, count))

    def _turn_axes(self, pack: PackAt, outs: OutputsAt, part: PartAt, target: Block) -> None:
        axis = len(part.taps)
        if axis == len(self.placed.problem.kernel) - self.schedule.natural.axes:
            self._turn_part(pack, outs, part, target)
            return
        for tap in self.emitter.builder.each(target.dims[2 + axis].size):
            one = PartAt(part.segment, part.chunk, part.count, (*part.taps, tap))
            self._turn_axes(pack, outs, one, target.index(2 + axis, tap, 1))

    def _turn_part(self, pack: PackAt, outs: OutputsAt, part: PartAt, target: Block) -> None:
        """Load a part with its outputs on the partitions, and transpose it to ``target``."""
        problem, builder = self.placed.problem, self.emitter.builder
        height = min(builder.sizes.rows, builder.sizes.columns)
        for start in range(0, outs.size, height):
            rows = min(height, outs.size - start)
            source = self._source(pack, outs.first + start, rows, part)
            free = source.dims[1:]
            order = sorted(range(len(free)), key=lambda dim: -abs(free[dim].stride))
            sizes = [free[dim].size for dim in order]
            stored = self.tiles.tile(problem.dtype, sizes, rows, "natural kernel", self._buffers)
            natural = stored.select([0, *(1 + order.index(dim) for dim in range(len(free)))])
            by_stride = [0, *(1 + dim for dim in order)]
            self._fill(natural.select(by_stride), source.select(by_stride), self._stream)
            goal = target.index(len(target.dims) - 1, Affine(start), rows)
            if pack.groups > 1:
                taps = natural.of((natural.dims[0], *natural.dims[3:], natural.dims[2]))
                self._turn_pack(pack, start, taps, goal.of((goal.dims[0], *goal.dims[2:])))
                continue
            for plane, half, byte in self.turner.carriers(natural):
                self._turn_taps(plane, part_of(goal, half, byte), len(problem.features.segments) == 1)

    def _turn_taps(self, plane: Block, target: Block, alone: bool) -> None:
        """``plane`` [rows, chunks, partitions, kernel...] -> ``target`` [partitions, chunks, kernel..., rows]."""
        rows, chunks, partitions, *kernel = plane.dims
        taps = merge_free([plane.of((rows, *kernel)), target.of((target.dims[0], *target.dims[2:-1]))])
        if len(taps[0].dims) > 2:
            for tap in self.emitter.builder.each(kernel[0].size):
                self._turn_taps(plane.index(3, tap), target.index(2, tap), alone)
            return
        # many along one dim fill a bank together, and leave it so
        looped, together = [chunks, target.dims[1]], [Atom(1, 0), Atom(1, 0)]
        if len(taps[0].dims) > 1:
            together = [block.dims[1] for block in taps]
        if together[0].size <= chunks.size:
            looped, together = together, looped
        loops = alone and self.turner.loops_pay(looped[0].size)
        for index in self.emitter.builder.each(looped[0].size, 1 if loops else 4):
            source, goal = (
                block.moved(index * atom.stride) for block, atom in zip((plane, target), looped, strict=True)
            )
            place = goal.of((Atom(partitions.size, 1, True), together[1], target.dims[-1]))
            self.turner.turn(source.of((rows, together[0], Atom(partitions.size, partitions.stride))), place, loops)

    def prepare(self) -> None:
        """Make what transposed packs of groups are multiplied with, outside loops."""
        problem, builder = self.placed.problem, self.emitter.builder
        if kernel_way(problem) is not Kernel.TRANSPOSED or problem.pack == 1:
            return
        height, features = min(builder.sizes.rows, builder.sizes.columns), problem.pack * problem.inputs
        ones = self.tiles.tile("f32", [problem.pack_outputs], features, "outputs of each feature", 1)
        for start in range(0, problem.pack_outputs, height):
            rows = min(height, problem.pack_outputs - start)
            natural = self.tiles.tile("bf16", [problem.pack, problem.inputs], rows, "features of each output", 1)
            self.emitter.over("memset", Stream.GPSIMD, [natural], [], imm=[1.0])
            steps = [1, -problem.outputs, 0]
            above = [0.0, problem.outputs - 1 - start, *(-step for step in steps)]
            for imm in ([0.0, start, *steps], above):
                builder.emit("affine_select", Stream.GPSIMD, [natural], [natural], ["is_ge"], imm)
            bank = self.context.fixed.transposes(self.turner.banks, [natural])
            self._groups[start] = ones.index(1, Affine(start), rows)
            self.emitter.copy(self._groups[start], bank.index(1, Affine(0)))

    def _turn_pack(self, pack: PackAt, start: int, natural: Block, target: Block) -> None:
        """Transpose [outputs, kernel..., inputs], repeated for all groups, and leave zeros but for its own group's."""
        mask = self._groups[start].index(1, Affine(0), target.dims[-1].size).on_partitions(target.dims[0].size)
        fast = self.turner.fast
        for plane, half, byte in self.turner.carriers(natural):
            self._turn_repeated(plane, part_of(target, half, byte), pack.groups, mask if fast else None)
        if not fast:
            self._select(target, target, mask)

    def _turn_repeated(self, plane: Block, target: Block, groups: int, mask: Block | None) -> None:
        """``plane`` [outputs, kernel..., inputs] -> ``target`` [inputs of all groups, kernel..., outputs]."""
        rows, *kernel, inputs = plane.dims
        taps = merge_free([plane.of((rows, *kernel)), target.of(target.dims[:-1])])
        if len(taps[0].dims) > 2:
            for tap in self.emitter.builder.each(kernel[0].size):
                self._turn_repeated(plane.index(1, tap), target.index(1, tap), groups, mask)
            return
        of, to = (block.dims[1] if len(block.dims) > 1 else Atom(1, 0) for block in taps)
        source, place = plane.of((rows, of, Atom(groups, 0), inputs)), target.of((target.dims[0], to, target.dims[-1]))
        self.turner.turn(source, place, copy=None if mask is None else lambda out, bank: self._select(out, bank, mask))

    def _select(self, out: Block, source: Block, mask: Block) -> None:
        """``source`` [inputs of all groups, kernel..., outputs] times ``mask`` [inputs of all groups, outputs]."""
        repeated = mask.of((mask.dims[0], *(Atom(atom.size, 0) for atom in out.dims[1:-1]), mask.dims[1]))
        self.emitter.over("tensor_tensor", Stream.VECTOR, [out], [source, repeated], alu=["multiply"])


def _of_segment(kernel: Block, segment: Segment) -> Block:
    """The chunks of a segment, on its partitions."""
    part = kernel.index(1, Affine(segment.first), segment.chunks)
    return part.of((Atom(segment.partitions, 1, True), *part.dims[1:]))


def _runs(dims: Sequence[Atom], first: int, count: int) -> Iterator[tuple[int, int, int]]:
    """(number, elements, bytes from the start) of runs along the last dim, of ``count`` elements from ``first`` on."""
    inner, at = (dims[-1].size if dims else 1), first
    while at < first + count:
        size = min(inner - at % inner, first + count - at)
        offset, rest = 0, at
        for atom in reversed(dims):
            rest, index = divmod(rest, atom.size)
            offset += index * atom.stride
        yield at - first, size, offset
        at += size


def _progression(block: Block, dim: int, first: int, step: int, count: int) -> Block:
    """``count`` elements of a dim from ``first`` on, each ``step`` after the one before."""
    dims, stride = list(block.dims), block.dims[dim].stride
    dims[dim] = Atom(count, stride * step)
    return block.moved(Affine(first * stride)).of(tuple(dims))
