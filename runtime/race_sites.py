"""What the race check reads off the records of a program: operands, nesting, and the words of its messages."""

from __future__ import annotations

from collections.abc import Sequence

from neuronx_cc.ir.errors import NO_LOC, Loc, RunError
from neuronx_cc.ir.isa.program import Branch, Else, Instr, Loop, Program, Record, Ref, While

_READ_MODIFY_WRITE = {
    "copy_predicated": True,
    "multiply_moving": "accumulate",
    "dma_scatter": True,
    "group_gather": "keep",
    "group_scatter": True,
}
"""Instructions that read their first result, always or under a flag."""


def operands(instr: Instr) -> tuple[tuple[Ref, ...], tuple[Ref, ...]]:
    """What an instruction reads, and what it writes."""
    if instr.op in _READ_MODIFY_WRITE and _reads_result(instr):
        return (*instr.ins, instr.outs[0]), instr.outs
    return instr.ins, instr.outs


def _reads_result(instr: Instr) -> bool:
    condition = _READ_MODIFY_WRITE[instr.op]
    return condition is True or condition in instr.flags


def check_nesting(marked: Sequence[tuple[int, Record]]) -> None:
    """``marked`` are records with their numbers, all loops and regions among them.

    Raises RunError EBIR902 where they do not nest.
    """
    opened: list[Record] = []
    cases: list[int] = []
    for row, record in marked:
        if isinstance(record, Instr):
            continue
        if isinstance(record, Loop | While | Branch):
            if not isinstance(record, Loop) and opened and isinstance(opened[-1], Loop):
                raise RunError("EBIR902", f"the region at record {row} is inside a counted loop")
            opened.append(record)
            cases.append(1)
        elif not opened:
            raise RunError("EBIR902", f"record {row} ends a loop that is not open")
        elif isinstance(record, Else):
            cases[-1] += 1
            if not isinstance(opened[-1], Branch):
                raise RunError("EBIR902", f"record {row} begins a case of no branch")
        else:
            start, begun = opened.pop(), cases.pop()
            if isinstance(start, Branch) and begun != start.cases:
                raise RunError("EBIR902", f"the branch that record {row} ends has {begun} cases, not {start.cases}")
    if opened:
        raise RunError("EBIR902", "a loop has no end")


def location(program: Program, row: int) -> Loc:
    """HLO op and source line of the instruction at record ``row``."""
    record = program.records[row]
    if not isinstance(record, Instr) or record.debug >= len(program.debug):
        return NO_LOC
    debug = program.debug[record.debug]
    return Loc(debug.hlo, debug.op_name, debug.source_file, debug.source_line)


def describe(program: Program, row: int, iteration: int = 0) -> str:
    """The instruction at record ``row`` in words."""
    record = program.records[row]
    assert isinstance(record, Instr)
    origin = f" of %{program.debug[record.debug].hlo}" if record.debug < len(program.debug) else ""
    trip = f", iteration {iteration}" if iteration else ""
    return f"{record.op} on {record.stream.name.lower()} (record {row}{trip}{origin})"
