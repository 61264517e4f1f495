"""Tiles of rows of a contraction that are staged together: numbers that may be, whether or not they fit."""

from __future__ import annotations

from collections.abc import Iterator

from neuronx_cc.codegen.dots.problem import Home, Problem, run_of
from neuronx_cc.codegen.dots.schedule import Schedule, Way
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize


def counts(problem: Problem, frame: Schedule, sizes: Sizes) -> list[int]:
    """Numbers of tiles of m, at most those of one dim around, the most first, then at most half as many each time: of
    many, rhs, which streams past them, is wanted less often. ``frame`` says how lhs comes.
    """
    ways, around = set(frame.lhs.ways), problem.m_around
    if problem.m_tiled > sizes.columns:
        return []  # no tiles of one index each
    if around < 0 or not (
        ways == {Way.TRANSPOSED}
        or (ways == {Way.LOADED} and _are_runs(problem, around))
        or (ways == {Way.IN_PLACE} and problem.follows(around))
    ):
        return []
    found: list[int] = []
    for count in range(problem.m[around], 1, -1):
        if problem.m[around] % count == 0 and (not found or 2 * count <= found[-1]):
            found.append(count)
    return found


def _are_runs(problem: Problem, around: int) -> bool:
    """Whether tiles of lhs, or what is stored of the result of several, lie beside each other along a dim."""
    out = problem.out
    if problem.follows(around) or out.on_chip:
        return problem.follows(around)
    width = itemsize(out.dtype)
    columns = run_of(out.n[problem.n_dim : problem.n_dim + 1], width) if problem.n_dim >= 0 else width
    return out.m[around].stride in (width, columns)


def runs(problem: Problem, rows: int, sizes: Sizes) -> Iterator[int]:
    """The same of a result on chip whose lhs comes from HBM with k apart: runs of several tiles are longer."""
    lhs, tiled, around = problem.lhs, problem.m_dim, problem.m_around
    if around < 0 or rows < problem.m[tiled] or not problem.out.m[tiled].partition:
        return
    if lhs.home is Home.HBM and not lhs.transposed and problem.follows(around):
        most = sizes.bank_columns // rows
        yield from (count for count in range(most, 1, -1) if problem.m[around] % count == 0)
