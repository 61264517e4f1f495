"""Rows that a gather fills with NaN, where a number is outside of the table, are filled after contractions.

Input: canonical hlo. Output: a contraction of ``select(inside, table[numbers], nan)``, where ``inside`` depends on the
number alone, is one of ``table[numbers]``, with NaN in place of what the others give: every sum with a NaN is one. So
the matrices that ``jnp.take(weights, expert, axis=0)`` takes need not be copied with others filled in.
"""

from math import isnan, prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.analysis.listed import listed_rows
from neuronx_cc.passes.analysis.rows import kept_dims
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.GatherOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.DotOp) and op.shape.dtype in FLOATS:
                for index in (0, 1):
                    mask = _mask(module, op, index)
                    if mask is not None:
                        op = _fill_later(Build.before(module, op), op, index, mask)


def _mask(module: HloModule, op: hlo.DotOp, index: int) -> hlo.BroadcastOp | None:
    """What says where operand ``index`` is a matrix of a table, not NaN, if that depends on its number alone."""
    fill = defining_op(op.operands[index])
    if not isinstance(fill, hlo.SelectOp) or not fill.result.has_one_use():
        return None
    mask, taken, other = fill.operands
    number, spread = splat_number(other, module), defining_op(mask)
    if number is None or not isnan(number) or not isinstance(spread, hlo.BroadcastOp):
        return None
    while isinstance(made := defining_op(taken), hlo.ReshapeOp):
        taken = made.operand
    rows = listed_rows(made) if isinstance(made, hlo.GatherOp) else None
    sizes = fill.shape.dims
    lead = next((dim for dim in range(len(sizes) + 1) if rows is not None and prod(sizes[:dim]) == rows[2]), 0)
    dims = op.dims.data
    contracted = dims.lhs_contracting if index == 0 else dims.rhs_contracting
    told = all(dim < lead and dim not in contracted for dim in spread.dimensions.data)
    return spread if told and contracted and 0 not in (op.shape.size, fill.shape.size) else None


def _fill_later(b: Build, op: hlo.DotOp, index: int, mask: hlo.BroadcastOp) -> hlo.DotOp:
    fill = defining_op(op.operands[index])
    assert isinstance(fill, hlo.SelectOp)
    operands: list[Value] = list(op.operands)
    operands[index] = fill.operands[1]
    made = b.typed(hlo.DotOp, operands, op.results[0].type, **op.properties)
    places = _places(op, index)
    where = [places[dim] for dim in mask.dimensions.data]
    order = sorted(range(len(where)), key=lambda each: where[each])
    inside = b.broadcast(b.transpose(mask.operand, order), op.shape.dims, [where[each] for each in order])
    result = b.select(inside, made, b.number(float("nan"), op.shape.dtype, op.shape.dims))
    replace(op, result)
    found = defining_op(made)
    assert isinstance(found, hlo.DotOp)
    return found


def _places(op: hlo.DotOp, index: int) -> dict[int, int]:
    """Where the dims of operand ``index`` stand in the result."""
    return {axis: place for place, sources in kept_dims(op).items() for at, axis in sources if at == index}
