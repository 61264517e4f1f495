"""Convolutions of few features: shifted copies of the input on further partitions, so that one product sums some taps.

A tile of ``inputs`` features fills ``inputs`` of TensorE's 128 rows. Copies of it, each shifted by some taps, lie on
the partitions after; the kernel's taps are spread in the same way. Along the last axis the copies divide the taps
evenly, along the one before the last group of taps may have fewer copies: these are the first partitions.

Where outputs lie several rows apart, the first copies hold the rows of one residue each, as they come from HBM, and the
others are shifted by whole steps: no copy holds rows that none of its products reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from neuronx_cc.codegen.convolutions.axis import Axis, Taps
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Stream


@dataclass(frozen=True, slots=True)
class Copies:
    """``outer`` x ``inner`` copies of ``partitions``; ``outer`` along the last axis but one."""

    partitions: int
    outer: int
    inner: int
    taps: tuple[Taps, ...]
    """Of each axis, the batch included."""
    residues: int = 1
    """Rows between outputs, if the copies hold every such row only."""

    @property
    def count(self) -> int:
        return self.outer * self.inner

    def grouped(self) -> list[Taps]:
        """What is left to add up: each tap of these stands for all copies."""
        each = self._each()
        pairs = zip(self.taps, each, strict=True)
        return [Taps(0, 1, -(-tap.count // copies), tap.offset, tap.stride * copies) for tap, copies in pairs]

    def partitions_of(self, index: Sequence[int]) -> int:
        """Partitions that take part in the product of the groups ``index``."""
        if len(self.taps) < 3:
            return self.partitions * self.count
        left = self.taps[-2].count - index[-2] * self.outer
        return self.partitions * self.inner * min(self.outer, left)

    def _each(self) -> list[int]:
        each = [1 for _ in self.taps]
        each[-1] = self.inner
        if len(each) > 2:
            each[-2] = self.outer
        return each

    @property
    def in_steps(self) -> bool:
        """Whether copies along both axes are made: along the last one first, then of all these together."""
        return self.outer > 1 and self.inner > 1

    def packed(self, sizes: Sequence[int]) -> list[int]:
        """Positions that a partition holds of ``sizes`` input positions of each axis."""
        if self.residues == 1:
            return list(sizes)
        return [*sizes[:-2], -(-sizes[-2] // self.residues), sizes[-1]]

    def apart(self, axis: int) -> int:
        """Input positions between neighbours on a partition."""
        return self.residues if axis == len(self.taps) - 2 else 1

    def spread_input(self, builder: Builder, tile: Block, stored: Block) -> None:
        """Fill the copies of ``tile`` [partitions, chunk, axes...], whose memory is that of the dense ``stored``.

        Residue r is there from partition ``r * partitions * inner`` on.
        """
        size = stored.dims[-1].stride
        column = self.taps[-1].stride
        group = self.partitions * self.inner
        for residue, number in product(range(self.residues), range(1, self.inner)):
            source = residue * group
            self._shift(
                builder, stored, (source, source + number * self.partitions), self.partitions, number * column, 0
            )
        missing = (self.inner - 1) * column
        if len(self.taps) > 2:
            row = self.taps[-2].stride * tile.dims[-2].stride // size
            for number in range(self.residues, self.outer, self.residues):
                partitions = group * min(self.residues, self.outer - number)
                self._shift(builder, stored, (0, number * group), partitions, number // self.residues * row, missing)

    def _shift(
        self, builder: Builder, stored: Block, places: tuple[int, int], partitions: int, shift: int, missing: int
    ) -> None:
        """Copy ``partitions`` between ``places``, ``shift`` elements on; the last ``missing`` are not there."""
        total, size = prod(atom.size for atom in stored.dims[1:]), stored.dims[-1].stride
        dims = (Atom(partitions, 1, True), Atom(total - shift - missing, size))
        source = replace(stored, partition=places[0], offset=stored.offset + shift * size, dims=dims)
        copy(builder, replace(stored, partition=places[1], dims=dims), source, Stream.DMA_LOAD)

    def inner_sizes(self, kernel: Sequence[int]) -> list[int]:
        """Of ``kernel`` positions, those that one partition holds after copies along the last axis."""
        return [*kernel[:-1], self.grouped()[-1].count]

    def spread_kernel(self, builder: Builder, target: Block, kernel: Block, between: Block | None) -> None:
        """``target`` [all partitions, chunk, groups..., outputs] from ``kernel`` [partitions, chunk, spatial...,
        outputs].

        ``between`` [partitions of inner copies, chunk, inner sizes..., outputs]: room for the first of two steps.
        """
        axes = list(range(1, len(self.taps)))
        if between is None:
            axis = axes[-2] if self.outer > 1 else axes[-1]
            self._spread(builder, target, kernel, axes, axis, self.partitions)
            return
        self._spread(builder, between, kernel, axes[-1:], axes[-1], self.partitions)
        self._spread(builder, target, between, axes[:-1], axes[-2], self.partitions * self.inner)

    def _spread(
        self, builder: Builder, target: Block, kernel: Block, axes: Sequence[int], axis: int, partitions: int
    ) -> None:
        """Copies along ``axis`` of ``partitions``; of each of ``axes``, the taps that take part."""
        each = self._each()
        for number in range(each[axis]):
            source, goal = kernel, replace(target, partition=number * partitions)
            for other in axes:
                tap, step = self.taps[other], number if other == axis else 0
                groups = -(-(tap.count - step) // each[other])
                atom = source.dims[1 + other]
                offset = source.offset + (tap.first + step * tap.step) * atom.stride
                dims = (*source.dims[: 1 + other], Atom(groups, atom.stride * tap.step * each[other]))
                source = replace(source, offset=offset, dims=(*dims, *source.dims[2 + other :]))
                goal = goal.index(1 + other, Affine(), groups)
            rows = Atom(partitions, 1, True)
            source, goal = (replace(block, dims=(rows, *block.dims[1:])) for block in (source, goal))
            copy(builder, goal, source, Stream.DMA_LOAD)


def copies_of(partitions: int, axes: Sequence[Axis], most: int, residues: bool) -> Copies | None:
    """The copies that fill TensorE's rows, if there is room for any and at most ``most`` products are left.

    ``residues``: whether rows of one residue each may be loaded.
    """
    if len(axes) < 2 or any(axis.phases > 1 or not axis.taps[0].count for axis in axes):
        return None
    taps = tuple(axis.taps[0] for axis in axes)
    room = PARTITIONS // partitions
    inner = max(n for n in range(1, taps[-1].count + 1) if taps[-1].count % n == 0 and n <= max(1, room))
    outer, apart = 1, 1
    if len(axes) > 2:
        room //= inner
        step = _divisor(axes[-2].step, min(room, taps[-2].count)) if residues and taps[-2].stride == 1 else 1
        groups = -(-taps[-2].count // max(1, min(room, taps[-2].count)))
        outer = -(-taps[-2].count // groups)
        whole = outer if groups == 1 else -(-outer // step) * step
        if step <= outer and whole <= room:
            outer, apart = whole, step
    found = Copies(partitions, outer, inner, taps, apart)
    if found.count == 1 or prod(tap.count for tap in found.grouped()) > most:
        return None
    return found


def _divisor(number: int, most: int) -> int:
    """The largest divisor of ``number`` that is at most ``most``."""
    return max(each for each in range(1, max(1, min(number, most)) + 1) if number % each == 0)
