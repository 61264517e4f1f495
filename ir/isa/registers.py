"""Which values the sequencer registers can hold at each record: loop registers, and clamp ranges of ``reg_load``.

The caller walks the records in emission order and tells of loops, regions and instructions; ``range_of`` then answers
for the current place. A register that a later ``reg_load`` of an enclosing loop's body sets again can hold that value,
too, from the second iteration on. What a region sets may stay unset when it is not run.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from neuronx_cc.ir.isa.format import END, STARTS


class Load(NamedTuple):
    """A ``reg_load`` at record ``row``: ``register`` of ``stream`` becomes a value in ``least..most``."""

    row: int
    stream: int
    register: int
    least: int
    most: int


Ranges = dict[tuple[int, int], tuple[int, int]]
"""(stream, register) -> least and greatest value."""


def _both(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return min(one[0], other[0]), max(one[1], other[1])


@dataclass(slots=True)
class _Region:
    """An open region: what was loaded before it, at its start and at the end of each closed case; its own registers."""

    before: Ranges
    entry: Ranges
    keys: list[tuple[int, int]]
    ends: list[Ranges] = field(default_factory=list)


class RegisterRanges:
    """``kinds`` are the kinds of all records, ``loads`` their ``reg_load``s in emission order."""

    def __init__(self, kinds: Sequence[int], loads: Sequence[Load]) -> None:
        self._loads = loads
        self._rows = [load.row for load in loads]
        self._next = 0
        self._ends: dict[int, int] = {}
        self._counted: Ranges = {}
        self._loaded: Ranges = {}
        self._regions: list[_Region] = []
        self._of_regions: set[tuple[int, int]] = set()
        self._stack: list[list[tuple[int, int]]] = []
        if loads:
            starts = []
            for row, kind in enumerate(kinds):
                if kind in STARTS:
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
        self._widen(row)
        return None

    def _widen(self, row: int) -> None:
        """Registers that are loaded inside the loop at ``row`` hold those values from its second iteration on."""
        if self._loads:
            inside = self._loads[bisect_left(self._rows, row) : bisect_left(self._rows, self._ends[row])]
            for load in inside:
                known = self._loaded.get((load.stream, load.register))
                if known is not None:
                    self._loaded[load.stream, load.register] = _both(known, (load.least, load.most))

    def leave(self) -> None:
        """End the innermost loop: its registers are undefined from here on."""
        for key in self._stack.pop():
            del self._counted[key]

    def enter_region(self, row: int, streams: Iterable[int], counted: tuple[int, int] | None) -> int | None:
        """Begin the region at ``row``; ``counted`` is its (register, trips), if it has that. As ``enter``."""
        keys = [] if counted is None else [(int(stream), counted[0]) for stream in streams]
        if any(key in self._counted for key in keys):
            return keys[0][1]
        before = dict(self._loaded)
        for key in keys:
            self._loaded.pop(key, None)
            self._counted[key] = (0, counted[1] - 1 if counted else 0)
        self._of_regions.update(keys)
        self._widen(row)
        self._regions.append(_Region(before, dict(self._loaded), keys))
        return None

    def next_case(self) -> None:
        """The next case of the innermost region begins as the first one did."""
        region = self._regions[-1]
        region.ends.append(self._loaded)
        self._loaded = dict(region.entry)

    def leave_region(self, certain: bool) -> None:
        """End the innermost region; ``certain`` tells that one of its cases has been run."""
        region = self._regions.pop()
        for key in region.keys:
            del self._counted[key]
        self._of_regions.difference_update(region.keys)
        ends = [*region.ends, self._loaded] + ([] if certain else [region.before])
        held = {key: value for key, value in ends[0].items() if all(key in end for end in ends)}
        for end in ends[1:]:
            held = {key: _both(value, end[key]) for key, value in held.items()}
        self._loaded = held

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
        """Whether the register holds a value of which only the range is known: loaded, or a region's count."""
        key = (stream, register)
        return key in self._of_regions or (key not in self._counted and key in self._loaded)
