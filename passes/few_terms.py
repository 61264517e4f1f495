"""Sums over few elements of a dim that is not the last become sums of slices, which elementwise kernels add up.

Input: canonical hlo whose narrow sums are FP32 (``accumulate_f32``). Output: no sum over a dim of at most ``MOST``
elements between others where slices take less time by estimate. Each term is what elementwise ops and broadcasts make
of a slice, so that nothing of all terms is stored; but slices are read in runs of one term. Such sums are what a
mixture of experts adds up for each token. Terms are added in their order.
"""

from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.values import combiner_kind, is_positive_zero, splat_number
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

FEW, MOST = 4, 16
"""Terms: so few that are computed are slices wherever these are not short; each has instructions of its own."""
LEAST = 1 << 18
"""Elements of all terms."""
LEAST_ROW = 64
"""Elements of a slice of ``FEW`` terms that lie side by side."""
NEAR_SHARE = (1, 3)
"""Of SBUF: what is computed ahead of its sum and stays there."""
SLACK = 1.1
"""Slices of an array as it lies may take so much longer by estimate than its sum, which is rounded up to tiles."""


@only_for(hlo.ReduceOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.ReduceOp) and len(op.operands) == 2 and _is_of_few(module, op, context.timing):
                _add(Build.before(module, op), op)


def _is_of_few(module: HloModule, op: hlo.ReduceOp, timing: Timing) -> bool:
    operand, start = op.operands
    shape, kind = hlo.shape_of(operand), combiner_kind(op, module)
    if kind != "add" or shape.dtype != "f32" or len(op.dimensions.data) != 1 or splat_number(start, module) != 0:
        return False
    (axis,) = op.dimensions.data
    count, ahead, behind = shape.dims[axis], prod(shape.dims[:axis]), prod(shape.dims[axis + 1 :])
    if not 1 < count <= MOST or ahead == 1 or behind == 1 or shape.size < LEAST:
        return False
    if not isinstance(defining_op(operand), hlo.ElementwiseOp | hlo.BroadcastOp):
        return count <= FEW and _of_slices(timing, operand, axis) < SLACK * _of_all(timing, operand, axis)
    if count <= FEW:
        return behind >= LEAST_ROW
    return _of_slices(timing, operand, axis) < _of_all(timing, operand, axis)


def _of_slices(timing: Timing, value: Value, axis: int) -> float:
    """Nanoseconds where each term is made of slices: of the DMA, or of Vector, which makes one and adds it."""
    shape = hlo.shape_of(value)
    rows = min(timing.sizes.partitions, prod(shape.dims[:axis]))
    return max(2 * shape.size / rows * timing.cycle(Stream.VECTOR), _read(timing, value, axis))


def _read(timing: Timing, value: Value, axis: int) -> float:
    """Nanoseconds of the DMA that reads slices."""
    total = 0.0
    for array, place in _sliced(value, axis):
        shape = hlo.shape_of(array)
        total += timing.transfer(shape.nbytes, prod(shape.dims[place + 1 :]) * itemsize(shape.dtype)).bound
    return total


def _of_all(timing: Timing, value: Value, axis: int) -> float:
    """Nanoseconds of the DMA where all terms are made and then added up: many are stored, and loaded again."""
    size = hlo.shape_of(value).nbytes
    op = defining_op(value)
    if isinstance(op, hlo.ConvertOp) and not isinstance(defining_op(op.operand), hlo.ElementwiseOp):
        return size / timing.dma_rate  # the DMA casts
    is_near = size <= timing.sizes.sbuf_share(NEAR_SHARE) * timing.sizes.partitions
    read = sum(hlo.shape_of(array).nbytes for array, _ in _sliced(value, axis))
    return (read + (0 if is_near else 2 * size)) / timing.dma_rate


def _sliced(value: Value, axis: int) -> dict[tuple[Value, int], None]:
    """The arrays of which terms are slices, each with the dim that they are taken along."""
    op = defining_op(value)
    if isinstance(op, hlo.BroadcastOp):
        places = op.dimensions.data
        return _sliced(op.operand, places.index(axis)) if axis in places else {}
    if isinstance(op, hlo.ElementwiseOp) and value.has_one_use():
        return {found: None for operand in op.operands for found in _sliced(operand, axis)}
    return {(value, axis): None}


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
