"""Convolutions of few features: shifted copies of the input on further partitions, so that one product sums some taps.

A tile of ``inputs`` features fills ``inputs`` of TensorE's 128 rows. Copies of it, each shifted by some taps, lie on
the partitions behind; the kernel's taps are spread in the same way. Along the last axis the copies divide the taps
evenly, along the one before the last group of taps may have fewer copies: these are the first partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from neuronx_cc.codegen.builder import Affine, Block, Builder
from neuronx_cc.codegen.conv_axis import Axis, Taps
from neuronx_cc.codegen.transfer import copy
from neuronx_cc.codegen.views import Atom
from neuronx_cc.ir.isa.program import Stream

ROWS = 128


@dataclass(frozen=True, slots=True)
class Copies:
    """``outer`` x ``inner`` copies of ``lanes`` partitions; ``outer`` along the last axis but one."""

    lanes: int
    outer: int
    inner: int
    taps: tuple[Taps, ...]
    """Of each axis, the batch included."""

    @property
    def count(self) -> int:
        return self.outer * self.inner

    def grouped(self) -> list[Taps]:
        """What is left to add up: each tap of these stands for all copies."""
        each = self._each()
        pairs = zip(self.taps, each, strict=True)
        return [Taps(0, 1, -(-tap.count // copies), tap.offset, tap.stride * copies) for tap, copies in pairs]

    def lanes_of(self, index: Sequence[int]) -> int:
        """Partitions that take part in the product of the groups ``index``."""
        if len(self.taps) < 3:
            return self.lanes * self.count
        left = self.taps[-2].count - index[-2] * self.outer
        return self.lanes * self.inner * min(self.outer, left)

    def _each(self) -> list[int]:
        each = [1 for _ in self.taps]
        each[-1] = self.inner
        if len(each) > 2:
            each[-2] = self.outer
        return each

    def _steps(self) -> list[tuple[int, list[int]]]:
        """(copy, taps that it is shifted by along each axis), in the order of partitions."""
        pairs = product(range(self.outer), range(self.inner))
        steps = []
        for number, (outer, inner) in enumerate(pairs):
            shift = [0 for _ in self.taps]
            shift[-1] = inner
            if len(shift) > 2:
                shift[-2] = outer
            steps.append((number, shift))
        return steps

    def spread_input(self, builder: Builder, tile: Block, stored: Block) -> None:
        """Fill the copies of ``tile`` [lanes, chunk, axes...], whose memory is that of the dense ``stored``."""
        total = prod(atom.size for atom in stored.dims[1:])
        size = stored.dims[-1].stride
        for number, steps in self._steps()[1:]:
            pairs = zip(steps, self.taps, tile.dims[2:], strict=True)
            shift = sum(step * tap.stride * atom.stride for step, tap, atom in pairs) // size
            source = replace(stored, dims=(Atom(self.lanes, 1, True), Atom(total - shift, size)))
            target = replace(source, partition=number * self.lanes)
            copy(builder, target, replace(source, offset=source.offset + shift * size), Stream.DMA_LOAD)

    def spread_kernel(self, builder: Builder, target: Block, kernel: Block) -> None:
        """``target`` [all lanes, chunk, groups..., outputs] from ``kernel`` [lanes, chunk, spatial..., outputs]."""
        each = self._each()
        for number, steps in self._steps():
            source, goal = kernel, replace(target, partition=number * self.lanes)
            for axis, (step, tap, copies) in enumerate(zip(steps[1:], self.taps[1:], each[1:], strict=True)):
                groups = -(-(tap.count - step) // copies)
                atom = source.dims[2 + axis]
                offset = source.offset + (tap.first + step * tap.step) * atom.stride
                dims = (*source.dims[: 2 + axis], Atom(groups, atom.stride * tap.step * copies))
                source = replace(source, offset=offset, dims=(*dims, *source.dims[3 + axis :]))
                goal = goal.index(2 + axis, Affine(), groups)
            lanes = Atom(self.lanes, 1, True)
            source, goal = (replace(block, dims=(lanes, *block.dims[1:])) for block in (source, goal))
            copy(builder, goal, source, Stream.DMA_LOAD)


def copies_of(lanes: int, axes: Sequence[Axis], most: int) -> Copies | None:
    """The copies that fill TensorE's rows, if there is room for any and at most ``most`` products are left."""
    if len(axes) < 2 or any(axis.phases > 1 or not axis.taps[0].count for axis in axes):
        return None
    taps = tuple(axis.taps[0] for axis in axes)
    room = ROWS // lanes
    inner = max(n for n in range(1, taps[-1].count + 1) if taps[-1].count % n == 0 and n <= max(1, room))
    outer = 1
    if len(axes) > 2:
        groups = -(-taps[-2].count // max(1, min(room // inner, taps[-2].count)))
        outer = -(-taps[-2].count // groups)
    found = Copies(lanes, outer, inner, taps)
    if found.count == 1 or prod(tap.count for tap in found.grouped()) > most:
        return None
    return found
