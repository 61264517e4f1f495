"""Which values the sequencer registers can hold at each record: loop registers, and clamp ranges of ``reg_load``.

The caller walks the records in emission order and tells of loops and instructions; ``range_of`` then answers for the
current place. A register that a later ``reg_load`` of an enclosing loop's body sets again can hold that value, too,
from the second iteration on.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from neuronx_cc.ir.isa.format import END, LOOP


class Load(NamedTuple):
    """A ``reg_load`` at record ``row``: ``register`` of ``stream`` becomes a value in ``least..most``."""

    row: int
    stream: int
    register: int
    least: int
    most: int


class RegisterRanges:
    """``kinds`` are the kinds of all records, ``loads`` their ``reg_load``s in emission order."""

    def __init__(self, kinds: Sequence[int], loads: Sequence[Load]) -> None:
        self._loads = loads
        self._rows = [load.row for load in loads]
        self._next = 0
        self._ends: dict[int, int] = {}
        self._counted: dict[tuple[int, int], tuple[int, int]] = {}
        self._loaded: dict[tuple[int, int], tuple[int, int]] = {}
        self._stack: list[list[tuple[int, int]]] = []
        if loads:
            starts = []
            for row, kind in enumerate(kinds):
                if kind == LOOP:
                    starts.append(row)
                elif kind == END:
                    self._ends[starts.pop()] = row

    def enter(self, row: int, streams: Iterable[int], registers: Sequence[tuple[int, int]]) -> int | None:
        """Begin the loop at ``row`` with its (register, number of values); returns a register in use, or None."""
        keys = [(int(stream), register) for stream in streams for register, _ in registers]
        clash = next((register for stream, register in keys if (stream, register) in self._counted), None)
        if clash is not None or len({register for register, _ in registers}) < len(registers):
            return registers[0][0] if clash is None else clash
        for stream, register in keys:
            self._loaded.pop((stream, register), None)
        for register, count in registers:
            for stream in streams:
                self._counted[int(stream), register] = (0, count - 1)
        self._stack.append(keys)
        if self._loads:
            inside = self._loads[bisect_left(self._rows, row) : bisect_left(self._rows, self._ends[row])]
            for load in inside:
                known = self._loaded.get((load.stream, load.register))
                if known is not None:
                    self._loaded[load.stream, load.register] = (min(known[0], load.least), max(known[1], load.most))
        return None

    def leave(self) -> None:
        """End the innermost loop: its registers are undefined from here on."""
        for key in self._stack.pop():
            del self._counted[key]

    def step(self, row: int) -> None:
        """The instruction at ``row`` has been seen."""
        if self._next < len(self._loads) and self._rows[self._next] == row:
            load = self._loads[self._next]
            self._loaded[load.stream, load.register] = (load.least, load.most)
            self._next += 1

    def range_of(self, stream: int, register: int) -> tuple[int, int] | None:
        """Least and greatest value of the register now; None when nothing has set it."""
        key = (stream, register)
        return self._counted.get(key) or self._loaded.get(key)

    def is_loaded(self, stream: int, register: int) -> bool:
        """Whether the register holds a run-time value."""
        return (stream, register) not in self._counted and (stream, register) in self._loaded
