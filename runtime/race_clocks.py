"""Vector clocks: what each stream knows to be complete when it starts an instruction.

Input: a ``Trace``. Output: ``Clocks``. ``known[version][t]`` is how many instructions of stream t are certain to be
complete: what waits say, and what the awaited instructions themselves knew when they started. An engine works in order,
so all of its own earlier instructions count as complete; a DMA queue completes in order but overlaps its own transfers.

Only waits teach a stream something, so it gets a new *version* of its clock with each wait that is not plainly implied
by an earlier one of its own; the instructions in between share it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuronx_cc.ir.isa.program import DMA_STREAMS
from neuronx_cc.runtime.intervals import Array
from neuronx_cc.runtime.race_native import clocks as native_clocks
from neuronx_cc.runtime.race_trace import STREAMS, Piece, Trace

_ALWAYS = (1 << 31) - 1
"""A count that is never exceeded: of one's own instructions, in an engine."""
_IN_ORDER = np.array([stream not in DMA_STREAMS for stream in STREAMS])
"""Slots whose instructions know all earlier ones of the slot to be complete."""
_SHIFT = 32
"""Keys are a number shifted so far up, plus a position or a count."""


class DeadlockError(Exception):
    """Instruction ``at`` waits for ``count`` instructions of slot ``awaited``, which has issued ``issued`` by then."""

    def __init__(self, at: int, awaited: int, count: int, issued: int) -> None:
        super().__init__(at, awaited, count, issued)
        self.at, self.awaited, self.count, self.issued = at, awaited, count, issued


@dataclass(slots=True)
class Clocks:
    """Positions and knowledge of all dynamic instructions."""

    positions: Array
    """Of each instruction: what the progress semaphore of its stream says when it is finished."""
    versions: Array
    """Of each instruction: row of ``known`` that holds when it starts."""
    known: Array
    """int32, a column for each slot."""
    pieces: Array
    """Of each instruction: number of its piece."""
    implied: int
    """Waits that earlier waits imply."""


def clocks_of(trace: Trace) -> Clocks:
    """The clocks of a trace. Raises DeadlockError for a wait that never ends."""
    sizes = np.array([piece.last - piece.first for piece in trace.pieces])
    pieces = np.repeat(np.arange(len(trace.pieces)), sizes)
    waits = trace.waits
    bases = np.array([piece.base for piece in trace.pieces])
    found = native_clocks(sizes, bases, _IN_ORDER, trace.slots, waits.at, waits.awaited, waits.count)
    if found is None:
        return _clocks_of(trace, pieces)
    if len(found) == 2:
        failed, issued = found
        raise DeadlockError(int(waits.at[failed]), int(waits.awaited[failed]), int(waits.count[failed]), issued)
    positions, versions, known, implied = found
    return Clocks(positions, versions, known, pieces, implied)


def _clocks_of(trace: Trace, pieces: Array) -> Clocks:
    """The same without the native pass."""
    positions = _positions(trace, pieces)
    _check_issued(trace, pieces)
    waits = trace.waits
    streams = pieces * len(STREAMS) + trace.slots  # a stream of a piece is a stream of its own
    kept = _lessons(waits.at, streams[waits.at] * len(STREAMS) + waits.awaited, waits.count)
    at, awaited, counts = waits.at[kept], waits.awaited[kept], waits.count[kept]
    begun = np.arange(len(trace.pieces) * len(STREAMS))  # the versions at the starts of pieces come first
    keys = np.concatenate([begun << _SHIFT, (streams[at] << _SHIFT) + positions[at]])
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]

    def version(stream: Array, count: Array) -> Array:
        """What a stream knew when it started its instruction number ``count``."""
        found: Array = order[np.searchsorted(ranked, (stream << _SHIFT) + count, side="right") - 1]
        return found

    sources = version(pieces[at] * len(STREAMS) + awaited, counts)
    known, implied = _walk(trace.pieces, streams[at], awaited, counts, sources)
    implied += len(waits.at) - len(kept)
    return Clocks(positions, version(streams, positions), known, pieces, implied)


def _positions(trace: Trace, pieces: Array) -> Array:
    base = np.array([piece.base for piece in trace.pieces])
    positions = np.zeros(len(trace.rows), np.int64)
    for slot in range(len(STREAMS)):
        mine = np.flatnonzero(trace.slots == slot)
        ahead = np.searchsorted(mine, [piece.first for piece in trace.pieces])  # of each piece's start
        positions[mine] = np.arange(1, len(mine) + 1) - ahead[pieces[mine]] + base[pieces[mine], slot]
    return positions


def _check_issued(trace: Trace, pieces: Array) -> None:
    """In emission order, which is a legal one, no wait may be for an instruction that comes later."""
    waits = trace.waits
    issued = np.array([piece.base for piece in trace.pieces])[pieces[waits.at], waits.awaited]
    for slot in range(len(STREAMS)):
        theirs, mine = np.flatnonzero(trace.slots == slot), np.flatnonzero(waits.awaited == slot)
        ahead = np.searchsorted(theirs, [piece.first for piece in trace.pieces])
        issued[mine] += np.searchsorted(theirs, waits.at[mine]) - ahead[pieces[waits.at[mine]]]
    missing = np.flatnonzero(waits.count > issued)
    if len(missing):
        first = missing[0]
        raise DeadlockError(*(int(column[first]) for column in (waits.at, waits.awaited, waits.count, issued)))


def _lessons(at: Array, pairs: Array, counts: Array) -> Array:
    """The waits that are for more than all earlier ones of the same stream for the same other one, in their order."""
    order = np.argsort(pairs, kind="stable")
    reached = np.maximum.accumulate((pairs[order] << _SHIFT) + counts[order])
    fresh = np.ones(len(at), bool)
    fresh[1:] = reached[1:] > reached[:-1]
    kept: Array = np.sort(order[fresh])
    return kept


def _walk(pieces: list[Piece], streams: Array, awaited: Array, counts: Array, sources: Array) -> tuple[Array, int]:
    """All versions: first those at the starts of pieces, then one for each wait. And how many waits were implied."""
    known = [clock for piece in pieces for clock in _everybody(piece.base)]
    current = list(known)
    implied = 0
    columns = (streams.tolist(), awaited.tolist(), counts.tolist(), sources.tolist())
    for stream, other, count, source in zip(*columns, strict=True):
        clock = current[stream]
        if count > clock[other]:
            merged = [mine if mine > theirs else theirs for mine, theirs in zip(clock, known[source], strict=True)]
            merged[other] = count
            clock = current[stream] = tuple(merged)  # unlike lists, the collector does not look at it again and again
        else:
            implied += 1
        known.append(clock)
    return np.array(known, np.int32), implied


def _everybody(counts: list[int]) -> list[tuple[int, ...]]:
    """What each stream knows when ``counts`` instructions are complete. Engines know all of their own."""
    return [
        tuple(
            _ALWAYS if other is stream and stream not in DMA_STREAMS else count
            for other, count in zip(STREAMS, counts, strict=True)
        )
        for stream in STREAMS
    ]
