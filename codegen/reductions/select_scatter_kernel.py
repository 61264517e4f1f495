"""Gradients of pooling: ``select-and-scatter`` by a GpSimd program on tiles that hold whole windows.

Input: the forms that ``windows.selection`` takes. Leading dims without a window, or blocks of the first dim with
one, lie on the partitions. Every partition computes the elements that it owns from all windows that touch them; what
exists of its inputs and windows is told by a table of bounds, loaded with the tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal

import numpy as np

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block, merge_free
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import TilePool, dense
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.maps import elementwise
from neuronx_cc.codegen.maps.plan import load_stream
from neuronx_cc.codegen.movement.concatenate_kernel import fill
from neuronx_cc.codegen.movement.fill import load_scalar
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.codegen.reductions.select_scatter_plan import Axis, Part, best_plan, parts
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.pooling import BOUNDS
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.values import identity_of
from neuronx_cc.passes.analysis.windows import runs, selection


def lower(context: Context, op: hlo.SelectAndScatterOp, step: int) -> None:
    """Emit ``op``, which is none of the forms that ``expand_select_and_scatter`` rewrites."""
    del step
    chosen = selection(op, context.module)
    if chosen is None:
        raise AssertionError("expand_select_and_scatter rewrites select-and-scatters of this form")
    target = context.new_hbm(op.results[0])
    context.homes[op.results[0]] = [target]
    if 0 in hlo.shape_of(op.operands[0]).dims or 0 in hlo.shape_of(op.operands[1]).dims:
        fill(context, target, op.operands[2])
        return
    _Kernel(context, op, [elementwise.COMPARE[chosen.keeps], elementwise.ARITHMETIC[chosen.kind]], chosen.kind).emit()


@dataclass(frozen=True, slots=True)
class Place:
    """A block of an axis in one tile: its number, and what exists of it."""

    block: Affine
    part: Part


@dataclass(frozen=True, slots=True)
class Strip:
    """Neighbouring partitions: where they start, which element of the leading dims they belong to, axis 0's blocks."""

    partition: int
    count: int
    row: Affine
    place: Place | None


@dataclass(frozen=True, slots=True)
class Array:
    """An array in HBM as it is moved: bytes from one index of an axis to the next, and of an element of the leading
    dims."""

    view: View
    pitches: tuple[int, ...]
    row: int
    stream: Stream


class _Kernel:
    def __init__(self, context: Context, op: hlo.SelectAndScatterOp, alu: list[str], kind: str) -> None:
        self.context, self.builder, self.alu, self.kind = context, context.builder, alu, kind
        operand, source, self.init = op.operands
        self.x, self.source = context.dense(operand), context.dense(source)
        self.target = context.homes[op.results[0]][0]
        self.flags = ["lowest"] if op.padding is not None else []
        self.streams = [load_stream(value) for value in (operand, source)]
        self.leading, self.axes = _axes(hlo.shape_of(operand).dims, hlo.shape_of(source).dims, op.window.data, self.x)
        room = int(self.builder.sbuf.largest_gap() * 0.9)
        self.plan = best_plan(self.builder.timing, self.axes, self.leading, itemsize(self.x.dtype), room)
        self.tiles = TilePool(self.builder, "window", 2)
        self.emitter = Emitter(self.builder, self._scratch)

    def _scratch(self, like: Block, dtype: str) -> Block:
        return self.tiles.like(like, dtype)

    def emit(self) -> None:
        plan = self.plan
        cuts = [parts(axis, block) for axis, block in zip(self.axes, plan.blocks, strict=True)]
        for combination in product(*(cuts[1:] if plan.on_blocks else cuts)):
            if plan.on_blocks:
                for partitions in _by_partitions(cuts[0], 128 // plan.groups):
                    self._blocks(combination, partitions)
            else:
                for start, count, size in self.builder.tiles(self.leading, 128):
                    bounds = self._bounds(combination, [], size)
                    with self.builder.loop(count) as index:
                        strip = Strip(0, size, index * size + start, None)
                        self._places(combination, [strip], size, bounds)
        self.tiles.free()

    def _blocks(self, combination: Sequence[Part], partitions: Sequence[tuple[int, Part]]) -> None:
        """Tiles whose partitions are the blocks ``partitions`` of axis 0 for ``groups`` elements of the leading dims
        each.
        """
        groups = self.plan.groups
        each = sum(part.count for _, part in partitions)
        bounds = self._bounds(combination, [part for _, part in partitions] * groups, each * groups)
        with self.builder.loop(self.leading // groups) as index:
            strips = [
                Strip(group * each + partition, part.count, index * groups + group, Place(Affine(part.block), part))
                for group in range(groups)
                for partition, part in partitions
            ]
            self._places(combination, strips, each * groups, bounds)

    def _bounds(self, combination: Sequence[Part], partitions: Sequence[Part], count: int) -> Block:
        """The table of bounds [partitions, axes, 5] of a tile."""
        table = np.zeros((count, len(self.axes), BOUNDS), np.int32)
        fixed = len(self.axes) - len(combination)
        for place, axis in enumerate(self.axes):
            table[:, place, 4] = axis.low - axis.first() * axis.stride
            if place >= fixed:
                part = combination[place - fixed]
                table[:, place, :4] = (*part.x, *part.windows)
        partition = 0
        for part in partitions:
            table[partition : partition + part.count, 0, :4] = (*part.x, *part.windows)
            partition += part.count
        home = self.context.constant(table, "s32")
        width = len(self.axes) * BOUNDS
        tile = self.tiles.tile([width], "s32", count)
        source = Block(home.alloc, "s32", home.start, (Atom(count, 4 * width), Atom(width, 4)))
        copy(self.builder, tile, source, Stream.DMA_WEIGHT)
        return tile

    def _places(self, combination: Sequence[Part], strips: list[Strip], partitions: int, bounds: Block) -> None:
        with ExitStack() as stack:
            places = [
                Place(stack.enter_context(self.builder.loop(part.count)) + part.block, part) for part in combination
            ]
            self._tile(places, strips, partitions, bounds)
        self.tiles.give_back(bounds)

    def _tile(self, places: Sequence[Place], strips: Sequence[Strip], partitions: int, bounds: Block) -> None:
        pairs = list(zip(self.axes, self.plan.blocks, strict=True))
        x = self.tiles.tile([axis.inputs(block) for axis, block in pairs], self.x.dtype, partitions)
        source = self.tiles.tile([axis.windows(block) for axis, block in pairs], self.source.dtype, partitions)
        y = self.tiles.tile(list(self.plan.blocks), self.target.dtype, partitions)
        self._define(x, self.x, strips, places, [axis.size for axis in self.axes], "x")
        self._define(source, self.source, strips, places, [axis.out for axis in self.axes], "windows")
        for strip in strips:
            self._load_x(x, strip, places)
            self._load_source(source, strip, places)
        constant = self.context.splat(self.init)
        start = constant if constant is not None else identity_of(self.kind, self.target.dtype)
        assert start is not None, "simple combiners have an identity"
        windows = [number for axis in self.axes for number in (axis.window, axis.stride)]
        while windows[-2:] == [1, 1]:
            del windows[-2:]
        self.builder.emit(
            "select_scatter", Stream.GPSIMD, [y], [x, source, bounds], self.alu, [start, *windows], self.flags
        )
        if constant is None:
            self._combine_start(y)
        for strip in strips:
            self._store(y, strip, places)
        for block in (x, source, y):
            self.tiles.give_back(block)

    def _define(
        self,
        tile: Block,
        view: View,
        strips: Sequence[Strip],
        places: Sequence[Place],
        whole: Sequence[int],
        what: Literal["x", "windows"],
    ) -> None:
        """Give what a partition does not load some value: it is not selected, but must not be undefined either.

        Other elements of the array serve: Vector, which could fill tiles, may not run beside GpSimd (hardware sheet
        1.7). ``whole``: the array's sizes of the axes.
        """
        sizes = [atom.size for atom in tile.dims[1:]]
        partial = [
            strip
            for strip in strips
            if any(getattr(p.part, what) != (0, size) for p, size in zip(_all(strip, places), sizes, strict=True))
        ]
        if not partial:
            return
        if any(size > most for size, most in zip(sizes, whole, strict=True)):
            self.builder.emit("memset", Stream.VECTOR, merge_free([tile]), [], imm=[0])
            return
        pitches = [atom.stride for atom in dense(list(whole), view.dtype)]
        atoms = [Atom(size, pitch) for size, pitch in zip(sizes, pitches, strict=True)]
        for strip in partial:
            some = Block(view.alloc, view.dtype, view.start, (Atom(strip.count, 0), *atoms))
            copy(self.builder, tile.on_partitions(strip.count, strip.partition), some, Stream.DMA_LOAD)

    def _combine_start(self, y: Block) -> None:
        home = self.context.hbm(self.init)
        scalar = self.tiles.tile([1], home.dtype, y.dims[0].size)
        load_scalar(self.builder, scalar, home)
        elementwise.emit_binary(self.emitter, self.kind, self.target.dtype, y, y, scalar.repeated(y))
        self.tiles.give_back(scalar)

    # transfers

    def _load_x(self, tile: Block, strip: Strip, places: Sequence[Place]) -> None:
        firsts = [axis.first() * axis.stride - axis.low for axis in self.axes]
        ranges = [(first, *place.part.x) for first, place in zip(firsts, _all(strip, places), strict=True)]
        self._move(tile, self._inputs(self.x, self.streams[0]), strip, places, self.plan.blocks, ranges)

    def _load_source(self, tile: Block, strip: Strip, places: Sequence[Place]) -> None:
        ranges = [
            (axis.first(), *place.part.windows) for axis, place in zip(self.axes, _all(strip, places), strict=True)
        ]
        steps = [block // axis.stride for axis, block in zip(self.axes, self.plan.blocks, strict=True)]
        size = prod(axis.out for axis in self.axes) * itemsize(self.source.dtype)
        array = Array(self.source, tuple(axis.out_pitch for axis in self.axes), size, self.streams[1])
        self._move(tile, array, strip, places, steps, ranges)

    def _store(self, tile: Block, strip: Strip, places: Sequence[Place]) -> None:
        ranges = [(0, 0, place.part.own) for place in _all(strip, places)]
        self._move(tile, self._inputs(self.target, Stream.DMA_STORE), strip, places, self.plan.blocks, ranges)

    def _inputs(self, view: View, stream: Stream) -> Array:
        """``view``, of the input's dims."""
        size = prod(axis.size for axis in self.axes) * itemsize(view.dtype)
        return Array(view, tuple(axis.pitch for axis in self.axes), size, stream)

    def _move(
        self,
        tile: Block,
        array: Array,
        strip: Strip,
        places: Sequence[Place],
        steps: Sequence[int],
        ranges: Sequence[tuple[int, int, int]],
    ) -> None:
        """Between ``tile`` and ``view``: of each axis, elements [low, high) of the tile, which starts at
        ``block * step + first`` of the array."""
        offset = array.view.start + strip.row * array.row
        atoms = []
        for number, (place, step, (first, low, high), pitch) in enumerate(
            zip(_all(strip, places), steps, ranges, array.pitches, strict=True)
        ):
            if high <= low:
                return
            offset += place.block * (step * pitch) + (first + low) * pitch
            tile = tile.index(number + 1, Affine(low), high - low)
            atoms.append(Atom(high - low, pitch))
        partition_step = steps[0] * array.pitches[0] if strip.place is not None else array.row
        tile, view = tile.on_partitions(strip.count, strip.partition), array.view
        outside = Block(view.alloc, view.dtype, offset, (Atom(strip.count, partition_step), *atoms))
        ends = (outside, tile) if array.stream is Stream.DMA_STORE else (tile, outside)
        copy(self.builder, *ends, array.stream)


def _all(strip: Strip, places: Sequence[Place]) -> list[Place]:
    return [strip.place, *places] if strip.place is not None else list(places)


def _by_partitions(cut: Sequence[Part], most: int) -> list[list[tuple[int, Part]]]:
    """The blocks of a dim in tiles of at most ``most`` partitions: (first partition, neighbouring blocks)."""
    tiles: list[list[tuple[int, Part]]] = []
    partition = most
    for part in cut:
        block, left = part.block, part.count
        while left:
            if partition == most:
                tiles.append([])
                partition = 0
            count = min(left, most - partition)
            tiles[-1].append((partition, replace(part, block=block, count=count)))
            block, left, partition = block + count, left - count, partition + count
    return tiles


def _axes(
    dims: Sequence[int], out: Sequence[int], window: Sequence[hlo.WindowDim], view: View
) -> tuple[int, list[Axis]]:
    """Elements of the leading dims without a window, and the other dims, runs of those without one merged."""
    pitches = [atom.stride for atom in dense(list(dims), view.dtype)]
    out_pitches = [atom.stride for atom in dense(list(out), view.dtype)]
    axes: list[Axis] = []
    position = 0
    for run in runs(tuple(window)):
        end = position + 1
        while run is None and end < len(dims) and window[end] == hlo.WindowDim(1):
            end += 1
        size, windows = prod(dims[position:end]), prod(out[position:end])
        dim = window[position]
        axes.append(Axis(size, windows, dim.size, dim.stride, dim.pad_low, pitches[end - 1], out_pitches[end - 1]))
        position = end
    if runs(tuple(window))[0] is None:
        return axes[0].size, axes[1:]
    return 1, axes
