"""Brings a gather into one of the forms that code generation has.

* rows: operand [R, W], indices [N], slices [k, W]: the result [N, k, W] is made by DMA, one descriptor a slice;
* groups: operand [G, A, R, B], indices [G, N], slices [1, A, 1, B], batched: rows of A x B elements from tables on
  chip, with any leading ones of the dims A and B ahead of the entries in the result;
* comparisons: a few elements of each table are selected among all of it, see ``indexing.compare``;
* a single window is a dynamic-slice.

Start indices are clamped so that every window fits; windows along indexed dims that are not contiguous become more
indices.
"""

from __future__ import annotations

from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import defining_op, erase, replace
from neuronx_cc.ir.types import NARROW, itemsize
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.indexing import compare as indexing_compare
from neuronx_cc.passes.indexing import walks
from neuronx_cc.passes.indexing.costs import costs_of
from neuronx_cc.passes.indexing.gather_plan import Asked, Plan, choose, inner_labels, result_labels
from neuronx_cc.passes.indexing.rows import (
    Label,
    Windows,
    arranged,
    bounded,
    clamped,
    counting_axis,
    gather_rows,
    gather_turned,
    row_numbers,
    table_labels,
    vectors,
    weights,
    whole_labels,
)

Value = hlo.SSAValue


def canonical_gather(b: Build, op: hlo.GatherOp) -> None:
    """Replace ``op``, or the transpose that alone reads it."""
    *between, last = _turned(op)
    replace(last, b.reshape(_gathered(b, op, bool(between)), last.shape.dims))
    for each in reversed(between):
        erase(each)


def _turned(op: hlo.GatherOp) -> list[hlo.HloOp]:
    """``op``, reshapes of its result, and a transpose of that which puts all dims of windows ahead; else ``op``."""
    dims = op.shape.dims
    offset = op.dims.data.offset_dims
    batches = len(dims) - len(offset)
    if not offset or offset[0] != batches:
        return [op]
    chain: list[hlo.HloOp] = [op]
    while (user := _only_user(chain[-1])) is not None:
        chain.append(user)
        if isinstance(user, hlo.TransposeOp):
            order, rank = user.dimensions.data, user.shape.rank
            counts = [prod(hlo.shape_of(user.operands[0]).dims[:axis]) for axis in range(rank)]
            ahead = next((axis for axis in range(rank) if counts[axis] == prod(dims[:batches])), 0)
            return chain if order == (*range(ahead, rank), *range(ahead)) and ahead else [op]
        if not isinstance(user, hlo.ReshapeOp):
            return [op]
    return [op]


def _only_user(op: hlo.HloOp) -> hlo.HloOp | None:
    users = {use.operation for use in op.results[0].uses}
    user = users.pop() if len(users) == 1 else None
    return user if isinstance(user, hlo.HloOp) and user.parent is op.parent else None


def _gathered(b: Build, op: hlo.GatherOp, ahead: bool) -> Value:
    """The result of ``op``, made above it. ``ahead``: with the dims of windows ahead of others, in their order."""
    if op.shape.size == 0:
        return b.number(0, op.shape.dtype, op.shape.dims)
    operand, windows = _windows(b, op)
    dims = op.dims.data
    gone = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    kept = [axis for axis in range(len(windows.dims)) if axis not in gone]
    wanted = whole_labels(op.shape.rank, dims.offset_dims, kept)
    if ahead:
        wanted.sort(key=lambda label: label[0] == "batch")
    if not windows.reached:
        return _repeated(b, operand, windows, wanted)
    if windows.count == 1:
        return b.reshape(_one(b, operand, windows), [windows.size(label) for label in wanted])
    dtype, walk = op.shape.dtype, walks.found(b, windows, wanted)
    # at known places narrow floats take the forms of FP32: tables on chip, or others' order, would have to pay twice
    size = itemsize("f32" if walk is not None and dtype in NARROW else dtype)
    plan = choose(costs_of(b), Asked(windows, wanted, dtype, size, defining_op(operand) is not None))
    if walk is not None:
        forward = walk.order == tuple(range(len(windows.dims)))
        if walks.walk_ns(costs_of(b), walk, size, forward) < plan.ns:
            return b.reshape(walks.taken(b, operand, walk, costs_of(b)), [windows.size(label) for label in wanted])
    if plan.form in ("rows", "transposed"):
        return _rows(b, operand, windows, wanted, plan.form == "transposed")
    return _tables(b, operand, windows, plan, wanted)


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


def _tables(b: Build, operand: Value, windows: Windows, plan: Plan, wanted: list[Label]) -> Value:
    """By tables that batching dims or dims between the indexed ones count; the others are rows of one."""
    tables, across = plan.tables, plan.across
    inside = [dim for dim in windows.reached if dim not in tables]
    spread = windows.spread
    _fitted(b, windows, [*inside, *spread])
    numbers = row_numbers(b, windows, weights(windows.dims, inside), spread)
    labels: list[Label] = [("batch", axis) for axis in range(len(windows.batch))]
    labels += [("window", dim) for dim in spread]
    outer, inner = table_labels(windows, tables), inner_labels(windows, tables)
    counted = [label for label in outer if label in labels]
    transposed = arranged(b, numbers, windows, labels, [*counted, *inner])
    places = [at for at, label in enumerate([*outer, *inner]) if label in labels]
    count, entries = prod(windows.size(label) for label in outer), prod(windows.size(label) for label in inner)
    if across == 1:
        repeated = b.broadcast(transposed, [windows.size(label) for label in (*outer, *inner)], places)
    else:
        apart = prod(windows.size(label) for label in counted)
        each = b.reshape(transposed, (apart, entries))
        repeated = b.broadcast(each, (apart, count // apart // across, entries), (0, 2))
    numbers = b.reshape(repeated, (count // across, entries))
    height, width = prod(windows.dims[dim] for dim in inside), prod(windows.dims[dim] for dim in windows.after)
    table = b.transpose(operand, [*tables, *inside, *windows.after])
    if plan.form == "compare":
        found = indexing_compare.gather(b, b.reshape(table, (count, height, width)), clamped(b, numbers, height - 1))
    else:
        found = gather_turned(b, b.reshape(table, (count // across, across, height, width)), numbers, plan.lead)
    made = result_labels(windows, tables, across, plan.lead)
    assert made is not None, "the plan's form is one"
    return arranged(b, found, windows, made, wanted)


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
