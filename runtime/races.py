"""The race check: proves that semaphores order every pair of conflicting accesses of a program.

Input: a ``Program``. Output: a ``RaceSummary``, or a RunError that names both instructions, their HLO ops and the
missing wait. The check does not depend on data: it walks the dynamic instructions in emission order with a vector
clock per stream.

``known[s][t]`` is how many instructions of stream t are certain to be complete when stream s starts its next one: what
its waits say, and what the awaited instructions themselves knew when they started. An engine works in order, so its own
earlier instructions count as complete; a DMA queue completes in order but overlaps its own transfers. Each memory class
(``footprints``) remembers its last writer and the readers since. That suffices: whatever is ordered after the last
writer is ordered after all that this writer had to wait for.

Addresses from ``reg_load``, or from the count of a region, count as touching all that the register's range allows.

A region begins and ends with everything complete, and so does each of its iterations: its body is walked once, with
counts from 0, and what holds for that iteration holds for all. Memory that only a region defines, whose body may not be
run at all, is undefined behind it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import DMA_STREAMS, Program, Space, Stream
from neuronx_cc.runtime.footprints import Array, Classes, Footprints
from neuronx_cc.runtime.race_sites import STREAMS, Area, Lowering, Nest, Site, describe, location

_NOBODY = len(STREAMS)
"""Slot of the writer of memory that is defined from the start; everybody knows all of its writes."""
_ALWAYS = 1 << 62
_NEVER = _ALWAYS + 1
"""Position of the last write to memory that nothing has written."""
_SHORT = 12
"""Up to so many classes are walked one by one, more of them as arrays."""


@dataclass(slots=True, frozen=True)
class RaceSummary:
    """What was proved."""

    instructions: int
    """Dynamic instructions; bodies of regions count once."""
    accesses: int
    """Dynamic operand accesses to memory that something writes."""
    waits: int
    """Dynamic waits for a positive count."""
    implied_waits: int
    """Of these, how many could be dropped: earlier waits imply them."""
    finished: dict[Stream, int]
    """Final value of each progress semaphore."""


def check(program: Program) -> RaceSummary:
    """Prove the program free of races, deadlocks and reads of undefined memory.

    Raises RunError: ERUN911 race, ERUN912 read of memory that nothing has written, ERUN913 wait that never ends,
    ERUN914 address outside its memory. The summary is kept with the program, so that only its first run pays.
    """
    if isinstance(program.race_summary, RaceSummary):
        return program.race_summary
    footprints = Footprints()
    nest = Lowering(program, footprints).run()
    defined = [
        (variable.offset, variable.offset + variable.nbytes)
        for variable in program.variables
        if variable.kind in ("input", "constant", "device")
    ]
    initialised = footprints.classify(defined)
    summary = _Walk(program, footprints, initialised).run(nest)
    program.race_summary = summary
    return summary


class _Walk:
    """The dynamic walk: clocks per stream, last accesses per memory class."""

    def __init__(self, program: Program, footprints: Footprints, initialised: Classes) -> None:
        self._program = program
        self._footprints = footprints
        self._classes = footprints.classes
        self._known = self._everybody([0] * len(STREAMS))
        self._history: list[list[tuple[int, ...]]] = [[] for _ in STREAMS]
        """What each instruction of each stream knew at its start."""
        self._sites: list[list[tuple[Site, int]]] = [[] for _ in STREAMS]
        self._short = [
            footprints.members(footprint).tolist() if footprints.size(footprint) <= _SHORT else None
            for footprint in range(len(self._classes))
        ]
        count = max(footprints.class_count, 1)
        # what is known of each class, and the same memory as NumPy sees it
        self._writer = array("q", [_NOBODY]) * count
        self._written = array("q", [_NEVER]) * count
        self._readers = [array("i", [0]) * count for _ in STREAMS]
        """For each stream: position of its last read of each class since the last write, or 0."""
        self._writers = np.frombuffer(self._writer, np.int64)
        self._writes = np.frombuffer(self._written, np.int64)
        self._reads = [np.frombuffer(readers, np.int32) for readers in self._readers]
        self._reading: list[int] = []
        """Streams that have read anything."""
        self._rows: list[tuple[tuple[int, ...], Array]] = [((), np.zeros(0, np.int64))] * len(STREAMS)
        """Of each stream, what it knew when it was last asked, as NumPy sees it."""
        self._writes[initialised] = 0
        self._accesses = self._waits = self._implied = 0
        self._done = dict.fromkeys(STREAMS, 0)

    @staticmethod
    def _everybody(counts: list[int]) -> list[tuple[int, ...]]:
        """What each stream knows when ``counts`` instructions are complete. Engines know all of their own."""
        return [
            (
                *(
                    _ALWAYS if other is stream and stream not in DMA_STREAMS else n
                    for other, n in zip(STREAMS, counts, strict=True)
                ),
                _ALWAYS,
            )
            for stream in STREAMS
        ]

    def run(self, nest: Nest) -> RaceSummary:
        self._block(nest.body, 0)
        self._count()
        finished = {stream: done for stream, done in self._done.items() if done}
        return RaceSummary(sum(finished.values()), self._accesses, self._waits, self._implied, finished)

    def _count(self) -> None:
        for stream, history in zip(STREAMS, self._history, strict=True):
            self._done[stream] += len(history)

    def _area(self, area: Area) -> None:
        outside = self._history, self._sites
        counts = [len(history) for history in self._history]
        self._barrier()
        before = self._writes.copy()
        defined = [] if area.certain else [before]
        for case in area.cases:
            self._history, self._sites = [[] for _ in STREAMS], [[] for _ in STREAMS]
            self._known = self._everybody([0] * len(STREAMS))
            self._writes[:] = before
            self._block(case.body, 0)
            self._count()
            self._barrier()
            defined.append(self._writes.copy())
        self._writes[:] = np.maximum.reduce(defined)
        self._history, self._sites = outside
        self._known = self._everybody(counts)

    def _barrier(self) -> None:
        """All is complete: only what is defined matters from here on."""
        self._writes[self._writes != _NEVER] = 0
        self._writers[:] = _NOBODY
        for reads in self._reads:
            reads[:] = 0

    def _block(self, body: list[Site | Nest | Area], iteration: int) -> None:
        for item in body:
            if isinstance(item, Site):
                known = self._start(item, iteration)
                history = self._history
                position = len(history[item.slot])
                if item.writes:
                    busy = [slot for slot in self._reading if known[slot] < len(history[slot])]
                    for numbers in item.writes:
                        self._check_write(item, iteration, numbers[iteration], known, busy)
                for numbers in item.reads:
                    self._read(item, iteration, numbers[iteration], position, known)
                for numbers in item.writes:
                    self._write(item.slot, numbers[iteration], position)
            elif isinstance(item, Area):
                self._area(item)
            else:
                for index in range(iteration * item.count, (iteration + 1) * item.count):
                    self._block(item.body, index)

    def _start(self, site: Site, iteration: int) -> tuple[int, ...]:
        """Wait; returns what the instruction knows when it starts."""
        slot = site.slot
        known = self._known[slot]
        for awaited, thresholds in site.waits:
            count = thresholds[iteration]
            if count <= 0:
                continue
            self._waits += 1
            history = self._history[awaited]
            if count > len(history):
                self._deadlock(site, iteration, awaited, count)
            if count <= known[awaited]:
                self._implied += 1
                continue
            merged = list(map(max, known, history[count - 1]))
            merged[awaited] = count
            known = self._known[slot] = tuple(merged)
        self._history[slot].append(known)
        self._sites[slot].append((site, iteration))
        return known

    def _row(self, slot: int, known: tuple[int, ...]) -> Array:
        """``known``, what stream ``slot`` knows, as NumPy sees it."""
        if self._rows[slot][0] is not known:
            self._rows[slot] = (known, np.array(known))
        return self._rows[slot][1]

    def _read(self, site: Site, iteration: int, footprint: int, position: int, known: tuple[int, ...]) -> None:
        slot, numbers = site.slot, self._short[footprint]
        self._accesses += 1
        if slot not in self._reading:
            self._reading.append(slot)
        if numbers is None:
            classes = self._classes[footprint]
            late = self._writes[classes] > self._row(slot, known)[self._writers[classes]]
            for number in self._footprints.members(footprint)[late].tolist() if np.count_nonzero(late) else ():
                self._conflict(site, iteration, footprint, number, self._writer[number], self._written[number], False)
            self._reads[slot][classes] = position
            return
        writer, written, readers = self._writer, self._written, self._readers[slot]
        for number in numbers:
            if written[number] > known[writer[number]]:
                self._conflict(site, iteration, footprint, number, writer[number], written[number], False)
            readers[number] = position

    def _check_write(self, site: Site, iteration: int, footprint: int, known: tuple[int, ...], busy: list[int]) -> None:
        """``busy``: streams that may be at work on something they read."""
        numbers = self._short[footprint]
        if numbers is None:
            classes = self._classes[footprint]
            for reader in busy:
                reads = self._reads[reader][classes]
                if reads.max() > known[reader]:
                    late = reads > known[reader]
                    numbers = self._footprints.members(footprint)[late].tolist()
                    for number, read in zip(numbers, reads[late].tolist(), strict=True):
                        self._conflict(site, iteration, footprint, number, reader, read, True)
            written_at = self._writes[classes]
            late = written_at > self._row(site.slot, known)[self._writers[classes]]
            if not np.count_nonzero(late):
                return
            for number in self._footprints.members(footprint)[late & (written_at != _NEVER)].tolist():
                self._conflict(site, iteration, footprint, number, self._writer[number], self._written[number], True)
            return
        for reader in busy:
            readers, limit = self._readers[reader], known[reader]
            for number in numbers:
                if readers[number] > limit:
                    self._conflict(site, iteration, footprint, number, reader, readers[number], True)
        writer, written = self._writer, self._written
        for number in numbers:
            if written[number] > known[writer[number]]:
                self._conflict(site, iteration, footprint, number, writer[number], written[number], True)

    def _write(self, slot: int, footprint: int, position: int) -> None:
        numbers = self._short[footprint]
        self._accesses += 1
        if numbers is None:
            classes = self._classes[footprint]
            for reader in self._reading:
                self._reads[reader][classes] = 0
            self._writers[classes] = slot
            self._writes[classes] = position
            return
        writer, written = self._writer, self._written
        for reader in self._reading:
            readers = self._readers[reader]
            for number in numbers:
                readers[number] = 0
        for number in numbers:
            writer[number] = slot
            written[number] = position

    def _conflict(
        self,
        site: Site,
        iteration: int,
        footprint: int,
        number: int,
        other_slot: int,
        other_position: int,
        write: bool,
    ) -> None:
        """The other access is not known to be complete: a race, unless only the hulls meet."""
        if other_position == _NEVER:
            if not write:
                self._undefined(site, footprint)
            return
        other, other_iteration = self._sites[other_slot][other_position - 1]
        touching = [
            (candidates[other_iteration], kind)
            for group, kind in ((other.writes, "writes"), (other.reads, "reads"))
            for candidates in group
            if number in self._footprints.members(candidates[other_iteration]) and (write or kind == "writes")
        ]
        exact = [(each, kind) for each, kind in touching if self._footprints.overlap(footprint, each)]
        if not exact:
            return  # only the hulls of scattered footprints meet
        mine, theirs = STREAMS[site.slot].name.lower(), STREAMS[other_slot].name.lower()
        what = self._bytes(footprint)
        raise RunError(
            "ERUN911",
            f"race: {self._name(site, iteration)} {'writes' if write else 'reads'} {what} while\n"
            f"  {self._name(other, other_iteration)}, which {exact[0][1]} {self._bytes(exact[0][0])}, may be running\n"
            f"  missing: {mine} has to wait until {theirs} has finished {other_position} instructions; "
            f"it knows of {self._history[site.slot][-1][other_slot]}",
            "report it; the program was synchronised wrongly",
            location(self._program, site.row),
        )

    def _undefined(self, site: Site, footprint: int) -> NoReturn:
        raise RunError(
            "ERUN912",
            f"{self._name(site, 0)} reads {self._bytes(footprint)}, part of which nothing has written",
            "report it; the program uses memory before it is defined",
            location(self._program, site.row),
        )

    def _deadlock(self, site: Site, iteration: int, awaited: int, count: int) -> NoReturn:
        stream = STREAMS[awaited]
        raise RunError(
            "ERUN913",
            f"deadlock: {self._name(site, iteration)} waits until {stream.name.lower()} has finished {count} "
            f"instructions, but only {len(self._history[awaited])} are issued before it",
            "report it; the program was synchronised wrongly",
            location(self._program, site.row),
        )

    def _name(self, site: Site, iteration: int) -> str:
        return describe(self._program, site.row, iteration)

    def _bytes(self, footprint: int) -> str:
        pattern, base = self._footprints.at(footprint)
        rows = "" if pattern.space is Space.HBM else f" partitions {pattern.first}..{pattern.last - 1}"
        scattered = f" ({pattern.runs} runs of {pattern.run})" if pattern.runs > 1 else ""
        return f"{pattern.space.name}{rows} bytes {base}..{base + pattern.extent - 1}{scattered}"
