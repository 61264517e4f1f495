"""Rewrites ``ragged-dot`` and ``scaled-dot`` as plain dots.

Input: any module. Output: neither. A ragged dot has groups of run-time sizes along one dim of lhs, one after another:
its operands are masked group by group and contracted at once, so it costs the work of as many dots as there are
groups. The ragged dim may be a free dim of lhs (rhs has a dim of groups; rows after the last group are zero), a
contracting dim (the result has a leading dim of groups) or a batch dim (a plain batched dot). Sizes may differ along
the dims before the ragged one. A scaled dot multiplies each operand by its scales first, one for each block of equally
many elements. Sources: chlo.ragged_dot of the StableHLO specification; XLA's operation semantics (ScaledDot).
"""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.attrs import ragged_prefix
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
    if axis in dims.lhs_batch:
        return _dot(b, op, lhs, rhs, dims)
    lhs_prefix = ragged_prefix(axis, hlo.shape_of(lhs).rank, dims.lhs_batch, dims.lhs_contracting)
    shape, counts = hlo.shape_of(lhs), hlo.shape_of(sizes).dims
    wanted = tuple(shape.dims[dim] for dim in lhs_prefix)
    if len(counts) > 1 and counts[:-1] != wanted:
        raise CompileError(
            "EVRF001",
            f"ragged-dot: expected sizes of dims {[*wanted, counts[-1]]} or {[counts[-1]]}, found {list(counts)}",
            "give sizes for each batch, and for each free or contracted dim before the ragged one",
            op.loc,
        )
    lhs = _grouped(b, lhs, axis, lhs_prefix, sizes)
    moved = [tuple(dim + 1 for dim in part) for part in (dims.lhs_contracting, dims.lhs_batch)]
    if axis not in dims.lhs_contracting:
        contracted = (0, *moved[0]), (*groups, *dims.rhs_contracting)
        return _dot(b, op, lhs, rhs, hlo.DotDims(*contracted, moved[1], dims.rhs_batch))
    other = dims.rhs_contracting[dims.lhs_contracting.index(axis)]
    rhs_prefix = ragged_prefix(other, hlo.shape_of(rhs).rank, dims.rhs_batch, dims.rhs_contracting)
    rhs = _grouped(b, rhs, other, rhs_prefix, sizes)
    moved += [tuple(dim + 1 for dim in part) for part in (dims.rhs_contracting, dims.rhs_batch)]
    return _dot(b, op, lhs, rhs, hlo.DotDims(moved[0], moved[2], (0, *moved[1]), (0, *moved[3])))


def _grouped(b: Build, value: Value, axis: int, prefix: tuple[int, ...], sizes: Value) -> Value:
    """``[groups, *dims]``: ``value`` where its position along ``axis`` lies in the group, else zero.

    ``sizes`` are ``[groups]``, or ``[*prefix dims, groups]`` for each position of the dims ``prefix``.
    """
    shape, counts = hlo.shape_of(value), hlo.shape_of(sizes).dims
    prefix = prefix if len(counts) > 1 else ()
    axes = (*prefix, axis)
    table = (*counts, shape.dims[axis])
    sizes = b.convert(sizes, "s32")
    ends = _running_sum(b, sizes)
    position = b.broadcast(b.iota(table[-1:], 0), table, [len(counts)])
    starts, ends = (b.broadcast(each, table, range(len(counts))) for each in (b.sub(ends, sizes), ends))
    inside = b.each(hlo.AndOp, b.compare(position, starts, "GE"), b.compare(position, ends, "LT"))
    # the dims of value in their order, the groups first
    places = [*range(len(prefix)), len(counts)]
    inside = b.transpose(inside, [len(prefix), *(places[axes.index(dim)] for dim in sorted(axes))])
    dims = (counts[-1], *shape.dims)
    spread = b.broadcast(value, dims, range(1, len(dims)))
    mask = b.broadcast(inside, dims, [0, *(dim + 1 for dim in sorted(axes))])
    return b.select(mask, spread, b.number_like(0, spread))


def _running_sum(b: Build, sizes: Value) -> Value:
    """Sums of the first 1, 2, ... elements along the last dim, in s32."""
    dims = hlo.shape_of(sizes).dims
    rank, count = len(dims), dims[-1]
    square = b.broadcast(sizes, (*dims[:-1], count, count), [*range(rank - 1), rank])
    row, column = b.iota((count, count), 0), b.iota((count, count), 1)
    kept = b.broadcast(b.compare(column, row, "LE"), hlo.shape_of(square).dims, [rank - 1, rank])
    return b.sum(b.select(kept, square, b.number_like(0, square)), [rank])


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
