"""A program as nests of sites: every address and every threshold for every iteration, for the race check.

Input: a ``Program``. Output: a ``Nest`` of ``Site``s, whose operands are footprint numbers (``footprints``). Addresses
from ``reg_load``, or from the count of a region, become the set of all that the register's range allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from neuronx_cc.ir.errors import NO_LOC, Loc, RunError
from neuronx_cc.ir.isa.format import BRANCH, ELSE, END, INSTRUCTION, LOOP, WHILE
from neuronx_cc.ir.isa.program import DECIDER, Branch, Else, Instr, Loop, Program, Record, Ref, Stream, While
from neuronx_cc.ir.isa.registers import Load, RegisterRanges
from neuronx_cc.runtime.footprints import Dims, Footprints

Array = np.ndarray[Any, np.dtype[Any]]

STREAMS = tuple(Stream)
"""A stream's place here is its slot."""
_SLOT = {stream: slot for slot, stream in enumerate(STREAMS)}
_READ_MODIFY_WRITE = {
    "copy_predicated": True,
    "multiply_moving": "accumulate",
    "dma_scatter": True,
    "group_gather": "keep",
    "group_scatter": True,
}
"""Instructions that read their first result, always or under a flag."""


@dataclass(slots=True)
class Site:
    """One instruction of the program, for all iterations. Lists are indexed by iteration of the whole nest."""

    row: int
    slot: int
    waits: list[tuple[int, list[int]]]
    reads: list[list[int]]
    writes: list[list[int]]


@dataclass(slots=True)
class Nest:
    """A loop (or the whole program, once)."""

    count: int
    body: list[Site | Nest | Area] = field(default_factory=list)


@dataclass(slots=True)
class Area:
    """A region: what each case does, once."""

    certain: bool
    """Whether one of the cases is always run."""
    cases: list[Nest] = field(default_factory=list)


def operands(instr: Instr) -> tuple[tuple[Ref, ...], tuple[Ref, ...]]:
    """What an instruction reads, and what it writes."""
    condition = _READ_MODIFY_WRITE.get(instr.op)
    if condition is True or condition in instr.flags:
        return (*instr.ins, instr.outs[0]), instr.outs
    return instr.ins, instr.outs


def _check_nesting(records: Sequence[Record]) -> None:
    opened: list[Record] = []
    cases: list[int] = []
    for row, record in enumerate(records):
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


class Lowering:
    """Turns records into nests of sites: every address and threshold for every iteration."""

    def __init__(self, program: Program, footprints: Footprints) -> None:
        self._program = program
        self._footprints = footprints
        kind_of = {Instr: INSTRUCTION, Loop: LOOP, While: WHILE, Branch: BRANCH, Else: ELSE}
        kinds = [kind_of.get(type(record), END) for record in program.records]
        _check_nesting(program.records)
        loads = [
            Load(row, record.stream, *map(int, record.imm))
            for row, record in enumerate(program.records)
            if isinstance(record, Instr) and record.op == "reg_load"
        ]
        self._ranges = RegisterRanges(kinds, loads)
        self._values: dict[int, Array] = {}
        """Loop or phase register -> its value in each iteration of the current nest."""
        self._iterations = 1

    def run(self) -> Nest:
        stack = [(Nest(1), self._values, 1)]
        areas: list[Area | None] = []
        """For each open loop None, for each open region its area."""
        for row, record in enumerate(self._program.records):
            if isinstance(record, Instr):
                stack[-1][0].body.append(self._site(row, record))
                self._ranges.step(row)
            elif isinstance(record, Loop):
                counted = [(record.register, record.count), *record.phases]
                self._ranges.enter(row, record.streams or STREAMS, counted)
                nest = Nest(record.count)
                stack[-1][0].body.append(nest)
                stack.append((nest, self._values, self._iterations))
                areas.append(None)
                self._enter(record)
            elif isinstance(record, While | Branch):
                opened = self._area(row, record)
                areas.append(opened)
                stack[-1][0].body.append(opened)
                stack.append((opened.cases[0], self._values, self._iterations))
            elif isinstance(record, Else):
                self._ranges.next_case()
                area = areas[-1]
                assert area is not None
                area.cases.append(Nest(1))
                stack[-1] = (area.cases[-1], self._values, self._iterations)
            else:
                _, self._values, self._iterations = stack.pop()
                area = areas.pop()
                if area is None:
                    self._ranges.leave()
                else:
                    self._ranges.leave_region(area.certain)
        return stack[0][0]

    def _area(self, row: int, region: While | Branch) -> Area:
        trips = region.count if isinstance(region, While) else 0
        if not trips:
            held = self._ranges.range_of(DECIDER, region.register)
            least, most = (0, region.cases - 1) if isinstance(region, Branch) else (-(1 << 32), 1 << 32)
            if held is None or held[0] < least or held[1] > most:
                what = "nothing" if held is None else f"{held[0]} to {held[1]}"
                raise RunError("EBIR902", f"the register that decides the region at record {row} holds {what}")
        self._ranges.enter_region(row, STREAMS, (region.register, trips) if trips else None)
        return Area(isinstance(region, Branch) or trips > 0, [Nest(1)])

    def _enter(self, loop: Loop) -> None:
        self._values = {register: np.repeat(values, loop.count) for register, values in self._values.items()}
        begun = np.arange(self._iterations * loop.count)
        self._values[loop.register] = begun % loop.count
        for register, modulus in loop.phases:
            self._values[register] = begun % modulus
        self._iterations *= loop.count

    def _site(self, row: int, instr: Instr) -> Site:
        waits = []
        for wait in instr.waits:
            threshold: Any = wait.count
            for register, coef in wait.coefs:
                if register not in self._values:
                    self._fail(row, f"a wait depends on register {register}, which no loop counts")
                threshold = threshold + coef * self._values[register]
            waits.append((_SLOT[wait.stream], self._per_iteration(threshold)))
        reads, writes = operands(instr)
        try:
            return Site(
                row,
                _SLOT[instr.stream],
                waits,
                [self._numbers(row, instr, ref, False) for ref in reads if 0 not in ref.counts],
                [self._numbers(row, instr, ref, True) for ref in writes if 0 not in ref.counts],
            )
        except RunError as error:
            self._fail(row, error.message, error.code)

    def _per_iteration(self, value: Any) -> list[int]:
        if isinstance(value, int):
            return [value] * self._iterations
        values: list[int] = value.tolist()
        return values

    def _numbers(self, row: int, instr: Instr, ref: Ref, write: bool) -> list[int]:
        """The footprint of an operand in each iteration."""
        spread: Dims = ()
        offset: Any = 0
        for register, stride in ref.coefs:
            found = self._ranges.range_of(instr.stream, register)
            if found is None:
                self._fail(row, f"an address depends on register {register}, which nothing sets")
            if self._ranges.is_loaded(instr.stream, register):
                spread += ((found[1] - found[0] + 1, stride),)
                offset = offset + stride * found[0]
            else:
                offset = offset + stride * self._values[register]
        pattern, base = self._footprints.pattern(ref, spread)
        if isinstance(offset, int):
            return [self._footprints.add(pattern, base + offset, write)] * self._iterations
        return self._footprints.add_all(pattern, base + offset, write)

    def _fail(self, row: int, message: str, code: str = "ERUN913") -> NoReturn:
        raise RunError(code, f"{describe(self._program, row)}: {message}", "", location(self._program, row))


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
