"""Factorisations of matrices of few elements, each of which is an array of its own: one element of all matrices.

What a loop over columns does in ten kernels an iteration, with whole rows on partitions, is here a few operators on
each element, which one kernel does side by side. Real matrices ``[batch, rows, columns]`` of f32; the operations are
those of ``linear_algebra`` and ``lu_factor``, in the same order for each element.
"""

from __future__ import annotations

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.passes.expansions.build import Build, Value

FEW = 6
"""Rows and columns of matrices whose rows change places."""
FEW_IN_PLACE = 8
"""Rows of matrices whose rows stay where they are."""
MANY = 128
"""Matrices from which on all this takes less time than the kernels of ``ir.factors``."""
Elements = list[list[Value]]


def elements_of(b: Build, x: Value) -> Elements:
    """``[batch]`` each."""
    batch, rows, columns = hlo.shape_of(x).dims
    lines = [b.slice(x, 1, row, row + 1) for row in range(rows)]
    return [[b.reshape(b.slice(line, 2, at, at + 1), (batch,)) for at in range(columns)] for line in lines]


def joined(b: Build, elements: Sequence[Sequence[Value]]) -> Value:
    """The matrices of these elements."""
    (batch,) = hlo.shape_of(elements[0][0]).dims
    flat = [b.reshape(each, (batch, 1)) for line in elements for each in line]
    return b.reshape(b.concatenate(flat, 1), (batch, len(elements), len(elements[0])))


def cholesky(b: Build, x: Value) -> Value:
    """The lower factor, of which the lower triangle is read; NaN from a pivot on that is not positive."""
    left = elements_of(b, x)
    size = len(left)
    zero = b.number_like(0, left[0][0])
    nan, one = b.number_like(float("nan"), zero), b.number_like(1, zero)
    factor = [[zero] * size for _ in range(size)]
    for at in range(size):
        pivot = left[at][at]
        root = b.each(hlo.SqrtOp, b.select(b.compare(pivot, zero, "GT"), pivot, nan))
        inverse = b.div(one, root)
        for row in range(at, size):
            factor[row][at] = b.mul(left[row][at], inverse)
        for row in range(at + 1, size):
            for column in range(at + 1, row + 1):
                taken = b.mul(factor[row][at], factor[column][at])
                left[row][column] = b.sub(left[row][column], taken)
    return joined(b, factor)


def solve_lower(b: Build, lower: Value, right: Value, upper: bool = False) -> Value:
    """``x`` with ``lower x = right``, or with ``upper`` ``lower^T x = right``, row by row."""
    batch, size, columns = hlo.shape_of(right).dims
    matrix = elements_of(b, lower)
    rows = [b.reshape(b.slice(right, 1, row, row + 1), (batch, columns)) for row in range(size)]

    def spread(element: Value) -> Value:
        return b.broadcast(element, (batch, columns), [0])

    found = dict[int, Value]()
    for at in reversed(range(size)) if upper else range(size):
        rest = rows[at]
        for other, known in found.items():
            rest = b.sub(rest, b.mul(spread(matrix[other][at] if upper else matrix[at][other]), known))
        found[at] = b.div(rest, spread(matrix[at][at]))
    return b.concatenate([b.reshape(found[at], (batch, 1, columns)) for at in range(size)], 1)


def lu_factor(b: Build, x: Value) -> tuple[Value, Value, Value, Value]:
    """As ``lu_factor.lu_factor``."""
    left = elements_of(b, x)
    rows, columns = len(left), len(left[0])
    nothing = b.number_like(0, left[0][0])
    info, pivots = b.number(0, "s32", hlo.shape_of(nothing).dims), list[Value]()
    order = [[b.number_like(row, info)] for row in range(rows)]
    for at in range(min(rows, columns)):
        chosen, largest = _pivot(b, [left[row][at] for row in range(at, rows)], at)
        for each in (left, order):
            _swap(b, each, at, chosen)
        is_zero = b.compare(largest, nothing, "EQ")
        for row in range(at + 1, rows):
            left[row][at] = b.select(is_zero, left[row][at], b.div(left[row][at], left[at][at]))
            for column in range(at + 1, columns):
                left[row][column] = b.sub(left[row][column], b.mul(left[row][at], left[at][column]))
        first = b.each(hlo.AndOp, is_zero, b.compare(info, b.number_like(0, info), "EQ"))
        info = b.select(first, b.number_like(at + 1, info), info)
        pivots.append(b.add(chosen, b.number_like(1, chosen)))
    (batch,) = hlo.shape_of(info).dims
    lines = [[b.reshape(each, (batch, 1)) for each in line] for line in (pivots, [each for (each,) in order])]
    return joined(b, left), b.concatenate(lines[0], 1), info, b.concatenate(lines[1], 1)


def _pivot(b: Build, column: Sequence[Value], start: int) -> tuple[Value, Value]:
    """The first row of the largest magnitude, or of a NaN, counted from ``start``; that magnitude."""
    best = b.each(hlo.AbsOp, column[0])
    chosen = b.number(start, "s32", hlo.shape_of(best).dims)
    for row, element in enumerate(column[1:], start + 1):
        size = b.each(hlo.AbsOp, element)
        is_nan = b.each(hlo.AndOp, b.compare(size, size, "NE"), b.compare(best, best, "EQ"))
        better = b.each(hlo.OrOp, b.compare(size, best, "GT"), is_nan)
        best = b.select(better, size, best)
        chosen = b.select(better, b.number_like(row, chosen), chosen)
    return chosen, best


def _swap(b: Build, left: Elements, at: int, chosen: Value) -> None:
    """Exchange row ``at`` with the one that is chosen for it, which comes later."""
    before = left[at]
    for row in range(at + 1, len(left)):
        here = b.compare(chosen, b.number_like(row, chosen), "EQ")
        left[at] = [b.select(here, *pair) for pair in zip(left[row], left[at], strict=True)]
        left[row] = [b.select(here, *pair) for pair in zip(before, left[row], strict=True)]
