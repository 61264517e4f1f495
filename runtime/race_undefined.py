"""Reads of memory that nothing has written.

Input: a ``Trace`` and the parts of HBM that hold data from the start. Output: the first access in emission order that
reads a byte which neither they nor earlier writes define, or None. Clocks are no matter here: where a write is earlier
in the emission order, but nobody waits for it, that is a race (``race_pairs``).

Each footprint is looked at once for each piece and kind of access, on a map of what is defined (``race_maps``). What
only a region defines whose body may not be run at all is undefined after it; a branch defines what all cases define.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

import numpy as np

from neuronx_cc.ir.isa.program import Space
from neuronx_cc.runtime.footprints import Footprints
from neuronx_cc.runtime.intervals import Array, distinct, inside, touches, union
from neuronx_cc.runtime.race_clocks import Clocks
from neuronx_cc.runtime.race_maps import HbmMap, Map, OnChipMap, grid_of_hbm, parts_of_hbm
from neuronx_cc.runtime.race_native import distinct_firsts
from neuronx_cc.runtime.race_trace import Area, Block, Trace

Events = tuple[Array, Array, Array]
"""Accesses, their footprints, whether they write."""


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
        columns = (kept[mine], touched[mine], writes[mine])
        pieces = clocks.pieces[accesses.at[kept[mine]]]
        firsts = np.flatnonzero(np.diff(pieces, prepend=-1))
        parts = zip(*(np.split(column, firsts[1:]) for column in columns), strict=True)
        todo = dict(zip(pieces[firsts].tolist(), parts, strict=len(firsts) > 0))
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


def _first_undefined(block: Block, todo: Mapping[int, Events], memory: Map) -> int | None:
    """The first read in a block that is undefined; ``todo`` has the events of each piece."""
    for item in block:
        if isinstance(item, Area):
            within = [todo[piece][1] for case in item.cases for piece in _pieces(case) if piece in todo]
            if not within:
                continue
            part = memory.part(np.concatenate(within))
            before, ends = part.copy(), []
            for case in item.cases:
                found = _first_undefined(case, todo, memory)
                if found is not None:
                    return found
                ends.append(part.copy())
                part[...] = before
            if item.certain:
                part[...] = reduce(np.bitwise_and, ends)
            continue
        if item.number in todo:
            accesses, touched, writes = todo[item.number]
            undefined = memory.first_undefined(touched, writes)
            if undefined >= 0:
                return int(accesses[undefined])
    return None


def _pieces(block: Block) -> Iterator[int]:
    """Numbers of all pieces of a block."""
    for item in block:
        if isinstance(item, Area):
            for case in item.cases:
                yield from _pieces(case)
        else:
            yield item.number
