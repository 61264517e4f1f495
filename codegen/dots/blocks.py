"""Blocks of a contraction: how many there are, and how large they may be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from neuronx_cc.codegen.dots.problem import Problem
from neuronx_cc.codegen.dots.schedule import Schedule

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
