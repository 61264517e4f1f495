"""Rewrites ``ragged-dot`` as plain contractions that cost what its rows cost.

Input: any module. Output: no ragged dot. It has groups of run-time sizes along one dim of lhs, one after another. That
may be a free dim of lhs (rhs has a dim of groups; rows after the last group are zero), a contracting dim (the result
has a leading dim of groups) or a batch dim (a plain batched dot). Sizes below zero count as zero.

With sizes that all other dims share, rows of that dim are brought together group by group: a few more than a group has
on the average are one batched product, and a loop multiplies what is left of larger groups, a tile of rows at a time.
Contractions of the same groups, and elementwise ops between them, are computed together (``expansions/group_chain``).
Else, and where that takes less time by estimate (``expansions/group_plan``), rows are repeated for each group, masked,
and contracted at once. Sizes may differ along the dims before the ragged one. Sources: chlo.ragged_dot of the StableHLO
specification; jax.lax.ragged_dot_general.
"""

from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.attrs import ragged_prefix
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.ir.types import FLOATS, itemsize
from neuronx_cc.passes.expansions import group_plan, group_products
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.group_chain import Chain, chains, row_bytes, sums_rows
from neuronx_cc.passes.expansions.group_rows import groups_of, inside, running_sum
from neuronx_cc.passes.expansions.group_values import contraction
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.RaggedDotOp)
def run(module: HloModule, context: PassContext) -> None:
    casts = context.options.auto_cast != "none"
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.RaggedDotOp):
                _check_sizes(op)
        for chain in chains(module, computation, lambda op: _work(op, casts) is not None):
            plan = group_plan.together(context.timing, _linked(chain, casts))
            if plan is not None:
                group_products.expand(module, chain, plan, context.timing)
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.RaggedDotOp):
                _expand(module, op, context)


def _expand(module: HloModule, op: hlo.RaggedDotOp, context: PassContext) -> None:
    """By itself."""
    b = Build.before(module, op, context.timing)
    lhs, rhs, sizes = op.args
    (axis,) = op.ragged_dims.data
    work = _work(op, context.options.auto_cast != "none")
    plan = group_plan.choose(context.timing, work) if work is not None else None
    if axis in op.dims.data.lhs_batch:
        replace(op, contraction(b, op, (lhs, rhs), op.dims.data))
    elif work is not None and plan is not None and plan.few and group_products.is_plain(op):
        replace(op, group_products.of_few_rows(b, op, groups_of(b, sizes, work.rows)))
    elif work is not None and plan is not None and plan.first:
        group_products.expand(module, Chain(sizes, work.rows, (op,)), plan, context.timing)
    else:
        replace(op, _masked(b, op, axis))


def _linked(chain: Chain, casts: bool) -> group_plan.Linked:
    products = [work for op in chain.products if (work := _work(op, casts)) is not None]
    plain, summed = ([value for value, is_summed in chain.inputs if is_summed == wanted] for wanted in (False, True))
    back = [row_bytes([op.results[0]], chain.rows) for op in chain.outputs if not sums_rows(op)]
    return group_plan.Linked(
        tuple(products), row_bytes(plain, chain.rows) + 2 * row_bytes(summed, chain.rows), tuple(back)
    )


def _check_sizes(op: hlo.RaggedDotOp) -> None:
    (axis,) = op.ragged_dims.data
    if axis in op.dims.data.lhs_batch:
        return
    lhs, _, sizes = map(hlo.shape_of, op.args)
    prefix = ragged_prefix(axis, lhs.rank, op.dims.data.lhs_batch, op.dims.data.lhs_contracting)
    wanted = tuple(lhs.dims[dim] for dim in prefix)
    if sizes.rank > 1 and sizes.dims[:-1] != wanted:
        raise CompileError(
            "EVRF001",
            f"ragged-dot: expected sizes of dims {[*wanted, sizes.dims[-1]]} or {[sizes.dims[-1]]}, "
            f"found {list(sizes.dims)}",
            "give sizes for each batch, and for each free or contracted dim before the ragged one",
            op.loc,
        )


def _work(op: hlo.RaggedDotOp, casts: bool) -> group_plan.Grouped | None:
    """What there is to do; None for nothing, or where other dims have sizes of their own. ``casts``: floats are
    multiplied in 16 bits.
    """
    lhs, rhs, sizes = map(hlo.shape_of, op.args)
    dims, (axis,) = op.dims.data, op.ragged_dims.data
    if 0 in (lhs.size, rhs.size, sizes.size, op.shape.size) or sizes.rank > 1 or axis in dims.lhs_batch:
        return None
    rows, groups = lhs.dims[axis], sizes.dims[-1]
    sums_rows = axis in dims.lhs_contracting
    batch = prod(lhs.dims[dim] for dim in dims.lhs_batch)
    contracted = prod(lhs.dims[dim] for dim in dims.lhs_contracting)
    columns = rhs.size // batch // (rows if sums_rows else groups * contracted)
    width = itemsize(lhs.dtype)
    fast = width < 4 or (casts and lhs.dtype in FLOATS)
    return group_plan.Grouped(groups, rows, lhs.size // rows, columns, width, "bf16" if fast else "f32", sums_rows)


def _masked(b: Build, op: hlo.RaggedDotOp, axis: int) -> Value:
    """All rows for each group."""
    lhs, rhs, sizes = op.args
    dims = op.dims.data
    prefix = ragged_prefix(axis, hlo.shape_of(lhs).rank, dims.lhs_batch, dims.lhs_contracting)
    lhs = _grouped(b, lhs, axis, prefix, sizes)
    moved = [tuple(dim + 1 for dim in part) for part in (dims.lhs_contracting, dims.lhs_batch)]
    if axis not in dims.lhs_contracting:
        contracted = (0, *moved[0]), (*op.group_dims.data, *dims.rhs_contracting)
        return contraction(b, op, (lhs, rhs), hlo.DotDims(*contracted, moved[1], dims.rhs_batch))
    other = dims.rhs_contracting[dims.lhs_contracting.index(axis)]
    prefix = ragged_prefix(other, hlo.shape_of(rhs).rank, dims.rhs_batch, dims.rhs_contracting)
    rhs = _grouped(b, rhs, other, prefix, sizes)
    moved += [tuple(dim + 1 for dim in part) for part in (dims.rhs_contracting, dims.rhs_batch)]
    return contraction(b, op, (lhs, rhs), hlo.DotDims(moved[0], moved[2], (0, *moved[1]), (0, *moved[3])))


def _grouped(b: Build, value: Value, axis: int, prefix: tuple[int, ...], sizes: Value) -> Value:
    """``[groups, *dims]``: ``value`` where its position along ``axis`` lies in the group, else zero.

    ``sizes`` are ``[groups]``, or ``[*prefix dims, groups]`` for each position of the dims ``prefix``.
    """
    shape, counts = hlo.shape_of(value), hlo.shape_of(sizes).dims
    prefix = prefix if len(counts) > 1 else ()
    axes = (*prefix, axis)
    table = (*counts, shape.dims[axis])
    sizes = b.convert(sizes, "s32")
    sizes = b.each(hlo.MaximumOp, sizes, b.number_like(0, sizes))
    ends = running_sum(b, sizes)
    position = b.broadcast(b.iota(table[-1:], 0), table, [len(counts)])
    starts, ends = (b.broadcast(each, table, range(len(counts))) for each in (b.sub(ends, sizes), ends))
    mine = inside(b, position, starts, ends)
    # the dims of value in their order, the groups first
    places = [*range(len(prefix)), len(counts)]
    mine = b.transpose(mine, [len(prefix), *(places[axes.index(dim)] for dim in sorted(axes))])
    dims = (counts[-1], *shape.dims)
    spread = b.broadcast(value, dims, range(1, len(dims)))
    mask = b.broadcast(mine, dims, [0, *(dim + 1 for dim in sorted(axes))])
    return b.select(mask, spread, b.number_like(0, spread))
