"""LU factorisation with partial pivoting, column by column, as plain operators in a counted loop."""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.passes.expansions import small_matrices
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.linear_algebra import count_along, dims_of, imag, is_complex, put_slab, real, slab


def lu_factor(b: Build, x: Value) -> tuple[Value, Value, Value]:
    """Packed factors of [batch, m, n], the rows swapped with (s32 [batch, min(m, n)], from 1) and info (s32 [batch]).

    Info is the number of the first column whose pivot is zero, 0 without any; that column is not divided. Pivots are
    the largest by the sum of the magnitudes of both parts, the first of equal ones, as LAPACK chooses them.
    """
    batch, rows, columns = dims_of(x)
    count = min(rows, columns)
    if max(rows, columns) <= small_matrices.FEW and not is_complex(x):
        return small_matrices.lu_factor(b, x)

    def step(b: Build, index: Value, state: list[Value]) -> Sequence[Value]:
        x, pivots, info = state
        chosen, zero = _pivot(b, x, index)
        swapped, row = _swapped(b, x, index, chosen)
        column = b.reshape(slab(b, swapped, 2, index, 1), (batch, rows))
        pivot = b.broadcast(b.reshape(slab(b, row, 1, index, 1), (batch,)), (batch, rows), [0])
        nothing = b.broadcast(zero, (batch, rows), [0])
        divided = b.select(nothing, column, b.div(column, pivot))
        column = b.select(count_along(b, column, 1, index, "GT"), divided, column)
        inner = b.mul(b.broadcast(column, dims_of(x), [0, 1]), b.broadcast(row, dims_of(x), [0, 2]))
        inside = b.each(hlo.AndOp, count_along(b, x, 1, index, "GT"), count_along(b, x, 2, index, "GT"))
        rest = b.select(inside, b.sub(swapped, inner), swapped)
        number = b.broadcast(b.add(index, b.number(1, "s32")), (batch,))
        first = b.each(hlo.AndOp, zero, b.compare(info, b.number_like(0, info), "EQ"))
        return (
            put_slab(b, rest, b.reshape(column, (batch, rows, 1)), 2, index),
            put_slab(b, pivots, b.reshape(b.add(chosen, b.number_like(1, chosen)), (batch, 1)), 1, index),
            b.select(first, number, info),
        )

    state = [x, b.number(0, "s32", (batch, count)), b.number(0, "s32", (batch,))]
    packed, pivots, info = b.loop(count, state, step)
    return packed, pivots, info


def _pivot(b: Build, x: Value, index: Value) -> tuple[Value, Value]:
    """The row [batch] whose element of column ``index`` is the largest from the diagonal on; whether that is zero."""
    batch, rows, _ = dims_of(x)
    column = b.reshape(slab(b, x, 2, index, 1), (batch, rows))
    size = b.each(hlo.AbsOp, real(b, column))
    if is_complex(x):
        size = b.add(size, b.each(hlo.AbsOp, imag(b, column)))
    size = b.select(count_along(b, size, 1, index, "GE"), size, b.number_like(-1, size))
    largest = b.reduce(hlo.MaximumOp, size, [1], -1)
    same = b.compare(size, b.broadcast(largest, (batch, rows), [0]), "EQ")
    same = b.each(hlo.OrOp, same, b.compare(size, size, "NE"))  # a NaN is the largest, and equals nothing
    place = b.iota((batch, rows), 1)
    chosen = b.reduce(hlo.MinimumOp, b.select(same, place, b.number_like(rows - 1, place)), [1], rows - 1)
    return chosen, b.compare(largest, b.number_like(0, largest), "EQ")


def _swapped(b: Build, x: Value, index: Value, chosen: Value) -> tuple[Value, Value]:
    """``x`` with the rows ``index`` and ``chosen`` exchanged, and the row [batch, n] that is now at ``index``."""
    batch, rows, columns = dims_of(x)
    is_chosen = b.compare(b.iota((batch, rows), 1), b.broadcast(chosen, (batch, rows), [0]), "EQ")
    is_chosen = b.broadcast(is_chosen, dims_of(x), [0, 1])
    row = b.sum(b.select(is_chosen, x, b.number_like(0, x)), [1])
    other = b.reshape(slab(b, x, 1, index, 1), (batch, columns))
    spread = [b.broadcast(part, dims_of(x), [0, 2]) for part in (row, other)]
    swapped = b.select(is_chosen, spread[1], x)
    return b.select(count_along(b, x, 1, index, "EQ"), spread[0], swapped), row
