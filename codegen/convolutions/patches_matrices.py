"""Matrices of a kernel of each feature by itself: what an input patch adds to all outputs of a patch that meet it.

A product of the kernels of some features with ones where a position of the input patch meets a tap has each tap in its
place, for all features; of these each position keeps its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.convolutions.patches import BUFFERS, Problem, Schedule
from neuronx_cc.codegen.convolutions.placement import Placed
from neuronx_cc.codegen.convolutions.problem import atom_of
from neuronx_cc.codegen.convolutions.turn import Turner
from neuronx_cc.codegen.dots.copies import strided
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import dense, tile_in
from neuronx_cc.codegen.emission.views import Atom, View, nested
from neuronx_cc.codegen.maps.plan import load_stream
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import NUMPY_DTYPE, itemsize


@dataclass(frozen=True, slots=True)
class Matrices:
    """Makes them on chip, for a block of features at a time."""

    context: Context
    placed: Placed
    problem: Problem
    schedule: Schedule
    tiles: Tiles
    turner: Turner
    """Has the banks that products are made in, and the emitter."""
    taps: Block
    """[kernel positions, places of rows, places of columns]: ones where a tap is met."""
    own: Block
    """[positions of a patch of the features of a pack, features]: ones where the feature is the partition's."""

    @classmethod
    def of(
        cls, context: Context, placed: Placed, problem: Problem, schedule: Schedule, tiles: Tiles, turner: Turner
    ) -> Matrices:
        """With what all blocks of features have in common."""

        def constant(array: np.ndarray, dtype: str, name: str) -> Block:
            array = np.ascontiguousarray(array.astype(NUMPY_DTYPE[dtype]))
            view = context.constant(array, dtype)
            tile = tiles.tile(dtype, array.shape[1:], array.shape[0], name, 1)
            atoms = tuple(Atom(size, stride) for size, stride in zip(array.shape, array.strides, strict=True))
            copy(context.builder, tile, Block(view.alloc, dtype, view.start, atoms), Stream.DMA_LOAD)
            return tile

        cuts = schedule.cuts(problem)
        rows, columns = (cut.taps_at(size) for cut, size in zip(cuts, problem.kernel, strict=True))
        ones = np.einsum("iu,jv->ijuv", rows, columns).reshape(problem.taps, *(cut.places for cut in cuts))
        own = np.tile(np.eye(schedule.pack), (prod(cut.inputs for cut in cuts), 1))
        taps = constant(ones, problem.dtype, "taps")
        return cls(context, placed, problem, schedule, tiles, turner, taps, constant(own, "f32", "own features"))

    def block(self, feature: Affine) -> Block:
        """[positions of a patch of a pack, packs, input patches that are met, outputs of a patch of a pack]."""
        (rows, columns), pack = self.schedule.cuts(self.problem), self.schedule.pack
        each, packs = self._of_each(feature), self.schedule.features // pack
        sizes = [packs, rows.met * columns.met, pack * prod(self.schedule.outputs)]
        kernel = self.tiles.tile(self.problem.dtype, sizes, self.own.dims[0].size, "kernel", 1)
        most = self.context.builder.sizes.bank_columns // pack
        for patch, met in enumerate(product(range(rows.met), range(columns.met))):
            matrix = kernel.index(2, Affine(patch))
            lines, beside = rows.meeting(met[0]), columns.meeting(met[1])
            self._clear(matrix, lines, beside)
            for together in _boxes((lines, beside, range(packs)), most):
                self._spread(each, matrix, met, together)
        return kernel

    def _clear(self, matrix: Block, lines: range, beside: range) -> None:
        """Zeros for outputs that do not meet a patch, in [positions of a patch of a pack, packs, outputs of a pack]."""
        (high, wide), pack = self.schedule.outputs, self.schedule.pack
        partitions, packs, output = matrix.dims
        whole = matrix.of(
            (partitions, packs, Atom(high, wide * pack * output.stride), Atom(wide * pack, output.stride))
        )
        if not (lines and beside):
            self._zeros(whole)
            return
        met = whole.index(2, Affine(lines.start), len(lines))
        self._zeros(whole.index(2, Affine(), lines.start))
        self._zeros(whole.index(2, Affine(lines.stop), high - lines.stop))
        self._zeros(met.index(3, Affine(), beside.start * pack))
        self._zeros(met.index(3, Affine(beside.stop * pack), (wide - beside.stop) * pack))

    def _zeros(self, block: Block) -> None:
        if all(atom.size for atom in block.dims):
            self.turner.emitter.over("memset", Stream.VECTOR, [block], [], imm=[0.0])

    def _spread(self, each: Block, matrix: Block, met: tuple[int, int], together: tuple[range, ...]) -> None:
        """The taps by which some outputs of the patches of some packs meet patch ``met`` of the input: in ``matrix``
        [positions of a patch of a pack, packs, outputs of a patch of a pack].
        """
        (rows, columns), pack, (lines, beside, packs) = self.schedule.cuts(self.problem), self.schedule.pack, together
        builder, count = self.context.builder, len(packs) * pack
        sizes = [len(lines), len(beside), len(packs), pack]
        bank = tile_in(builder, self.turner.banks, [prod(sizes)], "f32", self.own.dims[0].size, several=True)
        taken = each.index(1, Affine(packs.start * pack), count)
        for number, (row, column) in enumerate(product(lines, beside)):
            met_by = self.taps.index(1, Affine(rows.window(row, met[0])), rows.inputs)
            met_by = met_by.index(2, Affine(columns.window(column, met[1])), columns.inputs)
            sums = bank.index(1, Affine(number * count), count)
            builder.multiply(sums, met_by.of((*met_by.dims, Atom(pack, 0))), taken)
        partitions, of_pack, output = matrix.dims
        strides = columns.count * pack * output.stride, pack * output.stride, of_pack.stride, output.stride
        first = sum(at * stride for at, stride in zip((lines.start, beside.start, packs.start), strides, strict=False))
        target = matrix.moved(first).of((partitions, *map(Atom, sizes, strides)))
        own = self.own.of((partitions, *(Atom(size, 0) for size in sizes[:3]), self.own.dims[1]))
        made = bank.of((partitions, *dense(sizes, "f32")))
        self.turner.emitter.over("tensor_tensor", Stream.VECTOR, [target], [made, own], alu=["multiply"])

    def _of_each(self, feature: Affine) -> Block:
        """[kernel positions, features]: the kernels of a block of features."""
        problem, count = self.problem, self.schedule.features
        tile = self.tiles.tile(problem.dtype, [count], problem.taps, "kernel of each feature", BUFFERS)
        if self.placed.data is not None:
            view, stream = self._laid_out(self.placed.data), Stream.DMA_WEIGHT
            lies, output = Atom(problem.taps, problem.features * itemsize(view.dtype)), itemsize(view.dtype)
        else:
            view, stream = self.placed.w, load_stream(self.placed.weights)
            lies, output = nested(atom_of(view, 2), atom_of(view, 3)), atom_of(view, 0).stride
        source = Block(view.alloc, view.dtype, view.start + feature * output, (lies, Atom(count, output)))
        copy(self.context.builder, tile, source, stream)
        return tile

    def _laid_out(self, data: np.ndarray) -> View:
        """A constant kernel as [kernel positions, features]."""
        w, dtype = self.placed.w, self.problem.dtype
        atoms = [replace(atom_of(w, axis), size=n) for axis, n in enumerate(w.shape)]
        array = strided(data, w.start.const, atoms).astype(NUMPY_DTYPE[dtype]).reshape(self.problem.features, -1)
        return self.context.constant(np.ascontiguousarray(array.T), dtype, hlo.loc_of(self.placed.weights).name)


def _boxes(ranges: tuple[range, ...], most: int) -> Iterator[tuple[range, ...]]:
    """Parts of ``most`` elements of a box, whose last dims are whole as far as they fit."""
    sizes: list[int] = []
    left = most
    for each in reversed(ranges):
        sizes.insert(0, max(1, min(len(each), left)))
        left //= sizes[0]
    for starts in product(*(range(0, len(each), size) for each, size in zip(ranges, sizes, strict=True))):
        yield tuple(each[at : at + size] for each, at, size in zip(ranges, starts, sizes, strict=True))
