"""What the simulated devices did, as planes of an XSpace message: a plane for each device.

Every program is an event of its simulated length on the host's time line, from when its simulation began; on the first
of its devices, as far as ``MAX_EVENTS`` reach, so is each of its instructions, in tracks for each engine and queue. In
XProf's terms (``xprof``) there are lines of steps, modules and ops, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from neuronx_cc.driver.jax_backend import xprof
from neuronx_cc.driver.jax_backend.records import Record
from neuronx_cc.driver.jax_backend.xspace import Plane, space
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.runtime.clock import Event
from neuronx_cc.runtime.profiling.execution import Execution
from neuronx_cc.runtime.profiling.tracks import Tracks, slice_facts, slice_name, track_name, track_number

MAX_EVENTS = 1_000_000
"""Instructions shown of one session."""
PROGRAMS = 0
"""Number of the line of programs."""


def make_space(records: Sequence[Record], for_xprof: bool, consecutive: bool = False) -> bytes:
    """An XSpace of launches; ``for_xprof``: with what XProf's analyses of ops need.

    ``consecutive``: each begins when the one before ends, and the time that the simulation took does not show.
    """
    first = min(begun for *_, begun in records)
    planes: dict[int, Plane] = {}
    known: dict[object, _Shown] = {}
    free: dict[int, float] = {}
    modules = xprof.Modules()
    left = MAX_EVENTS
    for step, (unit, devices, course, begun) in enumerate(records):
        devices = devices or (0,)
        key = (id(unit), course.key())
        if key not in known:
            known[key] = _Shown.of(unit.executables[0].execution(course))
        shown = known[key]
        at = max([0.0 if consecutive else (begun - first) * 1e-3, *(free.get(device, 0.0) for device in devices)])
        for device in devices:
            plane = planes.get(device)
            if plane is None:
                plane = planes[device] = _plane(device, first, shown.execution, for_xprof)
            free[device] = at + shown.length
            if for_xprof:
                modules.add(plane, unit, shown.execution, step, at, shown.length)
            else:
                name = unit.signature.name
                plane.add(PROGRAMS, "programs", plane.kind(name, name), at, shown.length)
        plane = planes[devices[0]]
        for part in shown.slices[:left]:
            begin = at + shown.preamble + part.begin
            plane.add(part.track, part.line, plane.kind(part.name, part.name), begin, part.length, part.facts)
        left -= len(shown.slices[:left])
    made = [plane for _, plane in sorted(planes.items())]
    if for_xprof:
        return space([*made, modules.plane()], (xprof.NOTICE,))
    return space(made)


def _plane(device: int, begin: int, execution: Execution, for_xprof: bool) -> Plane:
    if not for_xprof:
        return Plane(device + 1, f"/device:CUSTOM:NeuronCore:{device}", begin)
    return Plane(device + 1, f"/device:TPU:{device}", begin, xprof.peaks(execution.machine))


class _Slice(NamedTuple):
    """An instruction in a track; times in microseconds."""

    track: int
    line: str
    name: str
    begin: float
    length: float
    facts: dict[str, Any]


class _Slices:
    """Notes the instructions of a run, up to ``MAX_EVENTS``; a ``Watcher``."""

    def __init__(self, execution: Execution) -> None:
        self._program = execution.program
        self._tracks: dict[int, Tracks] = {}
        self._known: dict[int, tuple[str, dict[str, Any]]] = {}
        self.slices: list[_Slice] = []

    def piece(self, begin: float, duration: float, repeats: int) -> None:
        pass

    def instruction(self, event: Event) -> None:
        if len(self.slices) == MAX_EVENTS:
            return
        node, stream = event.node, Stream(event.stream)
        begin, end = round(event.start), round(event.end)
        taken = self._tracks.setdefault(stream, Tracks()).take(node, begin, end)
        known = self._known.get(node.index)
        if known is None:
            known = slice_name(self._program, node), slice_facts(self._program, node)
            self._known[node.index] = known
        track, line = track_number(stream, taken), track_name(stream, taken)
        self.slices.append(_Slice(track, line, known[0], begin * 1e-3, (end - begin) * 1e-3, known[1]))


@dataclass(frozen=True, slots=True)
class _Shown:
    """A program on the clock; times in microseconds."""

    execution: Execution
    length: float
    preamble: float
    slices: list[_Slice]

    @classmethod
    def of(cls, execution: Execution) -> _Shown:
        machine = execution.machine
        timing, watcher = execution.watch(lambda timing: _Slices(execution))
        fixed = machine["run.preamble_us"] + machine["run.postamble_us"]
        return cls(execution, timing.total * 1e-3 + fixed, machine["run.preamble_us"], watcher.slices)
