"""Rounded forms of values. tf32 has no element type of its own: such a value is f32 after reduce-precision(8, 10).

Finite numbers of constants stay finite. Masks are made of the least float, which bf16 would round to minus infinity:
a row of scores that is masked everywhere would have NaN for weights, and spread them.
"""

from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, insert_before, insert_constant
from neuronx_cc.ir.types import largest_number

TF32_BITS = {"exponent_bits": hlo.IntAttr(8), "mantissa_bits": hlo.IntAttr(10)}
LARGEST_TF32 = (2.0 - 2.0**-10) * 2.0**127


class Casts:
    """Casts of the values of one computation, each made once, above the first op that needs it."""

    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._made: dict[tuple[hlo.SSAValue, str], hlo.SSAValue] = {}
        self._results: set[hlo.SSAValue] = set()

    def __contains__(self, value: hlo.SSAValue) -> bool:
        return value in self._results

    def rounded(self, anchor: hlo.Operation, value: hlo.SSAValue, dtype: str) -> hlo.SSAValue:
        """``value`` (a float) in ``dtype``: converted; for tf32 it is f32, and rounded in place."""
        found = self._made.get((value, dtype))
        if found is None:
            loc = hlo.loc_of(value)
            taken = self._in_range(anchor, value, dtype)
            if dtype == "tf32":
                found = insert_before(anchor, hlo.ReducePrecisionOp, (taken,), value.type, loc, TF32_BITS)
            else:
                type_ = hlo.array_type(dtype, hlo.shape_of(value).dims)
                found = insert_before(anchor, hlo.ConvertOp, (taken,), type_, loc)
            self._made[value, dtype] = found
            self._results.add(found)
        return found

    def _in_range(self, anchor: hlo.Operation, value: hlo.SSAValue, dtype: str) -> hlo.SSAValue:
        """``value``, or the constant that it is without finite numbers beyond those of ``dtype``."""
        constant = defining_op(value)
        if not isinstance(constant, hlo.ConstantOp):
            return value
        array = self._module.constants[constant.value.data]
        near = in_range(array, dtype)
        if near is array:
            return value
        return insert_constant(self._module, anchor, near, constant.shape.dtype, constant.loc)


def in_range(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """``array`` (of floats) with finite numbers that ``dtype`` rounds to infinities as its largest; else itself."""
    largest = LARGEST_TF32 if dtype == "tf32" else largest_number(dtype)
    far = np.isfinite(array) & (np.abs(array) > array.dtype.type(largest))
    return np.where(far, np.copysign(array.dtype.type(largest), array), array) if far.any() else array
