"""Exact integer arithmetic with HLO's rules, for GpSimd's integer instructions.

Input and output: arrays of one integer type (8 to 64 bits, signed or unsigned). Results wrap in two's complement;
x / 0 has all bits set, x % 0 is x, and shifts by the width or more move all bits out.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from neuronx_cc.ir.combiners import COMBINERS

Array: TypeAlias = np.ndarray[Any, Any]


def divide(a: Array, b: Array) -> Array:
    """Truncating quotient; INT_MIN / -1 is INT_MIN."""
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    if a.dtype.kind == "u":
        return np.where(b == 0, np.iinfo(a.dtype).max, a // safe).astype(a.dtype)
    safe = np.where(b == -1, 1, safe).astype(b.dtype)
    quotient = np.where(b == -1, np.negative(a), (a - np.fmod(a, safe)) // safe)
    return np.where(b == 0, -1, quotient).astype(a.dtype)


def remainder(a: Array, b: Array) -> Array:
    """What truncating division leaves, with the sign of ``a``."""
    unsafe = b == 0 if a.dtype.kind == "u" else (b == 0) | (b == -1)
    rest = np.fmod(a, np.where(unsafe, 1, b).astype(b.dtype))
    return np.where(b == 0, a, np.where(unsafe, 0, rest)).astype(a.dtype)


def power(a: Array, b: Array) -> Array:
    """Wrapping power; a negative exponent gives 0 unless the base is 1 or -1."""
    result = np.ones(np.broadcast_shapes(a.shape, b.shape), a.dtype)
    square, left = a, np.maximum(b, 0)
    while np.any(left > 0):
        result = np.where(left & 1, result * square, result).astype(a.dtype)
        square, left = square * square, left >> 1
    if a.dtype.kind == "u":
        return result
    unit = np.where(b & 1, a, np.ones_like(a))
    return np.where(b < 0, np.where((a == 1) | (a == -1), unit, 0), result).astype(a.dtype)


def multiply_high(a: Array, b: Array) -> Array:
    """High half of the double-width product, up to 32-bit operands."""
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    product: Array = a.astype(wide) * b.astype(wide)
    return (product >> wide(a.dtype.itemsize * 8)).astype(a.dtype)


def unsigned(x: Array) -> Array:
    """The same bits as an unsigned array."""
    return x.view(f"u{x.dtype.itemsize}")


def shift_left(a: Array, b: Array) -> Array:
    """``a << b``."""
    return np.left_shift(unsigned(a), unsigned(b)).view(a.dtype)


def shift_right_logical(a: Array, b: Array) -> Array:
    """``a >> b``, zeros moved in."""
    return np.right_shift(unsigned(a), unsigned(b)).view(a.dtype)


def shift_right_arithmetic(a: Array, b: Array) -> Array:
    """``a >> b``, copies of the top bit moved in."""
    amount = np.minimum(unsigned(b), a.dtype.itemsize * 8 - 1)
    signed = a.view(f"i{a.dtype.itemsize}")
    shifted: Array = np.right_shift(signed, amount.astype(signed.dtype))
    return shifted.view(a.dtype)


def rotate_left(a: Array, b: Array) -> Array:
    """The bits of ``a`` moved up by ``b`` (less than the width), what leaves the top entering below."""
    width = a.dtype.itemsize * 8
    bits, count = unsigned(a), unsigned(b)
    rotated = np.left_shift(bits, count)
    rotated |= np.right_shift(bits, (width - count) % width)
    return rotated.view(a.dtype)


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    **COMBINERS,
    "subtract": np.subtract,
    "divide": divide,
    "remainder": remainder,
    "shift-left": shift_left,
    "shift-right-logical": shift_right_logical,
    "shift-right-arithmetic": shift_right_arithmetic,
    "power": power,
    "mulhi": multiply_high,
    "rotate-left": rotate_left,
}
"""Results have the operands' type."""

COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "compare-eq": np.equal,
    "compare-ne": np.not_equal,
    "compare-lt": np.less,
    "compare-le": np.less_equal,
    "compare-gt": np.greater,
    "compare-ge": np.greater_equal,
}


def total_order_key(x: Array) -> Array:
    """Signed integers that sort as IEEE total order sorts floats (-NaN < -inf < ... < -0 < +0 < ... < NaN)."""
    bits: Array = np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}").reshape(x.shape)
    flipped: Array = bits ^ np.iinfo(bits.dtype).max
    return np.where(bits < 0, flipped, bits)


def count_leading_zeros(x: Array) -> Array:
    """Leading zero bits of each element (up to 32-bit elements), int64."""
    exponent: Array = np.frexp(unsigned(x).astype(np.float64))[1]
    zeros: Array = x.dtype.itemsize * 8 - exponent.astype(np.int64)
    return zeros


def population_count(x: Array) -> Array:
    """Set bits of each element."""
    counts: Array = np.bitwise_count(unsigned(x))
    return counts
