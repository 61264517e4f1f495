"""Convolutions of few output features: outputs at neighbouring positions become features of one sum.

A product fills as many of TensorE's columns as there are output features. ``count`` neighbouring outputs of an axis
meet overlapping windows of the input: with a kernel for the union of these, between zeros for each of the outputs, they
are ``count`` times as many features of a convolution whose stride is as many times as large. A kernel of ``k``
positions takes ``k + count - 1`` products for ``count`` outputs, not ``k`` for each. The phases of a dilated input are
neighbours of the same kind. Products with zeros spoil sums beside an infinity or NaN (``convolutions.finite``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from neuronx_cc.codegen.convolutions.axis import Axis, Taps


@dataclass(frozen=True, slots=True)
class Fold:
    """``count`` neighbouring outputs of an axis of positions are features."""

    axis: int
    """Among those of positions."""
    count: int
    """A multiple of the axis's phases."""
    pack: int
    """Groups whose features share a tile."""
    outputs_first: bool
    """Whether all features of an output follow each other, not all outputs of a feature."""

    def features(self, number: int, each: int) -> tuple[int, int]:
        """(first, step) of the ``each`` features of one of the outputs."""
        return (number * each, 1) if self.outputs_first else (number, self.count)


@dataclass(frozen=True)
class Folded:
    """An axis whose ``count`` neighbouring outputs are one position."""

    of: Axis
    count: int

    @cached_property
    def outputs(self) -> tuple[Taps, ...]:
        """The taps of each of the outputs at the first position, at the input positions of ``of``."""
        found = []
        for number in range(self.count):
            taps = self.of.taps[number % self.of.phases]
            offset = taps.offset + number // self.of.phases * self.of.step
            found.append(Taps(taps.first, taps.step, taps.count, offset, taps.stride))
        return tuple(found)

    @cached_property
    def _met(self) -> tuple[Taps, ...]:
        return tuple(taps for taps in self.outputs if taps.count)

    @cached_property
    def low(self) -> int:
        """The first input position that any of the outputs meets."""
        return min(taps.offset for taps in self._met)

    @cached_property
    def unit(self) -> int:
        """Input positions between neighbouring positions of the union."""
        apart = [taps.offset - self.low for taps in self._met]
        return gcd(*apart, *(taps.stride for taps in self._met if taps.count > 1)) or 1

    @cached_property
    def kernel(self) -> int:
        """Positions of the union."""
        last = max(taps.offset + (taps.count - 1) * taps.stride for taps in self._met)
        return (last - self.low) // self.unit + 1

    @property
    def whole(self) -> bool:
        """Whether the last position has all of its outputs."""
        return self.of.out % self.count == 0

    @property
    def axis(self) -> Axis:
        """Positions that each stand for ``count`` outputs."""
        step = self.of.step * (self.count // self.of.phases)
        taps = Taps(0, 1, self.kernel, self.low, self.unit)
        return Axis(self.of.size, -(-self.of.out // self.count), 1, step, (taps,), self.of.out // self.count)

    def places(self, number: int) -> tuple[int, int, int]:
        """(first, step, count) of the union's positions at which output ``number`` meets its taps."""
        taps = self.outputs[number]
        return (taps.offset - self.low) // self.unit, taps.stride // self.unit, taps.count


def folds_of(axis: Axis, most: int) -> list[int]:
    """How many outputs are worth being one position, at most ``most``; as even as can be.

    None where there are fewer than phases, of which some have no outputs then.
    """
    found = []
    least = max(2, axis.phases)
    if axis.out < least or not any(taps.count for taps in axis.taps):
        return []
    while most >= least:
        positions = -(-axis.out // most)
        even = -(-axis.out // positions)
        count = -(-even // axis.phases) * axis.phases
        if count <= most:
            found.append(count)
        most = (count if count <= most else most) // 2 // axis.phases * axis.phases
    return found
