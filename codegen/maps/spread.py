"""Which elements of a map's space lie on the partitions, and how many of these an axis fills."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod

from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.timing import Timing

LEAST_CUT = 2048
"""Elements a partition from which it pays to cut an axis that no number of partitions divides."""
FULL = 96
"""Partitions that are enough not to take another number of them, which leaves a rest."""
CUT_STEPS = 1.1
"""How many times the tiles that are least an axis may take before it is cut into full ones and a rest."""
NOT_COPIED = 10
"""How many times shorter than those that a DMA moves well neighbours on a partition may be, not to be copied first."""
GROUPED = 1.2
"""How many times more partitions, or longer runs, two axes have to give than one."""
MOST_GROUPS = 16
"""Indices of an axis that have partitions of their own side by side: a DMA each moves a tile."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """Which elements lie on the partitions: index along ``axis`` is (outer, partition, inner).

    Each of ``groups`` indices of ``group_axis``, which is ahead of ``axis`` in memory, has ``size`` partitions.
    """

    axis: int
    size: int
    inner: int
    groups: int = 1
    group_axis: int = -1

    @property
    def count(self) -> int:
        """All partitions."""
        return self.groups * self.size

    @property
    def step(self) -> int:
        """Neighbours along ``axis`` that all partitions have."""
        return self.size * self.inner

    @property
    def steps(self) -> tuple[tuple[int, int], ...]:
        """(axis, neighbours along it that all partitions have), of each axis on the partitions."""
        groups = ((self.group_axis, self.groups),) if self.groups > 1 else ()
        return (self.axis, self.step), *groups

    def of_rest(self, shape: Sequence[int], axis: int, rest: int) -> Partitions:
        """For the ``rest`` indices that it leaves of one of its axes, of ``shape``."""
        if axis == self.axis:
            size = partition_divisor(rest, 128 // self.groups)
            return replace(self, size=size, inner=rest // size)
        size = partition_divisor(shape[self.axis], 128 // rest)
        return Partitions(self.axis, size, shape[self.axis] // size, rest, axis)


def partition_divisor(size: int, most: int = 128) -> int:
    """Largest divisor that fits the partitions, or ``most`` of them."""
    return next(count for count in range(min(most, size), 0, -1) if size % count == 0)


def divides(shape: Sequence[int], partitions: Partitions) -> bool:
    """Whether ``partitions`` hold equal parts of their axes."""
    return all(shape[axis] % step == 0 for axis, step in partitions.steps)


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


def whole_rows(timing: Timing, shape: Sequence[int], axes: Sequence[int]) -> Partitions:
    """The axis of ``axes`` whose rows fill most partitions; one further out if it fills half as many.

    Where equal parts of it fill few, what is left of full ones is a box of its own; short rows are several a partition.
    """

    def filled(axis: int) -> float:
        apart = axis == len(shape) - 1  # neighbours in memory, which no box of its own brings together
        return partition_divisor(shape[axis]) if apart else shape[axis] / ceil(shape[axis] / 128)

    most = max(map(filled, axes))
    axis = next(axis for axis in axes if 2 * filled(axis) >= most)
    size = partition_divisor(shape[axis])
    if CUT_STEPS * size >= filled(axis):
        runs = axis == len(shape) - 1 and NOT_COPIED * 4 * shape[axis] >= size * timing.long_run
        return Partitions(axis, size, shape[axis] // size if runs else 1)
    size = min(128, shape[axis])
    return Partitions(axis, size, shape[axis] // size if prod(shape[axis + 1 :]) * 4 < timing.long_run else 1)


def is_short(timing: Timing, shape: Sequence[int], partitions: Partitions, worth: int, width: int) -> bool:
    """Whether rows of elements of ``width`` bytes are so short, ``worth`` times, that the DMA moves several of them
    together.
    """
    row = prod(shape[partitions.axis + 1 :])
    return row > 1 and worth * row * width < timing.long_run


def streaming_partitions(timing: Timing, shape: Sequence[int], axes: Sequence[int]) -> Partitions:
    """Partitions of a kernel that reads and writes HBM: as many as possible, each with a long contiguous run."""

    def worth(axis: int) -> float:
        partitions = min(128, shape[axis])
        run = shape[axis] // partitions * prod(shape[axis + 1 :]) * 4
        return partitions * min(1.0, run / timing.long_run)

    axis = max(axes, key=lambda axis: (worth(axis), -axis))
    return in_runs(axis, shape[axis])


def in_runs(axis: int, size: int, most: int = 128) -> Partitions:
    """Neighbours along an axis on each of ``most`` partitions, which may leave a rest of ``size``, or equal parts."""
    whole = partition_divisor(size, most)
    count = whole if 128 * whole >= FULL * most else min(most, size)
    return Partitions(axis, count, size // count)


def grouped(
    timing: Timing, shape: Sequence[int], axes: Sequence[int], run: Callable[[Partitions], int]
) -> Iterator[Partitions]:
    """Two of ``axes`` on the partitions, where that fills more of them with longer runs than any one of them does.

    ``run``: bytes that are neighbours in memory and go to one partition.
    """

    def worth(partitions: Partitions) -> float:
        return partitions.count * min(1.0, run(partitions) / timing.long_run)

    alone = max((worth(in_runs(axis, shape[axis])) for axis in axes), default=0.0)
    for at, group in enumerate(axes):
        for axis in axes[at + 1 :]:
            found = [
                replace(in_runs(axis, shape[axis], timing.sizes.partitions // groups), groups=groups, group_axis=group)
                for groups in range(2, min(MOST_GROUPS, shape[group]) + 1)
                if shape[group] % groups == 0 or groups == MOST_GROUPS
            ]
            best = max((each for each in found if each.size > 1), key=worth, default=None)
            if best is not None and worth(best) > GROUPED * alone:
                yield best
