"""Which elements of a map's space lie on the partitions, and how many of these an axis fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from neuronx_cc.ir.isa.timing import Timing

LEAST_CUT = 2048
"""Elements a partition from which it pays to cut an axis that no number of partitions divides."""
FULL = 96
"""Partitions that are enough not to take another number of them, which leaves a rest."""
CUT_STEPS = 1.1
"""How many times the tiles that are least an axis may take before it is cut into full ones and a rest."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """Which elements lie on the partitions: index along ``axis`` is (outer, partition, inner)."""

    axis: int
    size: int
    inner: int


def partition_divisor(size: int, most: int = 128) -> int:
    """Largest divisor that fits the partitions, or ``most`` of them."""
    return next(count for count in range(min(most, size), 0, -1) if size % count == 0)


def divides(shape: Sequence[int], partitions: Partitions) -> bool:
    """Whether ``partitions`` hold equal parts of their axis."""
    return shape[partitions.axis] % (partitions.size * partitions.inner) == 0


def fill_partitions(shape: Sequence[int], axes: Sequence[int], flat: bool) -> Partitions:
    """The axis out of ``axes`` that fills most partitions; a ``flat`` space of one axis is cut into equal runs.

    Where that fills few of them with much, a long axis is taken whose last elements are a box of their own.
    """
    axis = max(axes, key=lambda axis: (partition_divisor(shape[axis]), axis))
    size = partition_divisor(shape[axis])
    longest = max(axes, key=lambda axis: shape[axis])
    if shape[longest] > 128:
        steps, cut = shape[axis] // size, -(-shape[longest] // 128)
        if (axis == longest and steps > CUT_STEPS * cut) or (size < 32 and prod(shape) > size * LEAST_CUT):
            return Partitions(longest, 128, shape[longest] // 128)
    if len(shape) == 1 and flat:
        return Partitions(axis, size, shape[axis] // size)
    return Partitions(axis, size, 1)


def is_short(timing: Timing, shape: Sequence[int], partitions: Partitions, worth: int) -> bool:
    """Whether rows are so short, ``worth`` times, that the DMA moves several of them together."""
    run = prod(shape[partitions.axis + 1 :]) * 4
    return run > 4 and worth * run < timing.long_run


def streaming_partitions(timing: Timing, shape: Sequence[int], axes: Sequence[int]) -> Partitions:
    """Partitions of a kernel that reads and writes HBM: as many as possible, each with a long contiguous run."""

    def worth(axis: int) -> float:
        partitions = min(128, shape[axis])
        run = shape[axis] // partitions * prod(shape[axis + 1 :]) * 4
        return partitions * min(1.0, run / timing.long_run)

    axis = max(axes, key=lambda axis: (worth(axis), -axis))
    return in_runs(axis, shape[axis])


def in_runs(axis: int, size: int) -> Partitions:
    """Neighbours along an axis on each partition, of which a number that does not divide ``size`` leaves a rest."""
    whole = partition_divisor(size)
    count = whole if whole >= FULL else min(128, size)
    return Partitions(axis, count, size // count)
