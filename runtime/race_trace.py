"""The dynamic instructions of a program, for the race check: every address and threshold of every iteration.

Input: a ``Program``. Output: a ``Trace``, whose tables have a row for each dynamic instruction, wait and access in
emission order. Nothing is executed: counted loops are unrolled by arithmetic, all iterations of a record at once.
Addresses from ``reg_load``, or from the count of a region, become the set of all that the register's range allows.

Regions cut the program into ``Piece``s: barriers, at which everything is complete, stand between any two. The body of
a region is unrolled once, with counts from 0, and what holds for that iteration holds for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any, NoReturn, TypeAlias

import numpy as np

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.format import BRANCH, ELSE, END, INSTRUCTION, LOOP, WHILE
from neuronx_cc.ir.isa.program import DECIDER, Branch, Else, Instr, Loop, Program, Ref, Stream, While
from neuronx_cc.ir.isa.registers import Load, RegisterRanges
from neuronx_cc.runtime.footprints import Dims, Footprints, Patterns
from neuronx_cc.runtime.host_memory import require
from neuronx_cc.runtime.intervals import Array
from neuronx_cc.runtime.race_sites import check_nesting, describe, dynamic_rows, location, loop_sizes, operands

MAX_ROWS = 1 << 25
"""Loops of compiled programs stream data through SBUF, so memory itself bounds their trips; what is repeated more often
is a region. A ConvMixer of 32 layers has 17 million: half of them are depthwise convolutions once more, group by group,
in case that sums are not finite."""
ROW_BYTES = 64
"""Of the host's memory, about, until they are checked."""
FEW = 32
"""Instructions that are not worth columns."""
STREAMS = tuple(Stream)
"""A stream's place here is its slot."""
_SLOT = {stream: slot for slot, stream in enumerate(STREAMS)}
_coefs = attrgetter("coefs")


@dataclass(slots=True)
class Piece:
    """Dynamic instructions ``first..last-1``, between two barriers."""

    number: int
    first: int
    base: list[int]
    """What the progress semaphore of each slot says at the start."""
    last: int = 0


@dataclass(slots=True)
class Area:
    """A region: what each case does, once."""

    certain: bool
    """Whether one of the cases is always run."""
    cases: list[Block] = field(default_factory=lambda: [[]])


Block: TypeAlias = "list[Piece | Area]"
"""Pieces and regions in order."""


@dataclass(slots=True)
class Waits:
    """Dynamic waits for a positive count: instruction, slot that it waits for, count."""

    at: Array
    awaited: Array
    count: Array


@dataclass(slots=True)
class Accesses:
    """Dynamic accesses, the reads of an instruction ahead of its writes."""

    at: Array
    footprint: Array
    write: Array


@dataclass(slots=True)
class Trace:
    """All dynamic instructions, numbered in emission order."""

    rows: Array
    """Record of each instruction."""
    slots: Array
    """Stream of each instruction."""
    waits: Waits
    accesses: Accesses
    footprints: Footprints
    pieces: list[Piece]
    root: Block
    exact: bool
    """Whether no address depends on values of the run."""

    def iteration(self, at: int) -> int:
        """How often the record of instruction ``at`` has been executed before."""
        return int(np.count_nonzero(self.rows[:at] == self.rows[at]))


class _Table:
    """Rows (instruction, tag, value) that come one by one, many at a time, or for all iterations of a loop; in the end
    the columns."""

    def __init__(self) -> None:
        self._single: list[tuple[int, int, int, int]] = []
        self._several: list[Array] = []
        self._looped: list[tuple[Array, int, int, Any]] = []
        self._last: int | Array = -1
        self._rank = 0

    def add(self, at: int | Array, tag: int, value: Any) -> None:
        """``at`` numbers the instruction, or those of all iterations, between which ``value`` may differ.

        The rows of an instruction come one after the other, with the same object ``at``.
        """
        rank = self._rank = self._rank + 1 if at is self._last else 0
        self._last = at
        if isinstance(at, int):
            self._single.append((at, rank, tag, value))
        else:
            self._looped.append((at, rank, tag, value))

    def extend(self, at: Array, tags: Array, values: Array) -> None:
        """Rows of instructions that are in no loop, all rows of each; ``at`` ascends."""
        firsts = np.flatnonzero(np.diff(at, prepend=-1))
        ranks = np.arange(len(at)) - np.repeat(firsts, np.diff(firsts, append=len(at)))
        self._several.append(np.stack([at, ranks, tags, values]))

    def columns(self) -> tuple[Array, Array, Array]:
        """All rows by instruction; those of one instruction as they came."""
        single = np.fromiter(chain.from_iterable(self._single), np.int64, 4 * len(self._single)).reshape(-1, 4).T
        single = np.concatenate([single, *self._several], axis=1)
        sizes = np.bincount(np.concatenate([single[0], *(at for at, _, _, _ in self._looped)]))
        starts = np.cumsum(sizes) - sizes
        tags, values = np.empty((2, int(sizes.sum())), np.int64)
        places = starts[single[0]] + single[1]
        tags[places], values[places] = single[2], single[3]
        for at, rank, tag, value in self._looped:
            places = starts[at] + rank
            tags[places], values[places] = tag, value
        return np.repeat(np.arange(len(sizes)), sizes), tags, values


class Unrolling:
    """Turns records into the tables of a ``Trace``."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._patterns = Patterns()
        kind_of = {Instr: INSTRUCTION, Loop: LOOP, While: WHILE, Branch: BRANCH, Else: ELSE}
        kinds = [kind_of.get(type(record), END) for record in program.records]
        check_nesting(program.records)
        rows = dynamic_rows(program.records)
        if rows > MAX_ROWS:
            raise RunError(
                "ERUN920",
                f"{len(program.records)} records make {rows} instructions, waits and accesses when their loops run; "
                f"the race check looks at up to {MAX_ROWS}",
            )
        require(rows * ROW_BYTES, lambda: f"the race check of {rows} instructions, waits and accesses")
        loads = [
            Load(row, record.stream, *map(int, record.imm))
            for row, record in enumerate(program.records)
            if isinstance(record, Instr) and record.op == "reg_load"
        ]
        self._ranges = RegisterRanges(kinds, loads)
        self._sizes = loop_sizes(program.records)
        self._values: dict[int, Array] = {}
        """Loop or phase register -> its value in each iteration of the current nest."""
        self._starts: int | Array = 0
        """The instruction with which each iteration of the innermost loop begins; outside of loops only one."""
        self._offset = 0
        """Instructions of the iteration so far."""
        self._iterations = 1
        self._instrs, self._waits, self._accesses = _Table(), _Table(), _Table()
        self._pieces: list[Piece] = []
        self._counts = [[0] * len(STREAMS)]
        """Dynamic instructions of each stream in the open case, for the program and each open region."""
        self._exact = True
        self._blocks: list[Block] = [[]]
        """The program's, and those of the open cases."""
        self._areas: list[Area] = []
        self._loops: list[tuple[dict[int, Array], int | Array, int, int] | None] = []
        """For each open loop the state after it, for each open region None."""

    def run(self) -> Trace:
        """Raises RunError: ERUN914 address outside its memory; ERUN913, EBIR902 registers that nothing sets."""
        self._piece()
        straight: list[Instr] = []
        for row, record in enumerate(self._program.records):
            if isinstance(record, Instr):
                if self._iterations == 1 and isinstance(self._starts, int):
                    straight.append(record)
                    continue
                self._one(row, record)
                continue
            if straight:
                self._straight(row - len(straight), straight)
                straight = []
            if isinstance(record, Loop):
                self._enter_loop(row, record)
            elif isinstance(record, While | Branch):
                self._enter_region(row, record)
            elif isinstance(record, Else):
                self._next_case()
            else:
                outer = self._loops.pop()
                if outer is None:
                    self._leave_region()
                else:
                    self._values, self._starts, self._offset, self._iterations = outer
                    self._ranges.leave()
        if straight:
            self._straight(len(self._program.records) - len(straight), straight)
        self._pieces[-1].last = self._offset
        return self._trace()

    def _piece(self) -> None:
        """A barrier: what follows begins with everything complete."""
        if self._pieces:
            self._pieces[-1].last = self._offset
        self._pieces.append(Piece(len(self._pieces), self._offset, list(self._counts[-1])))
        self._blocks[-1].append(self._pieces[-1])

    def _trace(self) -> Trace:
        self._pieces[-1].last = self._offset
        slots = [_SLOT[record.stream] if isinstance(record, Instr) else -1 for record in self._program.records]
        _, rows, _ = self._instrs.columns()
        at, tags, bases = self._accesses.columns()
        patterns, writes = tags >> 1, (tags & 1).astype(bool)
        outside = self._patterns.outside(patterns, bases)
        if len(outside):
            first = int(outside[np.argmin(rows[at[outside]])])
            row, what = int(rows[at[first]]), self._patterns.text(int(patterns[first]), int(bases[first]))
            self._fail(row, f"an operand leaves its memory: {what}", "ERUN914")
        waiting, awaited, counts = self._waits.columns()
        positive = counts > 0
        footprints, numbers = Footprints.of(self._patterns, patterns, bases, writes)
        return Trace(
            rows,
            np.array(slots, np.int8)[rows],
            Waits(waiting[positive], awaited[positive], counts[positive]),
            Accesses(at, numbers, writes),
            footprints,
            self._pieces,
            self._blocks[0],
            self._exact,
        )

    def _enter_loop(self, row: int, loop: Loop) -> None:
        self._ranges.enter(row, loop.streams or STREAMS, [(loop.register, loop.count), *loop.phases])
        after = self._offset + loop.count * self._sizes[row]
        self._loops.append((self._values, self._starts, after, self._iterations))
        self._values = {register: np.repeat(values, loop.count) for register, values in self._values.items()}
        begun = np.arange(self._iterations * loop.count)
        self._values[loop.register] = begun % loop.count
        for register, modulus in loop.phases:
            self._values[register] = begun % modulus
        trips = np.arange(loop.count) * self._sizes[row] + self._offset
        self._starts = (np.reshape(self._starts, (-1, 1)) + trips).reshape(-1)
        self._iterations *= loop.count
        self._offset = 0

    def _enter_region(self, row: int, region: While | Branch) -> None:
        trips = region.count if isinstance(region, While) else 0
        if not trips:
            held = self._ranges.range_of(DECIDER, region.register)
            least, most = (0, region.cases - 1) if isinstance(region, Branch) else (-(1 << 32), 1 << 32)
            if held is None or held[0] < least or held[1] > most:
                what = "nothing" if held is None else f"{held[0]} to {held[1]}"
                raise RunError("EBIR902", f"the register that decides the region at record {row} holds {what}")
        self._ranges.enter_region(row, STREAMS, (region.register, trips) if trips else None)
        area = Area(isinstance(region, Branch) or trips > 0)
        self._loops.append(None)
        self._areas.append(area)
        self._blocks[-1].append(area)
        self._blocks.append(area.cases[0])
        self._counts.append([0] * len(STREAMS))
        self._piece()

    def _next_case(self) -> None:
        self._ranges.next_case()
        self._areas[-1].cases.append([])
        self._blocks[-1] = self._areas[-1].cases[-1]
        self._counts[-1] = [0] * len(STREAMS)
        self._piece()

    def _leave_region(self) -> None:
        self._blocks.pop()
        self._counts.pop()
        self._ranges.leave_region(self._areas.pop().certain)
        self._piece()

    def _straight(self, row: int, instrs: list[Instr]) -> None:
        """Instructions that are in no loop, from record ``row`` on: all at once but for those that need registers."""
        moves = map(any, (map(_coefs, (*each.waits, *each.outs, *each.ins)) for each in instrs))
        apart = [
            at for at, (each, moved) in enumerate(zip(instrs, moves, strict=True)) if moved or each.op == "reg_load"
        ]
        begin = 0
        for at in [*apart, len(instrs)]:
            self._fixed(row + begin, instrs[begin:at])
            if at < len(instrs):
                self._one(row + at, instrs[at])
            begin = at + 1

    def _one(self, row: int, instr: Instr) -> None:
        self._instr(row, instr)
        self._ranges.step(row)

    def _fixed(self, row: int, instrs: list[Instr]) -> None:
        """The same of instructions whose addresses and thresholds are numbers."""
        count = len(instrs)
        if count < FEW:
            for at, instr in enumerate(instrs):
                self._one(row + at, instr)
            return
        ats = np.arange(self._offset, self._offset + count)
        self._offset += count
        slots = np.fromiter(map(_SLOT.__getitem__, map(attrgetter("stream"), instrs)), np.int64, count)
        for slot, number in enumerate(np.bincount(slots).tolist()):
            self._counts[-1][slot] += number
        self._instrs.extend(ats, np.arange(row, row + count), np.zeros(count, np.int64))
        waits = list(chain.from_iterable(map(attrgetter("waits"), instrs)))
        self._waits.extend(
            np.repeat(ats, np.fromiter(map(len, map(attrgetter("waits"), instrs)), np.int64, count)),
            np.fromiter(map(_SLOT.__getitem__, map(attrgetter("stream"), waits)), np.int64, len(waits)),
            np.fromiter(map(attrgetter("count"), waits), np.int64, len(waits)),
        )
        parts = list(chain.from_iterable(map(operands, instrs)))
        sizes = np.fromiter(map(len, parts), np.int64, 2 * count)
        refs = list(chain.from_iterable(parts))
        numbers, bases = self._patterns.numbers(refs)
        writes = np.repeat(np.arange(2 * count) & 1, sizes)
        bases = bases + np.fromiter(map(attrgetter("offset"), refs), np.int64, len(refs))
        some = numbers >= 0
        self._accesses.extend(np.repeat(np.repeat(ats, 2), sizes)[some], (2 * numbers + writes)[some], bases[some])

    def _instr(self, row: int, instr: Instr) -> None:
        slot, at = _SLOT[instr.stream], self._starts + self._offset
        self._offset += 1
        self._counts[-1][slot] += self._iterations
        self._instrs.add(at, row, 0)
        for wait in instr.waits:
            threshold: Any = wait.count
            for register, coef in wait.coefs:
                if register not in self._values:
                    self._fail(row, f"a wait depends on register {register}, which no loop counts")
                threshold = threshold + coef * self._values[register]
            self._waits.add(at, _SLOT[wait.stream], threshold)
        reads, writes = operands(instr)
        access, stream = self._access, instr.stream
        for ref in reads:
            access(row, stream, ref, at, 0)
        for ref in writes:
            access(row, stream, ref, at, 1)

    def _access(self, row: int, stream: Stream, ref: Ref, at: int | Array, write: int) -> None:
        if not ref.coefs:
            number, base = self._patterns.number(ref, ())
            if number >= 0:
                self._accesses.add(at, 2 * number + write, base + ref.offset)
            return
        spread: Dims = ()
        offset: Any = ref.offset
        for register, stride in ref.coefs:
            found = self._ranges.range_of(stream, register)
            if found is None:
                self._fail(row, f"an address depends on register {register}, which nothing sets")
            if self._ranges.is_loaded(stream, register):
                self._exact = False
                spread += ((found[1] - found[0] + 1, stride),)
                offset = offset + stride * found[0]
            else:
                offset = offset + stride * self._values[register]
        number, base = self._patterns.number(ref, spread)
        if number >= 0:
            self._accesses.add(at, 2 * number + write, base + offset)

    def _fail(self, row: int, message: str, code: str = "ERUN913") -> NoReturn:
        raise RunError(code, f"{describe(self._program, row)}: {message}", "", location(self._program, row))
