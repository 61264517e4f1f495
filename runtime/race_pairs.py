"""Pairs of accesses to a common byte, one of them a write, that nothing orders.

Input: a ``Trace`` and its ``Clocks``. Output: the first such pair in emission order, or None. The test of time comes
first, since few pairs fail it: memory is cut into *pages* as large as a mean access, and an access is compared with the
last one of each stream to its page. Where that may still be running, all those of its page that may be are looked at:
first whether the hulls of their footprints meet, then whether the footprints do, exactly. So all pairs that are
unordered and meet are found, however coarse the pages are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.runtime.footprints import Footprints
from neuronx_cc.runtime.intervals import Array, numbers, touches, union
from neuronx_cc.runtime.race_clocks import Clocks
from neuronx_cc.runtime.race_native import NO_ROOM, NO_TIME
from neuronx_cc.runtime.race_native import pairs as native_pairs
from neuronx_cc.runtime.race_trace import STREAMS, Trace

_SHIFT = 32
"""Keys are a page shifted so far up, plus a position."""
_AT_ONCE = 1 << 20
"""Pairs that are looked at together."""
MAX_LOOKED = 1 << 26
"""Pairs that are looked at altogether, some ten seconds. Programs without races have few."""
_MANY = 64
"""Accesses to one stretch of memory from which it pays to look at the columns of rows."""


@dataclass(slots=True)
class Conflict:
    """Access ``later`` does not know that access ``earlier`` is complete."""

    earlier: int
    later: int


def find_conflict(trace: Trace, clocks: Clocks) -> Conflict | None:
    """Of the first instruction that conflicts with an earlier one: an access, and the last one it conflicts with.

    Where there are too many pairs to look at them all, some instruction that conflicts with an earlier one.
    Raises RunError ERUN920 where more accesses may be running beside each other than are looked at.
    """
    pairs: _Pairs | _Visits = _native_pairs(trace, clocks) or _Visits(trace, clocks)
    found = _first(trace, pairs)
    if found is None and pairs.end == NO_ROOM:
        pairs = _Visits(trace, clocks)
        found = _first(trace, pairs)
    if found is None and pairs.end:
        raise RunError("ERUN920", "more accesses may be running at the same time than the race check looks at")
    return found


def _first(trace: Trace, pairs: _Pairs | _Visits) -> Conflict | None:
    found: Conflict | None = None
    for slot in range(len(STREAMS)):
        for earlier, later in pairs.unordered(slot):
            meeting = _meeting(trace, earlier, later) if len(earlier) else earlier
            if len(meeting):
                earlier, later = earlier[meeting], later[meeting]
                best = np.lexsort((-earlier, later))[0]
                pair = Conflict(int(earlier[best]), int(later[best]))
                if found is None or _order(trace, pair) < _order(trace, found):
                    found = pair
    return found


def _order(trace: Trace, pair: Conflict) -> tuple[int, int]:
    at = trace.accesses.at
    return int(at[pair.later]), -int(at[pair.earlier])


def _meeting(trace: Trace, earlier: Array, later: Array) -> Array:
    """The pairs of accesses of different instructions that share a byte."""
    accesses, footprints = trace.accesses, trace.footprints
    ones, others = accesses.footprint[earlier], accesses.footprint[later]
    near = np.flatnonzero(footprints.hulls_meet(ones, others) & (accesses.at[earlier] != accesses.at[later]))
    exact: Array = near[footprints.overlap(ones[near], others[near])]
    return exact


def _native_pairs(trace: Trace, clocks: Clocks) -> _Pairs | None:
    """What ``_Visits`` finds whose hulls meet; None where the native pass is not to be had."""
    kept, pages = _looked_at(trace)
    accesses, footprints = trace.accesses, trace.footprints
    facts = (footprints.base, footprints.end, footprints.first, footprints.last, *pages)
    instrs = (trace.slots, clocks.pieces, clocks.positions, clocks.versions, clocks.known)
    found = native_pairs((kept, accesses.at, accesses.footprint, accesses.write), facts, *instrs)
    return None if found is None else _Pairs(trace, *found)


def _looked_at(trace: Trace) -> tuple[Array, tuple[Array, Array]]:
    """Accesses to what is written, and the pages of all footprints."""
    kept = np.flatnonzero(_contended(trace.footprints)[trace.accesses.footprint])
    return kept, _pages(trace.footprints, trace.accesses.footprint[kept])


@dataclass(slots=True)
class _Pairs:
    """Unordered pairs of accesses."""

    trace: Trace
    earlier: Array
    later: Array
    end: int
    """0 for all there are; else the first ones, and why (``race_native.pairs``)."""

    def unordered(self, slot: int) -> Iterator[tuple[Array, Array]]:
        """Those whose earlier access is of stream ``slot``; first those whose later one writes."""
        mine = self.trace.slots[self.trace.accesses.at[self.earlier]] == slot
        writes = self.trace.accesses.write[self.later]
        for chosen in (mine & writes, mine & ~writes):
            yield self.earlier[chosen], self.later[chosen]


class _Visits:
    """Accesses to pages: a row for each access and page that its hull touches, by piece, page and time."""

    def __init__(self, trace: Trace, clocks: Clocks) -> None:
        self._clocks = clocks
        self._looked, self.end = 0, 0
        accesses = trace.accesses
        kept, (lows, highs) = _looked_at(trace)
        touched = accesses.footprint[kept]
        lowest, highest = lows[touched], highs[touched]
        pieces = clocks.pieces[accesses.at[kept]] * (int(highest.max(initial=0)) + 1)
        lowest, highest = lowest + pieces, highest + pieces  # barriers order accesses of different pieces
        pages, visitors = numbers(lowest, highest + 1), np.repeat(np.arange(len(kept)), highest - lowest + 1)
        order = np.argsort(pages, kind="stable")
        visitors = visitors[order]
        self.pages: Array = pages[order]
        self.accesses: Array = kept[visitors]
        self.is_first: Array = lowest[visitors] == self.pages
        """Whether it is the first page of its access: each pair is looked at in one of its pages."""
        at = accesses.at[self.accesses]
        self.slots: Array = trace.slots[at]
        self.writes: Array = accesses.write[self.accesses]
        self.positions: Array = clocks.positions[at]
        self.versions: Array = clocks.versions[at]

    def unordered(self, slot: int) -> Iterator[tuple[Array, Array]]:
        """Pairs (earlier, later) of accesses to a page: the earlier ones, of stream ``slot``, may be running."""
        mine = self.slots == slot
        known = self._clocks.known[:, slot]
        for later_writes in (True, False):
            theirs = np.flatnonzero(mine if later_writes else mine & self.writes)
            later = np.flatnonzero(self.writes == later_writes)
            until = np.searchsorted(theirs, later)  # how many of theirs come before
            later, until = later[until > 0], until[until > 0]
            last = theirs[until - 1]
            limits = known[self.versions[later]]
            running = (self.pages[last] == self.pages[later]) & (self.positions[last] > limits)
            later, until, limits = later[running], until[running], limits[running]
            keys = (self.pages[theirs] << _SHIFT) + self.positions[theirs]
            since = np.searchsorted(keys, (self.pages[later] << _SHIFT) + limits, side="right")
            for part in _parts(until - since):
                self._looked += int((until - since)[part].sum())
                if self._looked > MAX_LOOKED:
                    self.end = NO_TIME
                    return
                earlier = theirs[numbers(since[part], until[part])]
                repeated = np.repeat(later[part], (until - since)[part])
                once = self.is_first[earlier] | self.is_first[repeated]
                yield self.accesses[earlier[once]], self.accesses[repeated[once]]


def _contended(footprints: Footprints) -> Array:
    """Footprints that may share bytes with what is written: not the weights, mostly, nor other reads of HBM."""
    in_hbm = footprints.space == int(Space.HBM)
    busy = union(footprints.base[in_hbm & footprints.written], footprints.end[in_hbm & footprints.written])
    contended: Array = ~in_hbm | touches(busy, footprints.base, footprints.end)
    return contended


def _pages(footprints: Footprints, touched: Array) -> tuple[Array, Array]:
    """First and last page of each footprint, for accesses to ``touched``. Those of all memories have one count."""
    low, high = np.zeros((2, len(footprints)), np.int64)
    times = np.bincount(touched, minlength=len(footprints))
    after = 0
    for space in Space:
        here = np.flatnonzero((footprints.space == int(space)) & (times > 0))
        if not len(here):
            continue
        base, last, weight = footprints.base[here], footprints.end[here] - 1, times[here]
        covered = union(base, last + 1) if space is Space.HBM else np.array([[0, int(last.max()) + 1]])
        stretch = np.searchsorted(covered[:, 0], base, side="right") - 1
        base, last = base - covered[stretch, 0], last - covered[stretch, 0]
        for each in np.flatnonzero(np.bincount(stretch, weight) >= _MANY) if space is Space.HBM else ():
            mine = stretch == each
            columns = _columns(footprints, here[mine], base[mine], last[mine], weight[mine])
            if columns is not None:
                base[mine], last[mine] = columns
        size = (np.bincount(stretch, weight * (last - base)) / np.bincount(stretch, weight)).astype(np.int64) + 1
        base, last = base // size[stretch], last // size[stretch]
        most = np.zeros(len(covered), np.int64)
        np.maximum.at(most, stretch, last + 1)
        start = np.cumsum(most) - most + after
        low[here], high[here] = base + start[stretch], last + start[stretch]
        after = int(start[-1] + most[-1])
    return low, high


def _columns(
    footprints: Footprints, here: Array, base: Array, last: Array, weight: Array
) -> tuple[Array, Array] | None:
    """First and last column of footprints in one stretch of HBM, seen as rows of the commonest distance between runs.

    What has no such runs touches all columns. None where addresses tell the footprints apart as well.
    """
    patterns = [footprints.patterns.all[number] for number in footprints.pattern[here]]
    pitches = np.array([pattern.pitch if pattern.run <= pattern.pitch else 0 for pattern in patterns])
    values, owners = np.unique(pitches, return_inverse=True)
    pitch = int(values[np.argmax(np.bincount(owners, weight * (pitches > 0)))])
    if not pitch:
        return None
    runs = np.array([pattern.run for pattern in patterns])
    column = base % pitch
    inside = (pitches == pitch) & (column + runs <= pitch)
    low, high = np.where(inside, column, 0), np.where(inside, column + runs, pitch) - 1
    share = np.average(high - low, weights=weight) / pitch
    return (low, high) if share < np.average(last - base, weights=weight) / (int(last.max()) + 1) else None


def _parts(sizes: Array) -> Iterator[slice]:
    """Stretches of ``sizes`` that add up to some ``_AT_ONCE``."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        done = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, done + _AT_ONCE, side="right")), begin + 1)
        yield slice(begin, end)
        begin = end
