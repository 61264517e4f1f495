"""The course of a run: how often each iteration of each region was run, and which cases were taken.

The values of a run decide it (``values``); the clock needs nothing else of them. What happens in one pass over a
block of records is a *path*: the regions met, in order, each with its outcome. Outcomes and paths are numbered, equal
ones alike, so ten thousand equal iterations are one pair of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from neuronx_cc.ir.isa.program import Branch, Else, End, Instr, Loop, Program, Record, While

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Of a ``while``: (path of the iteration, how many in a row took it), in order."""
Case: TypeAlias = tuple[int, int]
"""Of a ``branch``: the case and its path."""


class Course:
    """Numbered paths and outcomes; ``root`` is the path of the whole program."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._entries: list[object] = []
        self.root = self.path(())

    def path(self, outcomes: Sequence[int]) -> int:
        """The number of the path with these outcomes."""
        return self._number(("path", *outcomes))

    def repeated(self, runs: Sequence[Sequence[int]]) -> int:
        """The number of the outcome of a ``while``: (path, times) in order."""
        return self._number(("while", *map(tuple, runs)))

    def chosen(self, case: int, path: int) -> int:
        """The number of the outcome of a ``branch``."""
        return self._number(("branch", case, path))

    def outcomes(self, path: int) -> tuple[int, ...]:
        """The outcomes on a path."""
        return self._entries[path][1:]  # type: ignore[index, no-any-return]

    def runs(self, outcome: int) -> Runs:
        """What a ``while`` did."""
        return self._entries[outcome][1:]  # type: ignore[index, no-any-return]

    def case(self, outcome: int) -> Case:
        """What a ``branch`` did."""
        return self._entries[outcome][1:]  # type: ignore[index, no-any-return]

    def key(self) -> tuple[object, ...]:
        """Equal for equal courses."""
        return (self.root, *self._entries)

    def _number(self, entry: object) -> int:
        number = self._numbers.setdefault(entry, len(self._entries))
        if number == len(self._entries):
            self._entries.append(entry)
        return number


def assumed(program: Program) -> tuple[Course, int]:
    """The course without values: regions that count run their trips, others once; branches take their first case.

    Also returns how many regions were assumed about.
    """
    course = Course()
    guesses = 0
    open_records: list[Record] = []
    paths: list[list[int]] = [[]]
    cases: list[list[int]] = []
    for record in program.records:
        if isinstance(record, Instr):
            continue
        if isinstance(record, Loop | While | Branch):
            open_records.append(record)
            if not isinstance(record, Loop):
                paths.append([])
                cases.append([])
                guesses += isinstance(record, Branch) or not record.count
        elif isinstance(record, Else):
            cases[-1].append(course.path(paths[-1]))
            paths[-1] = []
        elif isinstance(record, End):
            start = open_records.pop()
            if isinstance(start, Loop):
                continue
            path = course.path(paths.pop())
            first = [*cases.pop(), path][0]
            if isinstance(start, While):
                paths[-1].append(course.repeated([(path, start.count or 1)]))
            else:
                paths[-1].append(course.chosen(0, first))
    course.root = course.path(paths[0])
    return course, guesses
