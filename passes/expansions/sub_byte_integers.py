"""Integers of 2 and 4 bits, one in a byte: s8 or u8 numbers in their range.

Adding, multiplying and shifting left agree modulo their range with the same on 8 bits, so that results are ``wrapped``
afterwards. ``packed`` and ``unpacked`` go between bytes and their parts, lowest bits first, as XLA stores them.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.small_types import COMPUTED
from neuronx_cc.ir.types import bits
from neuronx_cc.passes.expansions.build import Build, Value

BYTE = {dtype: wide for dtype, wide in COMPUTED.items() if wide in ("s8", "u8")}
BITS = {dtype: bits(dtype) for dtype in BYTE}


def wrapped(b: Build, value: Value, dtype: str) -> Value:
    """The numbers of ``dtype`` that agree with s8 or u8 ones in their low bits."""
    if BYTE[dtype] == "u8":
        return low_bits(b, value, BITS[dtype])
    unused = b.number_like(8 - BITS[dtype], value)
    return b.each(hlo.ShiftRightArithmeticOp, b.each(hlo.ShiftLeftOp, value, unused), unused)


def clamped(b: Build, value: Value, dtype: str) -> Value:
    """s8 or u8 numbers made to fit ``dtype``, as conversions of floats are."""
    width = BITS[dtype]
    if BYTE[dtype] == "u8":
        return b.each(hlo.MinimumOp, value, b.number_like(2**width - 1, value))
    lowest, highest = (b.number_like(bound, value) for bound in (-(2 ** (width - 1)), 2 ** (width - 1) - 1))
    return b.each(hlo.MaximumOp, b.each(hlo.MinimumOp, value, highest), lowest)


def low_bits(b: Build, value: Value, width: int) -> Value:
    return b.each(hlo.AndOp, value, b.number_like(2**width - 1, value))


def unpacked(b: Build, value: Value, whole: int, part: int) -> Value:
    """u8 numbers of ``whole`` bits as those of ``part`` bits in a new last dim."""
    dims = hlo.shape_of(value).dims
    parts = [b.each(hlo.ShiftRightLogicalOp, value, b.number_like(shift, value)) for shift in range(0, whole, part)]
    rows = [b.reshape(low_bits(b, x, part), (*dims, 1)) for x in parts]
    return b.concatenate(rows, len(dims))


def packed(b: Build, value: Value, part: int) -> Value:
    """u8 numbers of ``part`` bits along the last dim, put together."""
    *dims, count = hlo.shape_of(value).dims
    axis = len(dims)
    total: Value | None = None
    for index in range(count):
        number = low_bits(b, b.reshape(b.slice(value, axis, index, index + 1), dims), part)
        shifted = b.each(hlo.ShiftLeftOp, number, b.number_like(index * part, number))
        total = shifted if total is None else b.each(hlo.OrOp, total, shifted)
    assert total is not None, "there is a part"
    return total
