"""The arithmetic of one position axis of a convolution: which input position meets which kernel index where.

Output position ``p`` and kernel index ``k`` meet input position ``(p * stride + k * rhs_dilation - pad_low) /
lhs_dilation`` where that is a whole number. With ``phases = lhs_dilation / gcd(stride, lhs_dilation)``, the outputs
``p = q * phases + r`` of one residue ``r`` meet the same kernel indices for every ``q``, at input positions
``q * step + offset``: a dilated input is never filled with zeros, its output is computed phase by phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from neuronx_cc.ir.hlo import WindowDim


@dataclass(frozen=True, slots=True)
class Taps:
    """Kernel indices ``first + j * step`` of a phase; index j meets input ``q * axis.step + offset + j * stride``."""

    first: int
    step: int
    count: int
    offset: int
    stride: int


NO_TAPS = Taps(0, 1, 0, 0, 1)


@dataclass(frozen=True)
class Axis:
    """One axis; the batch is one with a single tap."""

    size: int
    """Input positions."""
    out: int
    """Output positions."""
    phases: int
    step: int
    """Input positions between neighbouring outputs of a phase."""
    taps: tuple[Taps, ...]
    """Of each phase."""
    whole: int = -1
    """Output positions that exist with all that they stand for, if not all do (``convolutions.folding``)."""

    @cached_property
    def rows(self) -> int:
        """Outputs of the longest phase."""
        return -(-self.out // self.phases)

    @cached_property
    def low(self) -> int:
        """Least input position that output 0 of any phase meets (negative inside the padding)."""
        return min((t.offset for t in self.taps if t.count), default=0)

    @cached_property
    def reach(self) -> int:
        """Distance from ``low`` to the greatest input position that output 0 of any phase meets."""
        return max((t.offset + (t.count - 1) * t.stride for t in self.taps if t.count), default=self.low) - self.low

    def extent(self, rows: int) -> int:
        """Input positions that ``rows`` neighbouring outputs of every phase meet.

        The whole axis counts with what a stride leaves over at its end: whole rows are contiguous.
        """
        least = (rows - 1) * self.step + self.reach + 1
        over = self.size - self.low - least
        return least + over if rows == self.rows and 0 < over < self.step else least

    def pieces(self, rows: int) -> list[Piece]:
        """The axis in blocks of ``rows`` outputs a phase; neighbouring blocks of equal form make one piece."""
        found: list[Piece] = []
        full, rest = divmod(self.rows, rows)
        inner_first = -(-max(0, -self.low) // (rows * self.step))
        inner_last = (self.size - self.extent(rows) - self.low) // (rows * self.step)
        whole = self.out if self.whole < 0 else self.whole
        inner_last = min(inner_last, whole // (rows * self.phases) - 1, full - 1)
        block = 0
        while block < full:
            count = max(1, inner_last - inner_first + 1) if block == inner_first else 1
            found.append(self._piece(block * rows, rows, count))
            block += count
        if rest:
            found.append(self._piece(full * rows, rest, 1))
        return found

    def _piece(self, start: int, rows: int, count: int) -> Piece:
        first = start * self.step + self.low
        before = max(0, -first)
        after = max(0, first + self.extent(rows) - self.size)
        outs = min(rows * self.phases, self.out - start * self.phases)
        return Piece(self, start, rows, count, outs, before, after)

    def rows_of(self, phase: int, outs: int) -> int:
        """Outputs of ``phase`` among the first ``outs`` positions."""
        return max(0, -(-(outs - phase) // self.phases))


@dataclass(frozen=True, slots=True)
class Piece:
    """``count`` neighbouring blocks of ``rows`` outputs a phase from row ``start`` on, all of the same form."""

    axis: Axis
    start: int
    rows: int
    count: int
    outs: int
    """Output positions of one block."""
    before: int
    """Positions of the block's input that lie in the padding before the array."""
    after: int
    """The same after the array."""

    @property
    def extent(self) -> int:
        return self.axis.extent(self.rows)

    @property
    def valid(self) -> int:
        """Input positions of a block that exist; 0 when it lies in the padding altogether."""
        return max(0, self.extent - self.before - self.after)


def axis_of(size: int, out: int, dim: WindowDim) -> Axis:
    """The axis of a window dim over ``size`` input and ``out`` output positions."""
    common = gcd(dim.stride, dim.lhs_dilation)
    phases, step = dim.lhs_dilation // common, dim.stride // common
    taps = []
    for phase in range(phases):
        rows = max(0, -(-(out - phase) // phases))
        taps.append(_taps(size, rows, step, phase * dim.stride - dim.pad_low, dim))
    return Axis(size, out, phases, step, tuple(taps))


def batch_axis(size: int) -> Axis:
    return Axis(size, size, 1, 1, (Taps(0, 1, 1, 0, 1),))


def _taps(size: int, rows: int, step: int, base: int, dim: WindowDim) -> Taps:
    """The kernel indices that any of ``rows`` outputs meets inside the array."""
    met = [(k, (base + k * dim.rhs_dilation) // dim.lhs_dilation) for k in _meeting(base, dim)]
    met = [(k, offset) for k, offset in met if offset < size and offset + (rows - 1) * step >= 0]
    if not met or rows <= 0:
        return NO_TAPS
    (first, offset), count = met[0], len(met)
    index_step = met[1][0] - first if count > 1 else 1
    stride = met[1][1] - offset if count > 1 else 1
    if dim.reversal:
        return Taps(dim.size - 1 - first, -index_step, count, offset, stride)
    return Taps(first, index_step, count, offset, stride)


def _meeting(base: int, dim: WindowDim) -> Iterator[int]:
    """Window positions ``k`` where ``base + k * rhs_dilation`` is a multiple of the input dilation."""
    for k in range(min(dim.size, dim.lhs_dilation)):
        if (base + k * dim.rhs_dilation) % dim.lhs_dilation == 0:
            yield from range(k, dim.size, dim.lhs_dilation // gcd(dim.rhs_dilation, dim.lhs_dilation))
            return
