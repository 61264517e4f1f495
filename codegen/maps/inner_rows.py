"""Rows of a map whose elements lie apart in memory (``Kernel.order``): which neighbours of theirs a partition has.

A tile has the same elements of several rows, which are one run in memory. A partition has whole rows: of an axis ahead
of what is folded all that follows, as far as a tile has room, of one after it a part of its own.
"""

from __future__ import annotations

from itertools import accumulate
from math import prod

from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.spread import Partitions, in_runs
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

ALIVE = 6
"""Arrays of which a tile has whole rows."""


def options(timing: Timing, kernel: Kernel) -> list[Partitions]:
    """The ways to lay rows on the partitions, the one first that fills most of them with the longest runs."""
    found = [in_runs(axis, size) for axis, size in enumerate(kernel.rows)]
    return sorted(found, key=lambda p: -p.size * min(timing.long_run, itemsize("f32") * run(timing, kernel, p)))


def run(timing: Timing, kernel: Kernel, partitions: Partitions, arrays: float = ALIVE) -> int:
    """Elements that lie side by side in HBM and go to one partition of a tile, across which rows may lie.

    ``arrays``: of four bytes, of which there has to be room for whole rows.
    """
    across = partitions.axis >= len(kernel.rows)
    row = prod(kernel.shape[len(kernel.rows) :]) // (partitions.size if across else 1)
    room = max(1, timing.sizes.sbuf_bytes // int(itemsize("f32") * arrays * row))
    first = [0, *accumulate(kernel.joined or (1,) * len(kernel.shape))]
    places = [kernel.order[start] for start in first[:-1]]  # in memory
    after = [axis for axis, place in enumerate(places) if place > places[partitions.axis]]
    last = max(place for place in places[len(kernel.rows) :])
    inner = prod(kernel.shape[axis] for axis in after if places[axis] > last)
    if across:
        return room if room < inner else inner * partitions.inner
    if places[partitions.axis] > last:
        return min(room, partitions.inner * inner)
    return room if room < inner else prod(kernel.shape[axis] for axis in after)
