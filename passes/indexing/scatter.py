"""Brings a scatter into one of the forms that code generation has.

* rows: operand [R, W], indices [N], updates [N, W], unique, each update replaces its row: written by DMA;
* groups: operand [G, R, W], indices [G, N], updates [G, N, W], batched, any simple combiner, one after the other: done
  on chip by GpSimd;
* comparisons: one update of each table, combined where the row has its number, see ``indexing.compare``.

An index outside its table is skipped. Every other scatter becomes gathers, elementwise ops and these: see
``scatter_updates``. Several operands are scattered one by one where the combiner keeps them apart, and together else.
"""

from __future__ import annotations

from neuronx_cc.ir import hlo
from neuronx_cc.ir.combiners import OF_PREDICATES
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.hlo.editing import replace as replace_op
from neuronx_cc.passes.expansions.build import Build, replace_elements
from neuronx_cc.passes.indexing.rows import Windows, bounded, counting_axis, vectors, whole_labels
from neuronx_cc.passes.indexing.scatter_updates import Scatter, scattered

Value = hlo.SSAValue


def canonical_scatter(b: Build, op: hlo.ScatterOp) -> None:
    """Replace ``op`` by ops made above it."""
    count = len(op.args) // 2
    operands, updates = list(op.args[:count]), list(op.args[count + 1 :])
    if hlo.shape_of(updates[0]).size and hlo.shape_of(operands[0]).size:
        results = _results(b, op, operands, updates)
    else:
        results = operands
    if isinstance(op.results[0].type, hlo.TupleType):
        replace_elements(op, results)
    else:
        replace_op(op, results[0])


def _results(b: Build, op: hlo.ScatterOp, operands: list[Value], updates: list[Value]) -> list[Value]:
    dims = op.dims.data
    whole = hlo.shape_of(operands[0]).dims
    gone = {*dims.inserted_window_dims, *dims.input_batching_dims}
    kept = [axis for axis in range(len(whole)) if axis not in gone]
    update_dims = hlo.shape_of(updates[0]).dims
    inside = dict(zip(kept, dims.update_window_dims, strict=True))
    sizes = tuple(update_dims[inside[axis]] if axis in inside else 1 for axis in range(len(whole)))
    indexed = {*dims.scatter_dims_to_operand_dims, *dims.input_batching_dims}
    parts = operands
    for axis, size in enumerate(sizes):
        if axis not in indexed:
            parts = [b.slice(part, axis, 0, size) for part in parts]
    windows, valid = _windows(b, op, hlo.shape_of(parts[0]).dims, sizes)
    labels = whole_labels(len(update_dims), dims.update_window_dims, kept)
    scatter = Scatter(
        b,
        op,
        windows,
        valid,
        labels,
        [dim for dim in dims.scatter_dims_to_operand_dims if dim not in windows.paired],
        op.unique_indices.data or windows.count == 1 or _apart(windows),
        b.module.computation(op.to_apply.data[0]),
    )
    results = []
    kinds = combiners(scatter.body)
    if kinds is None:
        results = scattered(scatter, "", parts, updates)
    else:
        for kind, part, update in zip(kinds, parts, updates, strict=True):
            if kind == "subtract":
                kind, update = "add", b.neg(update)
            results += scattered(scatter, _of_type(kind, hlo.shape_of(part).dtype), [part], [update])
    if hlo.shape_of(parts[0]).dims == whole:
        return results
    zero = b.number(0, "s32")
    return [
        b.dynamic_update_slice(operand, result, [zero] * len(whole))
        for operand, result in zip(operands, results, strict=True)
    ]


def _apart(windows: Windows) -> bool:
    """Whether each window has a row of its own, whatever the indices say."""
    axes = {axis for axis, size in enumerate(windows.batch) if size > 1}
    return axes <= set(windows.paired.values())


def _of_type(kind: str, dtype: str) -> str:
    return OF_PREDICATES.get(kind, kind) if dtype == "pred" else kind


def _windows(
    b: Build, op: hlo.ScatterOp, dims: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[Windows, Value | None]:
    """The windows, and which of them fit (None: all do, but for an index outside the rows where that is the row)."""
    numbers, indices = op.dims.data, op.args[len(op.args) // 2]
    index_dims = hlo.shape_of(indices).dims
    vector = numbers.index_vector_dim
    batch = tuple(size for axis, size in enumerate(index_dims) if axis != vector)
    paired = {
        dim: axis - (axis > vector)
        for dim, axis in zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    }
    starts: dict[int, Value] = {}
    valid: Value | None = None
    for dim, start in zip(
        numbers.scatter_dims_to_operand_dims,
        vectors(b, indices, vector, len(numbers.scatter_dims_to_operand_dims)),
        strict=True,
    ):
        limit = dims[dim] - sizes[dim]
        axis = counting_axis(b, start, dims[dim], batch, paired) if sizes[dim] == 1 else None
        if axis is not None:
            paired[dim] = axis
            continue
        # one more than the last place that fits, so that what lies after it stays outside
        here = bounded(b, start, limit + 1)
        fits = b.compare(here, b.number_like(limit, here), "LE")
        if not hlo.shape_of(start).dtype.startswith("u"):
            fits = b.each(hlo.AndOp, fits, b.compare(here, b.number_like(0, here), "GE"))
        valid = fits if valid is None else b.each(hlo.AndOp, valid, fits)
        if limit:
            starts[dim] = here
    return Windows(dims, sizes, starts, paired, batch), valid


def combiners(body: hlo.ComputationOp) -> list[str] | None:
    """How each operand takes its updates: ``assign`` or an opcode; None when the body does something else.

    Parameters of ``body`` are the operands' elements, then the updates'.
    """
    count = len(body.block.args) // 2
    root = defining_op(body.root)
    roots = list(root.operands) if isinstance(root, hlo.TupleOp) else [body.root]
    kinds = []
    for index, value in enumerate(roots):
        old, new = body.block.args[index], body.block.args[count + index]
        op = defining_op(value)
        if value is new:
            kinds.append("assign")
        elif isinstance(op, hlo.SubtractOp) and list(op.operands) == [old, new]:
            kinds.append("subtract")
        elif isinstance(op, hlo.CombinerOp) and set(op.operands) == {old, new}:
            kinds.append(op.opcode)
        else:
            return None
    return kinds
