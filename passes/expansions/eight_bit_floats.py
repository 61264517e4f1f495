"""8-bit floats that the core has not, as bytes: decoded to FP32 and encoded from it, exactly, by operators on bits.

``f8e3m4``, which the core can convert but does not contract here, is treated alike, by conversions.
A format has a sign, ``exponent`` bits with a ``bias``, ``mantissa`` bits, subnormals, and no infinity. NaN is all ones
after either sign, or (``unsigned_zero``) the pattern of minus zero, which then does not exist. Source: the numbers of
these formats as XLA's CPU client and ml_dtypes have them; rounding is to nearest even, what is too large becomes NaN.
"""

from dataclasses import dataclass

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.passes.expansions.build import Build, Value

F32_BIAS, F32_MANTISSA = 127, 23
SIGN = 0x80


@dataclass(frozen=True, slots=True)
class Format:
    """One of the formats; its codes without the sign are 0 to 127 in the order of their values."""

    exponent: int
    bias: int
    unsigned_zero: bool

    @property
    def mantissa(self) -> int:
        return 7 - self.exponent

    @property
    def least_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def largest(self) -> float:
        """The largest number: code 127, or the one below NaN."""
        steps = 2**self.mantissa
        fraction = (2 * steps - (1 if self.unsigned_zero else 2)) / steps
        return float(fraction * 2.0 ** (2**self.exponent - 1 - self.bias))

    @property
    def lift(self) -> int:
        """Added to an exponent field by setting bits above it: what gives an FP32 exponent near 1."""
        return 128 - (1 << self.exponent)

    @property
    def scale(self) -> float:
        """Of the number whose FP32 exponent field is that of the code, lifted."""
        return 2.0 ** (F32_BIAS - self.bias - self.lift)


FORMATS = {
    "f8e4m3fn": Format(4, 7, unsigned_zero=False),
    "f8e4m3fnuz": Format(4, 8, unsigned_zero=True),
    "f8e4m3b11fnuz": Format(4, 11, unsigned_zero=True),
    "f8e5m2fnuz": Format(5, 16, unsigned_zero=True),
}


CONVERTED = "f8e3m4"
CORE, CORE_END, NAN_STEP = "f8e4m3", 248.0, 480.0
"""Of the formats of the core, that with the most alike codes; from where on it has none; where ``LATE`` has NaN."""
LATE = "f8e4m3fn"
"""Contractions decode it themselves."""
DTYPES = (*FORMATS, CONVERTED)


class _Words:
    """u32 arrays of the dims of ``like``, with immediate operands."""

    def __init__(self, b: Build, like: Value):
        self.b = b
        self.dims = hlo.shape_of(like).dims

    def immediate(self, kind: type[hlo.HloOp], value: Value, number: int) -> Value:
        return self.b.each(kind, value, self.b.number(number, "u32", self.dims))

    def bits(self, value: Value, dtype: str) -> Value:
        return self.b.op(hlo.BitcastConvertOp, (value,), dtype, self.dims)


def decode(b: Build, code: Value, dtype: str) -> Value:
    """The f32 numbers behind the u8 codes of ``dtype``; a cast where it is decided later how (``decode_floats``)."""
    if dtype in (CONVERTED, LATE):
        return b.convert(_Words(b, code).bits(code, dtype), "f32")
    return decoded(b, code, dtype)


def decoded(b: Build, code: Value, dtype: str) -> Value:
    """The f32 numbers behind the u8 codes of ``dtype``, by operators on bits."""
    f, w = FORMATS[dtype], _Words(b, code)
    word = b.convert(code, "u32")
    magnitude = w.immediate(hlo.AndOp, word, SIGN - 1)
    shifted = w.immediate(hlo.ShiftLeftOp, magnitude, F32_MANTISSA - f.mantissa)
    lifted = w.bits(w.immediate(hlo.OrOp, shifted, f.lift << F32_MANTISSA), "f32")
    normal = b.mul(lifted, b.number_like(f.scale, lifted))
    # exponent 0 counts like 1 and has no leading one: twice the number minus that one, which is more for all others
    subnormal = b.sub(b.mul(lifted, b.number_like(2 * f.scale, lifted)), b.number_like(f.least_normal, lifted))
    size = b.each(hlo.MinimumOp, normal, subnormal)
    if f.unsigned_zero:
        is_nan = b.compare(code, b.number_like(SIGN, code), "EQ")
    else:
        is_nan = b.compare(size, b.number_like(f.largest, size), "GT")
    bits = w.bits(b.select(is_nan, b.number_like(np.nan, size), size), "u32")
    sign = w.immediate(hlo.ShiftLeftOp, w.immediate(hlo.AndOp, word, SIGN), 24)
    return w.bits(b.each(hlo.OrOp, bits, sign), "f32")


def encode(b: Build, number: Value, dtype: str) -> Value:
    """The u8 codes of ``dtype`` nearest to f32 numbers."""
    w = _Words(b, number)
    if dtype == CONVERTED:
        return w.bits(b.convert(number, dtype), "u8")
    f = FORMATS[dtype]
    if dtype == LATE:
        return _encode_by_casts(b, number)
    word = w.bits(number, "u32")
    size = w.bits(w.immediate(hlo.AndOp, word, 0x7FFFFFFF), "f32")
    rounding = {"exponent_bits": hlo.IntAttr(8), "mantissa_bits": hlo.IntAttr(f.mantissa)}
    rounded = b.typed(hlo.ReducePrecisionOp, (size,), size.type, **rounding)
    lifted = w.bits(b.mul(rounded, b.number_like(1 / f.scale, rounded)), "u32")
    normal = w.immediate(hlo.AndOp, w.immediate(hlo.ShiftRightLogicalOp, lifted, F32_MANTISSA - f.mantissa), SIGN - 1)
    steps = b.mul(size, b.number_like(2**f.mantissa / f.least_normal, size))
    subnormal = b.convert(b.each(hlo.RoundNearestEvenOp, steps), "u32")
    code = b.select(b.compare(size, b.number_like(f.least_normal, size), "LT"), subnormal, normal)
    fits = b.compare(rounded, b.number_like(f.largest, rounded), "LE")
    sign = w.immediate(hlo.ShiftRightLogicalOp, w.immediate(hlo.AndOp, word, SIGN << 24), 24)
    if not f.unsigned_zero:
        code = b.each(hlo.OrOp, b.select(fits, code, b.number(SIGN - 1, "u32", w.dims)), sign)
    else:
        zero = b.number(0, "u32", w.dims)
        signed = b.select(b.compare(code, zero, "EQ"), zero, b.each(hlo.OrOp, code, sign))
        code = b.select(fits, signed, b.number(SIGN, "u32", w.dims))
    return b.convert(code, "u8")


def _encode_by_casts(b: Build, number: Value) -> Value:
    """Codes of ``f8e4m3fn``, which are those of the core's ``f8e4m3`` up to 240: above, where that has infinities and
    NaNs, those of half the number, and one exponent more. NaN is positive.
    """
    w, steps = _Words(b, number), 2 ** FORMATS[LATE].mantissa
    near = w.bits(b.convert(number, CORE), "u8")
    within = b.each(hlo.MaximumOp, number, b.number_like(-NAN_STEP, number))
    half = b.mul(b.each(hlo.MinimumOp, within, b.number_like(NAN_STEP, number)), b.number_like(0.5, number))
    far = b.add(w.bits(b.convert(half, CORE), "u8"), b.number(steps, "u8", w.dims))
    size = b.each(hlo.AbsOp, number)
    code = b.select(b.compare(size, b.number_like(CORE_END, size), "GE"), far, near)
    is_number = b.compare(size, b.number_like(np.inf, size), "LE")
    return b.select(is_number, code, b.number(SIGN - 1, "u8", w.dims))


def encode_stochastically(b: Build, number: Value, random: Value, dtype: str) -> Value:
    """The u8 codes of ``dtype`` next to f32 numbers: away from zero where the random bits (u8, u16 or u32), as a
    fraction, lie below the part of the magnitude that is cut off. Numbers beyond the largest stay what rounding to
    nearest makes of them, and are not rounded up to infinity or NaN."""
    w = _Words(b, number)
    bits = hlo.shape_of(random).dtype
    word = w.bits(number, "u32")
    size = w.bits(w.immediate(hlo.AndOp, word, 0x7FFFFFFF), "f32")
    nearest = encode(b, size, dtype)
    over = b.compare(decode(b, nearest, dtype), size, "GT")
    low = b.select(over, b.sub(nearest, b.number_like(1, nearest)), nearest)
    below, above = decode(b, low, dtype), decode(b, b.add(low, b.number_like(1, low)), dtype)
    fraction = b.div(b.sub(size, below), b.sub(above, below))  # exact, for steps are powers of two
    cut = b.convert(b.mul(fraction, b.number_like(2.0 ** int(bits[1:]), fraction)), bits)  # NaN gives 0
    up = b.compare(random, cut, "LT")
    code = b.select(up, b.add(low, b.number_like(1, low)), low)
    sign = b.convert(w.immediate(hlo.ShiftRightLogicalOp, w.immediate(hlo.AndOp, word, SIGN << 24), 24), "u8")
    signed = b.each(hlo.OrOp, code, sign)
    if dtype == CONVERTED or not FORMATS[dtype].unsigned_zero:
        return signed
    zero = b.number_like(0, code)
    return b.select(b.compare(code, zero, "EQ"), zero, signed)
