"""The time that devices with programs of their own take together, each waiting for those that it meets.

Input: one execution for each device. The clock times each by itself; here the stretches between its collectives are put
after the meetings that they follow. What a program could do meanwhile is taken to wait too, so the time is an upper
bound; the slowest device by itself is a lower one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from neuronx_cc.ir.isa.collectives import exchange_of, role_of
from neuronx_cc.runtime.clock import Event, Timing
from neuronx_cc.runtime.profiling.execution import Execution


@dataclass(slots=True)
class _Meetings:
    """A watcher: when a device by itself comes to its collectives, and has their results. Times in ns."""

    execution: Execution
    total: float
    found: list[tuple[tuple[int, ...], float, float]] = field(default_factory=list)
    repeated: bool = False
    """Some stand in what the clock shows once and counts several times."""
    _repeats: int = 1

    def piece(self, begin: float, duration: float, repeats: int) -> None:
        self._repeats = repeats

    def instruction(self, event: Event) -> None:
        instr = event.node.instr
        if instr.op != "collective":
            return
        role = role_of(exchange_of(instr), self.execution.program.groups[int(instr.imm[0])], self.execution.device)
        if role.members:
            self.repeated |= self._repeats > 1
            self.found.append((role.members, event.start, event.done))


def time_together(executions: Sequence[Execution]) -> float | None:
    """ns from the common start until the last device is done, without preamble and postamble.

    None where the collectives of a loop would have to be told apart.
    """
    known = [execution.watch(partial(_watcher, execution))[1] for execution in executions]
    if any(each.repeated for each in known):
        return None
    at = [0] * len(known)
    shift = [0.0] * len(known)
    moved = True
    while moved:
        moved = False
        for each, place in zip(known, at, strict=True):
            if place == len(each.found):
                continue
            members = each.found[place][0]
            if any(at[m] == len(known[m].found) or known[m].found[at[m]][0] != members for m in members):
                continue
            start = max(known[member].found[at[member]][1] + shift[member] for member in members)
            for member in members:
                shift[member] = start - known[member].found[at[member]][1]
                at[member] += 1
            moved = True
    return max(each.total + late for each, late in zip(known, shift, strict=True))


def _watcher(execution: Execution, timing: Timing) -> _Meetings:
    return _Meetings(execution, timing.total)
