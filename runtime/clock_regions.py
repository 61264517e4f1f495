"""Times a whole program: its pieces (``clock``), placed and counted as the course of the run says.

Input: a ``Program``, a machine description and a ``Course``. Output: a ``Timing``. A region costs a barrier at its
start and one after each iteration or case. An iteration's time depends on the path taken in it and on the function
table that ScalarE holds at its start, on nothing else; so each of these is simulated once, however often it is run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from neuronx_cc.ir.isa.cost import barrier_ns
from neuronx_cc.ir.isa.program import Program
from neuronx_cc.ir.machine import Machine
from neuronx_cc.runtime.clock import Clock, Profile, StreamTiming, Timing, Watcher
from neuronx_cc.runtime.clock_program import Area, Block, Piece, prepare
from neuronx_cc.runtime.course import Course, assumed


@dataclass(slots=True)
class _Visits:
    """How often a piece is run: in all, and when first and last."""

    piece: Piece | None
    table: str
    weight: int
    first: float
    last: float


@dataclass(slots=True)
class _Group:
    """Iterations of one ``while`` that take the same path with the same table: offsets of the first and the last."""

    count: int
    first: float
    last: float


@dataclass(slots=True)
class _Trips:
    """A ``while`` as groups of equal iterations."""

    duration: float
    table: str
    groups: dict[tuple[int, str], _Group] = field(default_factory=dict)


class Regions:
    """The timing of one program with one course."""

    def __init__(self, program: Program, machine: Machine, course: Course) -> None:
        self._program, self._machine, self._course = program, machine, course
        self._barrier = barrier_ns(machine)
        self._profiles: dict[tuple[int, str], Profile] = {}
        self._passes: dict[tuple[int, int, str], tuple[float, str]] = {}
        self._trips: dict[tuple[int, int, str], _Trips] = {}
        self._visits: dict[tuple[int, str], _Visits] = {}

    def run(self) -> Timing:
        """Raises RunError ERUN913 on a deadlock."""
        root, nodes = prepare(self._program, self._machine)
        total, _ = self._pass(root, self._course.root, "")
        self._place(root, self._course.root, "", _Visits(None, "", 1, 0.0, 0.0))
        timing = Timing(total, {}, nodes)
        for key, visits in self._visits.items():
            _account(timing, self._profiles[key], visits)
        timing.streams = dict(sorted(timing.streams.items()))
        return timing

    def watch(self, watcher: Watcher) -> None:
        """Go through the program again, after ``run``, and tell ``watcher``; nothing of it is kept here."""
        for key, visits in sorted(self._visits.items(), key=lambda item: item[1].first):
            assert visits.piece is not None
            watcher.piece(visits.first, self._profiles[key].duration, visits.weight)
            known = [(node.count, node.busy, node.first, node.last) for node in visits.piece.nodes]
            for node in visits.piece.nodes:
                node.count, node.busy, node.first, node.last = 0, 0.0, -1.0, 0.0
            Clock(self._program, self._machine, visits.piece, visits.table, watcher, visits.first).run()
            for node, tally in zip(visits.piece.nodes, known, strict=True):
                node.count, node.busy, node.first, node.last = tally

    # durations ------------------------------------------------------------------------------------------------

    def _pass(self, block: Block, path: int, table: str) -> tuple[float, str]:
        """Duration of one pass over ``block``, and the table at its end."""
        key = (id(block), path, table)
        if key not in self._passes:
            outcomes = iter(self._course.outcomes(path))
            duration = 0.0
            for part in block:
                if isinstance(part, Piece):
                    profile = self._profile(part, table)
                    time, table = profile.duration, profile.table
                else:
                    time, table = self._region(part, next(outcomes), table)
                duration += time
            self._passes[key] = (duration, table)
        return self._passes[key]

    def _profile(self, piece: Piece, table: str) -> Profile:
        key = (id(piece), table)
        if key not in self._profiles:
            self._profiles[key] = Clock(self._program, self._machine, piece, table).run()
        return self._profiles[key]

    def _region(self, area: Area, outcome: int, table: str) -> tuple[float, str]:
        if area.repeated:
            trips = self._repeated(area, outcome, table)
            return trips.duration, trips.table
        case, path = self._course.case(outcome)
        duration, table = self._pass(area.cases[case], path, table)
        return duration + 2 * self._barrier, table

    def _repeated(self, area: Area, outcome: int, table: str) -> _Trips:
        key = (id(area), outcome, table)
        if key in self._trips:
            return self._trips[key]
        trips = _Trips(self._barrier, table)
        for path, count in self._course.runs(outcome):
            while count:
                duration, after = self._pass(area.cases[0], path, trips.table)
                duration += self._barrier
                times = count if after == trips.table else 1
                last = trips.duration + (times - 1) * duration
                group = trips.groups.setdefault((path, trips.table), _Group(0, trips.duration, last))
                group.count, group.last = group.count + times, last
                trips.duration += times * duration
                trips.table = after
                count -= times
        self._trips[key] = trips
        return trips

    # visits ---------------------------------------------------------------------------------------------------

    def _place(self, block: Block, path: int, table: str, visits: _Visits) -> None:
        """Note that passes over ``block`` start at these times."""
        outcomes = iter(self._course.outcomes(path))
        at = 0.0
        for part in block:
            here = _Visits(None, table, visits.weight, visits.first + at, visits.last + at)
            if isinstance(part, Piece):
                here.piece = part
                profile = self._profile(part, table)
                _join(self._visits.setdefault((id(part), table), replace(here, weight=0)), here)
                at, table = at + profile.duration, profile.table
                continue
            outcome = next(outcomes)
            if part.repeated:
                for (inner, entry), group in self._repeated(part, outcome, table).groups.items():
                    inside = _Visits(
                        None, "", here.weight * group.count, here.first + group.first, here.last + group.last
                    )
                    self._place(part.cases[0], inner, entry, inside)
            else:
                case, inner = self._course.case(outcome)
                first, last = here.first + self._barrier, here.last + self._barrier
                self._place(part.cases[case], inner, table, _Visits(None, "", here.weight, first, last))
            time, table = self._region(part, outcome, table)
            at += time


def _join(known: _Visits, more: _Visits) -> None:
    known.weight += more.weight
    known.first, known.last = min(known.first, more.first), max(known.last, more.last)


def _account(timing: Timing, profile: Profile, visits: _Visits) -> None:
    """Add what the piece does, ``visits.weight`` times, to the whole."""
    for stream, mine in profile.streams.items():
        stats = timing.streams.setdefault(stream, StreamTiming(stream))
        stats.instructions += mine.instructions * visits.weight
        stats.active += mine.active * visits.weight
        stats.end = max(stats.end, mine.end + visits.last)
        for cause, time in mine.waited.items():
            stats.waited[cause] = stats.waited.get(cause, 0.0) + time * visits.weight
    for node, count, busy, first, last in profile.nodes:
        node.count += count * visits.weight
        node.busy += busy * visits.weight
        if count:
            node.first = first + visits.first if node.first < 0 else min(node.first, first + visits.first)
            node.last = max(node.last, last + visits.last)


def simulate(program: Program, machine: Machine, course: Course | None = None) -> Timing:
    """Time ``program`` on ``machine``. Raises RunError ERUN913 on a deadlock.

    ``course`` is what the regions did; without it, those that do not count are assumed to run once.
    """
    return Regions(program, machine, course or assumed(program)[0]).run()
