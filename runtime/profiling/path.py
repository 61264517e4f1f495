"""The critical path: the chain of instructions and waits that the length of a run is the sum of.

Input: what the clock tells a ``Watcher``. From the instruction that finishes last one goes back, each time to the one
whose end decided when this one started, to the start of the program. Each stretch of time on the way belongs to one
instruction: it occupies its engine ("busy"), its result is on the way to those that wait for it ("latency"), or it
could start and did not yet ("wait": semaphores, function tables, descriptors). The stretches add up to the time of the
run. What is repeated counts as often as it runs; barriers between pieces belong to none.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from neuronx_cc.runtime.clock import Event
from neuronx_cc.runtime.clock_program import Node

BUSY, LATENCY, WAIT = "busy", "latency", "wait"
MAX_STRETCHES = 100_000
"""Stretches of the path that are kept one by one; the sums have all."""


@dataclass(slots=True)
class Stretch:
    """Neighbouring instructions of one HLO op and stream on the path. Times in ns."""

    debug: int
    stream: int
    begin: float
    end: float
    instructions: int
    why: str
    """What the first of them waited for (``clock.Event.why``)."""
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Stream:
    """The instructions of one stream in this piece."""

    start: array[float] = field(default_factory=lambda: array("d"))
    done: array[float] = field(default_factory=lambda: array("d"))
    node: array[int] = field(default_factory=lambda: array("q"))
    parent_stream: array[int] = field(default_factory=lambda: array("b"))
    parent: array[int] = field(default_factory=lambda: array("q"))
    why: list[str] = field(default_factory=list)


class Path:
    """Follows the critical path of each piece."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = {node.index: node for node in nodes}
        self._streams: dict[int, _Stream] = {}
        self._last: tuple[float, int, int] = (-1.0, 0, 0)
        self._repeats = 0
        self._begin = 0.0
        self.by_debug: dict[int, dict[tuple[int, str], float]] = {}
        """Debug entry -> (stream, part) -> ns on the path."""
        self.stretches: list[Stretch] = []
        """Of the first time of each piece, in order of time."""
        self.covered = 0.0
        """Time of all pieces, as often as they run."""

    def piece(self, begin: float, duration: float, repeats: int) -> None:
        """The next piece begins; the one before is walked through."""
        self.finish()
        self._begin, self._repeats = begin, repeats
        self.covered += duration * repeats

    def add(self, event: Event) -> None:
        """Note one dynamic instruction."""
        stream = self._streams.get(event.stream)
        if stream is None:
            stream = self._streams[event.stream] = _Stream()
        stream.start.append(event.start)
        stream.done.append(event.done)
        stream.node.append(event.node.index)
        after = event.after
        stream.parent_stream.append(-1 if after is None else after[0])
        stream.parent.append(0 if after is None else after[1])
        stream.why.append(event.why)
        if event.done > self._last[0]:
            self._last = (event.done, event.stream, event.number)

    def finish(self) -> None:
        """Walk through the last piece."""
        if self._streams:
            self._walk()
        self._streams = {}
        self._last = (-1.0, 0, 0)

    def _walk(self) -> None:
        leave, at, number = self._last
        found: list[Stretch] = []
        while True:
            stream = self._streams[at]
            node = self._nodes[stream.node[number]]
            start = stream.start[number]
            occupied = min(leave, start + max(node.duration, node.read, node.write))
            parent_stream, parent = stream.parent_stream[number], stream.parent[number]
            if parent_stream >= 0:
                before = min(start, self._streams[parent_stream].done[parent])
            else:
                before = min(start, self._begin)
            parts = {BUSY: occupied - start, LATENCY: leave - occupied, WAIT: start - before}
            self._note(found, node, at, before, leave, parts, stream.why[number])
            if parent_stream < 0:
                break
            leave, at, number = before, parent_stream, parent
        found.reverse()
        self.stretches += found[: MAX_STRETCHES - len(self.stretches)]

    def _note(
        self,
        found: list[Stretch],
        node: Node,
        stream: int,
        begin: float,
        end: float,
        parts: dict[str, float],
        why: str,
    ) -> None:
        debug = node.instr.debug
        totals = self.by_debug.setdefault(debug, {})
        for part, time in parts.items():
            if time:
                totals[stream, part] = totals.get((stream, part), 0.0) + time * self._repeats
        last = found[-1] if found else None
        if last is not None and (last.debug, last.stream) == (debug, stream):
            last.begin, last.why = begin, why
            last.instructions += 1
            for part, time in parts.items():
                last.parts[part] += time
        else:
            found.append(Stretch(debug, stream, begin, end, 1, why, parts))
