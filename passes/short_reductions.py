"""Writes reductions of few elements that lie apart as elementwise ops of slices.

Input: canonical hlo. Output: a reduction over one dim of at most ``MOST`` elements, with other dims before and
behind it, becomes the combiner applied to the slices, in their order, from the initial value on. A slice is a view; a
reduction of a middle dim would bring its elements together first, tile by tile.
"""

from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.passes.accumulate_f32 import NARROW_FLOATS
from neuronx_cc.passes.analysis.values import combiner_kind
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext

MOST = 4
"""Elements that are folded."""
LEAST_ROWS = 32
"""Elements of the dims before the folded one: fewer rows are folded tile on tile."""
LEAST_COLUMNS = 128
"""Elements of the dims behind it, which lie side by side."""
KINDS: dict[str, type[hlo.HloOp]] = {
    "add": hlo.AddOp,
    "multiply": hlo.MultiplyOp,
    "maximum": hlo.MaximumOp,
    "minimum": hlo.MinimumOp,
}


def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.ReduceOp) and _applies(op, module):
                replace(op, _folded(op, Build.before(module, op), KINDS[combiner_kind(op, module) or ""]))


def _applies(op: hlo.ReduceOp, module: HloModule) -> bool:
    if len(op.operands) != 2 or len(op.dimensions.data) != 1 or combiner_kind(op, module) not in KINDS:
        return False
    shape, (axis,) = hlo.shape_of(op.operands[0]), op.dimensions.data
    rows, columns = prod(shape.dims[:axis]), prod(shape.dims[axis + 1 :])
    few = 1 <= shape.dims[axis] <= MOST and shape.dtype not in NARROW_FLOATS
    return few and rows >= LEAST_ROWS and columns >= LEAST_COLUMNS


def _folded(op: hlo.ReduceOp, b: Build, kind: type[hlo.HloOp]) -> Value:
    operand, start = op.operands
    (axis,) = op.dimensions.data
    result = b.broadcast(start, op.shape.dims, [])
    for index in range(hlo.shape_of(operand).dims[axis]):
        result = b.each(kind, result, b.reshape(b.slice(operand, axis, index, index + 1), op.shape.dims))
    return result
