"""LU factorisation with partial pivoting, column by column, as plain operators in a counted loop."""

from collections.abc import Sequence

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.factors import LU, MOST_COLUMNS, MOST_ROWS
from neuronx_cc.passes.expansions import small_matrices
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.linear_algebra import (
    count_along,
    dims_of,
    imag,
    is_complex,
    lower_part,
    product,
    put_slab,
    real,
    slab,
    solve_lower,
    where,
)

Factors = tuple[Value, Value, Value, Value]
SHARE = (3, 5)
"""Of a partition on chip: the tiles of a kernel of the most rows."""
TILES = 11
TINY = 2
"""Rows and columns that operators on single elements factorise in less time than the kernel."""


def lu_factor(b: Build, x: Value) -> Factors:
    """Packed factors of [batch, m, n], the rows swapped with (s32 [batch, min(m, n)], from 1), info (s32 [batch]), and
    which row of the operand each row is (s32 [batch, m]).

    Info is the number of the first column whose pivot is zero, 0 without any; that column is not divided. Pivots are
    the largest by the sum of the magnitudes of both parts, the first of equal ones, as LAPACK chooses them.
    """
    batch, rows, columns = dims_of(x)
    count = min(rows, columns)
    largest = max(rows, columns)
    few = TINY if batch == 1 else small_matrices.FEW if batch > small_matrices.MANY else 2 * TINY
    if not is_complex(x) and largest <= few:
        return small_matrices.lu_factor(b, x)
    if not is_complex(x) and rows <= _most_rows(b):
        return _by_blocks(b, x) if columns > MOST_COLUMNS else _called(b, x)

    def step(b: Build, index: Value, state: list[Value]) -> Sequence[Value]:
        x, pivots, info, order = state
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
            _exchanged(b, order, index, chosen),
        )

    numbers = b.iota((batch, rows), 1, "f32")
    state = [x, b.number(0, "s32", (batch, count)), b.number(0, "s32", (batch,)), numbers]
    packed, pivots, info, order = b.loop(count, state, step)
    return packed, pivots, info, b.convert(order, "s32")


def _exchanged(b: Build, order: Value, index: Value, chosen: Value) -> Value:
    """``order`` [batch, m] with the elements ``index`` and ``chosen`` [batch] exchanged."""
    dims = dims_of(order)
    is_chosen = b.compare(b.iota(dims, 1), b.broadcast(chosen, dims, [0]), "EQ")
    is_here = count_along(b, order, 1, index, "EQ")
    there = b.sum(b.select(is_chosen, order, b.number_like(0, order)), [1])
    here = b.sum(b.select(is_here, order, b.number_like(0, order)), [1])
    order = b.select(is_chosen, b.broadcast(here, dims, [0]), order)
    return b.select(is_here, b.broadcast(there, dims, [0]), order)


def _most_rows(b: Build) -> int:
    """Rows of which the kernel has a dozen tiles on chip."""
    return MOST_ROWS if b.timing is None else min(MOST_ROWS, b.timing.sizes.sbuf_share(SHARE) // (4 * TILES))


def _called(b: Build, x: Value) -> Factors:
    """By one kernel."""
    batch, rows, columns = dims_of(x)
    count = min(rows, columns)
    types = [x.type, hlo.array_type("s32", (batch, count)), hlo.array_type("s32", (batch, rows))]
    parts = b.typed(hlo.CustomCallOp, [x], hlo.tuple_type(tuple(types)), target=hlo.StrAttr(LU))
    packed, pivots, order = (b.element(parts, number) for number in range(3))
    return packed, pivots, _info(b, packed), order


def _info(b: Build, packed: Value) -> Value:
    """The number of the first zero on the diagonal, 0 without any."""
    _, rows, columns = dims_of(packed)
    count = min(rows, columns)
    diagonal = where(b, np.eye(rows, columns, dtype=np.bool_), packed, b.number_like(1, packed))
    places = b.iota(dims_of(packed), 2)
    zeros = b.select(b.compare(diagonal, b.number_like(0, diagonal), "EQ"), places, b.number_like(count, places))
    first = b.reduce(hlo.MinimumOp, zeros, [1, 2], count)
    is_zero = b.compare(first, b.number_like(count, first), "LT")
    info = b.select(is_zero, b.add(first, b.number_like(1, first)), b.number_like(0, first))
    return b.each(hlo.MaximumOp, info, b.number_like(0, info))


def _by_blocks(b: Build, x: Value) -> Factors:
    """Blocks of columns by the kernel, each of which orders the rows of all, and what is right of them by products."""
    batch, rows, columns = dims_of(x)
    count = min(rows, columns)
    blocks = -(-count // MOST_COLUMNS)
    block = -(-count // blocks)
    order, pivots, above = b.iota((batch, rows), 1), list[Value](), list[Value]()
    for start in range(0, count, block):
        end = min(start + block, count)
        packed, chosen, _, places = _called(b, b.slice(x, 2, start, end))
        pivots.append(b.add(chosen, b.number_like(start, chosen)))
        rest = _rows(b, x, places)
        left, right = b.slice(rest, 2, 0, start), b.slice(rest, 2, end, columns)
        order = b.concatenate([b.slice(order, 1, 0, start), _rows(b, b.slice(order, 1, start, rows), places)], 1)
        top = [b.slice(each, 1, 0, end - start) for each in (left, packed, right)]
        low = [b.slice(each, 1, end - start, rows - start) for each in (left, packed, right)]
        if end < columns:
            triangle = lower_part(b, top[1])
            ones = np.eye(end - start, dtype=np.bool_)
            top[2] = solve_lower(b, where(b, ones, b.number_like(1, triangle), triangle), top[2])
        if end < min(rows, columns):
            low[2] = b.sub(low[2], product(b, low[1], top[2]))
        top, low = ([each for each in parts if 0 not in dims_of(each)] for parts in (top, low))
        above.append(b.concatenate(top, 2))
        if low:
            x = b.concatenate(low, 2)
    if rows > count:
        above.append(x)
    packed = b.concatenate(above, 1)
    return packed, b.concatenate(pivots, 1), _info(b, packed), order


def _rows(b: Build, x: Value, order: Value) -> Value:
    """The rows of ``x`` [batch, m, ...] in ``order`` [batch, m]."""
    batch, rows, *inner = dims_of(x)
    dims = hlo.GatherDims(tuple(range(2, 2 + len(inner))), (1,), (1,), 2, (0,), (0,))
    return b.typed(
        hlo.GatherOp,
        [x, b.reshape(order, (batch, rows, 1))],
        x.type,
        dims=hlo.GatherDimsAttr(dims),
        slice_sizes=hlo.IntsAttr((1, 1, *inner)),
        indices_are_sorted=hlo.BoolAttr(False),
    )


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
