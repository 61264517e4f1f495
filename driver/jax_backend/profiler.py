"""What jax.profiler shows of the simulated devices: a plane for each, in the XSpace message of XLA's tools.

Every program that ran between start and stop is a slice of its simulated length on the host's time line, from when its
simulation began; on the first of its devices, as far as ``MAX_EVENTS`` reach, so is each of its instructions, in a line
for each engine and queue. The clock runs when the session is collected. Field numbers are those of
tsl/profiler/protobuf/xplane.proto.
"""

import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from neuronx_cc.driver.jax_backend.wire import message, number, text

if TYPE_CHECKING:
    from neuronx_cc.driver.jax_backend.launch import Record
    from neuronx_cc.runtime.clock import Event
    from neuronx_cc.runtime.profiling.execution import Execution
    from neuronx_cc.runtime.profiling.lanes import Lanes

recorders: "list[list[Record]]" = []
"""Lists that every launch is added to; here, so that a process that runs nothing loads no simulator."""
MAX_EVENTS = 1_000_000
"""Instructions shown of one session."""
PROGRAMS = 0
"""Number of the line of programs."""

_sessions: "dict[int, list[Record]]" = {}
_numbers = itertools.count()
_lock = threading.Lock()


def start() -> int:
    """Begin a session; its number."""
    with _lock:
        session = next(_numbers)
        _sessions[session] = []
        recorders.append(_sessions[session])
    return session


def stop(session: int) -> None:
    """Note no more programs."""
    with _lock:
        records = _sessions.get(session)
        recorders[:] = [each for each in recorders if each is not records]


def collect(session: int) -> bytes:
    """The session as an XSpace message, empty if no program ran; the session is gone."""
    stop(session)
    with _lock:
        records = _sessions.pop(session, [])
    first = min((begun for *_, begun in records), default=0)
    planes: dict[int, _Plane] = {}
    known: dict[object, _Shown] = {}
    left = MAX_EVENTS
    for unit, devices, course, begun in records:
        devices = devices or (0,)
        key = (id(unit), course.key())
        if key not in known:
            known[key] = _Shown.of(unit.executables[0].execution(course))
        shown = known[key]
        at = (begun - first) * 1e-3
        for device in devices:
            plane = planes.setdefault(device, _Plane(device, first))
            plane.add(PROGRAMS, "programs", unit.signature.name, at, shown.length, {})
        for part in shown.slices[:left]:
            begin = at + shown.preamble + part.begin
            planes[devices[0]].add(part.lane, part.line, part.name, begin, part.length, part.facts)
        left -= len(shown.slices[:left])
    return b"".join(message(1, plane.encoded()) for _, plane in sorted(planes.items()))


class _Slice(NamedTuple):
    """An instruction in a lane; times in microseconds."""

    lane: int
    line: str
    name: str
    begin: float
    length: float
    facts: dict[str, Any]


class _Slices:
    """Notes the instructions of a run, up to ``MAX_EVENTS``; a ``Watcher``."""

    def __init__(self, execution: "Execution") -> None:
        self._program = execution.program
        self._lanes: dict[int, Lanes] = {}
        self._known: dict[int, tuple[str, dict[str, Any]]] = {}
        self.slices: list[_Slice] = []

    def piece(self, begin: float, duration: float, repeats: int) -> None:
        pass

    def instruction(self, event: "Event") -> None:
        from neuronx_cc.ir.isa.program import Stream
        from neuronx_cc.runtime.profiling import lanes

        if len(self.slices) == MAX_EVENTS:
            return
        node, stream = event.node, Stream(event.stream)
        begin, end = round(event.start), round(event.end)
        taken = self._lanes.setdefault(stream, lanes.Lanes()).take(node, begin, end)
        known = self._known.get(node.index)
        if known is None:
            known = lanes.slice_name(self._program, node), lanes.slice_facts(self._program, node)
            self._known[node.index] = known
        lane, line = lanes.lane_number(stream, taken), lanes.lane_name(stream, taken)
        self.slices.append(_Slice(lane, line, known[0], begin * 1e-3, (end - begin) * 1e-3, known[1]))


@dataclass(frozen=True, slots=True)
class _Shown:
    """A program on the clock; times in microseconds."""

    length: float
    preamble: float
    slices: list[_Slice]

    @classmethod
    def of(cls, execution: "Execution") -> "_Shown":
        machine = execution.machine
        timing, watcher = execution.watch(lambda timing: _Slices(execution))
        fixed = machine["run.preamble_us"] + machine["run.postamble_us"]
        return cls(timing.total * 1e-3 + fixed, machine["run.preamble_us"], watcher.slices)


@dataclass(slots=True)
class _Plane:
    """A device."""

    device: int
    begin: int
    """Of all lines, in nanoseconds since the epoch."""
    names: dict[str, int] = field(default_factory=dict)
    """Name of an event -> its number."""
    keys: dict[str, int] = field(default_factory=dict)
    """Name of a property -> its number."""
    lines: dict[int, tuple[str, bytearray]] = field(default_factory=dict)
    """Number -> name and events."""

    def add(self, line: int, name: str, event: str, at: float, length: float, facts: dict[str, Any]) -> None:
        """An event of a line; ``at`` and ``length`` in microseconds."""
        stats = b""
        for key, value in facts.items():
            known = number(1, self.keys.setdefault(key, len(self.keys) + 1))
            stats += message(4, known + (number(4, value) if isinstance(value, int) else text(5, str(value))))
        numbered = number(1, self.names.setdefault(event, len(self.names) + 1))
        encoded = numbered + number(2, round(at * 1e6)) + number(3, round(length * 1e6)) + stats
        self.lines.setdefault(line, (name, bytearray()))[1].extend(message(4, encoded))

    def encoded(self) -> bytes:
        """An XPlane."""
        parts = [number(1, self.device + 1), text(2, f"/device:CUSTOM:NeuronCore:{self.device}")]
        for line, (name, events) in self.lines.items():
            parts.append(message(3, number(1, line) + text(2, name) + number(3, self.begin) + bytes(events)))
        for place, names in ((4, self.names), (5, self.keys)):
            for name, known in names.items():
                parts.append(message(place, number(1, known) + message(2, number(1, known) + text(2, name))))
        return b"".join(parts)
