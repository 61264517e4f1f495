"""The bits of FP64 numbers that are computed in FP32: taken from integers of 64 bits, and given as such.

So random numbers are made where FP64 is the default type: 52 random bits after the exponent of 1, minus 1. What FP32
has no bits for is cut off, not rounded, so that such numbers stay below 1.
"""

from __future__ import annotations

from neuronx_cc.ir import hlo
from neuronx_cc.passes.expansions.build import Build, Value

SIGN, MANTISSA, INFINITE = 0x80000000, 0x7FFFFF, 0xFF
"""Of FP32: bits of the sign and of the mantissa, and the exponent of what is not finite."""
WIDE_EXPONENT, BIASES = 0x7FF, 1023 - 127
"""The bits of FP64's exponent, and by how much it is larger for the same number."""
SPARE = 29
"""By how many bits the mantissa of FP64 is longer."""


def from_bits(b: Build, bits: Value) -> Value:
    """FP32 numbers of the bits of FP64 ones, s64 or u64, towards zero; below the least normal one zero."""
    high, low = _word(b, bits, 32), _word(b, bits, SPARE)
    sign = b.each(hlo.AndOp, high, b.number_like(SIGN, high))
    mantissa = b.each(hlo.AndOp, low, b.number_like(MANTISSA, low))
    shifted = b.each(hlo.ShiftRightLogicalOp, high, b.number_like(20, high))
    exponent = b.convert(b.each(hlo.AndOp, shifted, b.number_like(WIDE_EXPONENT, high)), "s32")
    moved = b.sub(exponent, b.number_like(BIASES, exponent))
    zero, most = b.number_like(0, moved), b.number_like(INFINITE, moved)
    held = b.each(hlo.MinimumOp, b.each(hlo.MaximumOp, moved, zero), most)
    normal = b.each(hlo.AndOp, b.compare(held, zero, "GT"), b.compare(held, most, "LT"))
    kept = b.select(normal, mantissa, b.number_like(0, mantissa))
    rest = b.each(hlo.OrOp, b.each(hlo.AndOp, high, b.number_like(0xFFFFF, high)), _word(b, bits, 0))
    infinite = b.compare(exponent, b.number_like(WIDE_EXPONENT, exponent), "EQ")
    is_nan = b.each(hlo.AndOp, infinite, b.compare(rest, b.number_like(0, rest), "NE"))
    kept = b.select(is_nan, b.number_like(MANTISSA, kept), kept)
    placed = b.each(hlo.ShiftLeftOp, b.convert(held, "u32"), b.number_like(23, high))
    return _seen(b, b.each(hlo.OrOp, b.each(hlo.OrOp, sign, placed), kept), "f32")


def to_bits(b: Build, numbers: Value, dtype: str) -> Value:
    """The bits, ``dtype`` s64 or u64, of FP64 numbers with the values of FP32 ones; of subnormal ones zero's."""
    bits = _seen(b, numbers, "u32")
    sign = b.each(hlo.AndOp, bits, b.number_like(SIGN, bits))
    mantissa = b.each(hlo.AndOp, bits, b.number_like(MANTISSA, bits))
    shifted = b.each(hlo.ShiftRightLogicalOp, bits, b.number_like(23, bits))
    exponent = b.each(hlo.AndOp, shifted, b.number_like(INFINITE, bits))
    infinite = b.compare(exponent, b.number_like(INFINITE, bits), "EQ")
    is_zero = b.compare(exponent, b.number_like(0, bits), "EQ")
    moved = b.select(infinite, b.number_like(WIDE_EXPONENT, bits), b.add(exponent, b.number_like(BIASES, bits)))
    moved = b.select(is_zero, b.number_like(0, bits), moved)
    mantissa = b.select(is_zero, b.number_like(0, bits), mantissa)
    placed = b.each(hlo.ShiftLeftOp, moved, b.number_like(20, bits))
    upper = b.each(hlo.ShiftRightLogicalOp, mantissa, b.number_like(32 - SPARE, bits))
    high = b.convert(b.each(hlo.OrOp, b.each(hlo.OrOp, sign, placed), upper), "u64")
    low = b.convert(b.each(hlo.ShiftLeftOp, mantissa, b.number_like(SPARE, bits)), "u64")
    return _seen(b, b.each(hlo.OrOp, b.each(hlo.ShiftLeftOp, high, b.number_like(32, high)), low), dtype)


def _word(b: Build, bits: Value, first: int) -> Value:
    """32 bits of 64, from bit ``first`` on."""
    wide = _seen(b, bits, "u64")
    shifted = b.each(hlo.ShiftRightLogicalOp, wide, b.number_like(first, wide)) if first else wide
    return b.convert(shifted, "u32")


def _seen(b: Build, value: Value, dtype: str) -> Value:
    """The same bits as another type of that size."""
    shape = hlo.shape_of(value)
    return value if shape.dtype == dtype else b.op(hlo.BitcastConvertOp, [value], dtype, shape.dims)
