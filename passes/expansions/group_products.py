"""Chains of contractions of rows by group: the first rows of each group as one batch, what is left in a loop. No pass.

Values of rows stay brought together from one contraction to the next, and are put back where other ops read them. What
is left of larger groups is computed from what the chain reads, a tile of rows at a time, as often as the sizes at run
time need it, which mostly is not at all.
"""

from collections.abc import Sequence
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import erase, users
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.group_chain import Chain, Product, read_outside, sums_rows
from neuronx_cc.passes.expansions.group_plan import Plan
from neuronx_cc.passes.expansions.group_rows import Groups, Tile, group_of_rows, left_over, table_of, where
from neuronx_cc.passes.expansions.group_values import OfNone, OfTile, Reads, Together, contraction
from neuronx_cc.passes.indexing.rows import gather_rows


def expand(module: HloModule, chain: Chain, plan: Plan, timing: Timing) -> None:
    """Compute ``chain``: what others read by then is put back where the first of them reads any of it."""
    block = chain.ops[0].parent
    assert block is not None, "of a computation"
    made: Together | None = None
    passed, members = list[hlo.HloOp](), set(chain.ops)
    for op in list(block.ops):
        if op in members:
            passed.append(op)  # type: ignore[arg-type]  # ops of a chain are instructions
            continue
        if not any(each.results[0] in op.operands for each in passed):
            continue
        b = Build(module, op, chain.ops[0].loc, timing)
        made = made or Together.of(b, chain, plan)
        outputs = [each for each in passed if read_outside(each, chain.ops)]
        for output, value in zip(outputs, _results(b, made, outputs, plan), strict=True):
            for user in users(output.results[0]):
                if user not in members:
                    user.operands = [value if each is output.results[0] else each for each in user.operands]
    for op in reversed(chain.ops):
        erase(op)


def _results(b: Build, made: Together, outputs: Sequence[hlo.HloOp], plan: Plan) -> list[Value]:
    """What ``outputs`` are outside of the chain."""
    chain, groups, tile = made.chain, made.groups, plan.tile
    made.b = b
    whole = any(sums_rows(op) for op in outputs)
    left = left_over(b, groups, plan.first, tile, whole)
    reads = Reads.of(b.module, chain, outputs)
    none = OfNone(b, chain, (1,))
    made.prepare(reads.ops)
    none.prepare(reads.ops)
    state = [made.all_rows(op, none) for op in outputs]
    totals = [_total(op) for op in outputs]
    state += [b.number(0, dtype, dims) for dtype, dims in filter(None, totals)]
    tables = [table_of(b, value, axis)[0] for value, axis in reads.rows]
    count = len(state)

    def step(b: Build, at: Value, state: list[Value]) -> list[Value]:
        (*state, tiles, starts), read = state[: count + 2], state[count + 2 :]
        here = Tile.of(b, groups, tiles, at, tile)
        begun = b.reshape(b.dynamic_slice(starts, (here.group,), (1,)), ())
        anew = b.compare(here.first, begun, "EQ")
        rows = OfTile(b, chain, (tile,), here, dict(zip((*reads.rows, *reads.others), read, strict=True)))
        rows.prepare(reads.ops)
        results, sums = list(state[: len(outputs)]), iter(state[len(outputs) :])
        later = []
        for number, (op, total) in enumerate(zip(outputs, totals, strict=True)):
            if sums_rows(op):
                before = next(sums) if total else None
                results[number], after = rows.added(op, results[number], before, anew)
                later += [after] if total else []
            else:
                results[number] = rows.stored(op, results[number])
        return [*results, *later, tiles, starts, *read]

    carried = [*state, left.tiles, groups.starts, *tables, *reads.others]
    found = b.loop(left.count, carried, step)[: len(outputs)]
    return [_restored(b, op, value) for op, value in zip(outputs, found, strict=True)]


def _total(op: hlo.HloOp) -> tuple[str, tuple[int, ...]] | None:
    """Type and dims of the sums of tiles, where these are wider than the result and are rounded once."""
    if not sums_rows(op) or op.shape.dtype not in FLOATS or op.shape.dtype == "f32":
        return None
    return "f32", op.shape.dims[1:]


def _restored(b: Build, op: hlo.HloOp, value: Value) -> Value:
    """The result of ``op`` from [rows, W], with its dims in their order; sums have them."""
    if sums_rows(op):
        return value
    place = Product.of(op).place if isinstance(op, hlo.RaggedDotOp) else 0
    dims = list(op.shape.dims)
    value = b.reshape(value, (dims.pop(place), *dims))
    return b.transpose(value, [*range(1, place + 1), 0, *range(place + 1, op.shape.rank)])


def is_plain(op: hlo.RaggedDotOp) -> bool:
    """Whether lhs is [rows, terms] and rhs has groups first."""
    return hlo.shape_of(op.args[0]).rank == 2 and op.group_dims.data == (0,) and not op.dims.data.lhs_batch


def of_few_rows(b: Build, op: hlo.RaggedDotOp, groups: Groups) -> Value:
    """The result of a plain ``op``: each row times the matrix of its group, which is read by its number."""
    lhs, rhs, _ = op.args
    dims, shape = op.dims.data, hlo.shape_of(rhs).dims
    numbers, belongs = group_of_rows(b, groups)
    table = b.reshape(rhs, (groups.count, prod(shape[1:])))
    matrices = b.reshape(gather_rows(b, table, numbers), (groups.rows, *shape[1:]))
    each_row = hlo.DotDims(dims.lhs_contracting, dims.rhs_contracting, (0,), (0,))
    return where(b, belongs, contraction(b, op, (lhs, matrices), each_row))
