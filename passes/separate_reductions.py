"""Cuts reductions over dims that lie apart in two: first over the last dims, then over the others.

Input: canonical hlo. Output: a reduction over some of the last dims and over dims before a kept one becomes one over
the former, whose rows lie side by side on the partitions, and one over what is left. Neighbours in memory would be
added up element by element otherwise. No value changes but for the order in which elements are added.
"""

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import insert_before, insert_constant, ops_of, replace
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.accumulate_f32 import NARROW_FLOATS
from neuronx_cc.passes.analysis.values import combiner_kind, identity_of
from neuronx_cc.passes.manager import PassContext


def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.ReduceOp) and len(op.operands) == 2 and _pays(op, context):
                _separate(op, module)


def _pays(op: hlo.ReduceOp, context: PassContext) -> bool:
    """Whether moving the operand takes longer than one kernel more."""
    nbytes, timing = hlo.shape_of(op.operands[0]).nbytes, context.timing
    return timing.transfer(nbytes, timing.long_run).bound > timing.transfer_latency


def _separate(op: hlo.ReduceOp, module: HloModule) -> None:
    operand, start = op.operands
    shape, kind = hlo.shape_of(operand), combiner_kind(op, module)
    folded = [dim for dim in op.dimensions.data if shape.dims[dim] > 1]
    kept = [dim for dim in range(shape.rank) if dim not in folded and shape.dims[dim] > 1]
    last = [dim for dim in folded if not kept or dim > kept[-1]]
    neutral = identity_of(kind, shape.dtype)
    if neutral is None or (shape.dtype in NARROW_FLOATS and kind in ("add", "multiply")):
        return  # unknown, or rounded twice
    if not last or len(last) == len(folded):
        return
    rows = hlo.array_type(shape.dtype, tuple(size for dim, size in enumerate(shape.dims) if dim not in last))
    number = np.asarray(neutral, NUMPY_DTYPE[shape.dtype])
    nothing = insert_constant(module, op, number, shape.dtype, op.loc)
    properties = {**op.properties, "dimensions": hlo.IntsAttr(tuple(sorted(last)))}
    short = insert_before(op, hlo.ReduceOp, (operand, nothing), rows, op.loc, properties)
    left = [dim for dim in sorted(op.dimensions.data) if dim not in last]
    moved = tuple(dim - sum(gone < dim for gone in last) for dim in left)
    properties = {**op.properties, "dimensions": hlo.IntsAttr(moved)}
    replace(op, insert_before(op, hlo.ReduceOp, (short, start), op.results[0].type, op.loc, properties))
