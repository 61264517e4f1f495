"""Rounded forms of values. tf32 has no element type of its own: such a value is f32 after reduce-precision(8, 10)."""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import insert_before

TF32_BITS = {"exponent_bits": hlo.IntAttr(8), "mantissa_bits": hlo.IntAttr(10)}


class Casts:
    """Casts of the values of one computation, each made once, above the first op that needs it."""

    def __init__(self) -> None:
        self._made: dict[tuple[hlo.SSAValue, str], hlo.SSAValue] = {}
        self._results: set[hlo.SSAValue] = set()

    def __contains__(self, value: hlo.SSAValue) -> bool:
        return value in self._results

    def rounded(self, anchor: hlo.Operation, value: hlo.SSAValue, dtype: str) -> hlo.SSAValue:
        """``value`` (a float) in ``dtype``: converted; for tf32 it is f32, and rounded in place."""
        found = self._made.get((value, dtype))
        if found is None:
            loc = hlo.loc_of(value)
            if dtype == "tf32":
                found = insert_before(anchor, hlo.ReducePrecisionOp, (value,), value.type, loc, TF32_BITS)
            else:
                type_ = hlo.array_type(dtype, hlo.shape_of(value).dims)
                found = insert_before(anchor, hlo.ConvertOp, (value,), type_, loc)
            self._made[value, dtype] = found
            self._results.add(found)
        return found
