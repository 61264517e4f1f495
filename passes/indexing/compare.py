"""Gathers and scatters by comparison: every row of a table is compared with the wanted number, on all partitions.

Input: tables [G, R, W] with few indices each. Output: elementwise ops and reductions. Where each table gives or takes a
single element, as the label of each row of logits does, this is less than a look at one index after the other, and
fuses with what makes the table and what reads the result. No bit changes: what is selected meets only the neutral
element of a maximum or of a bitwise or, and a number outside its table equals none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import WIDE_FLOATS, itemsize
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.indexing.costs import Costs

Value = hlo.SSAValue
Combined: TypeAlias = Callable[[Sequence[Value], Sequence[Value], Sequence[int]], Sequence[Value]]
"""Old and new elements, all of the given dims, to what takes their place."""
EXACT = 1 << 24
"""Row numbers below this are exact in f32, in which Vector compares; one above stays above."""
_OR = frozenset(["s32", "u32", "s16", "u16", "s8", "u8", "pred"])


def gather_ns(costs: Costs, count: int, height: int, row: int, entries: int, dtype: str) -> float:
    """Estimate for ``entries`` elements of each of ``count`` tables of ``height`` rows of ``row`` bytes."""
    if row != itemsize(dtype) or height > EXACT or dtype not in WIDE_FLOATS | _OR:
        return float("inf")
    return costs.compared(count * entries * height, count * height * row)


def scatter_ns(costs: Costs, count: int, height: int, row: int, entries: int, dtype: str) -> float:
    """Estimate for one update of each of ``count`` tables; no choice where tables have several, which may meet."""
    if entries > 1 or height > EXACT or dtype not in WIDE_FLOATS | _OR:
        return float("inf")
    return costs.compared(count * height * row // itemsize(dtype), 2 * count * height * row)


def gather(b: Build, tables: Value, numbers: Value) -> Value:
    """Elements [G, N, 1] of ``tables`` [G, R, 1] by ``numbers`` [G, N], which lie inside."""
    count, height, _ = hlo.shape_of(tables).dims
    entries = hlo.shape_of(numbers).dims[1]
    dtype = hlo.shape_of(tables).dtype
    dims = (count, entries, height) if entries > 1 else (count, height)
    spread = b.broadcast(b.reshape(tables, (count, height)), dims, (0, len(dims) - 1))
    same = _equal(b, b.reshape(numbers, dims[:-1]), dims, len(dims) - 1)
    neutral = float("-inf") if dtype in WIDE_FLOATS else 0
    kind = hlo.MaximumOp if dtype in WIDE_FLOATS else hlo.OrOp
    found = b.reduce(kind, b.select(same, spread, b.number(neutral, dtype, dims)), (len(dims) - 1,), neutral)
    return b.reshape(found, (count, entries, 1))


def scatter(
    b: Build, combined: Combined, tables: Sequence[Value], numbers: Value, updates: Sequence[Value]
) -> list[Value]:
    """``tables`` [G, R, W], each with ``updates`` [G, 1, W] joined to the rows ``numbers`` [G, 1] that there are."""
    count, height, width = hlo.shape_of(tables[0]).dims
    dims = (count, height, width) if width > 1 else (count, height)
    axes = (0, 2) if width > 1 else (0,)
    old = [b.reshape(table, dims) for table in tables]
    new = [b.broadcast(b.reshape(update, [dims[axis] for axis in axes]), dims, axes) for update in updates]
    same = _equal(b, b.reshape(numbers, (count,)), dims, 1)
    results = [b.select(same, after, before) for after, before in zip(combined(old, new, dims), old, strict=True)]
    return [b.reshape(result, (count, height, width)) for result in results]


def _equal(b: Build, numbers: Value, dims: tuple[int, ...], axis: int) -> Value:
    """Where the place along ``axis`` of an array of ``dims`` is the number of its first dims."""
    wanted = b.convert(numbers, "f32")
    rank = len(hlo.shape_of(wanted).dims)
    assert prod(hlo.shape_of(wanted).dims) == prod(dims[:rank]), "numbers for the first dims"
    return b.compare(b.iota(dims, axis, "f32"), b.broadcast(wanted, dims, range(rank)), "EQ")
