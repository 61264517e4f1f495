"""A gather of short rows from tables on chip, as code generation has it: its sizes, and how long it takes.

Operand [G, A, R, B]: G tables of R rows of A x B elements. Indices [G, N]. Result [G, N, A, B], [G, A, N, B] or
[G, A, B, N].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.indexing import LANES
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Stage, Tile, Timing, Work, total
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

GROUPS = PARTITIONS // LANES
"""GpSimd processors."""
LIST_SHARE = (1, 22)
"""Of a partition of SBUF: the rows of one tile."""
TABLE_SHARE = (25, 44)
"""The same of what tables can usually take."""
TURNED_SHARE = (6, 11)
"""The same where the elements of a row are brought together."""
STAGE_SHARE = (2, 11)
"""The same of a part of a table as it lies in HBM then."""
FILLING = 8
"""Latencies of a transfer that a walk takes at least for others to be hidden behind it that fill tiles."""
MAX_LIST = 1024
"""Entries a partition of one tile."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What such a gather takes depends on."""

    count: int
    before: int
    """Elements of a row whose dims stand before the rows in HBM."""
    height: int
    after: int
    entries: int
    lead: int
    """Elements of a row whose dims stand before the entries in the result."""
    size: int
    """Bytes of an element."""

    @property
    def elements(self) -> int:
        """Of a row."""
        return self.before * self.after

    @property
    def row(self) -> int:
        """Bytes."""
        return self.elements * self.size

    def stack(self, side: int) -> Tables:
        """Of each ``side`` tables one, and of their lists."""
        return replace(self, count=self.count // side, height=self.height * side, entries=self.entries * side)


def gathered(op: hlo.GatherOp) -> Tables:
    """Those of a canonical ``op``."""
    operand, result = hlo.shape_of(op.lhs), op.shape.dims
    count, before, height, after = operand.dims
    axis = next(dim for dim in (1, 2, 3) if dim not in op.dims.data.offset_dims)
    lead = prod(result[1:axis])
    return Tables(count, before, height, after, result[axis], lead, itemsize(operand.dtype))


def list_entries(sizes: Sizes, row: int) -> int:
    """Entries a partition of one tile of rows of ``row`` bytes."""
    return max(1, min(MAX_LIST, sizes.sbuf_share(LIST_SHARE) // row))


def fills(timing: Timing, t: Tables, shares: int) -> bool:
    """Whether walks are so long that transfers for later tables rather fill their tiles than wait for engines."""
    entries = min(ceil(t.entries / (LANES * shares)), list_entries(timing.sizes, t.row))
    walk = _walk(timing, t.row, entries).work.gpsimd
    return t.count * shares > GROUPS and walk > FILLING * timing.transfer_latency


@lru_cache(maxsize=4096)
def gather_ns(timing: Timing, t: Tables, shares: int) -> float:
    """A gather from ``t`` whose lists are divided among ``shares`` processors each.

    Vector brings together the elements of rows that do not lie so in HBM, and apart those of the result.
    """
    lanes, rounds = LANES * min(GROUPS, t.count * shares), ceil(t.count * shares / GROUPS)
    slots, each = ceil(t.height / LANES), ceil(t.entries / (LANES * shares))
    room = timing.sizes.sbuf_share(TABLE_SHARE)
    most = room // t.row
    if t.before > 1:
        room = min(room, timing.sizes.sbuf_share(TURNED_SHARE))
        most = min(room // t.row, timing.sizes.sbuf_share(STAGE_SHARE) // (t.after * t.size))
    chunks = ceil(slots / max(1, most))
    slots = ceil(slots / chunks)
    entries = min(each, list_entries(timing.sizes, t.row))
    table = [timing.moved(lanes * slots * t.row, slots * t.after * t.size if t.before > 1 else slots * t.row)]
    if t.before > 1:
        table.append(_turn(timing, (t.before, slots, t.after), t.size))
    load = timing.pipeline(table, 1)
    stages = [timing.moved(lanes * entries * 4, entries * 4), _walk(timing, t.row, entries)]
    if t.lead > 1:
        stages.append(_turn(timing, (t.lead, entries, t.elements // t.lead), t.size))
    run = entries * t.elements // t.lead * t.size
    stages.append(timing.moved(lanes * entries * t.row, run, "write"))
    tiles = each / entries
    if chunks > 1:
        stages.insert(0, timing.moved(lanes * entries * t.row, run))  # what earlier chunks have found
        return rounds * chunks * (load + timing.pipeline(stages, ceil(tiles)))
    first = timing.pipeline(stages, 1) - timing.transfer_latency  # the first list is there with the table
    lists = timing.pipeline(stages, 2) - timing.pipeline(stages, 1)
    moved = total(stage.work for stage in table).bound if 2 * slots * t.row <= room else load
    return load + first + (rounds * tiles - 1) * lists + (rounds - 1) * max(0.0, moved - tiles * lists)


def _turn(timing: Timing, dims: tuple[int, ...], size: int) -> Stage:
    tile = Tile("f32" if size == 4 else "bf16" if size == 2 else "u8")
    return timing.done(timing.engine("tensor_copy", Stream.VECTOR, dims, (tile,), (tile,)), Stream.VECTOR)


def _walk(timing: Timing, row: int, entries: int) -> Stage:
    """A processor brings its numbers into their bounds, and takes one after the other."""
    machine = timing.machine
    each = machine["pool.cost.gather_row"] + ceil(row / 4) * machine["pool.cost.gather_word"]
    walk = (machine["pool.start_cycles"] + LANES * entries * each) * timing.cycle(Stream.GPSIMD)
    numbers = Tile("s32")
    bound = timing.engine("int_tensor_tensor", Stream.GPSIMD, entries, (numbers,), (numbers,), ("maximum",), (0,))
    return timing.done(bound.times(2) + Work(gpsimd=walk, sbuf_port=walk), Stream.GPSIMD)
