"""How the tiles of a map follow each other: buffers, and tiles that are emitted together.

Engines take their instructions in order, and a transfer takes longer than most of them: with buffers for several tiles
one is loaded while another is worked on and a third is stored; tiles that are emitted together give an engine work
while another is busy with the other tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from neuronx_cc.codegen.emission.interleave import AHEAD
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.space import BUFFERS
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing

UNROLL = 4
"""Tiles up to which a loop is unrolled."""
LONG_BODY = 16
"""Ops from which two tiles keep the engines as busy as four do, in half the instructions."""
BODY = 8
"""Tiles of a loop's body, where several are under way: enough that its first and its last one do not count."""
UNDER_WAY = ((4, 2), (3, 2), (2, 2), (3, 1), (2, 1))
"""How many are, and buffers of what their ops make."""
TRANSFERS = ((2, 3), (1, 2))
"""Buffers of what each of them loads and stores: results wait for the queue, too."""
STREAMED = ((2, 3, 3), (2, 2, 3))
"""Buffers of what elementwise ops make, load and store, a tile at a time."""
IN_TURN = (1, 2, 2)
"""The same of rows, where several tiles do not fit."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What was decided."""

    buffers: int
    """Of each tile."""
    interleaved: bool = False
    """Whether tiles are emitted together, op by op."""
    under_way: int = 1
    """Tiles of a loop's body that are emitted together, each some ops after the one before."""
    loading: int = 0
    """Buffers of tiles that are loaded, and of those that are stored, where these have memory of their own; else 0."""
    storing: int = 0
    crowded: bool = False
    """Whether tiles would be emitted together if there were room."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """What that depends on."""

    kernel: Kernel
    loops: tuple[tuple[int, int], ...]
    """(free dim, step), outermost first."""
    sizes: tuple[int, ...]
    """Of the free dims, of which a tile has ``steps``; those ``reduced`` are whole."""
    steps: tuple[int, ...]
    reduced: tuple[bool, ...]
    ops: int
    """That are emitted for all elements."""
    streamed: int
    """Bytes that are loaded and stored for each element of a partition, on all partitions."""
    independent: bool
    """Whether a tile needs nothing of the one before, nor TensorE."""
    least: int
    """Bytes a partition of one tile of each array."""
    aligned: int
    """The same as allocated."""
    room: int
    """Bytes a partition for all of them."""
    read: int
    """Bytes of all tiles that are."""
    made: int
    """Bytes of one tile of each array but what is loaded and stored."""
    written: int
    """Bytes of the tiles that are stored, and not needed any more."""
    kept: int
    """Bytes of those that are still needed."""


def overlap_of(tiles: Tiles, timing: Timing) -> Overlap:
    """How ``tiles`` follow each other."""
    nbytes, room = tiles.aligned, tiles.room
    buffers = 2 if tiles.loops and 2 * tiles.least <= room else 1
    if tiles.loops and 3 * tiles.least <= room * 0.6:
        buffers = BUFFERS  # hides the latency of stores
    buffers = max(1, min(buffers, room // nbytes))
    if count := _interleaved(tiles):
        return Overlap(max(1, min(buffers, room // 2 // (count * nbytes))), interleaved=True)
    staggers = _staggers(tiles, timing)
    if staggers:
        for (several, each), (loading, storing) in product(UNDER_WAY, TRANSFERS):
            given = (several + AHEAD) * loading * tiles.read + storing * (tiles.written + several * tiles.kept)
            if several * each * tiles.made + given <= room:
                return Overlap(each, under_way=several, loading=loading, storing=storing)
    if staggers:
        each, loading, storing = IN_TURN
        if each * tiles.made + loading * tiles.read + storing * (tiles.written + tiles.kept) <= room:
            return Overlap(each, loading=loading, storing=storing, crowded=True)
    if buffers == BUFFERS and not tiles.kernel.reduced and tiles.kernel.scanned < 0 and tiles.independent:
        for each, loading, storing in STREAMED:
            if each * tiles.made + loading * tiles.read + storing * (tiles.written + tiles.kept) <= room:
                return Overlap(each, loading=loading, storing=storing)
    return Overlap(buffers, crowded=staggers)


def tile_count(sizes: Sequence[int], loops: Sequence[tuple[int, int]]) -> int:
    """Tiles of ``loops``, each (free dim, step), over dims of these ``sizes``."""
    return prod(ceil(sizes[dim] / step) for dim, step in loops)


def _interleaved(tiles: Tiles) -> int:
    """Number of tiles if all are emitted together, so that no engine waits for one alone; else 0."""
    if len(tiles.loops) != 1 or tiles.kernel.scanned >= 0:
        return 0
    dim, step = tiles.loops[0]
    count, rest = divmod(tiles.sizes[dim], step)
    return count if not rest and 1 < count <= UNROLL and count * tiles.aligned <= tiles.room // 2 else 0


def _staggers(tiles: Tiles, timing: Timing) -> bool:
    """Whether ops that wait for rows of a tile take longer, in turn, than to move it."""
    kernel = tiles.kernel
    if not tiles.loops or not kernel.reduced or kernel.scanned >= 0 or not tiles.independent:
        return False
    if tile_count(tiles.sizes, tiles.loops) <= UNROLL:
        return False
    elements = prod(tiles.steps)
    each = timing.engine("activation", Stream.SCALAR, elements, alu=("copy",)).bound + timing.latency(Stream.SCALAR)
    return tiles.ops > 1 and 2 * tiles.ops * each > timing.transfer(tiles.streamed * elements, timing.long_run).bound
