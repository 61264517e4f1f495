"""Brings a gather into one of the forms that code generation has.

* rows: operand [R, W], indices [N], slices [k, W]: the result [N, k, W] is made by DMA, one descriptor a slice;
* groups: operand [G, R, W], indices [G, N], slices [1, 1, W], batched: rows [G, N, W] from tables on chip;
* comparisons: a few elements of each table are selected among all of it, see ``indexing.compare``;
* a single window is a dynamic-slice.

Start indices are clamped so that every window fits; windows along indexed dims that are not contiguous become more
indices.
"""

from __future__ import annotations

from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.indexing import compare as indexing_compare
from neuronx_cc.passes.indexing.costs import GROUPS, Costs, costs_of
from neuronx_cc.passes.indexing.rows import (
    Label,
    Windows,
    arranged,
    bounded,
    clamped,
    counting_axis,
    gather_rows,
    gather_tables,
    row_numbers,
    vectors,
    weights,
    whole_labels,
)

Value = hlo.SSAValue


def canonical_gather(b: Build, op: hlo.GatherOp, exact: bool) -> Value:
    """The value that replaces ``op``, made above it. ``exact``: FP32 values stay what they are."""
    if op.shape.size == 0:
        return b.number(0, op.shape.dtype, op.shape.dims)
    operand, windows = _windows(b, op)
    dims = op.dims.data
    gone = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    kept = [axis for axis in range(len(windows.dims)) if axis not in gone]
    wanted = whole_labels(op.shape.rank, dims.offset_dims, kept)
    if not windows.reached:
        return _repeated(b, operand, windows, wanted)
    if windows.count == 1:
        return b.reshape(_one(b, operand, windows), op.shape.dims)
    form, tables = _plan(costs_of(b), windows, op.shape.dtype, defining_op(operand) is not None, exact)
    if form in ("rows", "transposed"):
        return _rows(b, operand, windows, wanted, form == "transposed")
    return _tables(b, operand, windows, tables, wanted, form == "compare")


def _windows(b: Build, op: hlo.GatherOp) -> tuple[Value, Windows]:
    """The windows of ``op``, and its operand without what no window can reach."""
    dims, sizes, operand = op.dims.data, op.slice_sizes.data, op.lhs
    shape, index_shape = hlo.shape_of(operand), hlo.shape_of(op.rhs)
    batch = tuple(size for axis, size in enumerate(index_shape.dims) if axis != dims.index_vector_dim)
    paired = {
        dim: axis - (axis > dims.index_vector_dim)
        for dim, axis in zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True)
    }
    starts = {}
    indexed = zip(
        dims.start_index_map, vectors(b, op.rhs, dims.index_vector_dim, len(dims.start_index_map)), strict=True
    )
    for dim, start in indexed:
        limit = shape.dims[dim] - sizes[dim]
        axis = counting_axis(b, start, shape.dims[dim], batch, paired) if sizes[dim] == 1 else None
        if axis is not None:
            paired[dim] = axis
        elif limit:
            starts[dim] = bounded(b, start, limit)
    for dim, size in enumerate(sizes):
        if dim not in starts and dim not in paired:
            operand = b.slice(operand, dim, 0, size)
    return operand, Windows(hlo.shape_of(operand).dims, sizes, starts, paired, batch)


def _fitted(b: Build, windows: Windows, inside: list[int]) -> None:
    """Clamp the start indices, unless code generation does: it clamps row numbers, so that windows fit the table."""
    if len(inside) > 1:
        for dim, start in windows.starts.items():
            windows.starts[dim] = clamped(b, start, windows.dims[dim] - windows.sizes[dim])


def _repeated(b: Build, operand: Value, windows: Windows, wanted: list[Label]) -> Value:
    """No index matters: the operand, once for each index."""
    axes = [axis for axis, (kind, _) in enumerate(wanted) if kind == "window"]
    inner = b.reshape(operand, [windows.size(wanted[axis]) for axis in axes])
    return b.broadcast(inner, [windows.size(label) for label in wanted], axes)


def _one(b: Build, operand: Value, windows: Windows) -> Value:
    zero = b.number(0, "s32")
    starts = [b.reshape(windows.starts[dim], ()) if dim in windows.starts else zero for dim in range(len(windows.dims))]
    return b.dynamic_slice(operand, starts, windows.sizes)


def _plan(costs: Costs, windows: Windows, dtype: str, made: bool, exact: bool) -> tuple[str, list[int]]:
    """The form that is estimated to take least time, and the operand dims that count its tables.

    ``made``: the operand is a result, which rows and groups read from HBM, while comparisons may take it from the chip.
    """
    width = itemsize(dtype)
    row = width * prod(windows.dims[dim] for dim in windows.after)
    runs = prod(windows.sizes[dim] for dim in (*windows.spread[:-1], *windows.between))
    contiguous = row * (windows.sizes[windows.spread[-1]] if windows.spread else 1)
    nbytes = width * prod(windows.dims)
    choices = [(costs.rows(windows.count, contiguous, runs), "rows", list[int]())]
    if windows.between:
        total = contiguous * runs
        transposed = costs.transposed(nbytes + total * windows.count) + costs.rows(windows.count, total)
        choices.append((transposed, "transposed", []))
    steps = windows.count * prod(windows.sizes[dim] for dim in (*windows.spread, *windows.between))
    for tables in windows.tables:
        count = prod(windows.dims[dim] for dim in tables)
        height = prod(windows.dims[dim] for dim in windows.reached if dim not in tables)
        entries = steps // count
        if row <= costs.row_bytes and count == 1:
            groups = costs.groups(count, height, row, entries, shared=GROUPS)
            choices.append((groups, "groups", tables))
        elif row <= costs.row_bytes:
            choices.append((costs.stacks(count, height, row, entries), "groups", tables))
        if exact:
            compare = indexing_compare.gather_ns(costs, count, height, row, entries, dtype)
            choices.append((compare - costs.transposed(nbytes) * made, "compare", tables))
    _, form, tables = min(choices, key=lambda choice: choice[0])
    return form, tables


def _tables(b: Build, operand: Value, windows: Windows, tables: list[int], wanted: list[Label], compare: bool) -> Value:
    """``tables``: dims that count tables, batching dims or between the indexed ones; the others are rows of one."""
    inside = [dim for dim in windows.reached if dim not in tables]
    weight = weights(windows.dims, inside)
    spread = windows.spread
    _fitted(b, windows, [*inside, *spread])
    numbers = row_numbers(b, windows, weight, spread)
    labels: list[Label] = [("batch", axis) for axis in range(len(windows.batch))]
    labels += [("window", dim) for dim in spread]
    outer: list[Label] = [
        ("batch", windows.paired[dim]) if dim in windows.paired else ("window", dim) for dim in tables
    ]
    inner = [label for label in labels if label not in outer]
    counted = [label for label in outer if label in labels]
    transposed = arranged(b, numbers, windows, labels, [*counted, *inner])
    places = [at for at, label in enumerate([*outer, *inner]) if label in labels]
    repeated = b.broadcast(transposed, [windows.size(label) for label in (*outer, *inner)], places)
    count, entries = prod(windows.size(label) for label in outer), prod(windows.size(label) for label in inner)
    height, width = prod(windows.dims[dim] for dim in inside), prod(windows.dims[dim] for dim in windows.after)
    order = [*tables, *inside, *windows.after]
    table = b.reshape(b.transpose(operand, order), (count, height, width))
    numbers = b.reshape(repeated, (count, entries))
    if compare:
        found = indexing_compare.gather(b, table, clamped(b, numbers, height - 1))
    else:
        found = gather_tables(b, table, numbers)
    row: list[Label] = [("window", dim) for dim in windows.after]
    return arranged(b, found, windows, [*outer, *inner, *row], wanted)


def _rows(b: Build, operand: Value, windows: Windows, wanted: list[Label], transposed: bool) -> Value:
    """All reached dims together are the rows; dims between them go to the row, without a copy unless ``transposed``."""
    reached, between = windows.reached, windows.between
    if between and not transposed and reached[-1] - reached[0] >= len(reached):
        reached, between = list(range(reached[-1] + 1)), []
    last = reached[-1]
    height = windows.sizes[last]
    spread = [dim for dim in reached if dim != last and dim not in windows.paired and windows.sizes[dim] > 1]
    _fitted(b, windows, reached)
    numbers = row_numbers(b, windows, weights(windows.dims, reached), spread)
    columns = [*between, *windows.after]
    rows, width = prod(windows.dims[dim] for dim in reached), prod(windows.dims[dim] for dim in columns)
    table = b.reshape(b.transpose(operand, [*reached, *columns]), (rows, width))
    found = gather_rows(b, table, b.reshape(numbers, (hlo.shape_of(numbers).size,)), height)
    labels: list[Label] = [("batch", axis) for axis in range(len(windows.batch))]
    labels += [("window", dim) for dim in (*spread, last, *columns)]
    return arranged(b, found, windows, labels, wanted)
