"""Tiles of rows of a contraction that are staged together: numbers that may be, whether or not they fit."""

from __future__ import annotations

from collections.abc import Iterator

from neuronx_cc.codegen.dots.problem import Home, Problem
from neuronx_cc.codegen.dots.schedule import Schedule, Way
from neuronx_cc.ir.machine import Sizes


def counts(problem: Problem, frame: Schedule) -> list[int]:
    """Numbers of tiles of m, at most those of one dim around, the most first: rhs, which streams past them, is wanted
    less often. ``frame`` says how lhs comes.
    """
    ways = set(frame.lhs.ways)
    if problem.m_dim < 1 or not (ways == {Way.TRANSPOSED} or (ways == {Way.LOADED} and _follow(problem))):
        return []
    around = problem.m[problem.m_dim - 1]
    return [count for count in range(around, 1, -1) if around % count == 0]


def runs(problem: Problem, rows: int, sizes: Sizes) -> Iterator[int]:
    """The same of a result on chip whose lhs comes from HBM with k apart: runs of several tiles are longer."""
    lhs, tiled, outside = problem.lhs, problem.m_dim, problem.m_dim - 1
    if outside < 0 or rows < problem.m[tiled] or not problem.out.m[tiled].partition:
        return
    if lhs.home is Home.HBM and not lhs.transposed and _follow(problem):
        most = sizes.bank_columns // rows
        yield from (count for count in range(most, 1, -1) if problem.m[outside] % count == 0)


def _follow(problem: Problem) -> bool:
    """Whether tiles of lhs lie one after the other."""
    tile, around = problem.lhs.free[problem.m_dim], problem.lhs.free[problem.m_dim - 1]
    return not tile.partition and around.stride == tile.stride * tile.size
