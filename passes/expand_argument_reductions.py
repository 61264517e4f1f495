"""Rewrites argmax and argmin reductions into single-operand reductions, which engines do row by row.

Input: reduces whose ``kind`` is ``argmax`` or ``argmin`` (see ``decompose``). Output: the extreme value by one
reduction; the smallest index among the elements equal to it (or NaN, which wins) by another. The initial index
takes part only where the initial value is the result, which then equals an element or the row is empty.
"""

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import erase, insert_before, insert_splat, ops_of
from neuronx_cc.ir.types import INTEGERS, NUMPY_DTYPE
from neuronx_cc.passes.manager import PassContext

EXTREMES: dict[str, type[hlo.HloOp]] = {"argmax": hlo.MaximumOp, "argmin": hlo.MinimumOp}


def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):  # the elements behind the op are erased with it
            if isinstance(op, hlo.ReduceOp) and op.kind is not None and op.kind.data in EXTREMES:
                _expand(op, module)


def _expand(op: hlo.ReduceOp, module: HloModule) -> None:
    values, indices, start, _ = op.operands
    shape, index_shape = hlo.shape_of(values), hlo.shape_of(indices)
    assert op.kind is not None
    best = _reduce(op, module, values, start, EXTREMES[op.kind.data])
    kept = tuple(axis for axis in range(shape.rank) if axis not in op.dimensions.data)
    spread = insert_before(op, hlo.BroadcastOp, (best,), values.type, op.loc, {"dimensions": hlo.IntsAttr(kept)})
    found = _compare(op, values, spread, "EQ")
    if shape.dtype not in INTEGERS and shape.dtype != "pred":
        nans = _compare(op, values, values, "NE")
        found = insert_before(op, hlo.OrOp, (found, nans), found.type, op.loc)
    highest = np.array(np.iinfo(NUMPY_DTYPE[index_shape.dtype]).max, NUMPY_DTYPE[index_shape.dtype])
    never = insert_splat(module, op, highest, index_shape.dtype, index_shape.dims, op.loc)
    place = insert_before(op, hlo.SelectOp, (found, indices, never), indices.type, op.loc)
    last = insert_splat(module, op, highest, index_shape.dtype, (), op.loc)
    first = _reduce(op, module, place, last, hlo.MinimumOp)
    for use in list(op.results[0].uses):
        user = use.operation
        assert isinstance(user, hlo.GetTupleElementOp), "tuples are dissolved before"
        user.results[0].replace_all_uses_with((best, first)[user.index.data])
        erase(user)
    erase(op)


def _compare(op: hlo.HloOp, lhs: hlo.SSAValue, rhs: hlo.SSAValue, direction: str) -> hlo.SSAValue:
    shape = hlo.shape_of(lhs)
    kind = "FLOAT" if shape.dtype not in INTEGERS else "SIGNED" if shape.dtype.startswith("s") else "UNSIGNED"
    properties = {"direction": hlo.StrAttr(direction), "comparison_type": hlo.StrAttr(kind)}
    return insert_before(op, hlo.CompareOp, (lhs, rhs), hlo.array_type("pred", shape.dims), op.loc, properties)


def _reduce(
    op: hlo.ReduceOp, module: HloModule, operand: hlo.SSAValue, start: hlo.SSAValue, combiner: type[hlo.HloOp]
) -> hlo.SSAValue:
    """``operand`` folded over the dims of ``op`` by ``combiner``."""
    shape = hlo.shape_of(operand)
    dims = tuple(size for axis, size in enumerate(shape.dims) if axis not in op.dimensions.data)
    properties: dict[str, hlo.Attribute] = {
        "dimensions": op.dimensions,
        "to_apply": hlo.StrsAttr((_computation(module, combiner, shape.dtype),)),
        "kind": hlo.StrAttr(combiner.name.removeprefix("hlo.")),
    }
    return insert_before(op, hlo.ReduceOp, (operand, start), hlo.array_type(shape.dtype, dims), op.loc, properties)


def _computation(module: HloModule, combiner: type[hlo.HloOp], dtype: str) -> str:
    """Name of the computation ``combiner(a, b)`` on scalars, made if the module lacks it."""
    opcode = combiner.name.removeprefix("hlo.")
    name = f"{opcode}.{dtype}.scalar"
    if any(computation.computation_name == name for computation in module.computations()):
        return name
    scalar = hlo.array_type(dtype, ())
    computation = hlo.ComputationOp.make(name, [scalar, scalar])
    result = combiner.make(list(computation.block.args), scalar)
    computation.block.add_op(result)
    computation.block.add_op(hlo.ReturnOp.create(operands=[result.results[0]]))
    module.op.body.block.insert_op_before(computation, module.op.body.block.first_op)  # type: ignore[arg-type]
    return name
