"""The coverage check: a kernel reads all of each operand that it must read.

The provenance check finds operands that read what was written for something else; this one finds those that read the
wrong part of the right value: where a block drops its offset, one part is read twice and another one never.

Input: a program that knows what its kernels need (``Program.needs``). ``Coverage`` is told of every read on a walk
through the program and marks the bytes of each home of each operand; then each element must be marked in some home.
What a kernel only copies from one home of a value to another is not read by that. An address that only the run knows
counts as all of its piece of memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np

from neuronx_cc.ir.errors import PLAN_ANEW, RunError
from neuronx_cc.ir.isa import limits
from neuronx_cc.ir.isa.program import Home, Need, Program, Space
from neuronx_cc.runtime.footprints import Pattern
from neuronx_cc.runtime.intervals import Array
from neuronx_cc.runtime.race_sites import describe, location

MOST_BYTES = 1 << 23
"""Of the marks of one operand; larger ones are not looked at."""


class Coverage:
    """What was read so far."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._needs = sorted(filter(self._fits, program.needs), key=lambda need: need.first)
        self._firsts = [need.first for need in self._needs]
        self._marks: dict[tuple[int, int], Array] = {}
        """Number of the need, and of a piece of memory -> which bytes of which partitions were read."""

    def read(self, row: int, owner: int, pattern: Pattern, start: int | None, written: Iterable[int]) -> None:
        """Note that the instruction at ``row`` reads ``owner``; ``written`` are the pieces of its results."""
        for number in self._at(row):
            need = self._needs[number]
            owners = {home.owner for home in need.homes}
            if owner not in owners or any(other in owners and other != owner for other in written):
                continue
            marks = self._marks.get((number, owner))
            if marks is None:
                marks = self._marks[number, owner] = np.zeros(self._sizes(owner), np.bool_)
            if start is None:
                marks[...] = True
                continue
            at = start - self._program.owners[owner].lo
            counts = (pattern.last - pattern.first, *[count for count, _ in pattern.dims], pattern.run)
            strides = (marks.strides[0], *[stride for _, stride in pattern.dims], 1)
            np.ndarray(counts, np.bool_, marks[pattern.first :], at, strides)[...] = True

    def finish(self) -> None:
        """Raises RunError ERUN921 for an operand that a kernel has read in part. None at all: another kernel has."""
        for number, need in enumerate(self._needs):
            read = None
            for home in need.homes:
                marks = self._marks.get((number, home.owner))
                if marks is not None:
                    found = self._elements(home, marks)
                    read = found if read is None else read | found
            if read is not None and not read.all():
                raise RunError(
                    "ERUN921",
                    f"{describe(self._program, need.first)} and the others of its kernel read {int(read.sum())} of the "
                    f"{read.size} elements of {need.what}; element {int(np.argmin(read))} is left out",
                    PLAN_ANEW,
                    location(self._program, need.first),
                )

    def _at(self, row: int) -> Iterable[int]:
        number = bisect_right(self._firsts, row) - 1
        while number >= 0 and self._needs[number].end > row:
            yield number
            number -= 1

    def _sizes(self, owner: int) -> tuple[int, int]:
        piece = self._program.owners[owner]
        return 1 if piece.space is Space.HBM else limits.PARTITIONS, piece.hi - piece.lo

    def _fits(self, need: Need) -> bool:
        return all(rows * nbytes <= MOST_BYTES for rows, nbytes in (self._sizes(home.owner) for home in need.homes))

    def _elements(self, home: Home, marks: Array) -> Array:
        """Whether the first byte of each element is marked."""
        rows, places = np.zeros(1, np.int64), np.full(1, home.offset - self._program.owners[home.owner].lo)
        for size, stride, partition in home.atoms:
            steps = np.arange(size) * stride
            rows = (rows[:, None] + (steps if partition else 0 * steps)).reshape(-1)
            places = (places[:, None] + (0 * steps if partition else steps)).reshape(-1)
        return np.asarray(marks[rows, places])
