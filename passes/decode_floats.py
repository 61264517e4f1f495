"""Decodes 8-bit floats that the core has not, where no contraction takes their codes.

Input: casts of such codes (``bitcast-convert`` of bytes) to floats, as ``widen_small_types`` makes them, once types are
decided. Output: a cast whose result only contractions read stays, for they decode on chip what they load
(``codegen.dots.conversion``), of 16-bit floats, or of FP32, which is multiplied in parts (``codegen.dots.splitting``);
codes of a constant that the type of the same bits on TensorE has as well get that
type, and all other casts become operators on bits.
"""

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.ir.types import FLOATS, WIDE_FLOATS, itemsize
from neuronx_cc.passes.analysis.stored import VIEWS, is_stored
from neuronx_cc.passes.analysis.values import constant_of
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.eight_bit_floats import LATE, decoded
from neuronx_cc.passes.manager import PassContext, only_for

ALIKE = "f8e4m3"
"""The type of TensorE that has the same numbers below its highest exponent, which has infinity and NaN alone."""
FIRST_OTHER = 0x78
"""The first code, without the sign, that means something else in it."""


@only_for(hlo.ConvertOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.ConvertOp) and hlo.shape_of(op.operand).dtype == LATE:
                _decode(module, op)


def _decode(module: HloModule, op: hlo.ConvertOp) -> None:
    b, shape = Build.before(module, op), hlo.shape_of(op.operand)
    code = b.op(hlo.BitcastConvertOp, (op.operand,), "u8", shape.dims)
    if _means_the_same(module, op.operand):
        replace(op, b.convert(b.op(hlo.BitcastConvertOp, (code,), ALIKE, shape.dims), op.shape.dtype))
    elif not is_taken_by_contractions(op):
        replace(op, b.convert(decoded(b, code, LATE), op.shape.dtype))


def is_taken_by_contractions(op: hlo.ConvertOp) -> bool:
    """Whether all that reads this cast of codes are contractions that decode them."""
    if op.shape.dtype not in WIDE_FLOATS or not is_stored(op.operand):
        return False
    return all(isinstance(use.operation, hlo.DotOp) and _decodes(use.operation, use.index) for use in op.result.uses)


def _decodes(op: hlo.DotOp, index: int) -> bool:
    """Whether TensorE takes operand ``index`` in 16 bits: with one of at most as many, or with FP32 that is no cast of
    codes itself.
    """
    codes, other = op.operands[index], op.operands[1 - index]
    dtypes = [hlo.shape_of(value).dtype for value in (codes, other)]
    if dtypes == ["f32", "f32"]:
        rounded = op.algorithm is not None and "tf32" in op.algorithm.data
        return not rounded and not _is_cast_of_codes(other)
    return all(dtype in FLOATS and itemsize(dtype) <= 2 for dtype in dtypes)


def _is_cast_of_codes(value: Value) -> bool:
    cast = defining_op(value)
    return isinstance(cast, hlo.ConvertOp) and hlo.shape_of(cast.operand).dtype == LATE


def _source(value: Value) -> Value:
    while isinstance(value.owner, VIEWS):
        value = value.owner.operands[0]
    return value


def _means_the_same(module: HloModule, value: Value) -> bool:
    codes = constant_of(_source(value), module)
    return codes is not None and bool((codes.view(np.uint8) & 0x7F < FIRST_OTHER).all())
