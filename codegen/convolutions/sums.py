"""The sums of a convolution in PSUM: products of all taps and feature tiles, for one tile of positions and outputs.

The window that a tap meets lies as far behind the first one's as the tap. Products of few feature tiles are written
out; those of many are a loop, like the taps of a large kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from neuronx_cc.codegen.convolutions.axis import Taps
from neuronx_cc.codegen.convolutions.plan import MAX_UNROLLED
from neuronx_cc.codegen.convolutions.stage import PackAt
from neuronx_cc.codegen.convolutions.weights import ConvWeights, OutputsAt
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.isa.program import Stream
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
    """None if its taps are staged one by one."""
    taps: Sequence[Taps] = ()
    """Of the phase, for each axis."""


@dataclass(frozen=True, slots=True)
class Window:
    """What the first taps of a sum are multiplied with: [lanes, chunks, positions of each axis...]."""

    block: Block
    shifts: tuple[int, ...]
    """Bytes between neighbouring taps of each axis."""


@dataclass(frozen=True, slots=True)
class _Sum:
    """One sum: where it adds up, of which taps, for which features."""

    bank: Block
    window: Window
    taps: Sequence[Taps]
    features: Features


class ConvSums(ConvWeights):
    """Emits the products."""

    sums: Ring
    """Banks of PSUM, one for each sum."""
    zeros: Block
    """A row of zeros, which starts sums whose first product is in a loop."""

    def _bank(self, lanes: int, columns: int) -> Block:
        return Block(self.sums.alloc, "f32", self.builder.slot(self.sums), (Atom(lanes, 1, True), Atom(columns, 4)))

    def _sum(
        self,
        terms: Terms,
        bank: Block,
        rows: Sequence[Affine],
        sizes: Sequence[int],
        features: Features,
        columns_apart: int = 1,
    ) -> None:
        """``bank`` = the products of all taps and feature tiles, for the positions ``rows + [0, sizes)``.

        Those of the last axis are ``columns_apart``.
        """
        x, kernel = terms.x, terms.kernel
        taps = terms.taps if self.copies is None else self.copies.grouped()
        window, shifts = x, []
        for axis, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            stride = x.dims[2 + axis].stride
            residues = self.copies.apart(axis) if self.copies is not None else 1
            step = self.axes[axis].step // residues
            offset = row * step + (taps[axis].offset - self.axes[axis].low) // residues
            apart = step * columns_apart if axis == len(sizes) - 1 else step
            dims = (*window.dims[: 2 + axis], Atom(size, stride * apart), *window.dims[3 + axis :])
            window = window.moved(offset * stride).of(dims)
            shifts.append(taps[axis].stride * stride // residues)
        sum_ = _Sum(bank, Window(window, tuple(shifts)), taps, features)
        total = self.chunks * prod(tap.count for tap in taps)
        segments = self.segments_of(terms.pack.groups)
        if total <= MAX_UNROLLED and kernel is not None:
            done = False
            for segment in segments:
                # the first product of all starts the sum, so a loop may begin with the second chunk
                written = 1 if self._loops_over_chunks(segment.chunks, taps) else segment.chunks
                for number in range(written):
                    self._chunk(sum_, kernel, segment.lanes, Affine(segment.first + number), done)
                    done = True
                if written < segment.chunks:
                    with self.builder.loop(segment.chunks - written) as index:
                        at = index + (segment.first + written)
                        self._chunk(sum_, kernel, segment.lanes, at, True)
            return
        self._clear(bank)
        self._tap_loops(terms, sum_, [])

    def _loops_over_chunks(self, chunks: int, taps: Sequence[Taps]) -> bool:
        """Whether all products of a sum but those of its first feature tile are a loop."""
        products = (chunks - 1) * prod(tap.count for tap in taps)
        return products >= LOOPED_PRODUCTS and self.loops_pay(chunks)

    def _chunk(self, sum_: _Sum, kernel: Block, lanes: int, chunk: Affine, accumulate: bool) -> None:
        """All taps of one feature tile."""
        for index in product(*(range(tap.count) for tap in sum_.taps)):
            steps = [Affine(i) for i in index]
            met = lanes if self.copies is None else self.copies.lanes_of(index)
            self._product(sum_, kernel, steps, met, chunk, accumulate)
            accumulate = True

    def _clear(self, bank: Block) -> None:
        """Zeros by a product, which starts the sum."""
        self.builder.emit("load_stationary", Stream.TENSOR, [], [self.zeros.index(1, Affine(), bank.dims[0].size)])
        self.builder.emit("multiply_moving", Stream.TENSOR, [bank], [self.zeros.index(1, Affine(), bank.dims[1].size)])

    def _tap_loops(self, terms: Terms, sum_: _Sum, steps: list[Affine]) -> None:
        taps = sum_.taps
        if len(steps) < len(taps):
            for index in self.builder.each(taps[len(steps)].count):
                self._tap_loops(terms, sum_, [*steps, index])
            return
        part = terms.kernel
        if part is None:
            spatial = [index * tap.step + tap.first for tap, index in zip(taps[1:], steps[1:], strict=True)]
            part = self.stage_kernel(terms.pack, terms.outs, spatial)
        for segment in self.segments_of(terms.pack.groups):
            for chunk in self.builder.each(segment.chunks, 8):
                at = chunk + segment.first
                self._product(sum_, part, steps, segment.lanes, at, True)

    def _product(
        self, sum_: _Sum, kernel: Block, steps: Sequence[Affine], lanes: int, chunk: Affine, accumulate: bool
    ) -> None:
        """One tap of one feature tile."""
        x, w = sum_.window.block.index(1, chunk), kernel.index(1, chunk)
        for axis, (tap, index, shift) in enumerate(zip(sum_.taps, steps, sum_.window.shifts, strict=True)):
            x = x.moved(index * shift)
            if axis:
                # a streamed kernel has the one tap only
                at = Affine() if self.streams_kernel else index * tap.step + tap.first
                w = w.index(1, at)
        features, stride = sum_.features, w.dims[1].stride
        columns = Atom(features.count, stride * features.step)
        w = w.moved(features.first * stride).of((Atom(lanes, 1, True), columns))
        free = [atom for atom in x.dims[1:] if atom.size > 1] or [Atom(1, itemsize(x.dtype))]
        while len(free) > 1 and free[-2].stride == free[-1].stride * free[-1].size:
            free[-2:] = [Atom(free[-2].size * free[-1].size, free[-1].stride)]
        x = x.of((Atom(lanes, 1, True), *free))
        stationary, moving = (x, w) if self.positions_on_lanes else (w, x)
        flags = ["accumulate"] if accumulate else []
        self.builder.emit("load_stationary", Stream.TENSOR, [], [stationary])
        self.builder.emit("multiply_moving", Stream.TENSOR, [sum_.bank], [moving], flags=flags)
