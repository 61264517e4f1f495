"""Conversions between 64-bit integers in two words and floats, each with one rounding in FP32, to nearest even."""

from neuronx_cc.ir import hlo
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.wide_integers import arithmetic
from neuronx_cc.passes.wide_integers.arithmetic import Pair

MANTISSA = 23


def to_f32(b: Build, x: Pair, signed: bool) -> Value:
    """The upper 32 bits from the first one on, the last of them set where any below is: these round as all do.

    Exponent and sign are put in as bits, for what is between must not be rounded where FP32 is cast.
    """
    size = arithmetic.magnitude(b, x) if signed else x
    zeros = arithmetic.leading_zeros(b, size)
    low, high = arithmetic.shift_left(b, size, zeros)
    sticky = b.convert(b.compare(low, b.number_like(0, low), "NE"), "u32")
    bits = arithmetic.cast(b, b.convert(b.each(hlo.OrOp, high, sticky), "f32"), "u32")
    exponent = b.sub(b.number_like(32, zeros), zeros)
    bits = b.add(bits, b.each(hlo.ShiftLeftOp, exponent, b.number_like(MANTISSA, exponent)))
    bits = b.select(arithmetic.is_zero(b, high), b.number_like(0, bits), bits)
    if signed:
        bits = arithmetic.either(b, bits, b.each(hlo.AndOp, x[1], b.number_like(1 << 31, bits)))
    return arithmetic.cast(b, bits, "f32")


def from_f32(b: Build, value: Value, signed: bool) -> Pair:
    """Truncated; what lies outside the type's range is its end, and NaN is 0."""
    size = b.each(hlo.AbsOp, value)
    limit = b.number_like(2.0**63 if signed else 2.0**64, value)
    fits = b.compare(size, limit, "LT")
    inside = b.select(fits, size, b.number_like(0, size))
    high = b.convert(b.mul(inside, b.number_like(2.0**-32, inside)), "u32")
    rest = b.sub(inside, b.mul(b.convert(high, "f32"), b.number_like(2.0**32, inside)))
    whole = b.convert(rest, "u32"), high
    below = b.compare(value, b.number_like(0, value), "LT")
    zero = arithmetic.number_like(b, 0, whole)
    ends = (-(1 << 63), (1 << 63) - 1) if signed else (0, -1)
    least, most = (arithmetic.number_like(b, end, whole) for end in ends)
    inner = arithmetic.select(b, below, arithmetic.negate(b, whole) if signed else zero, whole)
    outer = arithmetic.select(b, below, least, most)
    outer = arithmetic.select(b, b.compare(value, value, "NE"), zero, outer)
    return arithmetic.select(b, fits, inner, outer)
