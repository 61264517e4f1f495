"""Sums and products of 16-bit and 8-bit floats run in FP32 and are cast back (mixed-precision accumulation).

Input: an inlined module. Does nothing when the option is off. Minimum, maximum and logic are exact in any type and
stay. Dots and windows of 16-bit types accumulate in FP32 by themselves.
"""

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import Loc
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import insert_before, insert_splat, ops_of, replace
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.values import combiner_kind, splat_of
from neuronx_cc.passes.expansions.combiners import combiner_in
from neuronx_cc.passes.manager import PassContext, PrecisionRecord

NARROW_FLOATS = ("bf16", "f16", "f8e4m3", "f8e5m2")

REDUCTIONS = (hlo.ReduceOp, hlo.ReduceWindowOp)


def run(module: HloModule, context: PassContext) -> None:
    if not context.options.mixed_precision_accumulation:
        return
    for computation in list(module.computations()):
        for op in ops_of(computation.block):
            if type(op) in REDUCTIONS and _loses_bits(op, module):
                _widen(op, module, context)


def _loses_bits(op: hlo.HloOp, module: HloModule) -> bool:
    if len(op.operands) != 2 or op.shape.dtype not in NARROW_FLOATS:
        return False
    if isinstance(op, hlo.ReduceWindowOp) and itemsize(op.shape.dtype) > 1:
        return False  # its kernel has FP32 sums, and rounds what it stores
    return combiner_kind(op, module) in ("add", "multiply")


def _widen(op: hlo.HloOp, module: HloModule, context: PassContext) -> None:
    dtype = op.shape.dtype
    attr = op.properties["to_apply"]
    assert isinstance(attr, hlo.StrsAttr)
    name = combiner_in(module, attr.data[0], dtype, "f32")
    operands = [_as_f32(module, op, operand) for operand in op.operands]
    properties = {**op.properties, "to_apply": hlo.StrsAttr((name,))}
    wide = insert_before(op, type(op), operands, hlo.array_type("f32", op.shape.dims), op.loc, properties)
    reason = "mixed-precision accumulation"
    context.precision.append(record(op.loc, op.opcode, "operand 0", dtype, "f32", reason))
    replace(op, insert_before(op, hlo.ConvertOp, (wide,), op.results[0].type, op.loc))


def _as_f32(module: HloModule, op: hlo.HloOp, value: hlo.SSAValue) -> hlo.SSAValue:
    """Constants at once, for passes ask what sums start with."""
    dims, splat = hlo.shape_of(value).dims, splat_of(value, module)
    if splat is not None:
        return insert_splat(module, op, splat.astype(np.float32), "f32", dims, op.loc)
    return insert_before(op, hlo.ConvertOp, (value,), hlo.array_type("f32", dims), op.loc)


def record(loc: Loc, opcode: str, operand: str, source: str, target: str, reason: str) -> PrecisionRecord:
    """A precision decision at ``loc``."""
    return PrecisionRecord(loc.path, loc.op_name, loc.traced, opcode, operand, source, target, reason)
