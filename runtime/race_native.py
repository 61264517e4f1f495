"""The passes of the race check that are native where a compiler was (``native/race_core.cpp``), on arrays.

Each finds what the NumPy code of its caller finds, in one walk over the dynamic instructions. They choose for
themselves: which one runs changes no verdict, so ``NEURONX_CC_SIMULATOR`` says nothing about them.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from neuronx_cc.runtime.intervals import Array

ABI = 3
"""Must be the number in race_core.cpp."""
PATH = Path(__file__).parent / "native" / "librace.so"
MAX_PAGES = 1 << 22
"""Pages that are walked through natively, some 130 bytes each."""
MAX_PAIRS = 1 << 21
"""Pairs that there is room for; the callers look at more part by part."""
MAX_CANDIDATES = 1 << 29
"""Accesses that are looked at beside others, some seconds; programs without races have fewer than a thousandth."""
NO_ROOM, NO_TIME = 1, 2
"""Why not all pairs are there; numbers of race_core.cpp."""
MAX_DIMS = 8
"""Of the sets of cells that are walked through natively."""
_MAX_SLOTS = 16
_MOST = (1 << 31) - 1


@cache
def load() -> ctypes.CDLL | None:
    """The library; None where it was not built, or was built from other sources than these."""
    try:
        library = ctypes.CDLL(str(PATH))
        if library.race_abi() != ABI:
            return None
    except (OSError, AttributeError):
        return None
    word, array = ctypes.c_int64, ctypes.c_void_p
    library.race_clocks.argtypes = [word, array, array, word, array, array, word, *[array] * 7]
    library.race_pairs.argtypes = [word, *[array] * 5, word, *[array] * 5, word, word, word, array, array, array]
    library.race_distinct.argtypes = [word, array, array, array]
    library.race_defined.argtypes = [ctypes.c_bool, word, *[array] * 7, word, array]
    library.race_defined_stretches.argtypes = [word, *[array] * 7]
    for function in ("clocks", "pairs", "distinct", "defined", "defined_stretches"):
        getattr(library, f"race_{function}").restype = word
    return library


def clocks(
    sizes: Array, bases: Array, in_order: Array, slots: Array, at: Array, awaited: Array, counts: Array
) -> tuple[Array, Array, Array, int] | tuple[int, int] | None:
    """Positions and versions of all instructions, what is known in each version, and how many waits are implied.

    ``sizes`` (pieces), ``bases`` (pieces, slots), ``in_order`` (slots, bool), ``slots`` (instructions); the waits'
    columns ascend by ``at``. A wait that never ends gives its number and how many instructions are issued by then.
    None: not to be had.
    """
    library = load()
    if library is None or bases.shape[1] > _MAX_SLOTS or max(counts.max(initial=0), len(slots) + len(at)) > _MOST // 2:
        return None
    positions, versions = np.empty((2, len(slots)), np.int64)
    known = np.empty((bases.size + len(at), bases.shape[1]), np.int32)
    totals = np.zeros(2, np.int64)
    sizes, bases, at, awaited, counts = (_words(column) for column in (sizes, bases, at, awaited, counts))
    in_order, slots = np.ascontiguousarray(in_order, bool), np.ascontiguousarray(slots, np.int8)
    failed = library.race_clocks(
        len(sizes),
        *_pointers(sizes, bases),
        bases.shape[1],
        *_pointers(in_order, slots),
        len(at),
        *_pointers(at, awaited, counts, positions, versions, known, totals),
    )
    if failed >= 0:
        return int(failed), int(totals[0])
    return positions, versions, known[: totals[0]], int(totals[1])


def pairs(
    accesses: tuple[Array, Array, Array, Array],
    footprints: tuple[Array, ...],
    slots: Array,
    pieces: Array,
    positions: Array,
    versions: Array,
    known: Array,
) -> tuple[Array, Array, int] | None:
    """Pairs (earlier, later) of accesses whose hulls meet, one of them a write, that clocks do not order.

    The last number is 0, or says why they are not all: NO_ROOM or NO_TIME.

    ``accesses``: the numbers of those looked at, and of all accesses instruction, footprint and whether they write.
    ``footprints``: base, end, first and last partition, lowest and highest page. The other columns have a row for each
    instruction. None: not to be had.
    """
    library = load()
    count = int(footprints[-1].max(initial=-1)) + 1
    if library is None or count > MAX_PAGES or known.shape[1] > _MAX_SLOTS:
        return None
    chosen, at, touched, writes = accesses
    sizes = (footprints[-1] - footprints[-2] + 1)[touched[chosen]]
    if int(sizes.sum()) > _MOST // 4:
        return None
    facts = _words(np.stack(footprints, axis=1))
    chosen, at, touched, pieces, positions, versions = (
        _words(column) for column in (chosen, at, touched, pieces, positions, versions)
    )
    writes, slots, known = np.ascontiguousarray(writes, bool), np.ascontiguousarray(slots), np.ascontiguousarray(known)
    earlier, later = np.empty((2, MAX_PAIRS), np.int64)
    end = np.zeros(1, np.int64)
    found = library.race_pairs(
        len(chosen),
        *_pointers(chosen, at, touched, writes, facts),
        known.shape[1],
        *_pointers(slots, pieces, positions, versions, known),
        count,
        MAX_PAIRS,
        MAX_CANDIDATES,
        *_pointers(earlier, later, end),
    )
    return earlier[:found].copy(), later[:found].copy(), int(end[0])


class Cells(NamedTuple):
    """Where footprints lie in a map."""

    patterns: Array
    """Of each footprint."""
    bases: Array
    """Of each footprint: its first cell."""
    shapes: Array
    """Of each pattern: a ``Shape`` of race_core.cpp."""
    layers: Array
    """Which of the map's layers a mask is for, of all shapes one after the other."""
    masks: Array


def walk_cells(state: Array, touched: Array, writes: Array, cells: Cells | None) -> int | None:
    """The first read, of accesses to footprints one after the other, of cells that neither ``state`` nor a write before
    it defines, or -1.

    What writes define is noted in ``state``: bool [cells], or uint64 [layers, cells]. None: not to be had.
    """
    library = load()
    if library is None or cells is None:
        return None
    assert state.flags.c_contiguous, "a map is one block"
    touched, writes = _words(touched), np.ascontiguousarray(writes, bool)
    patterns, bases, shapes, layers = (_words(column) for column in cells[:4])
    found: int = library.race_defined(
        state.dtype == np.uint64,
        len(touched),
        *_pointers(touched, writes, patterns, bases, shapes, layers, cells.masks),
        state.shape[-1],
        state.ctypes.data,
    )
    return found


def walk_stretches(state: Array, touched: Array, writes: Array, stretches: tuple[Array, ...]) -> int | None:
    """The same where footprints are stretches of cells: the first one of each and the one after its last one, and where
    each stretch begins and ends."""
    library = load()
    if library is None:
        return None
    touched, writes = _words(touched), np.ascontiguousarray(writes, bool)
    stretches = tuple(_words(column) for column in stretches)
    found: int = library.race_defined_stretches(len(touched), *_pointers(touched, writes, *stretches, state))
    return found


def distinct_firsts(keys: Array) -> tuple[Array, Array]:
    """Numbers of equal keys, given in the order of their first places; and these places."""
    library = load()
    if library is None or len(keys) > _MOST // 4:
        _, firsts, numbers = np.unique(keys, return_index=True, return_inverse=True)
        ranks = np.argsort(firsts)
        places = np.empty(len(firsts), np.int64)
        places[ranks] = np.arange(len(firsts))
        return places[numbers.reshape(-1)], firsts[ranks]
    keys = _words(keys)
    numbers, firsts = np.empty((2, len(keys)), np.int64)
    found = library.race_distinct(len(keys), *_pointers(keys, numbers, firsts))
    return numbers, firsts[:found].copy()


def _words(column: Array) -> Array:
    return np.ascontiguousarray(column, np.int64)


def _pointers(*arrays: Array) -> list[int]:
    return [array.ctypes.data for array in arrays]
