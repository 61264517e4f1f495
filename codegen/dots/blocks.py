"""Blocks of a contraction: how many there are, how large they may be, and whether they fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from neuronx_cc.codegen.dots import conversion
from neuronx_cc.codegen.dots.problem import PART, PARTS, Operand, Problem
from neuronx_cc.codegen.dots.schedule import Leaves, Schedule, footprint
from neuronx_cc.codegen.emission.tiles import room_of
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

KEPT_FREE = 20
"""One part in so many of the room is not planned with: pieces of memory leave gaps."""
FEW_SHARE = 4
"""Few rows fill one part in so many of TensorE's columns."""
MOST_SMALL = (256, 128, 64)
"""Rows of blocks where not a whole tile fits."""


def blocks_of(problem: Problem, schedule: Schedule) -> tuple[int, int]:
    """Blocks of m and of n of one batch index."""
    m, n = max(1, problem.m_tiled), max(1, problem.n_tiled)
    m_blocks = prod(problem.m) // (m * schedule.group) * -(-m // max(1, schedule.lhs.rows))
    return m_blocks, prod(problem.n) // n * -(-n // max(1, schedule.rhs.rows))


def block(size: int, room: int, tile: int) -> int:
    """Block of at most ``room`` elements, in whole tiles if it is cut at all."""
    if size <= room:
        return size
    if room >= tile:
        blocks = -(-size // (room // tile * tile))
        return -(-size // (blocks * tile)) * tile
    return next((part for part in MOST_SMALL if part <= room), max(1, room))


def box_of(sizes: Sequence[int], count: int) -> tuple[int, ...]:
    """At most about ``count`` elements of dims of these sizes, of the last ones most."""
    box = list(sizes)
    for dim in reversed(range(len(sizes))):
        box[dim] = min(sizes[dim], max(1, count))
        count //= box[dim]
    return tuple(box)


def halves(count: int) -> Iterator[int]:
    """``count``, and half as many each time."""
    while count > 1:
        yield count
        count = -(-count // 2)
    yield count


def room_for(problem: Problem) -> int:
    """Bytes a partition that tiles may take."""
    return problem.room - problem.room // KEPT_FREE


def whole_rows(problem: Problem, frame: Schedule) -> bool:
    """Whether no block cuts the rows of lhs."""
    return problem.m_whole or (frame.leaves is Leaves.ROWS and problem.m_dim >= 0)


def fits(problem: Problem, schedule: Schedule, sizes: Sizes) -> bool:
    """Whether no dim on the partitions is cut and all tiles together find room."""
    if whole_rows(problem, schedule) and schedule.lhs.rows < problem.m_tiled:
        return False
    if problem.n_whole and schedule.rhs.rows < problem.n_tiled:
        return False
    return room_of(footprint(problem, schedule, sizes)) <= room_for(problem)


def bytes_of_row(problem: Problem, operand: Operand) -> int:
    """Bytes a partition of one row of an operand in a block, with all that is made of it."""
    chunks, nbytes = sum(map(prod, problem.all_chunks)), itemsize(operand.dtype if operand.paired else problem.dtype)
    if operand.split:
        nbytes = itemsize(operand.dtype) + PARTS * itemsize(PART)
    suspects = problem.lhs.suspected or problem.rhs.suspected
    return chunks * nbytes + (conversion.suspect_bytes(chunks) if suspects else 0)


def has_few_rows(problem: Problem, sizes: Sizes) -> bool:
    """Whether products take little time beside what is made of rhs for them."""
    return prod(problem.m) * FEW_SHARE <= sizes.columns


def come_beside(problem: Problem, operand: Operand) -> bool:
    """Whether its rows come to be transposed, and are neighbours in memory."""
    dim, width = problem.tiled_dim(operand), itemsize(operand.stored)
    row = prod(problem.k) * width
    if dim < 0 or not operand.transposed or operand.on_chip or operand.free[dim].stride != row:
        return False
    return sum((atom.size - 1) * abs(atom.stride) for atom in operand.contracted) + width == row
