"""FP32 values that take as long in 16 bits: of few elements, or loaded and stored in FP32 and little computed with.

Ops that elementwise ops, movement and folds connect are one group, which has one type: a cast between two types takes
as long as an op, and often a way through HBM. A group gains from fewer bits where what contractions leave in HBM takes
half the time to load, where rows are gathered from tables on chip, and where Vector, which adds and multiplies pairs of
numbers of 16 bits at twice the rate, takes longer for these than the DMA takes for what the group reads and makes. The
updates of an optimizer do not, nor what is computed of small arrays, nor what recurrences read and make.
"""

from collections.abc import Iterable, Iterator

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of, viewed
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.scans import scan_of
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.manager import PassOptions
from neuronx_cc.passes.precision.decisions import Contraction, is_f32, lowers_all

NO_GAIN = "as long in 16 bits"
SOME = 2
"""A contraction's result is cast as it leaves PSUM, so one part in so many of what others are few of pays."""
_PAIRED = hlo.AddOp | hlo.SubtractOp | hlo.MultiplyOp
"""Ops that Vector does at twice the rate on two arrays of 16 bits."""
_APART = (hlo.RegionOp, hlo.ConstantOp, hlo.IotaOp, hlo.FormatOp)


def without_gain(computation: hlo.ComputationOp, options: PassOptions, timing: Timing) -> set[hlo.HloOp]:
    """Ops of the groups that gain nothing, where all that computes FP32 would be cast."""
    if not lowers_all(options):
        return set()
    few = timing.sizes.partitions * timing.sizes.bank_columns
    groups = _groups([op for op in ops_of(computation.block) if _is_in_group(op)])
    return {op for group in groups if not _gains(group, few, timing) for op in group}


def _is_in_group(op: hlo.HloOp) -> bool:
    single = not isinstance(op, (Contraction, *_APART)) and isinstance(op.results[0].type, hlo.ArrayType)
    return single and not isinstance(op, hlo.TupleOp | hlo.GetTupleElementOp)


def _groups(ops: list[hlo.HloOp]) -> Iterable[list[hlo.HloOp]]:
    """``ops``, in order, by what FP32 values connect."""
    leader = {op: op for op in ops}

    def first(op: hlo.HloOp) -> hlo.HloOp:
        while leader[op] is not op:
            leader[op] = op = leader[leader[op]]
        return op

    for op in ops:
        for made in [value.owner for value in op.operands if is_f32(value)]:
            if isinstance(made, hlo.HloOp) and made in leader:
                leader[first(made)] = first(op)
    found: dict[hlo.HloOp, list[hlo.HloOp]] = {}
    for op in ops:
        found.setdefault(first(op), []).append(op)
    return found.values()


def _gains(group: list[hlo.HloOp], few: int, timing: Timing) -> bool:
    if any(scan_of(op) is not None for op in group):
        return False  # recurrences are FP32, and what they read would be cast for them
    moved: dict[hlo.SSAValue, None] = {}
    paired, inside = 0.0, {*group}
    for op in group:
        given = [value for value in _arrays(op) if value.owner not in inside]
        if any(isinstance(value.owner, Contraction) and SOME * hlo.shape_of(value).size >= few for value in given):
            return True
        if isinstance(op, hlo.GatherOp) and op.dims.data.operand_batching_dims and op.shape.size >= few:
            return True
        moved |= dict.fromkeys(given)
        if is_f32(op.results[0]) and any(use.operation not in inside for use in op.results[0].uses):
            moved[op.results[0]] = None
        if isinstance(op, _PAIRED) and _is_of_two(op):
            paired += op.shape.size
    nbytes = sum(hlo.shape_of(value).size for value in moved) * itemsize("f32")
    vector = timing.engine("tensor_tensor", Stream.VECTOR, few // timing.sizes.partitions, alu=("add",)).bound
    saved = vector * paired / few / 2
    return saved > 2 * timing.transfer_latency + timing.transfer(nbytes, timing.long_run).bound


def _is_of_two(op: hlo.BinaryOp) -> bool:
    """Whether ``op`` has two different arrays for operands, neither of which it repeats."""
    lhs, rhs = map(viewed, op.operands)
    return lhs is not rhs and min(hlo.shape_of(lhs).size, hlo.shape_of(rhs).size) >= op.shape.size


def _arrays(op: hlo.HloOp) -> Iterator[hlo.SSAValue]:
    """FP32 arrays that ``op`` reads, and makes, that are no constants."""
    for value in (*op.operands, op.results[0]):
        if is_f32(value) and not isinstance(viewed(value).owner, hlo.ConstantOp | hlo.IotaOp):
            yield value
