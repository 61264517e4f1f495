"""Rows of a map whose elements lie apart in memory (``Kernel.order``): which neighbours of theirs a partition has.

A tile has the same elements of several rows, which are one run in memory. A partition has whole rows: of an axis ahead
of what is folded all that follows, as far as a tile has room, of one after it a part of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, prod

from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps import spread
from neuronx_cc.codegen.maps.spread import Partitions, in_runs
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

BUFFERS = 2
"""Tiles under way for which there is room."""
ALIVE = 6
"""Arrays of which a tile has whole rows."""


def options(timing: Timing, kernel: Kernel) -> list[Partitions]:
    """The ways to lay rows on the partitions, the one first that fills most of them with the longest runs."""
    found = [in_runs(axis, size) for axis, size in enumerate(kernel.rows)]
    return sorted(found, key=lambda p: -p.size * min(timing.long_run, itemsize("f32") * run(timing, kernel, p)))


def ways(timing: Timing, kernel: Kernel) -> list[Partitions]:
    """The best one with an axis on the partitions, and those with two."""
    return [options(timing, kernel)[0], *grouped(timing, kernel, range(len(kernel.rows)))]


def grouped(timing: Timing, kernel: Kernel, axes: Sequence[int]) -> list[Partitions]:
    """The ways to lay two of its ``axes`` on the partitions."""

    def nbytes(partitions: Partitions) -> int:
        if kernel.order:
            return itemsize("f32") * run(timing, kernel, partitions)
        return itemsize("f32") * partitions.inner * prod(kernel.shape[partitions.axis + 1 :])

    return [*spread.grouped(timing, kernel.shape, axes, nbytes)]


def run(timing: Timing, kernel: Kernel, partitions: Partitions, arrays: float = ALIVE) -> int:
    """Elements that lie side by side in HBM and go to one partition of a tile, across which rows may lie.

    ``arrays``: of four bytes, of which there has to be room for whole rows.
    """
    return _tile(timing, kernel, partitions, arrays)[0]


def rows_beside(timing: Timing, kernel: Kernel, partitions: Partitions, arrays: float) -> int:
    """Rows that a partition of such a tile has."""
    return _tile(timing, kernel, partitions, arrays)[1]


def _tile(timing: Timing, kernel: Kernel, partitions: Partitions, arrays: float) -> tuple[int, int]:
    """(Elements side by side in HBM, rows) of a partition."""
    across = partitions.axis >= len(kernel.rows)
    row = prod(kernel.shape[len(kernel.rows) :]) // (partitions.size if across else 1)
    room = max(1, most_elements(timing, arrays) // row)
    first = [0, *accumulate(kernel.joined or (1,) * len(kernel.shape))]
    places = [kernel.order[start] for start in first[:-1]]  # in memory
    after = [axis for axis, place in enumerate(places) if place > places[partitions.axis]]
    last = max(place for place in places[len(kernel.rows) :])
    inner = prod(kernel.shape[axis] for axis in after if places[axis] > last)
    if not across and places[partitions.axis] > last:
        inner *= partitions.inner
    if room < inner or (not across and places[partitions.axis] > last):
        return (part := _part(inner, room)), part
    return (inner * partitions.inner if across else prod(kernel.shape[axis] for axis in after)), inner


def most_elements(timing: Timing, arrays: float = ALIVE) -> int:
    """Elements a partition for which there is room in so many arrays."""
    return int(timing.sizes.sbuf_bytes / (itemsize("f32") * arrays))


def _part(size: int, most: int) -> int:
    """Of the longest of equal parts of ``size`` elements, at most ``most`` each."""
    return ceil(size / ceil(size / most))
