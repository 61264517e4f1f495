"""Rewrites ops that no engine does directly into ops that engines do, and names the combiners of reductions.

Input: an inlined, canonical module. Output: no ``clamp``, ``bitcast``, integer ``power`` with a small constant
exponent, dot that contracts nothing or gives integers narrower than 32 bits, or ``reduce-precision`` of FP16 that keeps
its exponents; ``kind`` set on every reduce whose body is recognised. All other elementwise functions stay: code
generation has an instruction or a GpSimd program for each.
"""

from collections.abc import Callable

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import insert_before, insert_splat, ops_of, replace
from neuronx_cc.ir.types import COMPLEX, INTEGERS, NUMPY_DTYPE
from neuronx_cc.passes.analysis.argument_reductions import argument_kind
from neuronx_cc.passes.analysis.values import computation_kind, splat_number
from neuronx_cc.passes.canonical.arithmetic import power_of
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext, only_for

LARGEST_EXPONENT = 64
"""Integer powers above this keep the op: no integer type holds more than a power of 64 of anything but 0, 1 and -1."""

HALF_EXPONENT, HALF_MANTISSA = 5, 10
"""Bits of FP16."""


def _clamp(op: hlo.HloOp, module: HloModule) -> hlo.SSAValue:
    """``min(max(x, low), high)``; a NaN in any of them is the result, as for clamp."""
    assert isinstance(op, hlo.ClampOp)
    low, high = _spread(op, op.minimum), _spread(op, op.maximum)
    type_ = op.results[0].type
    above = insert_before(op, hlo.MaximumOp, (op.operand, low), type_, op.loc)
    return insert_before(op, hlo.MinimumOp, (above, high), type_, op.loc)


def _spread(op: hlo.HloOp, bound: hlo.SSAValue) -> hlo.SSAValue:
    if hlo.shape_of(bound).dims == op.shape.dims:
        return bound
    return insert_before(op, hlo.BroadcastOp, (bound,), op.results[0].type, op.loc, {"dimensions": hlo.IntsAttr(())})


def _bitcast(op: hlo.HloOp, module: HloModule) -> hlo.SSAValue | None:
    """Same element type: a reshape. Another of the same width: a bitcast-convert, reshaped."""
    source, target = hlo.shape_of(op.operands[0]), op.shape
    value = op.operands[0]
    if source.dtype != target.dtype:
        if NUMPY_DTYPE[source.dtype].itemsize != NUMPY_DTYPE[target.dtype].itemsize:
            return None
        value = insert_before(op, hlo.BitcastConvertOp, (value,), hlo.array_type(target.dtype, source.dims), op.loc)
    if source.dims == target.dims:
        return value
    return insert_before(op, hlo.ReshapeOp, (value,), op.results[0].type, op.loc)


def _dimension_size(op: hlo.HloOp, module: HloModule) -> hlo.SSAValue:
    assert isinstance(op, hlo.GetDimensionSizeOp)
    size = hlo.shape_of(op.operand).dims[op.dimension.data]
    return insert_splat(module, op, np.array(size, np.int32), "s32", (), op.loc)


def _part(op: hlo.HloOp, module: HloModule) -> hlo.SSAValue | None:
    """``real`` and ``imag`` of real numbers: themselves, and zero."""
    if hlo.shape_of(op.operands[0]).dtype in COMPLEX:
        return None
    if isinstance(op, hlo.RealOp):
        return op.operands[0]
    return insert_splat(module, op, np.array(0, op.shape.numpy_dtype), op.shape.dtype, op.shape.dims, op.loc)


def _integer_power(op: hlo.HloOp, module: HloModule) -> hlo.SSAValue | None:
    """Repeated squaring for a constant exponent; wraps as the op does."""
    dtype = op.shape.dtype
    exponent = splat_number(op.operands[1], module)
    if dtype not in INTEGERS or exponent is None or not 0 <= exponent <= LARGEST_EXPONENT:
        return None
    if exponent == 0:
        return insert_splat(module, op, np.array(1, NUMPY_DTYPE[dtype]), dtype, op.shape.dims, op.loc)
    return power_of(op, op.operands[0], int(exponent))


def _contraction(op: hlo.HloOp, module: HloModule) -> hlo.SSAValue | None:
    """Zeros when nothing is contracted; narrow integers are summed in 32 bits and converted (which wraps)."""
    assert isinstance(op, hlo.DotOp | hlo.ConvolutionOp)
    dtype, lhs = op.shape.dtype, hlo.shape_of(op.lhs)
    empty = (
        any(lhs.dims[axis] == 0 for axis in op.dims.data.lhs_contracting)
        if isinstance(op, hlo.DotOp)
        else (0 in (lhs.size, hlo.shape_of(op.rhs).size))
    )
    if empty:
        return insert_splat(module, op, np.array(0, NUMPY_DTYPE[dtype]), dtype, op.shape.dims, op.loc)
    if "pred" in (lhs.dtype, hlo.shape_of(op.rhs).dtype):
        return _bool_contraction(op, module)
    if dtype not in INTEGERS or NUMPY_DTYPE[dtype].itemsize >= 4:
        return None
    wide = hlo.array_type("s32", op.shape.dims)
    total = insert_before(op, type(op), (op.lhs, op.rhs), wide, op.loc, dict(op.properties))
    return insert_before(op, hlo.ConvertOp, (total,), op.results[0].type, op.loc)


def _bool_contraction(op: hlo.DotOp | hlo.ConvolutionOp, module: HloModule) -> hlo.SSAValue:
    """Zeros and ones are exact in BF16, and no sum of them is rounded to zero; integer results are integer sums."""
    dtype = op.shape.dtype
    narrow, wide = ("s8", dtype) if dtype in INTEGERS else ("bf16", "f32")
    factors = [
        insert_before(op, hlo.ConvertOp, (x,), hlo.array_type(narrow, hlo.shape_of(x).dims), op.loc)
        if hlo.shape_of(x).dtype == "pred"
        else x
        for x in (op.lhs, op.rhs)
    ]
    type_ = hlo.array_type(wide, op.shape.dims)
    total = insert_before(op, type(op), factors, type_, op.loc, dict(op.properties))
    if dtype != "pred":
        return total if dtype == wide else insert_before(op, hlo.ConvertOp, (total,), op.results[0].type, op.loc)
    zero = insert_splat(module, op, np.zeros((), np.float32), wide, op.shape.dims, op.loc)
    properties: dict[str, hlo.Attribute] = {"direction": hlo.StrAttr("NE"), "comparison_type": hlo.StrAttr("FLOAT")}
    return insert_before(op, hlo.CompareOp, (total, zero), op.results[0].type, op.loc, properties)


def _reduce_precision(op: hlo.HloOp, module: HloModule) -> hlo.SSAValue | None:
    """On the bits of FP16, in which 8-bit floats are rounded too, where the exponent keeps its range.

    The instruction works on FP32, where the smallest numbers of FP16 are normal: it would take them for others.
    """
    assert isinstance(op, hlo.ReducePrecisionOp)
    dtype, kept = op.shape.dtype, op.mantissa_bits.data
    if NUMPY_DTYPE[dtype].itemsize > 2 or dtype == "bf16" or op.exponent_bits.data < HALF_EXPONENT:
        return None
    b = Build.before(module, op)
    value = b.convert(op.operand, "f16")
    dropped = HALF_MANTISSA - kept
    if dropped > 0:
        bits = b.op(hlo.BitcastConvertOp, (value,), "u16", op.shape.dims)
        last = b.each(hlo.ShiftRightLogicalOp, bits, b.number_like(dropped, bits))
        last = b.each(hlo.AndOp, last, b.number_like(1, bits))
        half = b.add(last, b.number_like((1 << (dropped - 1)) - 1, bits))
        rounded = b.each(hlo.AndOp, b.add(bits, half), b.number_like(0x10000 - (1 << dropped), bits))
        result = b.op(hlo.BitcastConvertOp, (rounded,), "f16", op.shape.dims)
        value = b.select(b.compare(value, value, "NE"), value, result)
    return b.convert(value, dtype)


def _name_combiner(op: hlo.HloOp, module: HloModule) -> None:
    assert isinstance(op, hlo.ReduceOp)
    body = module.computation(op.to_apply.data[0])
    kind = computation_kind(body) if len(op.operands) == 2 else argument_kind(op, module)
    if kind and op.kind is None:
        op.properties["kind"] = hlo.StrAttr(kind)


RULES: dict[type, Callable[[hlo.HloOp, HloModule], hlo.SSAValue | None]] = {
    hlo.ClampOp: _clamp,
    hlo.BitcastOp: _bitcast,
    hlo.ConvolutionOp: _contraction,
    hlo.DotOp: _contraction,
    hlo.GetDimensionSizeOp: _dimension_size,
    hlo.ImagOp: _part,
    hlo.PowerOp: _integer_power,
    hlo.RealOp: _part,
    hlo.ReduceOp: _name_combiner,
    hlo.ReducePrecisionOp: _reduce_precision,
}


@only_for(*RULES)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            rule = RULES.get(type(op))
            if rule is None:
                continue
            value = rule(op, module)
            if value is not None:
                replace(op, value)
