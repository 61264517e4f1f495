"""Rewrites ``ragged-dot`` and ``scaled-dot`` as plain dots.

Input: any module. Output: neither. A ragged dot has groups of run-time sizes along one dim of lhs, one after another:
its operands are masked group by group and contracted at once, so it costs the work of as many dots as there are
groups. The ragged dim may be a free dim of lhs (rhs has a dim of groups; rows after the last group are zero), a
contracting dim (the result has a leading dim of groups) or a batch dim (a plain batched dot). A scaled dot multiplies
each operand by its scales first, one for each block of equally many elements. Sources: chlo.ragged_dot of the StableHLO
specification; XLA's operation semantics (ScaledDot).
"""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.RaggedDotOp, hlo.ScaledDotOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.RaggedDotOp):
                replace(op, _ragged(Build.before(module, op), op))
            elif isinstance(op, hlo.ScaledDotOp):
                replace(op, _scaled(Build.before(module, op), op))


def _dot(b: Build, op: hlo.HloOp, lhs: Value, rhs: Value, dims: hlo.DotDims) -> Value:
    """``op``'s result type, and its precision if it has one."""
    kept = {name: attr for name, attr in op.properties.items() if name == "operand_precision"}
    return b.typed(hlo.DotOp, (lhs, rhs), op.results[0].type, dims=hlo.DotDimsAttr(dims), **kept)


def _ragged(b: Build, op: hlo.RaggedDotOp) -> Value:
    lhs, rhs, sizes = op.args
    dims, groups, (axis,) = op.dims.data, op.group_dims.data, op.ragged_dims.data
    if hlo.shape_of(sizes).rank != 1:
        raise CompileError("EVRF001", "ragged-dot: only sizes of rank 1", "call it once for each row of sizes", op.loc)
    if axis in dims.lhs_batch:
        return _dot(b, op, lhs, rhs, dims)
    grouped = _grouped(b, lhs, axis, sizes)
    if axis in dims.lhs_contracting:
        return _groups_first(b, op, grouped, rhs)
    return _dot(
        b,
        op,
        grouped,
        rhs,
        hlo.DotDims(
            (0, *(dim + 1 for dim in dims.lhs_contracting)),
            (*groups, *dims.rhs_contracting),
            tuple(dim + 1 for dim in dims.lhs_batch),
            dims.rhs_batch,
        ),
    )


def _groups_first(b: Build, op: hlo.RaggedDotOp, grouped: Value, rhs: Value) -> Value:
    """The groups are a free dim of ``grouped``, which a dot's result has after the batch dims."""
    dims = op.dims.data
    batch = len(dims.lhs_batch)
    groups, *rest = op.shape.dims
    type_ = hlo.array_type(op.shape.dtype, (*rest[:batch], groups, *rest[batch:]))
    shifted = hlo.DotDims(
        tuple(dim + 1 for dim in dims.lhs_contracting),
        dims.rhs_contracting,
        tuple(dim + 1 for dim in dims.lhs_batch),
        dims.rhs_batch,
    )
    product = b.typed(hlo.DotOp, (grouped, rhs), type_, dims=hlo.DotDimsAttr(shifted))
    return b.transpose(product, [batch, *range(batch), *range(batch + 1, len(rest) + 1)])


def _grouped(b: Build, value: Value, axis: int, sizes: Value) -> Value:
    """``[groups, *dims]``: ``value`` where its position along ``axis`` lies in the group, else zero."""
    shape = hlo.shape_of(value)
    count = hlo.shape_of(sizes).dims[0]
    dims = (count, *shape.dims)
    length = shape.dims[axis]
    ends = _running_sum(b, b.convert(sizes, "s32"))
    starts = b.sub(ends, b.convert(sizes, "s32"))
    position = b.broadcast(b.iota((length,), 0), (count, length), [1])
    inside = b.each(
        hlo.AndOp,
        b.compare(position, b.broadcast(starts, (count, length), [0]), "GE"),
        b.compare(position, b.broadcast(ends, (count, length), [0]), "LT"),
    )
    spread = b.broadcast(value, dims, range(1, len(dims)))
    return b.select(b.broadcast(inside, dims, [0, axis + 1]), spread, b.number_like(0, spread))


def _running_sum(b: Build, sizes: Value) -> Value:
    """Sums of the first 1, 2, ... elements of an s32 vector."""
    (count,) = hlo.shape_of(sizes).dims
    row, column = b.iota((count, count), 0), b.iota((count, count), 1)
    square = b.broadcast(sizes, (count, count), [1])
    kept = b.select(b.compare(column, row, "LE"), square, b.number_like(0, square))
    return b.sum(kept, [1])


def _scaled(b: Build, op: hlo.ScaledDotOp) -> Value:
    lhs, rhs, lhs_scale, rhs_scale = op.args
    scaled = [_with_scale(b, op, value, scale) for value, scale in ((lhs, lhs_scale), (rhs, rhs_scale))]
    return b.convert(_wide_dot(b, op, scaled), op.shape.dtype)


def _wide_dot(b: Build, op: hlo.ScaledDotOp, operands: Sequence[Value]) -> Value:
    return b.typed(hlo.DotOp, operands, hlo.array_type("f32", op.shape.dims), dims=op.dims)


def _with_scale(b: Build, op: hlo.HloOp, value: Value, scale: Value) -> Value:
    """``value`` in FP32, times ``scale`` repeated over blocks; a scalar scale counts everywhere."""
    dims, blocks = hlo.shape_of(value).dims, hlo.shape_of(scale).dims
    value, scale = b.convert(value, "f32"), b.convert(scale, "f32")
    if not blocks:
        return b.mul(value, b.broadcast(scale, dims))
    whole = len(blocks) == len(dims) and not any(
        size % parts if parts else size for size, parts in zip(dims, blocks, strict=True)
    )
    if not whole:
        raise CompileError("EVRF001", "scaled-dot: the scales do not divide the operand into blocks", loc=op.loc)
    pairs = [part for size, parts in zip(dims, blocks, strict=True) for part in (parts, size // max(1, parts))]
    repeated = b.broadcast(scale, pairs, range(0, 2 * len(blocks), 2))
    return b.mul(value, b.reshape(repeated, dims))
