"""The sums of a convolution in PSUM: products of all taps and feature tiles, for one tile of positions and outputs.

The window that a tap meets lies as far after the first one's as the tap. Products of few feature tiles are written
out; those of many are a loop, like the taps of a large kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from neuronx_cc.codegen.convolutions.axis import Taps
from neuronx_cc.codegen.convolutions.candidates import MAX_UNROLLED
from neuronx_cc.codegen.convolutions.problem import Problem
from neuronx_cc.codegen.convolutions.schedule import Schedule
from neuronx_cc.codegen.convolutions.stage import PackAt
from neuronx_cc.codegen.convolutions.turn import Turner
from neuronx_cc.codegen.convolutions.weights import OutputsAt
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder, Ring
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.types import itemsize

LOOPED_PRODUCTS = 6
"""Products of a sum from which they are a loop."""


@dataclass(frozen=True, slots=True)
class Features:
    """``count`` output features of a block from ``first`` on, ``step`` apart."""

    first: Affine
    count: int
    step: int = 1


@dataclass(frozen=True, slots=True)
class Terms:
    """What all sums of a block multiply."""

    pack: PackAt
    outs: OutputsAt
    x: Block
    kernel: Block | None
    """None if it is streamed."""
    taps: Sequence[Taps] = ()
    """Of the phase, for each axis."""
    columns: Sequence[Block | None] = ()
    """What the epilogue reads and all positions have in common."""

    @property
    def no_taps(self) -> bool:
        """Whether no tap meets the phase."""
        return any(taps.count == 0 for taps in self.taps)


@dataclass(frozen=True, slots=True)
class Window:
    """What the first taps of a sum are multiplied with: [partitions, chunks, positions of each axis...]."""

    block: Block
    shifts: tuple[int, ...]
    """Bytes between neighbouring taps of each axis."""


@dataclass(frozen=True, slots=True)
class Sum:
    """One sum: where it adds up, of which taps, for which features."""

    bank: Block
    window: Window
    taps: Sequence[Taps]
    features: Features


@dataclass(frozen=True, slots=True)
class Sums:
    """Emits the products."""

    builder: Builder
    problem: Problem
    schedule: Schedule
    turner: Turner
    banks: Ring
    """Of PSUM, one for each sum."""
    zeros: Block
    """A row of zeros, which starts sums whose first product is in a loop."""

    def bank(self, partitions: int, columns: int, several: bool = False) -> Block:
        """The next bank. ``several``: of sums that add up side by side."""
        slot = self.builder.slot(self.banks, several)
        return Block(self.banks.alloc, "f32", slot, (Atom(partitions, 1, True), Atom(columns, 4)))

    def opened(
        self,
        terms: Terms,
        bank: Block,
        rows: Sequence[Affine],
        sizes: Sequence[int],
        features: Features,
        columns_apart: int = 1,
    ) -> Sum:
        """What ``bank`` adds up for the positions ``rows + [0, sizes)``; those of the last axis ``columns_apart``."""
        x, copies = terms.x, self.schedule.copies
        taps = terms.taps if copies is None else copies.grouped()
        window, shifts = x, []
        for axis, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            stride = x.dims[2 + axis].stride
            residues = copies.apart(axis) if copies is not None else 1
            step = self.problem.axes[axis].step // residues
            offset = row * step + (taps[axis].offset - self.problem.axes[axis].low) // residues
            apart = step * columns_apart if axis == len(sizes) - 1 else step
            dims = (*window.dims[: 2 + axis], Atom(size, stride * apart), *window.dims[3 + axis :])
            window = window.moved(offset * stride).of(dims)
            shifts.append(taps[axis].stride * stride // residues)
        return Sum(bank, Window(window, tuple(shifts)), taps, features)

    def whole(self, terms: Terms, sum_: Sum) -> None:
        """The products of all taps and feature tiles of a kernel that is on chip."""
        kernel = terms.kernel
        if terms.no_taps:
            self.clear(sum_.bank)
            return
        assert kernel is not None, "a streamed kernel is for one bank of features"
        taps, segments = sum_.taps, self.problem.features.segments_of(terms.pack.groups)
        if self.problem.chunks * prod(tap.count for tap in taps) > MAX_UNROLLED:
            self.clear(sum_.bank)
            for segment in segments:
                for chunk in self.builder.each(segment.chunks, 1):
                    self.add(sum_, kernel, segment.partitions, chunk + segment.first, chunk + segment.first, [])
            return
        done = False
        for segment in segments:
            # the first product of all starts the sum, so a loop may begin with the second chunk
            written = 1 if self._loops_over_chunks(segment.chunks, taps) else segment.chunks
            for number in range(written):
                self._chunk(sum_, kernel, segment.partitions, Affine(segment.first + number), done)
                done = True
            if written < segment.chunks:
                with self.builder.loop(segment.chunks - written) as index:
                    self._chunk(sum_, kernel, segment.partitions, index + (segment.first + written), True)

    def _loops_over_chunks(self, chunks: int, taps: Sequence[Taps]) -> bool:
        """Whether all products of a sum but those of its first feature tile are a loop."""
        products = (chunks - 1) * prod(tap.count for tap in taps)
        return products >= LOOPED_PRODUCTS and self.turner.loops_pay(chunks)

    def _chunk(self, sum_: Sum, kernel: Block, partitions: int, chunk: Affine, accumulate: bool) -> None:
        """All taps of one feature tile."""
        copies = self.schedule.copies
        for index in product(*(range(tap.count) for tap in sum_.taps)):
            steps = [Affine(i) for i in index]
            met = partitions if copies is None else copies.partitions_of(index)
            at = [step * tap.step + tap.first for tap, step in zip(sum_.taps[1:], steps[1:], strict=True)]
            self._product(sum_, kernel, steps, at, met, chunk, chunk, accumulate)
            accumulate = True

    def clear(self, bank: Block) -> None:
        """Zeros by a product, which starts the sum."""
        rows, columns = (self.zeros.index(1, Affine(), atom.size) for atom in bank.dims)
        self.builder.multiply(bank, rows, columns)

    def add(
        self, sum_: Sum, kernel: Block, partitions: int, chunk: Affine, part: Affine, steps: Sequence[Affine]
    ) -> None:
        """One feature tile ``chunk``, which is ``part`` of ``kernel``, onto a sum that is open.

        ``steps``: of the first axes the taps that the kernel holds alone; all taps of the others, in loops if many.
        """
        taps = sum_.taps
        rest = taps[1 + len(steps) :]
        unroll = MAX_UNROLLED if prod(tap.count for tap in rest) <= MAX_UNROLLED else 4

        def inner(index: list[Affine]) -> None:
            if len(index) < len(rest):
                for at in self.builder.each(rest[len(index)].count, unroll):
                    inner([*index, at])
                return
            met = [at * tap.step + tap.first for tap, at in zip(rest, index, strict=True)]
            place = [*(Affine() for _ in steps), *met]
            self._product(sum_, kernel, [Affine(), *steps, *index], place, partitions, chunk, part, True)

        inner([])

    def _product(
        self,
        sum_: Sum,
        kernel: Block,
        steps: Sequence[Affine],
        place: Sequence[Affine],
        partitions: int,
        chunk: Affine,
        part: Affine,
        accumulate: bool,
    ) -> None:
        """One tap of one feature tile: its ``steps`` among the taps, and its ``place`` in the kernel."""
        x, w = sum_.window.block.index(1, chunk), kernel.index(1, part)
        for index, shift in zip(steps, sum_.window.shifts, strict=True):
            x = x.moved(index * shift)
        for at in place:
            w = w.index(1, at)
        features, stride = sum_.features, w.dims[1].stride
        columns = Atom(features.count, stride * features.step)
        w = w.moved(features.first * stride).of((Atom(partitions, 1, True), columns))
        free = [atom for atom in x.dims[1:] if atom.size > 1] or [Atom(1, itemsize(x.dtype))]
        while len(free) > 1 and free[-2].stride == free[-1].stride * free[-1].size:
            free[-2:] = [Atom(free[-2].size * free[-1].size, free[-1].stride)]
        x = x.of((Atom(partitions, 1, True), *free))
        stationary, moving = (x, w) if self.problem.positions_on_partitions else (w, x)
        flags = ["accumulate"] * accumulate + [*self.problem.flags]
        self.builder.multiply(sum_.bank, stationary, moving, flags)
