"""Finds SBUF operands whose content cannot change between uses: written before, outside loops and regions, never again.

Input: a program. Output: ``ConstantTiles``, asked about one operand of one record. The simulator looks at such a tile
(the identity matrix of transposes) once a run instead of at every use.
"""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np

from neuronx_cc.ir.isa.program import Else, End, Instr, Loop, Program, Ref, Space, While
from neuronx_cc.ir.types import itemsize

Array: TypeAlias = np.ndarray[Any, Any]
EVERYTHING = 1 << 30


class ConstantTiles:
    """The SBUF writes of a program as hulls: (record or -1 within loops, partitions, bytes)."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[tuple[int, int, int, int], int] = {}

    @cached_property
    def _writes(self) -> Array:
        rows: list[tuple[int, int, int, int, int]] = []
        open_loops: list[dict[int, int]] = []
        for number, record in enumerate(self._program.records):
            if isinstance(record, Loop):
                open_loops.append({record.register: record.count, **dict(record.phases)})
            elif isinstance(record, End):
                open_loops.pop()
            elif isinstance(record, Instr):
                place = -1 if open_loops else number
                if any([ref.space is Space.SBUF for ref in record.outs]):
                    ranges = {register: count for loop in open_loops for register, count in loop.items()}
                    rows += [(place, *_hull(ref, ranges)) for ref in record.outs if ref.space is Space.SBUF]
            elif not isinstance(record, Else):
                open_loops.append({record.register: record.count} if isinstance(record, While) and record.count else {})
        return np.array(rows, np.int64).reshape(-1, 5)

    def __contains__(self, use: tuple[int, Ref]) -> bool:
        """Whether the operand of record ``use[0]`` always has the same content there."""
        number, ref = use
        if ref.coefs or ref.space is not Space.SBUF:
            return False
        hull = _hull(ref, {})
        if hull not in self._known:
            self._known[hull] = self._last_write(*hull)
        return self._known[hull] < number

    def _last_write(self, first: int, last: int, low: int, high: int) -> int:
        """The last record that writes into a box of SBUF; beyond all records when one in a loop does."""
        place, partition, partition_end, start, end = self._writes.T
        places = place[(partition < last) & (partition_end > first) & (start < high) & (end > low)]
        return EVERYTHING if (places < 0).any() else int(places.max(initial=-1))


def _hull(ref: Ref, ranges: Mapping[int, int]) -> tuple[int, int, int, int]:
    """First partition and the end, least byte and the end. ``ranges`` tells how many values registers have; one that
    it does not know was loaded at run time and may reach everything."""
    partitions = (ref.partition, ref.partition + ref.dims[0][0])
    if ref.coefs and any(register not in ranges for register, _ in ref.coefs):
        return *partitions, 0, EVERYTHING
    low, high = _reach(ref.dims[1:])
    if ref.coefs:
        below, above = _reach(tuple([(ranges[register], coef) for register, coef in ref.coefs]))
        low, high = low + below, high + above
    return *partitions, ref.offset + low, ref.offset + high + itemsize(ref.dtype)


@lru_cache(maxsize=4096)
def _reach(dims: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """How far below and above the first element those of these dims begin."""
    reach = [(count - 1) * stride for count, stride in dims]
    return sum([min(r, 0) for r in reach]), sum([max(r, 0) for r in reach])
