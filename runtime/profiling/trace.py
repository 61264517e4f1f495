"""Runs as a Chrome / Perfetto trace: a process for each device, tracks for each engine and DMA queue, counters.

Input: executions. Output: JSON text, written while the clock runs, so that a trace of millions of instructions takes
a few bytes of memory for each.

* A track never shows two slices at once: an engine has as many tracks as it has work in flight.
* An arrow goes from the instruction that was waited for to the one that waited, which starts after the other's end.
* What is repeated shows once; the track ``repetitions`` says what follows in the gap.
* Times are whole nanoseconds, in microseconds, as the format wants.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from neuronx_cc.ir.isa.collectives import exchange_of, role_of
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.runtime.clock import Event, Timing
from neuronx_cc.runtime.clock_program import Node
from neuronx_cc.runtime.profiling.counters import Counters
from neuronx_cc.runtime.profiling.execution import Execution
from neuronx_cc.runtime.profiling.liveness import highest, in_use, live_spans
from neuronx_cc.runtime.profiling.tracks import Tracks, slice_facts, slice_name, track_name, track_number

PROGRAM_LANE = 1
REPETITION_LANE = 2


class Text(Protocol):
    """What the trace is written to."""

    def write(self, text: str, /) -> object: ...


@dataclass(slots=True)
class _Sink:
    """The list of events, as it grows."""

    text: Text
    begun: bool = False
    arrows: int = 0

    def put(self, event: str) -> None:
        self.text.write(",\n" + event if self.begun else event)
        self.begun = True

    def put_object(self, event: dict[str, Any]) -> None:
        self.put(json.dumps(event, separators=(",", ":")))

    def arrow(self, name: str, begin: tuple[int, int, int], end: tuple[int, int, int]) -> None:
        """From the slice at (pid, tid, start) ``begin`` to the one at ``end``."""
        self.arrows += 1
        for phase, (pid, tid, at) in (('"s"', begin), ('"f","bp":"e"', end)):
            head = f'{{"ph":{phase},"cat":"wait","name":"{name}","id":{self.arrows}'
            self.put(f'{head},"pid":{pid},"tid":{tid},"ts":{_us(at)}}}')


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


Meeting = tuple[tuple[int, ...], int]
"""Members, and how often they have met before."""


@dataclass(slots=True)
class _Device:
    """Writes the events of one device; a ``Watcher``."""

    execution: Execution
    timing: Timing
    sink: _Sink
    meetings: dict[Meeting, list[tuple[int, int, int]]]
    """Place of each member's slice."""
    counters: Counters
    tracks: dict[int, Tracks] = field(default_factory=dict)
    starts: dict[int, array[int]] = field(default_factory=dict)
    """Stream -> start of each instruction of this piece."""
    threads: dict[int, array[int]] = field(default_factory=dict)
    """Stream -> track of each instruction of this piece."""
    facts: dict[int, str] = field(default_factory=dict)
    """Node -> what its slices have in common."""
    visits: dict[tuple[int, ...], int] = field(default_factory=dict)
    shown_until: int = 0

    def piece(self, begin: float, duration: float, repeats: int) -> None:
        self.starts.clear()
        self.threads.clear()
        at = round(begin)
        if at > self.shown_until + 1000 and self.shown_until:
            self._whole(REPETITION_LANE, "repeated, shown once", self.shown_until, at)
        self.shown_until = max(self.shown_until, round(begin + duration))
        if repeats > 1:
            self._whole(REPETITION_LANE, f"runs {repeats} times", at, self.shown_until)

    def _whole(self, tid: int, name: str, begin: int, end: int) -> None:
        head = f'{{"ph":"X","name":{json.dumps(name)},"pid":{self.execution.device},"tid":{tid}'
        self.sink.put(f'{head},"ts":{_us(begin)},"dur":{_us(end - begin)}}}')

    def instruction(self, event: Event) -> None:
        self.counters.add(event)
        node, stream = event.node, event.stream
        begin, end = round(event.start), round(event.end)
        track = self.tracks.setdefault(stream, Tracks()).take(node, begin, end)
        tid = track_number(stream, track)
        self.starts.setdefault(stream, array("q")).append(begin)
        self.threads.setdefault(stream, array("l")).append(tid)
        common = self.facts.get(node.index)
        if common is None:
            common = self.facts[node.index] = self._common(node)
        pid = self.execution.device
        times = f'"pid":{pid},"tid":{tid},"ts":{_us(begin)},"dur":{_us(end - begin)}'
        self.sink.put(f'{{"ph":"X",{times},{common},"started_after":"{event.why}"}}}}')
        if event.why == "semaphore" and event.after is not None and event.after[0] != stream:
            other, number = event.after
            source = (pid, self.threads[other][number], self.starts[other][number])
            self.sink.arrow("wait", source, (pid, tid, begin))
        if node.instr.op == "collective":
            self._meet(node, (pid, tid, begin))

    def _common(self, node: Node) -> str:
        program = self.execution.program
        name = json.dumps(slice_name(program, node))
        facts = json.dumps(slice_facts(program, node), separators=(",", ":"))
        return f'"name":{name},"cat":"{node.instr.op}","args":{facts[:-1]}'

    def _meet(self, node: Node, place: tuple[int, int, int]) -> None:
        groups = self.execution.program.groups[int(node.instr.imm[0])]
        members = role_of(exchange_of(node.instr), groups, self.execution.device).members
        if not members:
            return
        visit = self.visits.get(members, 0)
        self.visits[members] = visit + 1
        self.meetings.setdefault((members, visit), []).append(place)

    def finish(self) -> None:
        """Names of processes and tracks, and the counters."""
        pid, machine = self.execution.device, self.execution.machine
        self._name("process_name", 0, f"NeuronCore-v2 {pid} (simulated {machine.name})")
        total = round(self.timing.total)
        self._whole(PROGRAM_LANE, self.execution.name or "program", 0, total)
        self._thread(PROGRAM_LANE, "program")
        self._thread(REPETITION_LANE, "repetitions")
        for stream, tracks in sorted(self.tracks.items()):
            for track in range(len(tracks.ends)):
                self._thread(track_number(stream, track), track_name(Stream(stream), track))
        counters = self.counters
        for name, rates in counters.rates().items():
            self._counter(name, [round(rate, 3) for rate in rates])
        spans = live_spans(self.execution.program, self.timing.nodes, self.timing.total)
        for space in (Space.SBUF, Space.PSUM):
            points = in_use(span for span in spans if span.space is space)
            used = highest(points, self.timing.total, counters.columns)
            self._counter(f"{space.name} in use (KiB a partition)", [nbytes / 1024 for nbytes in used])

    def _name(self, kind: str, tid: int, name: str) -> None:
        event: dict[str, Any] = {"ph": "M", "name": kind, "pid": self.execution.device, "args": {"name": name}}
        self.sink.put_object(event | ({"tid": tid} if tid else {}))

    def _thread(self, tid: int, name: str) -> None:
        self._name("thread_name", tid, name)
        event = {"ph": "M", "name": "thread_sort_index", "pid": self.execution.device, "tid": tid}
        self.sink.put_object(event | {"args": {"sort_index": tid}})

    def _counter(self, name: str, values: Sequence[float]) -> None:
        """A point for each change of the value."""
        before: float | None = None
        head = f'{{"ph":"C","name":{json.dumps(name)},"pid":{self.execution.device}'
        for column, value in enumerate([*values, 0.0]):
            if value != before:
                at = _us(round(column * self.counters.width))
                self.sink.put(f'{head},"ts":{at},"args":{{"value":{value:g}}}}}')
                before = value


def write_trace(text: Text, executions: Sequence[Execution]) -> None:
    """Write the trace of runs that were one launch, a process for each. Raises RunError ERUN913, OSError."""
    sink = _Sink(text)
    meetings: dict[Meeting, list[tuple[int, int, int]]] = {}
    text.write('{"displayTimeUnit":"ns","otherData":{"is_simulation":"true"},"traceEvents":[\n')
    for execution in executions:
        _, device = execution.watch(partial(_watcher, execution, sink, meetings))
        device.finish()
    for places in meetings.values():
        first, *others = sorted(places, key=lambda place: place[2])
        for other in others:
            sink.arrow("meeting", first, other)
    text.write("\n]}\n")


def _watcher(
    execution: Execution, sink: _Sink, meetings: dict[Meeting, list[tuple[int, int, int]]], timing: Timing
) -> _Device:
    return _Device(execution, timing, sink, meetings, Counters(execution.machine, timing.total))
