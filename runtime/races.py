"""The race check: proves that semaphores order every pair of conflicting accesses of a program.

Input: a ``Program``. Output: a ``RaceSummary``, or a RunError that names both instructions, their HLO ops and the
missing wait. The check does not depend on data. It looks at all dynamic instructions (``race_trace``), in four steps:
which instructions each one knows to be complete when it starts (``race_clocks``), whether all that is read has been
written (``race_undefined``), and whether accesses to common bytes (``footprints``) are ordered (``race_pairs``).

Addresses from ``reg_load``, or from the count of a region, count as touching all that the register's range allows.

A region begins and ends with everything complete, and so does each of its iterations: its body is looked at once, with
counts from 0, and what holds for that iteration holds for all. Memory that only a region defines, whose body may not be
run at all, is undefined after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuronx_cc.ir import collector
from neuronx_cc.ir.errors import COMPILE_AGAIN, RunError
from neuronx_cc.ir.isa.program import Program, Stream
from neuronx_cc.runtime.intervals import union
from neuronx_cc.runtime.race_clocks import Clocks, DeadlockError, clocks_of
from neuronx_cc.runtime.race_pairs import Conflict, find_conflict
from neuronx_cc.runtime.race_sites import describe, location
from neuronx_cc.runtime.race_trace import STREAMS, Trace, Unrolling
from neuronx_cc.runtime.race_undefined import find_undefined


@dataclass(slots=True, frozen=True)
class RaceSummary:
    """What was proved."""

    instructions: int
    """Dynamic instructions; bodies of regions count once."""
    accesses: int
    """Dynamic operand accesses."""
    waits: int
    """Dynamic waits for a positive count."""
    implied_waits: int
    """Of these, how many could be dropped: earlier waits imply them."""
    finished: dict[Stream, int]
    """Final value of each progress semaphore."""
    exact: bool
    """Whether all that is read has been written for certain: no address depends on values of the run."""


def check(program: Program) -> RaceSummary:
    """Prove the program free of races, deadlocks and reads of undefined memory.

    Raises RunError: ERUN911 race, ERUN912 read of memory that nothing has written, ERUN913 wait that never ends,
    ERUN914 address outside its memory, ERUN920 more dynamic instructions than are looked at. The summary is kept with
    the program, so that only its first run pays.
    """
    if not isinstance(program.race_summary, RaceSummary):
        program.race_summary = _proved(program)
    return program.race_summary


@collector.paused()
def _proved(program: Program) -> RaceSummary:
    trace = Unrolling(program).run()
    try:
        clocks = clocks_of(trace)
    except DeadlockError as deadlock:
        raise _deadlock(program, trace, deadlock) from None
    defined = [(each.offset, each.nbytes) for each in program.variables if each.kind in ("input", "constant", "device")]
    starts, sizes = np.array(defined, np.int64).reshape(-1, 2).T
    undefined = find_undefined(trace, clocks, union(starts, starts + sizes))
    conflict = find_conflict(trace, clocks)
    at = trace.accesses.at
    if conflict is not None and (undefined is None or at[conflict.later] <= at[undefined]):
        raise _race(program, trace, clocks, conflict)
    if undefined is not None:
        raise _undefined(program, trace, undefined)
    counts = np.bincount(trace.slots, minlength=len(STREAMS)).tolist()
    finished = {stream: count for stream, count in zip(STREAMS, counts, strict=True) if count}
    waits = len(trace.waits.at)
    return RaceSummary(len(trace.slots), len(at), waits, clocks.implied, finished, trace.exact)


def _race(program: Program, trace: Trace, clocks: Clocks, conflict: Conflict) -> RunError:
    accesses, footprints = trace.accesses, trace.footprints
    later, earlier = int(accesses.at[conflict.later]), int(accesses.at[conflict.earlier])
    slot, other = int(trace.slots[later]), int(trace.slots[earlier])
    mine, theirs = STREAMS[slot].name.lower(), STREAMS[other].name.lower()
    does, did = ("writes" if accesses.write[each] else "reads" for each in (conflict.later, conflict.earlier))
    what, which = (footprints.text(int(accesses.footprint[each])) for each in (conflict.later, conflict.earlier))
    return RunError(
        "ERUN911",
        f"race: {_name(program, trace, later)} {does} {what} while\n"
        f"  {_name(program, trace, earlier)}, which {did} {which}, may be running\n"
        f"  missing: {mine} has to wait until {theirs} has finished {clocks.positions[earlier]} instructions; "
        f"it knows of {clocks.known[clocks.versions[later], other]}",
        COMPILE_AGAIN,
        location(program, int(trace.rows[later])),
    )


def _undefined(program: Program, trace: Trace, access: int) -> RunError:
    at = int(trace.accesses.at[access])
    what = trace.footprints.text(int(trace.accesses.footprint[access]))
    return RunError(
        "ERUN912",
        f"{_name(program, trace, at)} reads {what}, part of which nothing has written",
        COMPILE_AGAIN,
        location(program, int(trace.rows[at])),
    )


def _deadlock(program: Program, trace: Trace, deadlock: DeadlockError) -> RunError:
    stream = STREAMS[deadlock.awaited].name.lower()
    return RunError(
        "ERUN913",
        f"deadlock: {_name(program, trace, deadlock.at)} waits until {stream} has finished {deadlock.count} "
        f"instructions, but only {deadlock.issued} are issued before it",
        COMPILE_AGAIN,
        location(program, int(trace.rows[deadlock.at])),
    )


def _name(program: Program, trace: Trace, at: int) -> str:
    return describe(program, int(trace.rows[at]), trace.iteration(at))
