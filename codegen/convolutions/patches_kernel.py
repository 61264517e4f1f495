"""Convolutions of each feature by itself, patch by patch on TensorE: carries out what ``patches`` plans.

Rows of patches of the input, of some images, are loaded onto the partitions, zeros where padding lies, and transposed:
then the positions of a patch of some features lie there. A column of patches of outputs is a sum of products with the
columns of patches that it meets, whose rows lie as many patches on as they are met later. Their matrices are made on
chip: a product of the kernel with ones where a position of a patch meets a tap has each tap in its place, for all
features, of which each column keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import prod

import numpy as np

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.convolutions.finish import Finish
from neuronx_cc.codegen.convolutions.finite import FiniteSums
from neuronx_cc.codegen.convolutions.patches import (
    BUFFERS,
    Cut,
    Problem,
    Schedule,
    footprint,
    images_first,
    is_one,
    packs_of_bank,
    positions_of,
)
from neuronx_cc.codegen.convolutions.patches_matrices import Matrices
from neuronx_cc.codegen.convolutions.placement import Placed
from neuronx_cc.codegen.convolutions.problem import atom_of
from neuronx_cc.codegen.convolutions.turn import Turner
from neuronx_cc.codegen.dots.schedule import EPILOGUE_BUFFERS, array_name
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder, Ring
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import TilePool, dense, tile_in
from neuronx_cc.codegen.emission.views import Atom, View, nested
from neuronx_cc.codegen.maps.plan import load_stream
from neuronx_cc.codegen.movement.halves import part_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Tile
from neuronx_cc.ir.types import NUMPY_DTYPE, itemsize

UNROLLED_LOADS = 16
"""Columns that are loaded and transposed one by one, of which so many are no loop."""
UNROLLED_SUMS = 2
"""Banks of sums in an iteration of a loop."""


def emit(context: Context, placed: Placed, problem: Problem, schedule: Schedule, finite: FiniteSums | None) -> None:
    """Carry out a schedule."""
    builder = context.builder
    builder.program.schedules.setdefault(builder.kernel, schedule.line(problem))
    emitter = Emitter(builder, lambda like, dtype: like)
    with TilePool(builder, f"convolution {placed.op.loc.name}") as pool:
        tiles = Tiles(builder, placed.op.loc.name, footprint(problem, schedule, builder.sizes), pool)
        half = max(1, builder.sizes.banks // 2)
        sums = tiles.banks(half, "sums")
        sums.phases = max(1, half // UNROLLED_SUMS)
        transposed = tiles.banks(builder.sizes.banks - half, "transposes") if half < builder.sizes.banks else sums
        ready = None if placed.chain is None else placed.chain.ready(tuple(map(is_one, problem.arrays)))
        finish = Finish(emitter, (replace(emitter),), tiles, finite, ready, placed.op.loc)
        turner = Turner(context, emitter, tiles, transposed, problem.fast)
        _Patches(context, placed, problem, schedule, tiles, turner, sums, finish).emit()


@dataclass(frozen=True, slots=True)
class _Images:
    """What is computed together: ``count`` images, ``rows`` rows of patches, and features of some packs."""

    first: Affine
    count: int
    row: int
    rows: int
    feature: Affine
    several: bool
    """Whether others follow in straight-line code."""


@dataclass(frozen=True, slots=True)
class _Results:
    """Patches that are stored together: ``size`` columns of them from ``column`` on."""

    at: _Images
    column: Affine
    first: int
    """The same of those that are alone in their form."""
    size: int
    beside: int
    """Columns that lie on the partitions."""
    several: bool
    """As of images."""

    @property
    def across(self) -> int:
        """Columns on one partition."""
        return self.size // self.beside

    @property
    def patches(self) -> int:
        """Partitions."""
        return self.beside * self.at.rows * self.at.count


@dataclass(frozen=True, slots=True)
class _Patches:
    """Emits one convolution."""

    context: Context
    placed: Placed
    problem: Problem
    schedule: Schedule
    tiles: Tiles
    turner: Turner
    sums: Ring
    """Banks of PSUM."""
    finish: Finish

    @property
    def builder(self) -> Builder:
        return self.context.builder

    @property
    def _cuts(self) -> tuple[Cut, Cut]:
        return self.schedule.cuts(self.problem)

    @property
    def _packs(self) -> int:
        return self.schedule.features // self.schedule.pack

    @property
    def _made(self) -> int:
        """Outputs of the patches of a pack at one place."""
        return self.schedule.pack * prod(self.schedule.outputs)

    def emit(self) -> None:
        builder, problem, schedule, rows = self.builder, self.problem, self.schedule, self._cuts[0]
        matrices = Matrices.of(self.context, self.placed, problem, schedule, self.tiles, self.turner)
        for part in builder.each(problem.features // schedule.features, 1):
            feature = part * schedule.features
            kernel = matrices.block(feature)
            stay = [self._staying(number, feature) for number in range(len(problem.arrays))]
            blocks = builder.tiles(problem.axes[0].size, schedule.images)
            for start, count, size in blocks:
                for index in builder.each(count, 1):
                    for row in range(0, rows.patches, schedule.rows):
                        high = min(schedule.rows, rows.patches - row)
                        several = high < rows.patches or (count == 1 and len(blocks) > 1)
                        at = _Images(index * size + start, size, row, high, feature, several)
                        self._outputs(at, self._staged(at), kernel, stay)

    # ---- the input --------------------------------------------------------------------------------------------

    def _staged(self, at: _Images) -> Block:
        """[positions of a patch of a pack, packs, columns of patches, rows of patches of images]."""
        builder, (rows, columns), schedule = self.builder, self._cuts, self.schedule
        partitions, across = schedule.pack * rows.inputs * columns.inputs, columns.sources
        tall = (at.rows + rows.met - 1) * at.count
        tile = self.tiles.tile(self.problem.dtype, [self._packs, across, tall], partitions, "input", 1)
        whole = [columns.existing(column) == (0, columns.inputs) for column in range(across)]
        pieces = _alike(whole, schedule.loaded)
        loads = sum(count for _, count, _ in pieces if count <= UNROLLED_LOADS)
        for first, count, size in pieces:
            together = loads if count <= UNROLLED_LOADS and (at.several or loads > 1) else 0
            for index in builder.each(count, UNROLLED_LOADS):
                column = index * size + first
                natural = self._loaded(at, column, size, first, together)
                for plane, part, byte in self.turner.carriers(natural):
                    for place in range(size):
                        beside = plane.index(2, Affine(place * columns.inputs), columns.inputs)
                        self._transposed(beside, part_of(tile.index(2, column + place), part, byte))
        return tile

    def _transposed(self, plane: Block, goal: Block) -> None:
        """``plane`` [rows of patches of images, rows, columns, features] -> ``goal`` [positions of a patch of a pack,
        packs, rows of patches of images].
        """
        tall, *positions, features = plane.dims
        pack = self.schedule.pack
        packs = Atom(features.size // pack, features.stride * pack)
        self.turner.turn(plane.of((tall, packs, *positions, Atom(pack, features.stride))), goal)

    def _loaded(self, at: _Images, column: Affine, count: int, first: int, together: int) -> Block:
        """[rows of patches of images, rows, columns, features] of ``count`` columns of patches, the first of which is
        ``first`` if it has padding. ``together``: loads of an iteration that follow each other.
        """
        builder, (rows, columns), x = self.builder, self._cuts, self.placed.x
        image, feature, row, pixel = (atom_of(x, axis).stride for axis in range(4))
        stream = load_stream(self.placed.input)
        tall, free = at.rows + rows.met - 1, [rows.inputs, count * columns.inputs, self.schedule.features]
        begin = first * columns.inputs + columns.axis.low
        left, right = (min(max(0, place - begin), free[1]) for place in (0, columns.axis.size))
        order, buffers = _order(x), self.schedule.buffers

        def room(sizes: list[int]) -> Block:
            phases = max(1, buffers // max(1, together))
            partitions = tall * at.count
            return self.tiles.tile(self.problem.dtype, sizes, partitions, "positions", buffers, together > 0, phases)

        tile = _ordered(free, order, room)
        for side in (tile.index(2, Affine(), left), tile.index(2, Affine(right), free[1] - right)):
            self._clear(side, order)
        within = tile.index(2, Affine(left), right - left)
        exist = [rows.existing(at.row + number) for number in range(tall)]
        for (start, end), alike in groupby(range(tall), lambda number: exist[number]):
            numbers = list(alike)
            line = (at.row + numbers[0]) * rows.inputs + rows.axis.low + start
            offset = x.start + at.first * image + at.feature * feature + line * row
            offset = offset + column * (columns.inputs * pixel) + (columns.axis.low + left) * pixel
            dims = (Atom(end - start, row), Atom(right - left, pixel), Atom(free[2], feature))
            for at_first, lies, further in self._on_partitions(
                at, tall, numbers[0], len(numbers), rows.inputs * row, image
            ):
                part = within.on_partitions(lies.size, at_first)
                self._clear(part.index(1, Affine(), start), order)
                self._clear(part.index(1, Affine(end), rows.inputs - end), order)
                source = Block(x.alloc, x.dtype, offset + further, (lies, *dims)).select(order)
                if right > left and end > start:
                    copy(builder, part.index(1, Affine(start), end - start).select(order), source, stream)
        return tile

    def _clear(self, part: Block, order: Sequence[int]) -> None:
        """Zeros where padding lies: by the DMA where that takes less time, for no engine has to come to it first."""
        sizes, timing, dtype = [part.dims[dim].size for dim in order], self.builder.timing, self.problem.dtype
        if not all(sizes):
            return
        moved = timing.transfer(prod(sizes) * itemsize(dtype), sizes[-1] * itemsize(dtype)).dma
        if timing.engine("memset", Stream.GPSIMD, prod(sizes[1:]), (Tile(dtype),), ()).gpsimd < moved:
            self.finish.emitter.over("memset", Stream.GPSIMD, [part], [], imm=[0.0])
            return
        most = positions_of(self.problem, self.schedule)
        zeros = self.context.constant(np.zeros(most, NUMPY_DTYPE[dtype]), dtype)
        dims = (Atom(sizes[0], 0), *dense(sizes[1:], dtype))
        copy(self.builder, part.select(order), Block(zeros.alloc, dtype, zeros.start, dims), Stream.DMA_LOAD)

    def _on_partitions(
        self, at: _Images, tall: int, first: int, count: int, row: int, image: int
    ) -> Iterator[tuple[int, Atom, int]]:
        """Where ``count`` of ``tall`` rows of patches of all images lie: (first partition, progression in HBM, bytes
        from the first image).
        """
        if self._images_first:
            for number in range(at.count):
                yield number * tall + first, Atom(count, row), number * image
        else:
            yield first * at.count, _both(Atom(count, row), Atom(at.count, image)), 0

    @property
    def _images_first(self) -> bool:
        return images_first(self.problem, self.schedule)

    # ---- sums -------------------------------------------------------------------------------------------------

    def _outputs(self, at: _Images, x: Block, kernel: Block, stay: Sequence[Block | None]) -> None:
        builder, columns, schedule = self.builder, self._cuts[1], self.schedule
        whole = [columns.axis.out >= (column + 1) * columns.count for column in range(columns.patches)]
        wide = schedule.outputs[1]
        pieces = _alike(whole, schedule.stored)
        for first, count, size in pieces:
            several = count == 1 and (at.several or len(pieces) > 1)
            for index in builder.each(count, 1):
                beside = size if schedule.columns > 1 else 1
                goes = _Results(at, index * size + first, first, size, beside, several)
                tile = self._tile(self.placed.out.dtype, "result", BUFFERS, goes)
                read = [self._read(array, block, goes) for array, block in enumerate(stay)]
                for place in builder.each(goes.across, 2):
                    parts = [block.index(2, place * wide, wide) for block in (tile, *read)]
                    self._sums(goes, x, kernel, goes.column + place, parts)
                self._move(self.placed.out, tile, goes, None)

    def _tile(self, dtype: str, name: str, buffers: int, goes: _Results) -> Block:
        """[patches, rows, columns, features] of results, in the order of the array in HBM."""
        free = [self.schedule.outputs[0], goes.across * self.schedule.outputs[1], self.schedule.features]

        def room(sizes: list[int]) -> Block:
            return self.tiles.tile(dtype, sizes, goes.patches, name, buffers, goes.several)

        return _ordered(free, _order(self.placed.out), room)

    def _sums(self, goes: _Results, x: Block, kernel: Block, column: Affine, parts: Sequence[Block]) -> None:
        """Patches of outputs at one column: the first of ``parts`` [patches, rows, columns, features], whose others are
        read with it.
        """
        builder, (rows, columns), pack = self.builder, self._cuts, self.schedule.pack
        together = packs_of_bank(self.schedule, builder.sizes)
        for start, count, size in builder.tiles(self._packs, together):
            for index in builder.each(count, UNROLLED_SUMS, UNROLLED_SUMS):
                at = index * size + start
                bank = tile_in(builder, self.sums, [size * self._made], "f32", goes.patches, several=True)
                for number in range(size):
                    sums = bank.index(1, Affine(number * self._made), self._made)
                    of_pack = x.index(1, at + number)
                    for patch, (high, wide) in enumerate(product(range(rows.met), range(columns.met))):
                        window = self._window(of_pack.index(1, column + wide, goes.beside), goes.at, high)
                        moving = kernel.index(1, at + number).index(1, Affine(patch))
                        flags = ["accumulate"] * (patch > 0) + [*self.problem.flags]
                        builder.multiply(sums, window, moving, flags)
                sizes = [size, *self.schedule.outputs, pack]
                target, *read = (self._of_packs(part, at, size) for part in parts)
                self.finish.leave([(target, bank, sizes, read)])

    def _window(self, x: Block, at: _Images, patch: int) -> Block:
        """What patches of outputs meet as their row ``patch``: of [positions of a patch, columns, rows of images]."""
        partitions, columns, rows = x.dims
        if self._images_first:
            tall = at.rows + self._cuts[0].met - 1
            dims = [columns, Atom(at.count, tall * rows.stride), Atom(at.rows, rows.stride)]
            x = x.moved(patch * rows.stride)
        else:
            dims = [columns, Atom(at.rows * at.count, rows.stride)]
            x = x.moved(patch * at.count * rows.stride)
        return x.of((partitions, *([atom for atom in dims if atom.size > 1] or dims[-1:])))

    def _of_packs(self, block: Block, first: Affine, count: int) -> Block:
        """[patches, packs, rows, columns, features of a pack] of [patches, rows, columns, features]."""
        patches, *positions, features = block.dims
        pack = self.schedule.pack
        packs = Atom(count, features.stride * pack)
        moved = block.moved(first * (features.stride * pack))
        return moved.of((patches, packs, *positions, Atom(pack, features.stride)))

    # ---- results, and what is read with them ------------------------------------------------------------------

    def _staying(self, number: int, feature: Affine) -> Block | None:
        """What an epilogue reads that is the same at all positions, on all partitions; None for other arrays."""
        lies = self.problem.arrays[number]
        if not lies.stays:
            return None
        view = self.placed.adds[number]
        partitions = self.schedule.columns * self.schedule.images * self.schedule.rows
        count, stride = (1, 0) if is_one(lies) else (self.schedule.features, atom_of(view, 1).stride)
        tile = self.tiles.tile(self.problem.loaded(lies), [count], partitions, array_name(number), EPILOGUE_BUFFERS)
        dims = (Atom(partitions, 0), Atom(count, stride))
        source = Block(view.alloc, view.dtype, view.start + feature * stride, dims)
        copy(self.builder, tile, source, self._stream_of(number))
        return tile

    def _stream_of(self, number: int) -> Stream:
        assert self.placed.chain is not None, "what reads arrays"
        return load_stream(self.placed.chain.arrays[number])

    def _read(self, number: int, stay: Block | None, goes: _Results) -> Block:
        """[patches, rows, columns, features] of an array."""
        high, wide = self.schedule.outputs
        if stay is not None:
            count, stride = self.schedule.features, stay.dims[1].stride if stay.dims[1].size > 1 else 0
            taken = stay.on_partitions(goes.patches)
            free = Atom(high, 0), Atom(goes.across * wide, 0), Atom(count, stride)
            return taken.of((taken.dims[0], *free))
        dtype = self.problem.loaded(self.problem.arrays[number])
        tile = self._tile(dtype, array_name(number), EPILOGUE_BUFFERS, goes)
        rows, columns = self._cuts
        at = goes.at
        if (at.row + at.rows) * high > rows.axis.out or (goes.first + goes.size) * wide > columns.axis.out:
            self.builder.memset(tile, 0.0)
        self._move(self.placed.adds[number], tile, goes, self._stream_of(number))
        return tile

    def _move(self, array: View, tile: Block, goes: _Results, stream: Stream | None) -> None:
        """DMA ``tile`` [patches, rows, columns, features] to ``array``, or from there by ``stream``."""
        (rows, columns), (high, wide), at = self._cuts, self.schedule.outputs, goes.at
        image, feature, row, pixel = (atom_of(array, axis).stride for axis in range(4))
        order = _order(self.placed.out)
        for number in range(goes.beside):
            across = min(goes.across * wide, columns.axis.out - (goes.first + number) * wide)
            for start, count, tall in _outputs_of(rows, at):
                offset = array.start + at.first * image + at.feature * feature + (at.row + start) * high * row
                offset = offset + (goes.column + number) * (wide * pixel)
                free = (Atom(tall, row), Atom(across, pixel), Atom(self.schedule.features, feature))
                part = tile.index(1, Affine(), tall).index(2, Affine(), across)
                for first, lies, apart in self._on_partitions(at, at.rows, start, count, high * row, image):
                    here = part.on_partitions(lies.size, number * at.rows * at.count + first).select(order)
                    there = Block(array.alloc, array.dtype, offset + apart, (lies, *free)).select(order)
                    if stream is None:
                        copy(self.builder, there, here, Stream.DMA_STORE)
                    else:
                        copy(self.builder, here, there, stream)


def _order(array: View) -> list[int]:
    """Of [patches, rows, columns, features] that in which neighbours of an array follow each other."""
    strides = [atom_of(array, axis).stride for axis in (2, 3, 1)]
    return [0, *sorted((1, 2, 3), key=lambda dim: -abs(strides[dim - 1]))]


def _ordered(free: Sequence[int], order: Sequence[int], room: Callable[[list[int]], Block]) -> Block:
    """[partitions, *free], whose dims lie in ``order`` in the tile that ``room`` makes."""
    return room([free[dim - 1] for dim in order[1:]]).select([order.index(dim) for dim in range(len(order))])


def _outputs_of(rows: Cut, at: _Images) -> Iterator[tuple[int, int, int]]:
    """(first, count, outputs of each) of rows of patches that have equally many outputs."""
    last = rows.axis.out - (at.row + at.rows - 1) * rows.count
    whole = at.rows - (last < rows.count)
    if whole:
        yield 0, whole, rows.count
    if whole < at.rows:
        yield whole, 1, last


def _alike(whole: Sequence[bool], most: int) -> list[tuple[int, int, int]]:
    """(first, count, size) of pieces of ``most`` neighbours, and of what is left: those that are whole are alike."""
    pieces = [(at, min(most, len(whole) - at)) for at in range(0, len(whole), most)]
    found = []
    for each, several in groupby(pieces, lambda piece: piece[1] == most and all(whole[piece[0] : sum(piece)])):
        alike = list(several)
        found += [(alike[0][0], len(alike), most)] if each else [(first, 1, size) for first, size in alike]
    return found


def _both(outer: Atom, inner: Atom) -> Atom:
    """Both as one, of which either may be a single one."""
    if inner.size == 1 or outer.size == 1:
        return outer if inner.size == 1 else inner
    return nested(outer, inner)
