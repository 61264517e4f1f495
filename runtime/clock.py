"""The clock: a discrete-event simulation of the streams of one core.

Input: a ``Program`` and a machine description. Output: a ``Timing``. Each stream issues its instructions in order; an
instruction starts when its waits are met, its engine is free and no exclusive port is taken. Streams are advanced in
the order of their next start times, so shared resources are served first come, first served.

* An engine takes the next instruction ``duration`` after the start of this one; results are visible ``latency`` later.
  An instruction that uses what one of the two before it wrote also waits for the engine's dependent latency.
* TensorE loads the next stationary tile while it multiplies with this one.
* The DMA engines are one server, which queues share (``transfers``): a transfer alone keeps it for its total engine
  time over the number of engines, and those of its direction (reads or writes of HBM) a little longer. Its data is
  there a fixed latency later, and what its busiest engine takes more than the others. A queue serves in order.
* VectorE and GpSimdE take turns on SBUF, VectorE and ScalarE on PSUM (hardware sheet 1.7).

The barriers of regions cut the program into pieces, which nothing reaches across but the function table that ScalarE
holds. So each piece is simulated once for each such table, and counted as often as the course of the run passes it
(``clock_regions``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from neuronx_cc.ir.errors import COMPILE_AGAIN, Loc, RunError
from neuronx_cc.ir.isa.program import DMA_STREAMS, Program, Stream
from neuronx_cc.ir.isa.timing import CLOCK_KEY, SECTION
from neuronx_cc.ir.machine import Machine
from neuronx_cc.runtime.clock_program import (
    CONTROL,
    DMA,
    LOAD,
    MULTIPLY,
    Item,
    Nest,
    Node,
    Piece,
)
from neuronx_cc.runtime.transfers import Issue, Transfer, Transfers

SERVED = -1
"""In place of a stream: the time when a transfer may have been served."""
GAPS = ("dependency", "port", "dma engines", "function table", "descriptors")
"""Reasons for waiting other than a stream's semaphore."""


@dataclass(slots=True, eq=False)
class StreamTiming:
    """What one stream did. Times in ns."""

    stream: Stream
    instructions: int = 0
    active: float = 0.0
    """Time in which at least one of its instructions was being carried out."""
    waited: dict[str, float] = field(default_factory=dict)
    """Idle time between instructions by what ended it: a stream's name or a word of ``GAPS``."""
    end: float = 0.0


Instruction = tuple[int, int]
"""A dynamic instruction of a piece: its stream, and how many of that stream came before it."""


@dataclass(slots=True, eq=False)
class Event:
    """One dynamic instruction as a ``Watcher`` is told of it. Times in ns from the start of the program."""

    node: Node
    stream: int
    number: int
    """How many instructions of the stream came before it in its piece."""
    start: float
    end: float
    """Of the occupation of its engine; of a transfer, of its data."""
    done: float
    """When its results are visible."""
    after: Instruction | None
    """What decided when it starts: the end of that instruction; None for the first ones."""
    why: str
    """How: "semaphore" (for results of ``after``), "order" (``after`` kept the engine), or a word of ``GAPS``."""


class Watcher(Protocol):
    """Is told what happens, piece by piece in order of time; of what is repeated, the first time."""

    def piece(self, begin: float, duration: float, repeats: int) -> None:
        """A piece that runs ``repeats`` times in all begins; its instructions follow, in order in each stream."""

    def instruction(self, event: Event) -> None: ...


@dataclass(slots=True, eq=False)
class Timing:
    """Result of a simulation. ``total`` is in ns and excludes the preamble and postamble of a run."""

    total: float
    streams: dict[Stream, StreamTiming]
    nodes: list[Node]


class _Cursor:
    """State of a stream during the simulation."""

    __slots__ = (
        "active_until",
        "cause",
        "count",
        "done",
        "free",
        "head",
        "previous",
        "ready",
        "registers",
        "software_free",
        "stats",
        "table",
        "walk",
    )

    def __init__(self, stream: Stream, items: list[Item], table: str) -> None:
        _rewind(items)
        self.registers = [0] * 64
        self.walk = _walk(items, self.registers)
        self.stats = StreamTiming(stream)
        self.done: list[float] = []
        self.free = 0.0
        self.ready = 0.0
        self.previous = (-1e30, -1e30)
        """When the last and the last but one instruction ended their occupation."""
        self.head: Node | None = None
        self.cause: Stream | None = None
        self.count = 0
        """How many instructions of ``cause`` must be done."""
        self.software_free = 0.0
        self.active_until = 0.0
        self.table = table


def _walk(items: list[Item], registers: list[int]) -> Iterator[Node]:
    """Dynamic instructions of a stream in order; ``registers`` are current when one is yielded."""
    for item in items:
        if isinstance(item, Node):
            yield item
            continue
        register, body = item.register, item.body
        for index in range(item.count):
            registers[register] = index
            for phase, modulus in item.phases:
                registers[phase] = (item.begun + index) % modulus
            yield from _walk(body, registers)
        item.begun += item.count


def _rewind(items: list[Item]) -> None:
    """Counters after phase registers start anew with each piece."""
    for item in items:
        if isinstance(item, Nest):
            item.begun = 0
            _rewind(item.body)


@dataclass(slots=True, eq=False)
class Profile:
    """What one piece does, with times from its start. ``table``: what ScalarE holds at its end."""

    duration: float
    table: str
    streams: dict[Stream, StreamTiming]
    nodes: list[tuple[Node, int, float, float, float]]
    """Each node with its count, busy time, first start and last end."""


class Clock:
    """The simulation of one piece."""

    def __init__(
        self,
        program: Program,
        machine: Machine,
        piece: Piece,
        table: str = "",
        watcher: Watcher | None = None,
        begin: float = 0.0,
    ) -> None:
        """``watcher`` is told of the piece as one that begins at ``begin``."""
        self.program = program
        self.piece = piece
        self.cursors = {int(stream): _Cursor(stream, items, table) for stream, items in sorted(piece.trees.items())}
        self._table = table
        self._watcher, self._begin = watcher, begin
        self._heap: list[tuple[float, int]] = []
        self._blocked: dict[int, list[tuple[int, int]]] = {}
        self._semaphore = float(machine["sem.latency_ns"])
        self._table_load = float(machine["act.table_load_ns"])
        self._background = machine["pe.ls_background_depth"] > 0
        self._sbuf_exclusive = machine["excl.vec_pool_sbuf"] == "arbitrate"
        self._psum_exclusive = machine["excl.vec_act_psum"] == "arbitrate"
        self._dependent = {
            int(stream): machine[f"{section}.dependent_cycles"] / machine[CLOCK_KEY[stream]]
            for stream, section in SECTION.items()
        }
        self._transfers = Transfers()
        self._planned = -1.0
        """When the next transfer is looked at."""
        self._holder: Instruction | None = None
        """What a port was waited for, of the instruction that starts."""
        self._port_free: dict[tuple[str, int], float] = {}
        self._multiply_start = self._multiply_free = self._load_free = 0.0
        self._multiply_last = self._load_last = -1
        """Number of TensorE's last product, and of its last load."""
        self._kept_by = -1
        """Number of the one that TensorE's next instruction had to let end, or begin; -1: none."""

    def run(self) -> Profile:
        """Simulate to the end. Raises RunError ERUN913 on a deadlock."""
        for stream in self.cursors:
            self._next(stream)
        while self._heap:
            now, stream = heappop(self._heap)
            if stream == SERVED:
                self._serve(now)
                continue
            if stream in DMA_STREAMS:
                self._post(stream, now)
            else:
                self._start(stream)
                self._wake(stream)
            self._next(stream)
        if any(cursor.head is not None for cursor in self.cursors.values()):
            raise self._deadlock()
        streams = {Stream(stream): cursor.stats for stream, cursor in self.cursors.items()}
        scalar = self.cursors.get(int(Stream.SCALAR))
        nodes = [(node, node.count, node.busy, node.first, node.last) for node in self.piece.nodes]
        for node in self.piece.nodes:
            node.count, node.busy, node.first, node.last = 0, 0.0, -1.0, 0.0
        total = max((timing.end for timing in streams.values()), default=0.0)
        return Profile(total, self._table if scalar is None else scalar.table, streams, nodes)

    def _next(self, stream: int) -> None:
        """Fetch the stream's next instruction and queue it, or note what it waits for."""
        cursor = self.cursors[stream]
        cursor.head = next(cursor.walk, None)
        if cursor.head is not None:
            self._resolve(stream, cursor)

    def _resolve(self, stream: int, cursor: _Cursor) -> None:
        assert cursor.head is not None
        ready, cause, needed, base = cursor.free, None, 0, self.piece.base
        for producer, count, coefs in cursor.head.waits:
            for register, coef in coefs:
                count += coef * cursor.registers[register]
            count -= base.get(producer, 0)
            if count <= 0:
                continue
            other = self.cursors.get(producer)
            done = other.done if other is not None else ()
            if len(done) < count:
                self._blocked.setdefault(producer, []).append((count, stream))
                return
            at = done[count - 1] + self._semaphore
            if at > ready:
                ready, cause, needed = at, producer, count
        cursor.ready = ready
        cursor.cause, cursor.count = None if cause is None else Stream(cause), needed
        if cursor.head.software:
            ready = cursor.software_free = max(ready, cursor.software_free) + cursor.head.software
        heappush(self._heap, (ready, stream))

    def _wake(self, producer: int) -> None:
        """Look again at the streams that wait for ``producer``."""
        blocked = self._blocked.get(producer)
        if not blocked:
            return
        finished = len(self.cursors[producer].done)
        due = [waiter for count, waiter in blocked if count <= finished]
        if due:
            blocked[:] = [entry for entry in blocked if entry[0] > finished]
            for waiter in due:
                self._resolve(waiter, self.cursors[waiter])

    def _start(self, stream: int) -> None:
        cursor = self.cursors[stream]
        node = cursor.head
        assert node is not None
        begin, reason = cursor.ready, ""
        before = cursor.free
        if node.kind == LOAD:
            multiply = self._multiply_start if self._background else self._multiply_free
            begin = self._keep(begin, multiply, self._load_free)
            self._load_last = len(cursor.done)
            end = self._load_free = begin + node.duration
            done, cursor.free = end + node.latency, begin
        elif node.kind == MULTIPLY:
            begin = self._keep(begin, self._multiply_free, self._load_free)
            self._multiply_last = len(cursor.done)
            end = self._multiply_free = begin + node.duration
            self._multiply_start = cursor.free = begin
            done = end + node.latency
        elif node.kind == CONTROL:
            end = done = cursor.free = begin + node.duration
        else:
            begin, reason = self._engine_start(stream, cursor, node)
            end = cursor.free = begin + node.duration
            cursor.previous = (end, cursor.previous[0])
            done = end + node.latency
        finished = cursor.done
        if finished and done < finished[-1]:
            done = finished[-1]
        finished.append(done)
        issue = Issue(before, cursor.ready, cursor.cause, cursor.count)
        self._account(cursor, node, issue, begin, end, done, reason)

    def _post(self, stream: int, now: float) -> None:
        """Post a transfer to its queue, or what the queue does beside: it is done in its turn."""
        cursor = self.cursors[stream]
        node = cursor.head
        assert node is not None
        issue = Issue(cursor.free, cursor.ready, cursor.cause, cursor.count)
        cursor.free = now if node.kind == DMA else now + node.duration
        self._serve(now)
        work = node.duration if node.kind == DMA else 0.0
        shares = (node.read / work, node.write / work) if work else (0.0, 0.0)
        self._transfers.post(Transfer(stream, node, issue, now, work, *shares))
        self._plan()

    def _serve(self, now: float) -> None:
        """Finish the transfers that have been served until ``now``."""
        for transfer, served in self._transfers.advance(now):
            cursor, node = self.cursors[transfer.stream], transfer.node
            begin, end = transfer.begun, served
            if node.kind == DMA:
                done = end = served + node.latency
            else:
                done = end = max(served, transfer.posted + node.duration)
            if cursor.done and done < cursor.done[-1]:
                done = cursor.done[-1]
            cursor.done.append(done)
            reason = "descriptors" if node.software and begin == transfer.posted else "dma engines"
            self._holder = (transfer.stream, len(cursor.done) - 2)
            self._account(cursor, node, transfer.issue, begin, end, done, reason)
            self._wake(transfer.stream)
        self._plan()

    def _plan(self) -> None:
        """Look at the transfers again when the next one will have been served."""
        ends = self._transfers.next_end()
        if ends is not None and ends != self._planned:
            self._planned = ends
            heappush(self._heap, (ends, SERVED))

    def _keep(self, ready: float, multiply: float, load: float) -> float:
        """Start of an instruction of TensorE after its last product and its last load, whichever keeps it longest."""
        if ready >= multiply and ready >= load:
            self._kept_by = -1
            return ready
        self._kept_by = self._multiply_last if multiply >= load else self._load_last
        return max(multiply, load)

    def _engine_start(self, stream: int, cursor: _Cursor, node: Node) -> tuple[float, str]:
        begin, reason = cursor.ready, ""
        for depends, ended in zip(node.dependent, cursor.previous, strict=True):
            if depends and ended + self._dependent[stream] > begin:
                begin, reason = ended + self._dependent[stream], "dependency"
        if node.table_set and node.table_set != cursor.table:
            cursor.table = node.table_set
            loaded = cursor.free + self._table_load
            if loaded > begin:
                begin, reason = loaded, "function table"
        for space, first, second, exclusive in (
            ("sbuf", Stream.VECTOR, Stream.GPSIMD, self._sbuf_exclusive and node.uses_sbuf),
            ("psum", Stream.VECTOR, Stream.SCALAR, self._psum_exclusive and node.uses_psum),
        ):
            if exclusive and stream in (first, second):
                taken = self._port_free.get((space, second if stream == first else first), 0.0)
                if taken > begin:
                    begin, reason, other = taken, "port", second if stream == first else first
                    self._holder = (int(other), len(self.cursors[int(other)].done) - 1)
        if node.uses_sbuf:
            self._port_free["sbuf", stream] = begin + node.duration
        if node.uses_psum:
            self._port_free["psum", stream] = begin + node.duration
        return begin, reason

    def _account(
        self, cursor: _Cursor, node: Node, issue: Issue, begin: float, end: float, done: float, reason: str
    ) -> None:
        stats = cursor.stats
        stats.instructions += 1
        if end > cursor.active_until:
            stats.active += end - max(begin, cursor.active_until)
            cursor.active_until = end
        stats.end = max(stats.end, done)
        if issue.cause is not None and issue.ready > issue.before:
            name = issue.cause.name.lower()
            stats.waited[name] = stats.waited.get(name, 0.0) + issue.ready - issue.before
        if reason and begin > issue.ready:
            stats.waited[reason] = stats.waited.get(reason, 0.0) + begin - issue.ready
        node.count += 1
        node.busy += node.duration
        if node.first < 0:
            node.first = begin
        node.last = max(node.last, done)
        if self._watcher is not None:
            self._tell(self._watcher, cursor, node, issue, begin, end, done, reason)

    def _tell(
        self,
        watcher: Watcher,
        cursor: _Cursor,
        node: Node,
        issue: Issue,
        begin: float,
        end: float,
        done: float,
        reason: str,
    ) -> None:
        stream, number = int(cursor.stats.stream), len(cursor.done) - 1
        after: Instruction | None = (stream, number - 1) if number else None
        why = "order"
        if reason in ("port", "dma engines") and begin > issue.ready:
            after, why = self._holder, reason
        elif reason in ("dependency", "function table", "descriptors") and begin > issue.ready:
            why = reason
        elif node.kind in (LOAD, MULTIPLY) and self._kept_by >= 0:
            after = (stream, self._kept_by)
        elif issue.cause is not None and issue.ready > issue.before:
            after, why = (int(issue.cause), issue.count - 1), "semaphore"
        at = self._begin
        watcher.instruction(Event(node, stream, number, begin + at, end + at, done + at, after, why))

    def _deadlock(self) -> RunError:
        lines = []
        loc = Loc()
        for producer, blocked in sorted(self._blocked.items()):
            for count, waiter in blocked:
                cursor = self.cursors[waiter]
                if cursor.head is None:
                    continue
                has = len(self.cursors[producer].done) if producer in self.cursors else 0
                lines.append(
                    f"{Stream(waiter).name.lower()} waits with {cursor.head.instr.op} (record {cursor.head.index}) "
                    f"until {Stream(producer).name.lower()} has finished {count} instructions; it has finished {has}"
                )
                debug = self.program.debug
                if cursor.head.instr.debug < len(debug):
                    at = debug[cursor.head.instr.debug]
                    loc = Loc(at.hlo, at.op_name, at.source_file, at.source_line)
        return RunError("ERUN913", "deadlock: " + "; ".join(lines), COMPILE_AGAIN, loc)
