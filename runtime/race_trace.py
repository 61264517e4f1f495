"""The dynamic instructions of a program, for the race check: every address and threshold of every iteration.

Input: a ``Program``. Output: a ``Trace``, whose tables have a row for each dynamic instruction, wait and access in
emission order. Nothing is executed: counted loops are unrolled by arithmetic, all iterations of all records at once.
Addresses from ``reg_load``, or from the count of a region, become the set of all that the register's range allows.

Regions cut the program into ``Piece``s: barriers, at which everything is complete, stand between any two. The body of
a region is unrolled once, with counts from 0, and what holds for that iteration holds for all.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import attrgetter
from typing import NoReturn, TypeAlias

import numpy as np

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.format import BRANCH, ELSE, END, INSTRUCTION, LOOP, WHILE
from neuronx_cc.ir.isa.program import DECIDER, Branch, Else, Instr, Loop, Program, Ref, Stream, Wait, While
from neuronx_cc.ir.isa.registers import Load, RegisterRanges
from neuronx_cc.runtime.footprints import Dims, Footprints, Patterns
from neuronx_cc.runtime.host_memory import require
from neuronx_cc.runtime.intervals import Array
from neuronx_cc.runtime.race_sites import check_nesting, describe, location, operands

MAX_ROWS = 1 << 25
"""Loops of compiled programs stream data through SBUF, so memory itself bounds their trips; what is repeated more often
is a region. A ConvMixer of 32 layers has 17 million: half of them are depthwise convolutions once more, group by group,
in case that sums are not finite."""
ROW_BYTES = 64
"""Of the host's memory, about, until they are checked."""
STREAMS = tuple(Stream)
"""A stream's place here is its slot."""
_SLOT = {stream: slot for slot, stream in enumerate(STREAMS)}
_coefs, _stream, _waits, _count, _offset = map(attrgetter, ("coefs", "stream", "waits", "count", "offset"))


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


@dataclass(slots=True)
class _Nest:
    """A loop inside those around it; the first nest is the program, a loop of one iteration."""

    parent: int
    loop: Loop
    offset: int
    """Where it begins in an iteration of its parent, in dynamic instructions."""
    trips: int
    """Its iterations, in all iterations of its parent."""
    size: int = 0
    """Dynamic instructions of one iteration."""


class _Places:
    """Where the instructions of records stand among the dynamic ones."""

    def __init__(self, stretches: Sequence[tuple[int, int, int, int]], nests: Sequence[_Nest]) -> None:
        """Stretches of records: the first one, how many, nest, and where the first one stands in an iteration of it."""
        firsts, counts, inside, offsets = np.array(stretches, np.int64).reshape(-1, 4).T
        within = _ranks(counts)
        self.records: Array = np.repeat(firsts, counts) + within
        self.offsets: Array = np.repeat(offsets, counts) + within
        self.nests: Array = np.repeat(inside, counts)
        starts = [np.zeros(1, np.int64)]
        for nest in nests[1:]:
            trips = np.arange(nest.loop.count if nest.size else 0) * nest.size + nest.offset
            starts.append((starts[nest.parent][:, None] + trips).reshape(-1))
        self.starts: Array = np.concatenate(starts)
        """With which instruction each iteration begins, one nest after the other."""
        self.trips: Array = np.array([len(each) for each in starts])
        self.firsts: Array = np.cumsum(self.trips) - self.trips


class _Table:
    """Rows (tag, value) of instructions, in the order of records; some values move with registers of loops."""

    def __init__(self) -> None:
        self._moves = array("q")

    def move(self, row: int, every: int, modulus: int, by: int) -> None:
        """The row's value grows by ``by`` after every so many iterations, and begins anew after ``modulus`` times."""
        self._moves.extend((row, every, modulus, by))

    def columns(self, places: _Places, owners: Array, tags: Array, values: Array) -> tuple[Array, Array, Array]:
        """Instruction, tag and value in all iterations, by dynamic instruction; rows of one instruction as they came.

        ``owners`` are the rows' instructions, counted in the order of records, in ascending order.
        """
        nests = places.nests[owners]
        if not nests.any():
            return places.offsets[owners], tags, values
        trips = places.trips[nests]
        at = places.starts[np.repeat(places.firsts[nests], trips) + _ranks(trips)]
        at += np.repeat(places.offsets[owners], trips)
        value = np.repeat(values, trips)
        self._add_moves(value, trips)
        mine, rows = np.bincount(owners), np.bincount(at)
        order = (np.cumsum(rows) - rows)[at] + np.repeat(_ranks(mine), trips)
        columns = np.empty((3, len(at)), np.int64)
        columns[0, order], columns[1, order], columns[2, order] = at, np.repeat(tags, trips), value
        return columns[0], columns[1], columns[2]

    def _add_moves(self, value: Array, trips: Array) -> None:
        rows, every, modulus, by = np.array(self._moves, np.int64).reshape(-1, 4).T
        firsts = np.cumsum(trips) - trips
        ranks = _ranks(np.unique(rows, return_counts=True)[1])  # of the moves of one row, which are neighbours
        for rank in range(int(ranks.max(initial=-1)) + 1):
            these = np.flatnonzero(ranks == rank)
            many = trips[rows[these]]
            trip, these = _ranks(many), np.repeat(these, many)
            value[firsts[rows[these]] + trip] += trip // every[these] % modulus[these] * by[these]


def _ranks(sizes: Array) -> Array:
    """0, 1, ... for each of these sizes."""
    ranks: Array = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks


class Unrolling:
    """Turns records into the tables of a ``Trace``."""

    def __init__(self, program: Program) -> None:
        self._program = program
        records = program.records
        self._marks = [row for row, each in enumerate(records) if type(each) is not Instr or each.op == "reg_load"]
        """Records that are no plain instructions."""
        marked = [(row, records[row]) for row in self._marks]
        check_nesting(marked)
        loads = [Load(row, each.stream, *map(int, each.imm)) for row, each in marked if isinstance(each, Instr)]
        kind_of = {Instr: INSTRUCTION, Loop: LOOP, While: WHILE, Branch: BRANCH, Else: ELSE}
        self._ranges = RegisterRanges([kind_of.get(type(each), END) for each in records] if loads else [], loads)
        self._nests = [_Nest(-1, Loop(1, -1), 0, 1)]
        self._nest = 0
        """The innermost one that is open."""
        self._counted: dict[int, tuple[int, int]] = {}
        """Registers of the open loops: the loop's nest, and after how many of its iterations each is 0 again."""
        self._opened: list[dict[int, tuple[int, int]] | None] = []
        """For each open loop what is counted around it, for each open region None."""
        self._offset = 0
        """Instructions of the iteration so far."""
        self._stretches: list[tuple[int, int, int, int]] = []
        self._seen, self._rows = 0, 0
        """Instructions among the records so far, and rows of all tables."""
        self._slots, self._side_sizes, self._wait_sizes = array("q"), array("q"), array("q")
        """Of each instruction among the records; how many operands it reads, and writes; how many waits it has."""
        self._moving_waits, self._moving_refs = _Table(), _Table()
        self._waits: list[Wait] = []
        self._refs: list[Ref] = []
        self._spread: dict[int, Dims] = {}
        """More dims of accesses, for registers of which only the range is known."""
        self._least: dict[int, int] = {}
        """What their least values add to the addresses."""
        self._pieces: list[Piece] = []
        self._counts = [[0] * len(STREAMS)]
        """Dynamic instructions of each stream in the open case, for the program and each open region."""
        self._exact = True
        self._blocks: list[Block] = [[]]
        """The program's, and those of the open cases."""
        self._areas: list[Area] = []

    def run(self) -> Trace:
        """Raises RunError: ERUN914 address outside its memory; ERUN913, EBIR902 registers that nothing sets; ERUN920
        more rows than are looked at."""
        self._piece()
        begin, records = 0, self._program.records
        for row in self._marks:
            record = records[row]
            loads = isinstance(record, Instr)
            self._stretch(begin, row + loads)
            begin = row + 1
            if loads:
                self._ranges.step(row)
            elif isinstance(record, Loop):
                self._enter_loop(row, record)
            elif isinstance(record, While | Branch):
                self._enter_region(row, record)
            elif isinstance(record, Else):
                self._next_case()
            else:
                around = self._opened.pop()
                if around is None:
                    self._leave_region()
                else:
                    self._leave_loop(around)
        self._stretch(begin, len(records))
        self._pieces[-1].last = self._offset
        if self._rows > MAX_ROWS:
            raise RunError(
                "ERUN920",
                f"{len(records)} records make {self._rows} instructions, waits and accesses when their loops run; "
                f"the race check looks at up to {MAX_ROWS}",
            )
        require(self._rows * ROW_BYTES, lambda: f"the race check of {self._rows} instructions, waits and accesses")
        return self._trace()

    def _piece(self) -> None:
        """A barrier: what follows begins with everything complete."""
        if self._pieces:
            self._pieces[-1].last = self._offset
        self._pieces.append(Piece(len(self._pieces), self._offset, list(self._counts[-1])))
        self._blocks[-1].append(self._pieces[-1])

    def _trace(self) -> Trace:
        places = _Places(self._stretches, self._nests)
        every = np.arange(self._seen)
        _, rows, slots = _Table().columns(places, every, places.records, np.array(self._slots, np.int64))
        patterns = Patterns()
        numbers, bases = patterns.numbers(self._refs, self._spread)
        sides = np.repeat(np.arange(2 * self._seen), np.array(self._side_sizes, np.int64))
        offsets = np.fromiter(map(_offset, self._refs), np.int64, len(self._refs)) + bases
        for access, more in self._least.items():
            offsets[access] += more
        at, tags, addresses = self._moving_refs.columns(places, sides >> 1, 2 * numbers + (sides & 1), offsets)
        mine, writes = tags >> 1, (tags & 1).astype(bool)
        if (numbers < 0).any():  # those of no bytes
            at, mine, writes, addresses = (column[mine >= 0] for column in (at, mine, writes, addresses))
        outside = patterns.outside(mine, addresses)
        if len(outside):
            first = int(outside[np.argmin(rows[at[outside]])])
            row, what = int(rows[at[first]]), patterns.text(int(mine[first]), int(addresses[first]))
            self._fail(row, f"an operand leaves its memory: {what}", "ERUN914")
        awaited = np.fromiter(map(_SLOT.__getitem__, map(_stream, self._waits)), np.int64, len(self._waits))
        counts = np.fromiter(map(_count, self._waits), np.int64, len(self._waits))
        owners = np.repeat(every, np.array(self._wait_sizes, np.int64))
        waiting, awaited, counts = self._moving_waits.columns(places, owners, awaited, counts)
        positive = counts > 0
        footprints, owners = Footprints.of(patterns, mine, addresses, writes)
        return Trace(
            rows,
            slots.astype(np.int8),
            Waits(waiting[positive], awaited[positive], counts[positive]),
            Accesses(at, owners, writes),
            footprints,
            self._pieces,
            self._blocks[0],
            self._exact,
        )

    def _enter_loop(self, row: int, loop: Loop) -> None:
        self._ranges.enter(row, loop.streams or STREAMS, [(loop.register, loop.count), *loop.phases])
        self._nests.append(_Nest(self._nest, loop, self._offset, self._nests[self._nest].trips * loop.count))
        self._nest, self._offset = len(self._nests) - 1, 0
        self._opened.append(self._counted)
        moduli = {loop.register: loop.count, **dict(loop.phases)}
        self._counted = self._counted | {register: (self._nest, modulus) for register, modulus in moduli.items()}

    def _leave_loop(self, around: dict[int, tuple[int, int]]) -> None:
        nest = self._nests[self._nest]
        nest.size = self._offset
        self._counted, self._nest = around, nest.parent
        self._offset = nest.offset + nest.loop.count * nest.size
        self._ranges.leave()

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
        self._opened.append(None)
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

    def _stretch(self, begin: int, end: int) -> None:
        """The instructions of records begin..end-1, with no loop or region among them."""
        if begin == end:
            return
        instrs: list[Instr] = self._program.records[begin:end]  # type: ignore[assignment]
        count, trips = end - begin, self._nests[self._nest].trips
        self._stretches.append((begin, count, self._nest, self._offset))
        self._offset += count
        self._seen += count
        slots = list(map(_SLOT.__getitem__, map(_stream, instrs)))
        self._slots.extend(slots)
        for slot in set(slots):
            self._counts[-1][slot] += trips * slots.count(slot)
        self._waits_of(begin, list(map(_waits, instrs)))
        sides = list(chain.from_iterable(map(operands, instrs)))
        refs = list(chain.from_iterable(sides))
        coefs = list(map(_coefs, refs))
        if any(coefs):
            owners = chain.from_iterable(map(repeat, range(2 * count), map(len, sides)))
            for at, (side, moves) in enumerate(zip(owners, coefs, strict=True), len(self._refs)):
                if moves:
                    self._moving(begin + side // 2, at, instrs[side // 2].stream, moves)
        self._side_sizes.extend(map(len, sides))
        self._refs += refs
        self._rows += trips * (count + len(refs))

    def _waits_of(self, row: int, waits: list[tuple[Wait, ...]]) -> None:
        """Those of instructions from record ``row`` on."""
        every = list(chain.from_iterable(waits))
        coefs = list(map(_coefs, every))
        if any(coefs):
            owners = chain.from_iterable(map(repeat, range(row, row + len(waits)), map(len, waits)))
            for at, (owner, moves) in enumerate(zip(owners, coefs, strict=True), len(self._waits)):
                for register, coef in moves:
                    if register not in self._counted:
                        self._fail(owner, f"a wait depends on register {register}, which no loop counts")
                    self._move(self._moving_waits, at, register, coef)
        self._wait_sizes.extend(map(len, waits))
        self._waits += every
        self._rows += self._nests[self._nest].trips * len(every)

    def _moving(self, row: int, access: int, stream: Stream, coefs: Dims) -> None:
        """An access of record ``row`` whose address depends on registers."""
        for register, stride in coefs:
            found = self._ranges.range_of(stream, register)
            if found is None:
                self._fail(row, f"an address depends on register {register}, which nothing sets")
            if not self._ranges.is_loaded(stream, register):
                self._move(self._moving_refs, access, register, stride)
                continue
            self._exact = False
            self._spread[access] = (*self._spread.get(access, ()), (found[1] - found[0] + 1, stride))
            self._least[access] = self._least.get(access, 0) + stride * found[0]

    def _move(self, table: _Table, row: int, register: int, by: int) -> None:
        nest, modulus = self._counted[register]
        table.move(row, max(self._nests[self._nest].trips // max(self._nests[nest].trips, 1), 1), modulus, by)

    def _fail(self, row: int, message: str, code: str = "ERUN913") -> NoReturn:
        raise RunError(code, f"{describe(self._program, row)}: {message}", "", location(self._program, row))
