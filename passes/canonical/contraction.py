"""Rules of ``canonicalize`` for reduce and dot.

A reduce keeps only dims of size above 1; a transpose next to a dot becomes part of the dot's dimension numbers, so that
code generation alone decides about layout. Sums keep their terms; only the order of the terms, which HLO leaves open,
may change.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import DotDims
from neuronx_cc.ir.hlo.editing import has_one_use, insert_before
from neuronx_cc.passes.analysis.values import combiner_kind, identity_of, is_positive_zero, same_number, splat_number
from neuronx_cc.passes.canonical.movement import broadcasted, reshaped, transposed
from neuronx_cc.passes.canonical.rule import Rule, Scope, result_op

Value = hlo.SSAValue


def _reduce(op: hlo.ReduceOp, scope: Scope) -> Value | None:
    """Dims of size 1 are dropped; a reduce over nothing else is its combiner applied once to the initial value."""
    if len(op.operands) != 2:
        return None
    operand, initial = op.operands
    dims = hlo.shape_of(operand).dims
    folded = [i for i in op.dimensions.data if dims[i] != 1]
    if len(folded) == len(op.dimensions.data) and folded:
        return None
    if not folded:
        return _reduce_of_nothing(op, scope, operand, initial)
    dropped = set(op.dimensions.data) - set(folded)
    kept = [i for i in range(len(dims)) if i not in dropped]
    value = insert_before(
        op,
        hlo.ReshapeOp,
        (operand,),
        hlo.array_type(hlo.shape_of(operand).dtype, tuple(dims[i] for i in kept)),
        op.loc,
    )
    properties = {**op.properties, "dimensions": hlo.IntsAttr(tuple(kept.index(i) for i in folded))}
    return insert_before(op, hlo.ReduceOp, (value, initial), op.results[0].type, op.loc, properties)


def _sum_of_negatives(op: hlo.ReduceOp, scope: Scope) -> Value | None:
    """``sum(-x)`` from +0 is ``0 - sum(x)``, bit by bit: rounding is symmetric, and neither gives -0."""
    if len(op.operands) != 2 or combiner_kind(op, scope.module) != "add":
        return None
    operand, initial = op.operands
    negate = result_op(operand)
    if not isinstance(negate, hlo.NegateOp) or not has_one_use(operand):
        return None
    if not is_positive_zero(splat_number(initial, scope.module)):
        return None
    total = insert_before(op, hlo.ReduceOp, (negate.operand, initial), op.results[0].type, op.loc, op.properties)
    zero = broadcasted(op, initial, op.shape.dims, ())
    return insert_before(op, hlo.SubtractOp, (zero, total), op.results[0].type, op.loc)


def _reduce_of_nothing(op: hlo.ReduceOp, scope: Scope, operand: Value, initial: Value) -> Value | None:
    kind = combiner_kind(op, scope.module)
    if not kind or hlo.shape_of(operand).dtype != op.shape.dtype:
        return None
    value = reshaped(op, operand, op.shape.dims)
    if same_number(splat_number(initial, scope.module), identity_of(kind, op.shape.dtype)):
        return value
    start = broadcasted(op, initial, op.shape.dims, ())
    return insert_before(op, hlo.OPCODES[kind], (value, start), op.results[0].type, op.loc)


def _dot(op: hlo.DotOp, scope: Scope) -> Value | None:
    """A transpose of an operand that keeps the order of its free dims goes into the dimension numbers."""
    dims = op.dims.data
    lhs, lhs_lists = _without_transpose(op.lhs, dims.lhs_contracting, dims.lhs_batch)
    rhs, rhs_lists = _without_transpose(op.rhs, dims.rhs_contracting, dims.rhs_batch)
    if lhs is op.lhs and rhs is op.rhs:
        return None
    numbers = DotDims(lhs_lists[0], rhs_lists[0], lhs_lists[1], rhs_lists[1])
    properties = {**op.properties, "dims": hlo.DotDimsAttr(numbers)}
    return insert_before(op, hlo.DotOp, (lhs, rhs), op.results[0].type, op.loc, properties)


Lists = tuple[tuple[int, ...], tuple[int, ...]]


def _without_transpose(value: Value, contracting: tuple[int, ...], batch: tuple[int, ...]) -> tuple[Value, Lists]:
    unchanged = value, (contracting, batch)
    inner = result_op(value)
    if not isinstance(inner, hlo.TransposeOp):
        return unchanged
    order = inner.dimensions.data
    free = [order[i] for i in range(len(order)) if i not in contracting and i not in batch]
    if free != sorted(free):
        return unchanged
    return inner.operand, (tuple(order[i] for i in contracting), tuple(order[i] for i in batch))


def _transpose_of_dot(op: hlo.TransposeOp, scope: Scope) -> Value | None:
    """``transpose(dot(a, b))`` that swaps the free dims of both operands -> ``dot(b, a)``, whose batch dims are
    transposed if they come between or after the others.
    """
    inner = result_op(op.operand)
    if not isinstance(inner, hlo.DotOp) or not inner.results[0].has_one_use():
        return None
    order, dims = swapped_order(inner), op.dimensions.data
    batch = len(inner.dims.data.lhs_batch)
    free = tuple(dim for dim in dims if dim >= batch)
    if free != order[batch:] or free == tuple(range(batch, len(order))):
        return None
    exchanged = swapped(inner, op)
    return exchanged if dims == order else transposed(op, exchanged, tuple(order.index(dim) for dim in dims))


def swapped_order(dot: hlo.DotOp) -> tuple[int, ...]:
    """``dimensions`` of the transpose that makes the result of ``dot(a, b)`` that of ``dot(b, a)``."""
    dims, rank = dot.dims.data, dot.shape.rank
    batch = len(dims.lhs_batch)
    left = hlo.shape_of(dot.lhs).rank - len(dims.lhs_contracting)
    return (*range(batch), *range(left, rank), *range(batch, left))


def swapped(dot: hlo.DotOp, anchor: hlo.HloOp) -> Value:
    """``dot(b, a)`` for ``dot(a, b)``, above ``anchor``."""
    dims = dot.dims.data
    numbers = DotDims(dims.rhs_contracting, dims.lhs_contracting, dims.rhs_batch, dims.lhs_batch)
    properties: dict[str, hlo.Attribute] = {**dot.properties, "dims": hlo.DotDimsAttr(numbers)}
    if dot.operand_precision is not None and len(dot.operand_precision.data) == 2:
        properties["operand_precision"] = hlo.StrsAttr(dot.operand_precision.data[::-1])
    shape = dot.shape
    type_ = hlo.array_type(shape.dtype, tuple(shape.dims[axis] for axis in swapped_order(dot)))
    return insert_before(anchor, hlo.DotOp, (dot.rhs, dot.lhs), type_, dot.loc, properties)


RULES: dict[type, tuple[Rule, ...]] = {
    hlo.ReduceOp: (_reduce, _sum_of_negatives),
    hlo.DotOp: (_dot,),
    hlo.TransposeOp: (_transpose_of_dot,),
}
