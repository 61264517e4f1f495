"""Carries out the updates of a scatter by the forms that code generation has (see ``indexing.scatter``).

* One update of each table, such as the gradient of a label: elementwise, wherever the row has its number.
* One window: the operand's part is read, combined and written back by dynamic slices.
* Small rows: tables on chip. Where the order of updates does not matter, eight processors share the list, each with a
  table of its own; the tables are combined afterwards.
* Long rows that no two updates share: read by gather, combined, written by DMA.
* Long rows with duplicates: the *leader* of an index is its first place in the list. The old rows of all places are
  read, the updates combined one after the other into their leaders' rows on chip, and the leaders' rows written. Of
  updates that replace their row, the last one is written and the others are dropped.
* Anything else: a loop over the updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.expansions.bodies import apply_body, is_elementwise
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.indexing import compare as indexing_compare
from neuronx_cc.passes.indexing.costs import costs_of
from neuronx_cc.passes.indexing.rows import (
    Label,
    Windows,
    arranged,
    gather_rows,
    gather_tables,
    row_numbers,
    table_labels,
    weights,
)
from neuronx_cc.passes.indexing.scatter_forms import form, inside, scatter_tables, tables_ns
from neuronx_cc.passes.indexing.tables import GROUPS

Value = hlo.SSAValue
PAIRS = 512
"""Updates up to which duplicates are found by comparing every two."""
UNROLLED = 4
LOOP_TRANSFERS = 11
"""Transfers that follow one another in one step of a loop over updates."""


@dataclass(slots=True)
class Scatter:
    """A scatter on its way."""

    b: Build
    op: hlo.ScatterOp
    windows: Windows
    valid: Value | None
    """Over the batch dims: which windows fit. None when all do."""
    labels: list[Label]
    """Of the updates' dims."""
    indexed: list[int]
    """Operand dims that the index vectors speak of."""
    unique: bool
    body: hlo.ComputationOp

    def transposed(self) -> tuple[Scatter, list[int]]:
        """The same with the dims between reached ones after them, and the order of the operand's dims in it."""
        w = self.windows
        order = [*w.reached, *w.between, *w.after]
        place = {dim: at for at, dim in enumerate(order)}
        windows = Windows(
            tuple(w.dims[dim] for dim in order),
            tuple(w.sizes[dim] for dim in order),
            {place[dim]: start for dim, start in w.starts.items()},
            {place[dim]: axis for dim, axis in w.paired.items()},
            w.batch,
        )
        labels = [(kind, place[at] if kind == "window" else at) for kind, at in self.labels]
        indexed = [place[dim] for dim in self.indexed]
        return replace(self, windows=windows, labels=labels, indexed=indexed), order


def scattered(s: Scatter, kind: str, operands: list[Value], updates: list[Value]) -> list[Value]:
    """The operands with the updates in; ``kind`` is ``assign`` or an opcode for one operand, empty for ``s.body``."""
    w, costs = s.windows, costs_of(s.b)
    if kind == "" and not is_elementwise(s.body):
        raise CompileError(
            "EVRF001", "scatter with a combiner that is not elementwise", "combine by scalar operators", s.op.loc
        )
    if w.count == 1:
        return _one_by_one(s, kind, operands, updates)
    dtypes = [hlo.shape_of(operand).dtype for operand in operands]
    row = itemsize(dtypes[0]) * prod(w.dims[dim] for dim in w.after)
    count = w.count * prod(w.sizes[dim] for dim in (*w.spread, *w.between))
    ways = 1 if s.unique and kind == "assign" else 2 if s.unique else 4 if kind else float("inf")

    def in_tables_ns(count: int, height: int, row: int, entries: int) -> float:
        return tables_ns(costs, kind, dtypes[0], count, height, row, entries) if kind else float("inf")

    def comparing_ns(count: int, height: int, row: int, entries: int) -> float:
        return sum(indexing_compare.scatter_ns(costs, count, height, row, entries, dtype) for dtype in dtypes)

    by_tables, tables = _best(s, in_tables_ns, row)
    by_comparing, single = _best(s, comparing_ns, row)
    whole = prod(w.sizes[dim] for dim in w.between)
    rows = costs.rows(count, row) * ways + _beside_rows(s, operands, count)
    both_ways = costs.transposed(2 * _nbytes(operands) + _nbytes(updates))
    transposed = float("inf")
    if w.between:
        apart = prod(w.dims[dim] for dim in w.paired)
        height = prod(w.dims[dim] for dim in w.reached if dim not in w.paired)
        together = in_tables_ns(apart, height, row * whole, count // whole // apart)
        transposed = both_ways + min(costs.rows(count // whole, row * whole) * ways, together)
    choices: list[tuple[float, Callable[[], list[Value]]]] = [
        (rows, lambda: _by_rows(s, kind, operands, updates)),
        (transposed, lambda: _transposed(s, kind, operands, updates)),
        (by_tables, lambda: _in_tables(s, kind, operands, updates, tables, False)),
        (by_comparing, lambda: _in_tables(s, kind, operands, updates, single, True)),
        (w.count * LOOP_TRANSFERS * costs.timing.transfer_latency, lambda: _one_by_one(s, kind, operands, updates)),
    ]
    return min(choices, key=lambda choice: choice[0])[1]()


def _beside_rows(s: Scatter, operands: Sequence[Value], count: int) -> float:
    """Nanoseconds of an operand that has to be filled, and read by what follows, and of finding duplicates."""
    costs, height = costs_of(s.b), prod(s.windows.dims[: max(s.windows.reached, default=-1) + 1])
    filled = [operand for operand in operands if splat_number(operand, s.b.module) is not None]
    found = 0.0
    if not s.unique and count > PAIRS:
        found = tables_ns(costs, "minimum", "s32", 1, height, itemsize("s32"), count)
        found += costs.groups(1, height, itemsize("s32"), count)
    return costs.moved(2 * _nbytes(filled)) + found


def _nbytes(values: Sequence[Value]) -> int:
    return sum(hlo.shape_of(value).nbytes for value in values)


def _transposed(s: Scatter, kind: str, operands: list[Value], updates: list[Value]) -> list[Value]:
    """The dims between the reached ones go after them and back, so that rows are long."""
    transposed, order = s.transposed()
    results = scattered(transposed, kind, [s.b.transpose(operand, order) for operand in operands], updates)
    back = [order.index(dim) for dim in range(len(order))]
    return [s.b.transpose(result, back) for result in results]


# one window after the other


def _one_by_one(s: Scatter, kind: str, operands: list[Value], updates: list[Value]) -> list[Value]:
    """Each window is read, combined and written back, in the order of the indices."""
    b, w = s.b, s.windows
    window: list[Label] = [("window", dim) for dim in range(len(w.dims)) if ("window", dim) in s.labels]
    batch: list[Label] = [("batch", axis) for axis in range(len(w.batch))]
    rows = [
        b.reshape(arranged(b, update, w, s.labels, [*batch, *window]), (w.count, *_sizes(w, window)))
        for update in updates
    ]
    places = [b.reshape(_place(b, w, dim), (w.count,)) for dim in w.reached]
    fits = [] if s.valid is None else [b.reshape(s.valid, (w.count,))]
    number = len(operands)

    def step(inner: Build, index: Value | int, state: Sequence[Value]) -> list[Value]:
        zero = inner.number(0, "s32")
        here = [_entry(inner, value, index, ()) for value in state[2 * number : 2 * number + len(places)]]
        at = dict(zip(w.reached, here, strict=True))
        starts = [at.get(dim, zero) for dim in range(len(w.dims))]
        old = [inner.dynamic_slice(value, starts, w.sizes) for value in state[:number]]
        new = [_entry(inner, value, index, w.sizes) for value in state[number : 2 * number]]
        combined = _combined(s, inner, kind, old, new, w.sizes)
        if fits:
            mask = inner.broadcast(_entry(inner, state[-1], index, ()), w.sizes)
            combined = [inner.select(mask, value, before) for value, before in zip(combined, old, strict=True)]
        written = [
            inner.dynamic_update_slice(value, part, starts)
            for value, part in zip(state[:number], combined, strict=True)
        ]
        return [*written, *state[number:]]

    state = [*operands, *rows, *places, *fits]
    if w.count <= UNROLLED:
        for index in range(w.count):
            state = step(b, index, state)
        return state[:number]
    return b.loop(w.count, state, step)[:number]


def _entry(b: Build, value: Value, index: Value | int, dims: Sequence[int]) -> Value:
    """``value[index]``, which has ``dims`` without dims of size 1."""
    if isinstance(index, int):
        return b.reshape(b.slice(value, 0, index, index + 1), dims)
    shape = hlo.shape_of(value).dims
    zeros = [b.number(0, "s32")] * (len(shape) - 1)
    return b.reshape(b.dynamic_slice(value, [index, *zeros], (1, *shape[1:])), dims)


def _sizes(w: Windows, labels: Sequence[Label]) -> list[int]:
    return [w.size(label) for label in labels]


def _place(b: Build, w: Windows, dim: int) -> Value:
    return w.starts[dim] if dim in w.starts else b.iota(w.batch, w.paired[dim])


def _combined(
    s: Scatter, b: Build, kind: str, old: Sequence[Value], new: Sequence[Value], dims: Sequence[int]
) -> list[Value]:
    if kind == "assign":
        return list(new)
    if kind:
        return [b.each(hlo.OPCODES[kind], old[0], new[0])]
    # the body goes in above an op of this block that stands after the operands
    anchor = b.reshape(b.number(0, "s32", (1,)), ())
    assert isinstance(anchor, hlo.OpResult)
    assert isinstance(anchor.op, hlo.HloOp)
    return apply_body(anchor.op, s.body, [*old, *new], tuple(dims))


# tables on chip


def _best(s: Scatter, estimate: Callable[[int, int, int, int], float], row: int) -> tuple[float, list[int]]:
    """The least ``estimate`` (of tables, their rows, bytes of one, updates), and the operand dims that count tables."""
    w = s.windows

    def of(tables: list[int]) -> float:
        count, entries = _entries(w, tables)
        height = prod(w.dims[dim] for dim in w.reached if dim not in tables)
        return estimate(count, height, row, entries)

    best = min(w.tables, key=of)
    return of(best), best


def _entries(w: Windows, tables: Sequence[int]) -> tuple[int, int]:
    """Tables, and updates of one."""
    count = prod(w.dims[dim] for dim in tables)
    total = w.count * prod(w.sizes[dim] for dim in (*w.spread, *w.between))
    return count, total // count


def _in_tables(
    s: Scatter, kind: str, operands: list[Value], updates: list[Value], tables: list[int], compare: bool
) -> list[Value]:
    """The updates joined to tables that the dims ``tables`` count: by comparisons, or on chip one after the other."""
    b, w = s.b, s.windows
    inside = [dim for dim in w.reached if dim not in tables]
    numbers, labels = _numbers(s, inside, w.spread)
    outer = table_labels(w, tables)
    inner = [label for label in labels if label not in outer]
    transposed = arranged(b, numbers, w, labels, [*(label for label in outer if label in labels), *inner])
    places = [at for at, label in enumerate([*outer, *inner]) if label in labels]
    repeated = b.broadcast(transposed, _sizes(w, [*outer, *inner]), places)
    count, entries = _entries(w, tables)
    height, width = prod(w.dims[dim] for dim in inside), prod(w.dims[dim] for dim in w.after)
    order = [*tables, *inside, *w.after]
    row: list[Label] = [("window", dim) for dim in w.after]
    listed = b.reshape(repeated, (count, entries))
    old = [b.reshape(b.transpose(operand, order), (count, height, width)) for operand in operands]
    new = [
        b.reshape(arranged(b, update, w, s.labels, [*outer, *inner, *row]), (count, entries, width))
        for update in updates
    ]
    if compare:
        results = indexing_compare.scatter(b, lambda *parts: _combined(s, b, kind, *parts), old, listed, new)
    else:
        results = [scatter_tables(b, kind, old[0], listed, new[0])]
    back = [order.index(dim) for dim in range(len(order))]
    return [b.transpose(b.reshape(result, [w.dims[dim] for dim in order]), back) for result in results]


def _numbers(s: Scatter, inside: Sequence[int], spread: Sequence[int]) -> tuple[Value, list[Label]]:
    """Row numbers over the batch dims and ``spread``, -1 where the window does not fit, and their labels."""
    b, w = s.b, s.windows
    numbers = row_numbers(b, w, weights(w.dims, inside), spread)
    labels: list[Label] = [("batch", axis) for axis in range(len(w.batch))]
    labels += [("window", dim) for dim in spread]
    alone = len(inside) == 1 and list(inside) == s.indexed
    if s.valid is None or (alone and not spread):  # a number outside is skipped as it is
        return numbers, labels
    dims = hlo.shape_of(numbers).dims
    fits = b.broadcast(s.valid, dims, range(len(w.batch)))
    return b.select(fits, numbers, b.number_like(-1, numbers)), labels


# rows by DMA


def _by_rows(s: Scatter, kind: str, operands: list[Value], updates: list[Value]) -> list[Value]:
    b, w = s.b, s.windows
    inside = list(range(max(w.reached, default=-1) + 1))
    spread = [dim for dim in inside if dim in w.between or dim in w.spread]
    numbers, labels = _numbers(s, inside, spread)
    height, width = prod(w.dims[dim] for dim in inside), prod(w.dims[dim] for dim in w.after)
    count = hlo.shape_of(numbers).size
    numbers = b.reshape(numbers, (count,))
    row: list[Label] = [("window", dim) for dim in w.after]
    rows = [b.reshape(arranged(b, update, w, s.labels, [*labels, *row]), (count, width)) for update in updates]
    tables = [b.reshape(operand, (height, width)) for operand in operands]
    if kind == "assign":
        if not s.unique:
            numbers = _only_last(b, numbers, height)
    elif s.unique:
        old = [_old_rows(b, table, numbers) for table in tables]
        rows = _combined(s, b, kind, old, rows, (count, width))
    else:
        leader = _leaders(b, numbers, height)
        rows = [_combine_into(b, kind, _old_rows(b, tables[0], numbers), leader, rows[0])]
        first = b.compare(leader, b.iota((count,), 0), "EQ")
        numbers = b.select(first, numbers, b.number_like(-1, numbers))
    return [b.reshape(form(b, "assign", table, numbers, new), w.dims) for table, new in zip(tables, rows, strict=True)]


def _old_rows(b: Build, table: Value, numbers: Value) -> Value:
    """Rows [N, W] of ``table`` [R, W]."""
    shape, (count,) = hlo.shape_of(table), hlo.shape_of(numbers).dims
    splat = splat_number(table, b.module)
    if splat is not None:
        return b.number(splat, shape.dtype, (count, shape.dims[1]))
    return b.reshape(gather_rows(b, table, numbers), (count, shape.dims[1]))


def _extreme_place(b: Build, numbers: Value, height: int, last: bool) -> Value:
    """For each entry of ``numbers`` [N] the first (or last) place of the same number; junk for those outside."""
    (count,) = hlo.shape_of(numbers).dims
    kind = "maximum" if last else "minimum"
    never = -1 if last else count
    if count <= PAIRS:
        pair = (count, count)
        same = b.compare(b.broadcast(numbers, pair, (0,)), b.broadcast(numbers, pair, (1,)), "EQ")
        places = b.select(same, b.iota(pair, 1), b.number(never, "s32", pair))
        return b.reduce(hlo.OPCODES[kind], places, (1,), never)
    table = b.number(never, "s32", (1, height, 1))
    listed = b.reshape(numbers, (1, count))
    found = scatter_tables(b, kind, table, listed, b.reshape(b.iota((count,), 0), (1, count, 1)))
    return b.reshape(gather_tables(b, found, listed), (count,))


def _only_last(b: Build, numbers: Value, height: int) -> Value:
    """``numbers`` with -1 where the same number follows."""
    last = _extreme_place(b, numbers, height, last=True)
    wins = b.compare(last, b.iota(hlo.shape_of(numbers).dims, 0), "EQ")
    return b.select(wins, numbers, b.number_like(-1, numbers))


def _leaders(b: Build, numbers: Value, height: int) -> Value:
    """First place of the same number; -1 for numbers outside the table."""
    first = _extreme_place(b, numbers, height, last=False)
    return b.select(inside(b, numbers, height), first, b.number_like(-1, numbers))


def _combine_into(b: Build, kind: str, rows: Value, leader: Value, updates: Value) -> Value:
    """``rows`` [N, W] with updates [N, W] combined into their leaders' rows; columns are divided among processors."""
    count, width = hlo.shape_of(rows).dims
    size, costs = itemsize(hlo.shape_of(rows).dtype), costs_of(b)
    padded = -(-width // GROUPS) * GROUPS if width > GROUPS else width
    if padded != width:
        rows, updates = (b.pad(value, [(0, 0), (0, padded - width)]) for value in (rows, updates))
    parts = min(
        (
            number
            for number in range(1, padded + 1)
            if padded % number == 0 and padded // number * size <= costs.row_bytes
        ),
        key=lambda number: costs.groups(number, count, padded // number * size, count, True),
    )

    def divided(value: Value) -> Value:
        return b.transpose(b.reshape(value, (count, parts, padded // parts)), (1, 0, 2))

    listed = b.broadcast(leader, (parts, count), (1,))
    result = form(b, kind, divided(rows), listed, divided(updates))
    whole = b.reshape(b.transpose(result, (1, 0, 2)), (count, padded))
    return b.slice(whole, 1, 0, width)
