"""Gives dots that contract many elements along several dims one contracted dim.

Input: canonical hlo. Output: a dot whose contracted dims follow each other in one operand otherwise than in the other,
and hold more elements than a partition has room for, has one operand or both transposed, and one contracted dim. Code
generation cuts one contracted dim into blocks, but takes several whole.
"""

from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import DotDims, HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

MOST_CONTRACTED = 8192
"""Contracted elements that code generation stages whole, rows of FP32 and both halves of their bits."""


@only_for(hlo.DotOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.DotOp) and _is_deep(op):
                replace(op, _merged(Build.before(module, op), op))


def _is_deep(op: hlo.DotOp) -> bool:
    dims = op.dims.data
    sizes = hlo.shape_of(op.lhs).dims
    pairs = sorted(zip(dims.lhs_contracting, dims.rhs_contracting, strict=True))
    pairs = [pair for pair in pairs if sizes[pair[0]] > 1]
    if len(pairs) < 2 or prod(sizes[left] for left, _ in pairs) <= MOST_CONTRACTED:
        return False
    (left, right), count = pairs[0], len(pairs)
    return pairs != [(left + place, right + place) for place in range(count)]


def _merged(b: Build, op: hlo.DotOp) -> Value:
    """The larger operand gives the order of the contracted dims."""
    dims, left, right = op.dims.data, hlo.shape_of(op.lhs), hlo.shape_of(op.rhs)
    pairs = list(zip(dims.lhs_contracting, dims.rhs_contracting, strict=True))
    pairs.sort(key=lambda pair: pair[0] if left.size >= right.size else pair[1])
    lhs = _transposed(b, op.lhs, dims.lhs_batch, [pair[0] for pair in pairs])
    rhs = _transposed(b, op.rhs, dims.rhs_batch, [pair[1] for pair in pairs])
    batch = tuple(range(len(dims.lhs_batch)))
    last = [hlo.shape_of(value).rank - 1 for value in (lhs, rhs)]
    kept = {name: attr for name, attr in op.properties.items() if name != "dims"}
    numbers = DotDims((last[0],), (last[1],), batch, batch)
    return b.typed(hlo.DotOp, (lhs, rhs), op.results[0].type, dims=hlo.DotDimsAttr(numbers), **kept)


def _transposed(b: Build, value: Value, batch: tuple[int, ...], contracted: list[int]) -> Value:
    """[batch..., free..., contracted elements]."""
    shape = hlo.shape_of(value)
    free = [axis for axis in range(shape.rank) if axis not in batch and axis not in contracted]
    transposed = b.transpose(value, [*batch, *free, *contracted])
    sizes = [shape.dims[axis] for axis in (*batch, *free)]
    return b.reshape(transposed, [*sizes, prod(shape.dims[axis] for axis in contracted)])
