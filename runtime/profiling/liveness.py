"""What lies in each memory over time, from the accesses of the instructions.

Input: a program and its timed nodes. Output: ``Live`` spans: bytes of one memory that hold a value from the first
instruction that writes them to the last that reads them. A span of SBUF or PSUM counts bytes of a partition, as the
machine description does. Inputs and constants are in HBM all the time, results to the end.

Accesses in loops count with the hull of all iterations. Bytes that a later instruction overwrites belong to it from
then on, so no byte counts twice at any time. Sizes are exact where operands are dense, upper bounds where they are not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from neuronx_cc.ir.isa.program import Branch, Else, End, Instr, Loop, Program, Ref, Space, While
from neuronx_cc.ir.types import itemsize
from neuronx_cc.runtime.clock_program import Node

Point = tuple[float, int]
"""Time in ns, and the bytes in use from then on."""


@dataclass(slots=True)
class Live:
    """Bytes ``low`` to ``high`` of a memory, which hold what one HLO op made. Times in ns."""

    space: Space
    low: int
    high: int
    begin: float
    end: float
    name: str
    """The HLO op, or the variable."""
    debug: int = -1
    """Index into ``Program.debug``, -1 of a variable."""

    @property
    def nbytes(self) -> int:
        return self.high - self.low


class _Memory:
    """The spans of one memory, ordered by address, none of which overlap."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._lows: list[int] = []
        self._open: list[Live] = []
        self.closed: list[Live] = []

    def _overlapping(self, low: int, high: int) -> range:
        first = bisect_right(self._lows, low) - 1
        if first < 0 or self._open[first].high <= low:
            first += 1
        last = first
        while last < len(self._open) and self._open[last].low < high:
            last += 1
        return range(first, last)

    def read(self, low: int, high: int, until: float) -> None:
        for index in self._overlapping(low, high):
            span = self._open[index]
            span.end = max(span.end, until)

    def write(self, low: int, high: int, node: Node, name: str) -> None:
        found = self._overlapping(low, high)
        kept: list[Live] = []
        for index in found:
            old = self._open[index]
            for lo, hi in ((old.low, min(old.high, low)), (max(old.low, high), old.high)):
                if lo < hi:
                    kept.append(Live(self._space, lo, hi, old.begin, old.end, old.name, old.debug))
            cut = Live(self._space, max(old.low, low), min(old.high, high), old.begin, old.end, old.name, old.debug)
            cut.end = min(cut.end, node.first)
            if cut.end > cut.begin:
                self.closed.append(cut)
        kept.append(Live(self._space, low, high, node.first, node.last, name, node.instr.debug))
        kept.sort(key=lambda span: span.low)
        self._open[found.start : found.stop] = kept
        self._lows[found.start : found.stop] = [span.low for span in kept]

    def finish(self) -> list[Live]:
        return self.closed + self._open


def live_spans(program: Program, nodes: Sequence[Node], total: float) -> list[Live]:
    """All spans of a program whose timed nodes, in emission order, are ``nodes``; ``total`` is its end in ns."""
    memories = {space: _Memory(space) for space in Space}
    fixed = [variable for variable in program.variables if variable.kind in ("input", "constant", "device")]
    spans = [Live(Space.HBM, v.offset, v.offset + v.nbytes, 0.0, total, v.name) for v in fixed if v.nbytes]
    spans.sort(key=lambda span: span.low)
    lows = [span.low for span in spans]

    def variable_at(low: int) -> bool:
        at = bisect_right(lows, low) - 1
        return at >= 0 and low < spans[at].high

    for node, reach in _with_reach(program, nodes):
        instr = node.instr
        if not node.count:
            continue
        kept = "accumulate" in instr.flags
        for ref in (*instr.ins, *(instr.outs if kept else ())):
            low, high = _footprint(ref, reach)
            memories[ref.space].read(low, high, node.last)
        if kept:
            continue
        name = program.debug[instr.debug].hlo if instr.debug < len(program.debug) else ""
        for ref in instr.outs:
            low, high = _footprint(ref, reach)
            if ref.space is Space.HBM and variable_at(low):
                continue
            memories[ref.space].write(low, high, node, name)
    for variable in program.variables:
        if variable.kind == "output":
            memories[Space.HBM].read(variable.offset, variable.offset + variable.nbytes, total)
    for memory in memories.values():
        spans += memory.finish()
    return spans


def _with_reach(program: Program, nodes: Sequence[Node]) -> Iterator[tuple[Node, dict[int, int]]]:
    """Each node with the greatest value of every loop register around it."""
    at = iter(nodes)
    reach: dict[int, int] = {}
    opened: list[tuple[int, ...]] = []
    for record in program.records:
        if isinstance(record, Instr):
            yield next(at), reach
        elif isinstance(record, Loop):
            registers = {record.register: record.count - 1}
            registers |= {phase: modulus - 1 for phase, modulus in record.phases}
            reach |= registers
            opened.append(tuple(registers))
        elif isinstance(record, While | Branch):
            trips = record.count if isinstance(record, While) else 0
            if trips:
                reach[record.register] = trips - 1
            opened.append((record.register,) if trips else ())
        elif isinstance(record, End):
            for register in opened.pop():
                reach.pop(register, None)
        else:
            assert isinstance(record, Else)


def _footprint(ref: Ref, reach: dict[int, int]) -> tuple[int, int]:
    """First byte and end of what an operand touches; an address that a run-time value decides counts as written."""
    dims = ref.dims if ref.space is Space.HBM else ref.dims[1:]
    steps = [(count - 1) * stride for count, stride in dims]
    steps += [coef * reach.get(register, 0) for register, coef in ref.coefs]
    low = ref.offset + sum(step for step in steps if step < 0)
    return low, ref.offset + sum(step for step in steps if step > 0) + itemsize(ref.dtype)


def in_use(spans: Iterable[Live]) -> list[Point]:
    """Bytes in use over time, a point for each change."""
    changes: dict[float, int] = {}
    for span in spans:
        changes[span.begin] = changes.get(span.begin, 0) + span.nbytes
        changes[span.end] = changes.get(span.end, 0) - span.nbytes
    points: list[Point] = []
    used = 0
    for time, change in sorted(changes.items()):
        used += change
        if change or not points:
            points.append((time, used))
    return points


def highest(points: Sequence[Point], total: float, columns: int) -> list[int]:
    """The most bytes in use in each of ``columns`` equal stretches of ``total`` ns."""
    result = [0] * columns
    for index, (time, used) in enumerate(points):
        until = points[index + 1][0] if index + 1 < len(points) else total
        first = min(columns - 1, int(time / total * columns)) if total else 0
        last = min(columns - 1, int(until / total * columns)) if total else 0
        for column in range(first, last + 1):
            result[column] = max(result[column], used)
    return result
