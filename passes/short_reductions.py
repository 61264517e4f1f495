"""Writes reductions of few elements that lie apart as elementwise ops of slices.

Input: canonical hlo. Output: a reduction over one dim of at most ``MOST`` elements, with other dims before and after
it, becomes the combiner applied to the slices, in their order, from the initial value on. A slice is a view; a
reduction of a middle dim would bring its elements together first, tile by tile. A longer dim is cut in two, of which
the inner one has at most so many elements, and folded in two steps.
"""

from math import ceil, prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, F32_PSUM, Timing
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.accumulate_f32 import NARROW_FLOATS
from neuronx_cc.passes.analysis.values import combiner_kind
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext

MOST = 16
"""Elements that are folded."""
KINDS: dict[str, type[hlo.HloOp]] = {
    "add": hlo.AddOp,
    "multiply": hlo.MultiplyOp,
    "maximum": hlo.MaximumOp,
    "minimum": hlo.MinimumOp,
}


def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.ReduceOp) and _applies(op, module, context.timing):
                operand, start = op.operands
                kind = KINDS[combiner_kind(op, module) or ""]
                replace(op, _folded(Build.before(module, op), kind, operand, start, op.dimensions.data[0]))


def _applies(op: hlo.ReduceOp, module: HloModule, timing: Timing) -> bool:
    if len(op.operands) != 2 or len(op.dimensions.data) != 1 or combiner_kind(op, module) not in KINDS:
        return False
    shape, (axis,) = hlo.shape_of(op.operands[0]), op.dimensions.data
    rows, columns = prod(shape.dims[:axis]), prod(shape.dims[axis + 1 :])
    few = shape.dims[axis] >= 1 and shape.dtype not in NARROW_FLOATS and _steps(shape.dims[axis]) is not None
    return (
        few
        and rows > 1
        and columns > 1
        and shape.size > 0
        and _pays(timing, shape.dtype, rows, shape.dims[axis], columns)
    )


def _pays(timing: Timing, dtype: str, rows: int, size: int, columns: int) -> bool:
    """Whether adding up slices, rows on the partitions, takes less time than folding ``size`` elements row by row.

    Row by row, the folded elements lie on the partitions, and the sum over these is a product, which leaves PSUM.
    """
    width, partitions = itemsize(dtype), timing.sizes.partitions
    lanes = min(rows, partitions)
    added = timing.engine("tensor_tensor", Stream.VECTOR, ceil(rows / lanes) * columns, ins=(F32, F32))
    slices = max(timing.transfer(rows * size * columns * width, columns * width).bound, added.times(size - 1).bound)
    fold = timing.engine("tensor_tensor", Stream.VECTOR, columns, ins=(F32, F32))
    fold += timing.engine("activation", Stream.SCALAR, columns, (F32,), (F32_PSUM,), ("copy",))
    each = timing.moved(size * columns * width, columns * width)
    return slices + timing.transfer_latency < timing.pipeline([each, timing.done(fold, Stream.SCALAR)], rows)


def _steps(size: int) -> list[int] | None:
    """Factors of ``size``, each at most ``MOST``, the largest first; None if it has others."""
    steps = []
    while size > MOST:
        step = next((step for step in range(MOST, 1, -1) if size % step == 0), 0)
        if not step:
            return None
        steps.append(step)
        size //= step
    return [*steps, size]


def _folded(b: Build, kind: type[hlo.HloOp], operand: Value, start: Value, axis: int) -> Value:
    """``operand`` folded along ``axis`` with ``start``, by slices."""
    dims = hlo.shape_of(operand).dims
    for step in (_steps(dims[axis]) or [1])[:-1]:
        cut = (*dims[:axis], dims[axis] // step, step, *dims[axis + 1 :])
        operand = _slices(b, kind, b.reshape(operand, cut), axis + 1)
        dims = hlo.shape_of(operand).dims
    folded = _slices(b, kind, operand, axis)
    return b.each(kind, b.broadcast(start, hlo.shape_of(folded).dims, []), folded)


def _slices(b: Build, kind: type[hlo.HloOp], operand: Value, axis: int) -> Value:
    dims = hlo.shape_of(operand).dims
    left = (*dims[:axis], *dims[axis + 1 :])
    slices = [b.reshape(b.slice(operand, axis, index, index + 1), left) for index in range(dims[axis])]
    result = slices[0]
    for each in slices[1:]:
        result = b.each(kind, result, each)
    return result
