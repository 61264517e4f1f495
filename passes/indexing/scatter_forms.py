"""The two forms of scatters that code generation has, as builders.

``scatter_tables``: updates combined into tables on chip, one after the other. ``form``: one such scatter,
or one of rows that no two updates share and that replace the operand's.
"""

from __future__ import annotations

from math import isfinite

from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import FLOATS, itemsize
from neuronx_cc.passes.analysis.values import identity_of, splat_number
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.indexing.costs import Costs, costs_of
from neuronx_cc.passes.indexing.rows import gather_tables, stacked_numbers
from neuronx_cc.passes.indexing.scatter_sums import sums_where_finite
from neuronx_cc.passes.indexing.tables import GROUPS

Value = hlo.SSAValue
_COUNTED = ("f32", "s32", "u32")


def sharing(kind: str, dtype: str, tables: int) -> int:
    """Processors that may share the list of one table: several where the order of updates does not matter."""
    free = kind != "assign" and (dtype not in FLOATS or dtype == "f32" or kind in ("maximum", "minimum"))
    return Costs.copies(tables) if free else 1


def tables_ns(costs: Costs, kind: str, dtype: str, count: int, height: int, row: int, entries: int) -> float:
    """Estimate of what ``scatter_tables`` takes, in ns."""
    shape = (kind, dtype, count, height, row, entries)
    return min(_sums_ns(costs, *shape), _walk_ns(costs, *shape))


def _sums_ns(costs: Costs, kind: str, dtype: str, count: int, height: int, row: int, entries: int) -> float:
    applies = (kind, dtype, count) == ("add", "f32", 1)
    return costs.summed(height, row // 4, entries) if applies else float("inf")


def _walk_ns(costs: Costs, kind: str, dtype: str, count: int, height: int, row: int, entries: int) -> float:
    """Estimate of one index after the other."""
    if row > costs.row_bytes:
        return float("inf")
    shared = sharing(kind, dtype, count)
    if shared > 1:
        return min(costs.groups(count, height, row, entries, True, ways) for ways in (1, shared))
    in_order = costs.stacks(count, height, row, entries, True)
    return min(in_order, _by_places_ns(costs, count, height, row, entries)) if kind == "assign" else in_order


def _by_places_ns(costs: Costs, count: int, height: int, row: int, entries: int) -> float:
    places = costs.groups(count, height, 4, entries, True, costs.copies(count))
    walked = costs.groups(count, entries, row, height, shared=GROUPS if count == 1 else 1)
    return places + min(walked, costs.rows(count * height, row))


def scatter_tables(b: Build, kind: str, tables: Value, numbers: Value, updates: Value) -> Value:
    """Tables [G, R, W] with updates [G, N, W] combined into rows ``numbers`` [G, N]; lists shared where it pays."""
    count, height, width = hlo.shape_of(tables).dims
    dtype, entries = hlo.shape_of(tables).dtype, hlo.shape_of(numbers).dims[1]
    row = width * itemsize(dtype)
    splat, costs = splat_number(updates, b.module), costs_of(b)
    shape = (dtype, count, height, row, entries)
    counts = kind == "add" and splat is not None and isfinite(splat)  # no row is to get 0 times infinity
    if counts and counts_ns(costs, *shape) < tables_ns(costs, kind, *shape):
        assert splat is not None
        return _counted(b, tables, numbers, splat)
    if splat is None and _sums_ns(costs, kind, *shape) < _walk_ns(costs, kind, *shape):
        return _summed(b, tables, numbers, updates)
    return _walked(b, kind, tables, numbers, updates)


def _walked(b: Build, kind: str, tables: Value, numbers: Value, updates: Value) -> Value:
    """``scatter_tables`` by one index after the other."""
    count, height, width = hlo.shape_of(tables).dims
    dtype, entries = hlo.shape_of(tables).dtype, hlo.shape_of(numbers).dims[1]
    row, costs = width * itemsize(dtype), costs_of(b)
    in_order = costs.stacks(count, height, row, entries, True)
    if kind == "assign" and _by_places_ns(costs, count, height, row, entries) < in_order:
        return _assigned_by_place(b, tables, numbers, updates)
    shared = min(
        {1, sharing(kind, dtype, count)},
        key=lambda number: costs.groups(count, height, row, entries, True, number),
    )
    if shared == 1:
        side = costs.stacked(count, height, row, entries, True)
        if side == 1:
            return form(b, kind, tables, numbers, updates)
        stack = (count // side, side * height, width)
        placed = stacked_numbers(b, numbers, side, height)
        placed = b.select(
            b.reshape(inside(b, numbers, height), (count // side, side * entries)), placed, b.number_like(-1, placed)
        )
        rows = _reshaped(b, updates, (count // side, side * entries, width))
        return b.reshape(form(b, kind, _reshaped(b, tables, stack), placed, rows), (count, height, width))
    share = -(-entries // shared)
    missing = shared * share - entries
    neutral = identity_of(kind, dtype)
    assert neutral is not None, "a combiner whose order does not matter has a neutral element"
    numbers = b.pad(numbers, [(0, 0), (0, missing)], -1)
    result = form(
        b,
        kind,
        b.number(neutral, dtype, (count * shared, height, width)),
        b.reshape(numbers, (count * shared, share)),
        b.reshape(_longer(b, updates, missing), (count * shared, share, width)),
    )
    private = b.reshape(result, (count, shared, height, width))
    parts = [tables] + [b.reshape(b.slice(private, 1, at, at + 1), (count, height, width)) for at in range(shared)]
    while len(parts) > 1:
        pairs = [b.each(hlo.OPCODES[kind], *parts[at : at + 2]) for at in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[2 * len(pairs) :]
    return parts[0]


def _summed(b: Build, tables: Value, numbers: Value, updates: Value) -> Value:
    """Updates [1, N, W] added into the table [1, R, W], by a product where they are finite."""
    _, height, width = hlo.shape_of(tables).dims
    entries = hlo.shape_of(numbers).dims[1]

    def sums(inner: Build, numbers: Value, updates: Value) -> Value:
        zeros = inner.number(0, "f32", (height, width))
        rows = inner.reshape(updates, (entries, width))
        return inner.reshape(form(inner, "add", zeros, inner.reshape(numbers, (entries,)), rows), (1, height, width))

    def safe(inner: Build, numbers: Value, updates: Value) -> Value:
        return _walked(inner, "add", inner.number(0, "f32", (1, height, width)), numbers, updates)

    added = sums_where_finite(b, sums, safe, [numbers, updates])
    return added if splat_number(tables, b.module) == 0 else b.add(tables, added)


def counts_ns(costs: Costs, dtype: str, count: int, height: int, row: int, entries: int) -> float:
    """Estimate for one number added for each of ``entries``: they are counted."""
    return costs.counted(height, entries) if (count, row) == (1, 4) and dtype in _COUNTED else float("inf")


def _counted(b: Build, tables: Value, numbers: Value, number: float) -> Value:
    """``tables`` [1, R, 1] with ``number`` added for each of ``numbers`` [1, N]."""
    dims = hlo.shape_of(tables).dims
    ones = b.number(1, "f32", (1, hlo.shape_of(numbers).dims[1], 1))
    counts = b.convert(form(b, "add", b.number(0, "f32", dims), numbers, ones), hlo.shape_of(tables).dtype)
    added = counts if number == 1 else b.mul(counts, b.number_like(number, counts))
    return added if splat_number(tables, b.module) == 0 else b.add(tables, added)


def _assigned_by_place(b: Build, tables: Value, numbers: Value, updates: Value) -> Value:
    """The last update of each row: the greatest place in the list, which processors can look for in parts of it."""
    count, height, width = hlo.shape_of(tables).dims
    entries = hlo.shape_of(numbers).dims[1]
    never = b.number(-1, "s32", (count, height, 1))
    last = scatter_tables(b, "maximum", never, numbers, b.iota((count, entries, 1), 1))
    last = b.reshape(last, (count, height))
    splat = splat_number(updates, b.module)
    found = b.number_like(splat, tables) if splat is not None else gather_tables(b, updates, last)
    written = b.compare(last, b.number_like(0, last), "GE")
    return b.select(b.broadcast(written, (count, height, width), (0, 1)), found, tables)


def inside(b: Build, numbers: Value, height: int) -> Value:
    """Which of ``numbers`` are rows of a table of ``height``."""
    above = b.compare(numbers, b.number_like(0, numbers), "GE")
    return b.each(hlo.AndOp, above, b.compare(numbers, b.number_like(height, numbers), "LT"))


def _reshaped(b: Build, value: Value, dims: tuple[int, ...]) -> Value:
    splat = splat_number(value, b.module)
    return b.reshape(value, dims) if splat is None else b.number(splat, hlo.shape_of(value).dtype, dims)


def _longer(b: Build, updates: Value, missing: int) -> Value:
    """Updates [G, N, W] with ``missing`` entries more, of any value."""
    splat = splat_number(updates, b.module)
    if splat is None:
        return b.pad(updates, [(0, 0), (0, missing), (0, 0)])
    count, entries, width = hlo.shape_of(updates).dims
    return b.number(splat, hlo.shape_of(updates).dtype, (count, entries + missing, width))


_TABLES = hlo.ScatterDims((2,), (1,), (1,), 2, (0,), (0,))
_ROWS = hlo.ScatterDims((1,), (0,), (0,), 1)


def form(b: Build, kind: str, operand: Value, numbers: Value, updates: Value) -> Value:
    """A canonical scatter: into tables, of unique rows that replace others, or of finite rows added to zeros."""
    in_tables = hlo.shape_of(operand).rank == 3
    return b.typed(
        hlo.ScatterOp,
        (operand, numbers, updates),
        operand.type,
        dims=hlo.ScatterDimsAttr(_TABLES if in_tables else _ROWS),
        indices_are_sorted=hlo.BoolAttr(False),
        unique_indices=hlo.BoolAttr(not in_tables and kind == "assign"),
        to_apply=hlo.StrsAttr((_combiner(b, kind, hlo.shape_of(operand).dtype),)),
    )


def _combiner(b: Build, kind: str, dtype: str) -> str:
    if kind != "assign":
        return b.combiner(hlo.OPCODES[kind], dtype)
    name = f"assign.{dtype}.scalar"
    if all(computation.computation_name != name for computation in b.module.computations()):
        scalar = hlo.array_type(dtype, ())
        computation, _ = b.computation(name, [scalar, scalar], shared=True)
        assert computation.block.last_op is not None
        computation.block.last_op.operands = [computation.block.args[1]]
    return name
