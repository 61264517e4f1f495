"""How a running fold of rows is cut: whole rows on the partitions, or each row's blocks, and the columns of a tile.

A tile's columns are halved from what an instruction handles well until tiles fit SBUF. The estimate is a loop of load,
scan and store on tiles of which up to ``BUFFERS`` are under way, and for blocks the small instructions that link them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import ceil

from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.rules import SQUARE
from neuronx_cc.ir.isa.timing import F32, Stage, Timing, Work
from neuronx_cc.ir.types import itemsize

BUFFERS = 3
"""Tiles under way, where there is room: one is loaded, one scanned, one stored."""
WIDEST, NARROWEST = 4096, 16
"""Elements a partition of a tile that are tried."""
SHORT_ROW = 12
"""Elements of a row up to which it is cheaper to add column to column than to scan row after row."""
LINKS = 4
"""Small instructions that link the blocks of a row, one after the other."""
SLOT = 64
"""Bytes of the smallest tile."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Folds along rows of ``length`` elements, computed in ``dtype`` by instructions of ``opcode``."""

    rows: int
    length: int
    dtype: str
    opcode: str
    room: int
    """Bytes a partition for tiles."""

    @property
    def is_float(self) -> bool:
        return self.dtype == "f32"

    @property
    def engine(self) -> Stream:
        return Stream.VECTOR if self.is_float else Stream.GPSIMD


@dataclass(frozen=True, slots=True)
class Schedule:
    width: int
    """Elements a partition of a tile."""
    blocks: int
    """Of each row, on as many partitions; 0 for whole rows, one or several a partition."""
    buffers: int
    """Tiles under way."""

    def __str__(self) -> str:
        cut = f"{self.blocks} blocks a row" if self.blocks else "rows"
        return f"{cut}, {self.width} columns a tile, {self.buffers} buffers"


def candidates(problem: Problem, timing: Timing) -> Iterator[Schedule]:
    """Schedules whose tiles fit, the widest first; none where nothing does."""
    partitions = timing.sizes.partitions
    blocks = partitions // problem.rows if problem.length >= partitions else 0
    width = min(WIDEST, max(problem.length * max(1, ceil(problem.rows / partitions)), NARROWEST))
    while width >= NARROWEST:
        for each in (0, *([blocks] if blocks > 1 else [])):
            fitting = (Schedule(width, each, buffers) for buffers in range(BUFFERS, 0, -1))
            yield from islice((one for one in fitting if nbytes(problem, one) <= problem.room), 1)
        width //= 2


def nbytes(problem: Problem, schedule: Schedule) -> int:
    """Bytes a partition of all tiles, and of what stays for the kernel."""

    def tile(size: int) -> int:
        return ceil(size * itemsize(problem.dtype) / SLOT) * SLOT

    linked = schedule.blocks * problem.rows
    beside = 2 * tile(linked) + tile(1) if linked else 0
    return schedule.buffers * (tile(schedule.width) + beside) + tile(problem.rows if linked else 1) + 2 * tile(1)


def choose(problem: Problem, timing: Timing) -> Schedule | None:
    """The schedule that takes least by estimate; None where nothing fits."""
    return min(candidates(problem, timing), key=lambda schedule: estimate(problem, schedule, timing), default=None)


def estimate(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Nanoseconds: a loop over tiles of one size fills and drains its pipeline; single tiles follow each other."""
    groups = list(_stages(problem, schedule, timing))
    loops = sum(timing.pipeline(stages, count, schedule.buffers) for count, stages in groups if count > 1)
    single = [stages for count, stages in groups if count == 1]
    filled = timing.pipeline(single[0], 1) if single and not loops else 0.0
    return loops + filled + sum(max(stage.work.bound for stage in stages) for stages in single[not loops :])


def _stages(problem: Problem, schedule: Schedule, timing: Timing) -> Iterator[tuple[int, list[Stage]]]:
    """Tiles of a size, and the load, the fold and the store of one."""
    partitions, size = timing.sizes.partitions, itemsize(problem.dtype)
    link = _scanned(problem, 1, timing) + timing.engine("tensor_copy", problem.engine, 1)

    def stages(filled: int, width: int, run: int, computed: Work, transfers: int = 1) -> list[Stage]:
        moved = [timing.moved(filled * width * size, run * size, way) for way in ("read", "write")]
        load, store = (stage._replace(work=stage.work.times(transfers)) for stage in moved)
        return [load, timing.done(computed, problem.engine), store]

    if schedule.blocks:
        chunks, width = _in_blocks(problem, schedule)
        linked = link.times(problem.rows * LINKS // 2 * ceil(schedule.blocks / SQUARE))
        computed = _scanned(problem, width, timing) + _combined(problem, width, timing) + linked
        yield chunks, stages(schedule.blocks, width, width, computed, problem.rows)
        return
    full, left = divmod(problem.rows, partitions)
    each = rows_each(problem, schedule, timing)
    if not each:
        whole, tail = divmod(problem.length, schedule.width)
        for groups, filled in ((full, partitions), (1, left)):
            for count, width in ((whole, schedule.width), (1, tail)):
                if groups * filled and count * width:
                    yield groups * count, stages(filled, width, width, _scanned(problem, width, timing) + link)
        return
    for deep, rows in ((each, full // each * each), (full % each, full % each), (1, left > 0)):
        if rows:
            filled = partitions if deep > 1 or rows > 1 or full else left
            one = by_columns(problem, deep)
            computed = _combined(problem, deep, timing) if one else _scanned(problem, problem.length, timing)
            computed = computed.times(problem.length - 1 if one else deep)
            yield rows // deep, stages(filled, deep * problem.length, deep * problem.length, computed)


def _in_blocks(problem: Problem, schedule: Schedule) -> tuple[int, int]:
    """Chunks of the rows, and the columns of each block."""
    chunks = ceil(problem.length / (schedule.blocks * schedule.width))
    return chunks, ceil(problem.length / (schedule.blocks * chunks))


def rows_each(problem: Problem, schedule: Schedule, timing: Timing) -> int:
    """Whole rows on a partition at a time; 0 where one takes several tiles."""
    if problem.length > schedule.width:
        return 0
    return max(1, min(ceil(problem.rows / timing.sizes.partitions), schedule.width // problem.length))


def by_columns(problem: Problem, each: int) -> bool:
    return problem.length <= SHORT_ROW and each > 1


def _scanned(problem: Problem, size: int, timing: Timing) -> Work:
    """One instruction on ``size`` columns."""
    return _engine(problem, "tensor_tensor_scan", "int_scan", size, timing)


def _combined(problem: Problem, size: int, timing: Timing) -> Work:
    return _engine(problem, "tensor_tensor", "int_tensor_tensor", size, timing)


def _engine(problem: Problem, op: str, integer: str, size: int, timing: Timing) -> Work:
    name, alu = (op, ()) if problem.is_float else (integer, (problem.opcode,))
    return timing.engine(name, problem.engine, size, ins=(F32, F32), alu=alu)
