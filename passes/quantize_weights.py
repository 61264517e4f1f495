"""Stores constant operands of contractions in 8 bits where the policy says so (``weights``, ``--quantize-weights``).

Input: canonical hlo ahead of ``auto_cast``. Output: ``dot(x, w)`` with a float constant w becomes ``dot(x, convert(q))
s``: codes q, a constant of a byte an element, and a scale s for each output channel (``precision.quantization``), which
the contraction applies as its sums leave PSUM; kernels of convolutions alike. What TensorE multiplies by is q itself,
which no cast rounds. Of a stack of weights that a loop takes one by one, codes and scales are stacks as well.
"""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.passes.accumulate_f32 import record
from neuronx_cc.passes.analysis.constant_stacks import element
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext
from neuronx_cc.passes.precision.quantization import (
    Weight,
    is_format,
    not_finite_of,
    stored_as,
    weight_of,
)

LATENCIES = 4
"""Latencies of Vector in which codes become numbers and sums are scaled, beyond what numbers of 16 bits take."""


def run(module: HloModule, context: PassContext) -> None:
    policy = context.options.policy
    if not any(is_format(rule.weights) for rule in policy.rules):
        return
    sizes: list[int] = []
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            choice = policy.choice(op, "weights") if isinstance(op, hlo.DotOp | hlo.ConvolutionOp) else None
            if choice is None or not is_format(choice[0]):
                continue
            weight = weight_of(module, op)
            if weight is None:
                _warn_of_what_is_not_finite(module, op, context)
                continue
            assert isinstance(op, hlo.DotOp | hlo.ConvolutionOp)
            form, reason = choice
            sizes.append(hlo.shape_of(op.operands[weight.operand]).size)
            place, dtype = f"operand {weight.operand}", hlo.shape_of(op.operands[weight.operand]).dtype
            context.precision.append(record(op.loc, op.opcode, place, dtype, stored_as(form)[0], reason))
            replace(op, _quantised(module, op, weight, form))
    if not sizes:
        context.warn(
            "EARG911",
            "weights in 8 bits change nothing: no contraction that the rules choose has a constant, finite operand",
        )
    _warn_of_what_is_small(sizes, context)


def _warn_of_what_is_small(sizes: Sequence[int], context: PassContext) -> None:
    """That reading half as many bytes saves less time than engines take longer, by estimate."""
    timing = context.timing
    least = int(LATENCIES * timing.latency(Stream.VECTOR) * timing.dma_rate)
    small = [size for size in sizes if size < least]
    if small:
        context.warn(
            "EARG911",
            f"weights in 8 bits save memory, but no time, in {len(small)} of {len(sizes)} contractions: they have at "
            f"most {max(small):,} elements there, and fewer than {least:,} are read in the time that scales take; "
            "rules with shape and weights keep them in 16 bits",
        )


def _warn_of_what_is_not_finite(module: HloModule, op: hlo.HloOp, context: PassContext) -> None:
    if count := not_finite_of(module, op):
        place = f", {op.loc.traced}" if op.loc.place else ""
        several = "elements are" if count > 1 else "element is"
        context.warn(
            "EARG911",
            f"weights of {op.opcode} {op.loc.path}{place} are not stored in 8 bits: {count} {several} NaN or infinite",
        )


def _quantised(module: HloModule, op: hlo.DotOp | hlo.ConvolutionOp, weight: Weight, form: str) -> Value:
    b, index = Build.before(module, op), weight.operand
    codes, scales = weight.codes(form)
    other = op.operands[1 - index]
    operands = [other, other]
    stored = element(b, b.array(codes, stored_as(form)[0]), weight.places)
    operands[index] = b.convert(stored, hlo.shape_of(op.operands[index]).dtype)
    sums = b.typed(type(op), operands, hlo.array_type("f32", op.shape.dims), **op.properties)
    axes, places = _channels(op, weight)
    kept = sorted(axes)
    scale = b.transpose(element(b, b.array(scales), weight.places), [kept.index(axis) for axis in axes])
    return b.convert(b.mul(sums, b.broadcast(scale, op.shape.dims, places)), op.shape.dtype)


def _channels(op: hlo.DotOp | hlo.ConvolutionOp, weight: Weight) -> tuple[list[int], list[int]]:
    """The dims of a weight that are not summed over, and those of the result that they become."""
    if isinstance(op, hlo.ConvolutionOp):
        return [op.dims.data.rhs_output_feature], [op.dims.data.out_feature]
    numbers = op.dims.data
    batch = (numbers.lhs_batch, numbers.rhs_batch)[weight.operand]
    rank = hlo.shape_of(op.operands[weight.operand]).rank
    free = [axis for axis in range(rank) if axis not in (*batch, *weight.contracted)]
    first = op.shape.rank - len(free) if weight.operand else len(batch)
    return [*batch, *free], [*range(len(batch)), *range(first, first + len(free))]
