"""Sums over few elements of a dim that is not the last become sums of slices, which elementwise kernels add up.

Input: canonical hlo whose narrow sums are FP32 (``accumulate_f32``). Output: no sum over a dim of at most ``MOST``
elements between others, of an array that is as large as that pays. Each term is what elementwise ops and broadcasts
make of a slice, so that nothing of all terms is stored. Such sums are what a mixture of experts adds up for each token.
Terms are added in their order.
"""

from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.passes.analysis.values import combiner_kind, is_positive_zero, splat_number
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

MOST = 4
"""Terms: of more, slices are read in more transfers than sums of rows."""
LEAST = 1 << 18
"""Elements of all terms."""
LEAST_ROW = 64
"""Elements of a slice that lie side by side."""


@only_for(hlo.ReduceOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.ReduceOp) and len(op.operands) == 2 and _is_of_few(module, op):
                _add(Build.before(module, op), op)


def _is_of_few(module: HloModule, op: hlo.ReduceOp) -> bool:
    operand, start = op.operands
    shape, kind = hlo.shape_of(operand), combiner_kind(op, module)
    if kind != "add" or shape.dtype != "f32" or len(op.dimensions.data) != 1 or splat_number(start, module) != 0:
        return False
    (axis,) = op.dimensions.data
    ahead, behind = prod(shape.dims[:axis]), prod(shape.dims[axis + 1 :])
    return 1 < shape.dims[axis] <= MOST and ahead > 1 and behind >= LEAST_ROW and shape.size >= LEAST


def _add(b: Build, op: hlo.ReduceOp) -> None:
    (axis,) = op.dimensions.data
    value = op.operands[0]
    terms = [_term(b, value, axis, index, {}) for index in range(hlo.shape_of(value).dims[axis])]
    total = terms[0]
    for term in terms[1:]:
        total = b.add(total, term)
    if is_positive_zero(splat_number(op.operands[1], b.module)):  # which a sum of negative ones is, too
        total = b.add(total, b.number_like(0, total))
    replace(op, total)


def _term(b: Build, value: Value, axis: int, index: int, known: dict[Value, Value]) -> Value:
    """``value`` at one index of ``axis``, which is gone."""
    if value not in known:
        known[value] = _made(b, value, axis, index, known)
    return known[value]


def _made(b: Build, value: Value, axis: int, index: int, known: dict[Value, Value]) -> Value:
    op, dims = defining_op(value), hlo.shape_of(value).dims
    kept = [*dims[:axis], *dims[axis + 1 :]]
    if isinstance(op, hlo.BroadcastOp):
        places = op.dimensions.data
        inner = op.operand
        if axis in places:
            inner = _term(b, inner, places.index(axis), index, known)
        return b.broadcast(inner, kept, [place - (place > axis) for place in places if place != axis])
    if isinstance(op, hlo.ElementwiseOp) and value.has_one_use():
        operands = [_term(b, operand, axis, index, known) for operand in op.operands]
        return b.op(type(op), operands, op.shape.dtype, kept, **op.properties)
    return b.reshape(b.slice(value, axis, index, index + 1), kept)
