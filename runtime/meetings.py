"""Whether programs of several devices meet: known before they run, as far as no run-time value decides it.

Input: one program for each device. The collectives of a device come in the order of its stream; those inside loops and
regions, and all after them, are left to the run, where the fabric compares the same facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronx_cc.ir.isa.collectives import Role, exchange_of, role_of
from neuronx_cc.ir.isa.outside import Exchange
from neuronx_cc.ir.isa.program import Branch, End, Instr, Loop, Program, While


@dataclass(frozen=True, slots=True)
class _Coming:
    """A collective of one device that meets others."""

    role: Role
    name: str
    """Its HLO op and source line."""


def problem(programs: Sequence[Program]) -> str:
    """How the programs of devices 0, 1, ... fail to meet; empty where nothing shows."""
    known = [_meetings(program, device) for device, program in enumerate(programs)]
    at = [0] * len(programs)
    moved = True
    while moved:
        moved = False
        for device, (coming, _) in enumerate(known):
            if at[device] == len(coming):
                continue
            here = coming[at[device]]
            members, mine = here.role.members, here.role.exchange
            present = {each: known[each][0][at[each]] for each in members if at[each] < len(known[each][0])}
            if any(each not in present or present[each].role.members != members for each in members):
                continue
            for other, there in present.items():
                if there.role.exchange != mine:
                    said = differing(device, mine, other, there.role.exchange)
                    return f"{said} ({here.name} and {there.name})"
                at[other] += 1
            moved = True
    stuck = [device for device, (coming, _) in enumerate(known) if at[device] < len(coming)]
    if not stuck or any(more and at[device] == len(coming) for device, (coming, more) in enumerate(known)):
        return ""
    return "; ".join(_waits(device, known[device][0][at[device]], known, at) for device in stuck)


def differing(device: int, exchange: Exchange, other: int, others: Exchange) -> str:
    """That two devices meet for different things."""
    first, second = sorted([(device, str(exchange)), (other, str(others))])
    return f"device {first[0]} comes to {first[1]}, where device {second[0]} comes to {second[1]}"


def _waits(device: int, here: _Coming, known: list[tuple[list[_Coming], bool]], at: list[int]) -> str:
    """For whom ``device`` waits, and where those are meanwhile."""
    elsewhere = []
    for member in here.role.members:
        coming = known[member][0][at[member] :]
        if not coming:
            elsewhere.append(f"device {member} is at its end")
        elif coming[0].role.members != here.role.members:
            elsewhere.append(f"device {member} is at {coming[0].role.exchange} ({coming[0].name})")
    return f"device {device} waits in {here.role.exchange} ({here.name}), but {' and '.join(elsewhere)}"


def _meetings(program: Program, device: int) -> tuple[list[_Coming], bool]:
    """The collectives that ``device`` meets others in, and whether more follow that only the run knows."""
    found: list[_Coming] = []
    depth = 0
    for record in program.records:
        if isinstance(record, Loop | While | Branch):
            depth += 1
        elif isinstance(record, End):
            depth -= 1
        elif isinstance(record, Instr) and record.op == "collective":
            role = role_of(exchange_of(record), program.groups[int(record.imm[0])], device)
            if not role.members:
                continue
            if depth:
                return found, True
            place = program.debug[record.debug]
            found.append(_Coming(role, ", ".join(filter(None, [f"%{place.hlo}", place.place]))))
    return found, False
