"""Reads of memory that nothing has written.

Input: a ``Trace`` and the parts of HBM that hold data from the start. Output: the first access in emission order that
reads a byte which neither they nor earlier writes define, or None. Clocks are no matter here: where a write is earlier
in the emission order, but nobody waits for it, that is a race (``race_pairs``).

Each footprint is looked at once for each piece and kind of access, on a map of what is defined (``race_maps``). What
only a region defines whose body may not be run at all is undefined after it; a branch defines what all cases define.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from neuronx_cc.ir.isa.program import Space
from neuronx_cc.runtime.footprints import Footprints
from neuronx_cc.runtime.intervals import Array, distinct, inside, touches, union
from neuronx_cc.runtime.race_clocks import Clocks
from neuronx_cc.runtime.race_maps import HbmMap, Map, OnChipMap, grid_of_hbm, parts_of_hbm
from neuronx_cc.runtime.race_native import distinct_firsts
from neuronx_cc.runtime.race_trace import Area, Block, Trace

Event = tuple[int, int, bool]
"""Access, footprint, whether it writes."""


def find_undefined(trace: Trace, clocks: Clocks, initialised: Array) -> int | None:
    """The first access that reads undefined memory. ``initialised``: disjoint, ascending [start, end) rows, in HBM."""
    footprints, accesses = trace.footprints, trace.accesses
    always = (footprints.space == int(Space.HBM)) & inside(initialised, footprints.base, footprints.end)
    kept = np.flatnonzero(~always[accesses.footprint])
    kinds = (clocks.pieces[accesses.at[kept]] * len(footprints) + accesses.footprint[kept]) * 2 + accesses.write[kept]
    kept = kept[distinct_firsts(kinds)[1]]  # the first of each kind
    touched, writes = accesses.footprint[kept], accesses.write[kept]
    found = []
    for memory, members in _maps(footprints, touched, writes, initialised, len(trace.pieces)):
        mine = np.isin(touched, members)
        events = zip(kept[mine].tolist(), touched[mine].tolist(), writes[mine].tolist(), strict=True)
        pieces = zip(clocks.pieces[accesses.at[kept[mine]]].tolist(), events, strict=True)
        todo = {piece: [event for _, event in group] for piece, group in groupby(pieces, lambda each: each[0])}
        found.append(_first_undefined(trace.root, todo, memory))
    return min([access for access in found if access is not None], default=None)


def _maps(
    footprints: Footprints, touched: Array, writes: Array, initialised: Array, pieces: int
) -> Iterator[tuple[Map, Array]]:
    """Maps of all memory that is read, each with the footprints that it knows."""
    spaces = footprints.space[touched]
    for space in (Space.SBUF, Space.PSUM):
        members = distinct(touched[spaces == int(space)])
        if len(members):
            yield OnChipMap(footprints, members, space), members
    in_hbm = distinct(touched[spaces == int(Space.HBM)])
    reads = distinct(touched[(spaces == int(Space.HBM)) & ~writes])
    if len(reads):
        wanted = union(footprints.base[reads], footprints.end[reads])
        members = in_hbm[touches(wanted, footprints.base[in_hbm], footprints.end[in_hbm])]
        grid = grid_of_hbm(footprints, members, initialised, pieces)
        if grid is not None:
            yield grid, members
            return
        for low, high, part in parts_of_hbm(footprints, members, int(wanted[0, 0]), int(wanted[-1, 1])):
            yield HbmMap(footprints, part, initialised, low, high), part


def _first_undefined(block: Block, todo: Mapping[int, Sequence[Event]], memory: Map) -> int | None:
    """The first read in a block that is undefined; ``todo`` has the events of each piece."""
    for item in block:
        if isinstance(item, Area):
            before, ends = memory.state, []
            for case in item.cases:
                memory.state = before.copy()
                found = _first_undefined(case, todo, memory)
                if found is not None:
                    return found
                ends.append(memory.state)
            memory.state = np.bitwise_and.reduce(ends) if item.certain else before
            continue
        for access, footprint, write in todo.get(item.number, ()):
            if write:
                memory.define(footprint)
            elif not memory.defines(footprint):
                return access
    return None
