"""Scatters of rows to places that a permutation says become gathers by its inverse, and sums of neighbours.

Input: canonical hlo. Output: a scatter that adds rows to zeros, at ``f(order)`` for the ``order`` in which a sort left
row numbers, is a gather of the rows by the inverse of ``order`` and a sum of as many neighbours as each place gets, if
``f`` says that place ``i`` gets the numbers from ``i * count`` on. So a mixture of experts adds up what it made of rows
sorted by expert (``out.at[order // 2].add(rows)``). What ``f`` says is computed: it is elementwise, so its values for
0, 1, 2 ... are all that it can give.
"""

from math import prod
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.passes.analysis.values import combiner_kind, splat_number
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.indexing.rows import gather_rows
from neuronx_cc.passes.manager import PassContext, only_for

LEAST_COUNT = 64
"""Rows."""
LEAST_WIDTH = 64
"""Elements of one: shorter ones are added up on chip."""


@only_for(hlo.ScatterOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.ScatterOp) and _adds_rows(module, op):
                order = _order(op)
                if order is not None and _takes_in_turn(module, op, order):
                    _gather(Build.before(module, op), op, order)


def _adds_rows(module: HloModule, op: hlo.ScatterOp) -> bool:
    """Whether rows are added to zeros along the first dim."""
    if len(op.operands) != 3:
        return False
    array, indices, rows = (hlo.shape_of(operand) for operand in op.operands)
    dims = op.dims.data
    inner = tuple(range(1, array.rank))
    plain = dims.inserted_window_dims == dims.scatter_dims_to_operand_dims == (0,) and not dims.input_batching_dims
    if not plain or dims.update_window_dims != inner or dims.index_vector_dim != 1 or rows.rank != array.rank:
        return False
    height, count = array.dims[0], rows.dims[0]
    if not height or count % height or count < LEAST_COUNT or indices.dims not in ((count,), (count, 1)):
        return False
    if rows.dims[1:] != array.dims[1:] or prod(rows.dims[1:]) < LEAST_WIDTH:
        return False
    return combiner_kind(op, module) == "add" and splat_number(op.operands[0], module) == 0


def _order(op: hlo.ScatterOp) -> Value | None:
    """The order that alone the places are made of, by elementwise ops: row numbers, as a sort left them."""
    found: set[Value] = set()
    seen: set[Value] = set()
    pending: list[Value] = [op.operands[1]]
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        made = defining_op(value)
        if isinstance(made, hlo.ElementwiseOp | hlo.ReshapeOp | hlo.BroadcastOp):
            pending += made.operands
        elif not isinstance(made, hlo.ConstantOp):
            found.add(value)
    order = found.pop() if len(found) == 1 else None
    return order if order is not None and _permutes(order) else None


def _permutes(value: Value) -> bool:
    """Whether ``value`` [N] has 0 to N - 1 in any order."""
    op = defining_op(value)
    if not isinstance(op, hlo.GetTupleElementOp) or not isinstance(sort := op.operand.owner, hlo.SortOp):
        return False
    numbers = defining_op(sort.operands[op.index.data])
    return isinstance(numbers, hlo.IotaOp) and numbers.shape.rank == 1


def _takes_in_turn(module: HloModule, op: hlo.ScatterOp, order: Value) -> bool:
    """Whether place ``i`` gets the numbers ``i * count`` to ``(i + 1) * count - 1``."""
    from neuronx_cc.ir.reference import evaluator

    apply = evaluator(module).apply
    (size,) = hlo.shape_of(order).dims
    known: dict[Value, Any] = {order: np.arange(size, dtype=np.int32)}

    def of(value: Value) -> Any:
        if value not in known:
            made = defining_op(value)
            assert isinstance(made, hlo.HloOp), "found on the way from the places"
            if isinstance(made, hlo.ConstantOp):
                known[value] = module.constants[made.value.data]
            else:
                known[value] = apply(made, [of(operand) for operand in made.operands])
        return known[value]

    if hlo.shape_of(order).dtype != "s32":
        return False
    places = np.asarray(of(op.operands[1])).reshape(-1)
    height = op.shape.dims[0]
    return places.size == size and bool(np.array_equal(places, np.arange(size) // (size // height)))


def _gather(b: Build, op: hlo.ScatterOp, order: Value) -> None:
    rows = op.operands[2]
    (count,), shape = hlo.shape_of(order).dims, hlo.shape_of(rows)
    height, width = op.shape.dims[0], prod(shape.dims[1:])
    found = gather_rows(b, b.reshape(rows, (count, width)), _inverse(b, order))
    if count == height:
        replace(op, b.reshape(found, op.shape.dims))
    else:
        replace(op, b.reshape(b.sum(b.reshape(found, (height, count // height, width)), [1]), op.shape.dims))


def _inverse(b: Build, order: Value) -> Value:
    """Where each number stands in ``order``."""
    (count,) = hlo.shape_of(order).dims
    scalar = hlo.array_type("s32", ())
    body, inner = b.computation(b.fresh_name("inverse"), [scalar] * 4)
    left, right = body.block.args[:2]
    body.block.last_op.operands = [inner.compare(left, right, "LT")]  # type: ignore[union-attr]
    properties: dict[str, hlo.Attribute] = {
        "dimension": hlo.IntAttr(0),
        "is_stable": hlo.BoolAttr(True),
        "to_apply": hlo.StrsAttr((body.computation_name,)),
    }
    numbers = b.iota((count,), 0)
    both = b.typed(hlo.SortOp, (order, numbers), hlo.tuple_type((order.type, numbers.type)), **properties)
    return b.element(both, 1)
