"""The provenance check: what an instruction reads was last written for the value that it means to read.

Input: a ``Program`` as code generation made it, whose operands name the piece of memory that they mean, and the use of
a rotating buffer. A memory of what each byte was last written for goes through the instructions in emission order.
So it finds memory that is given away while it is still needed, tiles that are swapped or reused too early, and operands
that leave what they mean; the race check sees all these as well ordered accesses. NEFFs do not tell what operands mean.

A use of a buffer is another one in each iteration of the loops around it. Of a counted loop the first iterations are
looked at, more than its buffers have turns; what the others write counts as written. Regions are gone through twice,
their cases one after the other; where they leave different things behind, all of them count.
HBM is told apart by pieces of memory only, not by bytes. Addresses of the run may be anywhere in their piece.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import gcd
from typing import TypeAlias

import numpy as np

from neuronx_cc.ir.errors import PLAN_ANEW, RunError
from neuronx_cc.ir.isa.program import Branch, Else, End, Instr, Loop, Owner, Program, Record, Ref, Space, While
from neuronx_cc.runtime.coverage import Coverage
from neuronx_cc.runtime.footprints import SIZE, Pattern, pattern_of
from neuronx_cc.runtime.intervals import Array
from neuronx_cc.runtime.race_sites import describe, location, operands

VARIABLE = "NEURONX_CC_PROVENANCE"
"""Of the environment: 1 has ``Executable.run`` check programs that tell what their operands mean."""
_SMALL = 2000
"""Dynamic instructions of programs whose loops are gone through as a whole."""
_LEAST_TURNS = 3
_UNKNOWN = 0
Code: TypeAlias = int


def wanted() -> bool:
    return os.environ.get(VARIABLE) == "1"


def check(program: Program) -> None:
    """Raises RunError ERUN910, or ERUN921 (``coverage``); nothing for programs that do not tell what operands mean."""
    if program.owners:
        _Walk(program).run()


@dataclass(slots=True)
class _Operand:
    """An operand of one instruction, ready to be looked up."""

    ref: Ref
    pattern: Pattern
    base: int
    owner: int
    tile: int


@dataclass(slots=True)
class _Step:
    row: int
    reads: list[_Operand]
    writes: list[_Operand]


@dataclass(slots=True)
class _Nest:
    """A loop or region, or the program: what is inside, for each case."""

    start: Loop | While | Branch | None
    cases: list[list[_Step | _Nest]] = field(default_factory=lambda: [[]])
    size: int = 0
    """Dynamic instructions."""
    begun: int = 0
    """Iterations so far, which phase registers count."""


class _Walk:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._root = self._tree(program.records)
        self._whole = self._root.size <= _SMALL
        self._coverage = Coverage(program) if self._whole and program.needs else None
        self._shadows = {space: _shadow(space, program, self._steps(self._root)) for space in Space}
        self._codes: dict[tuple[int, int, tuple[int, ...]], Code] = {}
        self._meanings: list[tuple[int, int, tuple[int, ...]]] = [(-1, 0, ())]
        self._registers: dict[int, int] = {}
        """Those whose values are known."""
        self._passes: list[int] = []
        """Of the open regions."""
        self._turns: list[int] = []
        """Of the open counted loops."""

    def run(self) -> None:
        self._all(self._root.cases[0])
        if self._coverage is not None:
            self._coverage.finish()

    # the records as a tree ------------------------------------------------------------------------------------

    def _tree(self, records: Sequence[Record]) -> _Nest:
        nests = [_Nest(None)]
        for row, record in enumerate(records):
            if isinstance(record, Instr):
                nests[-1].size += 1
                nests[-1].cases[-1].append(self._step(row, record))
            elif isinstance(record, Loop | While | Branch):
                nests.append(_Nest(record))
            elif isinstance(record, Else):
                nests[-1].cases.append([])
            elif isinstance(record, End):
                nest = nests.pop()
                nest.size *= nest.start.count if isinstance(nest.start, Loop) else 2
                nests[-1].size += nest.size
                nests[-1].cases[-1].append(nest)
        return nests[0]

    def _step(self, row: int, instr: Instr) -> _Step:
        refs, origins = (*instr.outs, *instr.ins), instr.origins
        made = {
            id(ref): _Operand(ref, *pattern_of(ref), *origin)
            for ref, origin in zip(refs, origins, strict=True)
            if 0 not in ref.counts
        }
        reads, writes = operands(instr)
        return _Step(
            row,
            [made[id(ref)] for ref in reads if id(ref) in made],
            [made[id(ref)] for ref in writes if id(ref) in made],
        )

    def _steps(self, nest: _Nest) -> Iterator[_Step]:
        for case in nest.cases:
            for part in case:
                if isinstance(part, _Step):
                    yield part
                else:
                    yield from self._steps(part)

    # the walk -------------------------------------------------------------------------------------------------

    def _all(self, parts: Sequence[_Step | _Nest]) -> None:
        for part in parts:
            if isinstance(part, _Step):
                for operand in part.reads:
                    self._read(part, operand)
                for operand in part.writes:
                    self._write(part, operand)
            elif isinstance(part.start, Loop):
                self._loop(part, part.start)
            else:
                self._region(part)

    def _loop(self, nest: _Nest, loop: Loop) -> None:
        turns = loop.count
        if not self._whole:
            turns = min(turns, max([_LEAST_TURNS, *(modulus + 1 for _, modulus in loop.phases)]))
        self._turns.append(0)
        for turn in range(turns):
            self._turns[-1] = nest.begun + turn
            self._registers[loop.register] = turn
            for phase, modulus in loop.phases:
                self._registers[phase] = (nest.begun + turn) % modulus
            self._all(nest.cases[0])
        self._turns.pop()
        nest.begun += loop.count
        if turns < loop.count:
            self._skipped(nest, {})
        for register in (loop.register, *(phase for phase, _ in loop.phases)):
            self._registers.pop(register, None)

    def _skipped(self, nest: _Nest, ranges: dict[int, int]) -> None:
        """What the remaining iterations write counts as written, tiles as anything."""
        assert isinstance(nest.start, Loop)
        ranges = ranges | {nest.start.register: nest.start.count} | dict(nest.start.phases)
        for part in nest.cases[0]:
            if isinstance(part, _Nest):
                self._skipped(part, ranges)
                continue
            for operand in part.writes:
                spread = tuple(
                    (ranges[register], stride) for register, stride in operand.ref.coefs if register in ranges
                )
                rest = [coef for coef in operand.ref.coefs if coef[0] not in ranges]
                start = self._address(operand, rest)
                code = _UNKNOWN if operand.tile else self._code(operand)
                if start is not None:
                    pattern, base = pattern_of(operand.ref, spread)
                    start += base - operand.base
                    self._shadows[pattern.space].cells(pattern, start)[...] = code

    def _region(self, nest: _Nest) -> None:
        owners = {operand.owner for step in self._steps(nest) for operand in step.writes}
        pieces = [self._program.owners[number] for number in owners]
        touched = [self._shadows[piece.space].everything(piece) for piece in pieces]
        outside = [state.copy() for state in touched]
        left = [] if isinstance(nest.start, Branch) else [outside]
        turns, self._turns = self._turns, []
        for number in range(1 if isinstance(nest.start, Branch) else 2):
            for case in nest.cases:
                if number == 0:
                    for state, before in zip(touched, outside, strict=True):
                        state[...] = before
                self._passes.append(nest.begun)
                nest.begun += 1
                self._all(case)
                self._passes.pop()
                left.append([state.copy() for state in touched])
        self._turns = turns
        for states in left:
            for state, other in zip(touched, states, strict=True):
                state[state != other] = _UNKNOWN

    # bytes ----------------------------------------------------------------------------------------------------

    def _address(self, operand: _Operand, coefs: Sequence[tuple[int, int]]) -> int | None:
        """The least byte, or None where the run decides."""
        start = operand.ref.offset + operand.base
        for register, stride in coefs:
            value = self._registers.get(register)
            if value is None:
                return None
            start += value * stride
        return start

    def _code(self, operand: _Operand) -> Code:
        regions, loops = self._program.tiles[operand.tile]
        meaning = operand.owner, operand.tile, (*self._passes[:regions], *self._turns[:loops])
        code = self._codes.get(meaning)
        if code is None:
            code = self._codes[meaning] = len(self._meanings)
            self._meanings.append(meaning)
        return code

    def _write(self, step: _Step, operand: _Operand) -> None:
        start = self._address(operand, operand.ref.coefs)
        shadow = self._shadows[operand.pattern.space]
        if start is None:
            shadow.everything(self._program.owners[operand.owner])[...] = self._code(operand)
            return
        self._inside(step, operand, start, "writes")
        shadow.cells(operand.pattern, start)[...] = self._code(operand)

    def _read(self, step: _Step, operand: _Operand) -> None:
        start = self._address(operand, operand.ref.coefs)
        if self._coverage is not None:
            written = [each.owner for each in step.writes]
            self._coverage.read(step.row, operand.owner, operand.pattern, start, written)
        if start is None:
            return
        self._inside(step, operand, start, "reads")
        found = self._shadows[operand.pattern.space].cells(operand.pattern, start)
        code = self._code(operand)
        if (found == code).all():
            return
        meant = self._meanings[code]
        for other in np.unique(found).tolist():
            owner, tile, turn = self._meanings[other]
            if other in (code, _UNKNOWN) or (owner == meant[0] and not (tile and meant[1])):
                continue
            self._wrong(step, operand, start, owner, tile == meant[1] and turn != meant[2])

    def _inside(self, step: _Step, operand: _Operand, start: int, does: str) -> None:
        owner = self._program.owners[operand.owner]
        if start < owner.lo or start + operand.pattern.extent > owner.hi:
            what = f"{does} {_text(operand.pattern, start)}, outside of {_named(owner)}, which it means"
            raise self._error(step, what)

    def _wrong(self, step: _Step, operand: _Operand, start: int, owner: int, earlier: bool) -> None:
        mine, theirs = (self._program.owners[number] for number in (operand.owner, owner))
        other = "another tile in it" if mine is theirs else _named(theirs)
        if earlier:
            other = "the same tile in another iteration"
        what = f"reads {_text(operand.pattern, start)} as {_named(mine)}, part of which was written as {other}"
        raise self._error(step, what)

    def _error(self, step: _Step, what: str) -> RunError:
        return RunError(
            "ERUN910",
            f"{describe(self._program, step.row)} {what}",
            PLAN_ANEW,
            location(self._program, step.row),
        )


def _named(owner: Owner) -> str:
    return f"{owner.name or 'memory'} ({owner.space.name} {owner.lo}..{owner.hi - 1})"


def _text(pattern: Pattern, base: int) -> str:
    rows = "" if pattern.space is Space.HBM else f" partitions {pattern.first}..{pattern.last - 1}"
    return f"{pattern.space.name}{rows} bytes {base}..{base + pattern.extent - 1}"


class _OnChip:
    """What the bytes of SBUF or PSUM were last written for: a code for every few bytes, in each band of partitions.

    No operand begins or ends within these bytes, nor within a band.
    """

    def __init__(self, space: Space, patterns: Sequence[tuple[Pattern, int]], strides: Iterator[int]) -> None:
        self._grain = gcd(*strides, *[gcd(base, pattern.run, pattern.pitch) for pattern, base in patterns]) or 1
        rows = sorted({row for pattern, _ in patterns for row in (pattern.first, pattern.last)})
        self._bands = {row: band for band, row in enumerate(rows)}
        self.state: Array = np.full((max(len(rows), 1), SIZE[space] // self._grain), _UNKNOWN, np.int32)

    def cells(self, pattern: Pattern, start: int) -> Array:
        first, last = self._bands[pattern.first], self._bands[pattern.last]
        counts = (last - first, *[count for count, _ in reversed(pattern.dims)], pattern.run // self._grain)
        steps = [stride // self._grain * 4 for _, stride in reversed(pattern.dims)]
        strides = (self.state.strides[0], *steps, 4)
        return np.ndarray(counts, np.int32, self.state[first:], start // self._grain * 4, strides)

    def everything(self, owner: Owner) -> Array:
        return self.state[:, owner.lo // self._grain : owner.hi // self._grain]


class _Hbm:
    """The same of HBM: a code for what lies between two places at which pieces of memory begin or end."""

    def __init__(self, owners: Sequence[Owner]) -> None:
        self._bounds = np.unique([end for owner in owners for end in (owner.lo, owner.hi)] or [0])
        self.state: Array = np.full(len(self._bounds), _UNKNOWN, np.int32)

    def cells(self, pattern: Pattern, start: int) -> Array:
        first = int(np.searchsorted(self._bounds, start, side="right")) - 1
        last = int(np.searchsorted(self._bounds, start + pattern.extent, side="left"))
        return self.state[max(first, 0) : last]

    def everything(self, owner: Owner) -> Array:
        first, last = np.searchsorted(self._bounds, (owner.lo, owner.hi)).tolist()
        return self.state[first:last]


def _shadow(space: Space, program: Program, steps: Iterator[_Step]) -> _OnChip | _Hbm:
    if space is Space.HBM:
        return _Hbm([owner for owner in program.owners if owner.space is space])
    found = [each for step in steps for each in (*step.reads, *step.writes) if each.pattern.space is space]
    patterns = [(each.pattern, each.ref.offset + each.base) for each in found]
    ends = [end for owner in program.owners if owner.space is space for end in (owner.lo, owner.hi)]
    return _OnChip(space, patterns, chain(ends, (stride for each in found for _, stride in each.ref.coefs)))
