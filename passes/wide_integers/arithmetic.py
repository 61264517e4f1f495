"""Arithmetic on 64-bit integers that are pairs of u32 arrays: (low word, high word), two's complement.

Everything wraps modulo 2^64, as the ops on 64-bit types do. Shifts by 64 or more give zeros (or copies of the sign),
division by zero gives all ones and the dividend as remainder, and the quotient of the smallest integer and -1 is that
integer again: what XLA defines.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.passes.expansions.build import Build, Value

Pair = tuple[Value, Value]


def cast(b: Build, value: Value, dtype: str) -> Value:
    """The same bits as another type of 32 bits."""
    shape = hlo.shape_of(value)
    return value if shape.dtype == dtype else b.op(hlo.BitcastConvertOp, (value,), dtype, shape.dims)


def extended(b: Build, value: Value) -> Pair:
    """An s32 or u32 array in two words."""
    if hlo.shape_of(value).dtype == "u32":
        return value, b.number_like(0, value)
    sign = b.each(hlo.ShiftRightArithmeticOp, value, b.number_like(31, value))
    return cast(b, value, "u32"), cast(b, sign, "u32")


def number_like(b: Build, number: int, like: Pair) -> Pair:
    return b.number_like(number & 0xFFFFFFFF, like[0]), b.number_like(number >> 32 & 0xFFFFFFFF, like[0])


def flag(b: Build, predicate: Value) -> Pair:
    """1 where ``predicate`` holds, else 0."""
    low = b.convert(predicate, "u32")
    return low, b.number_like(0, low)


def is_zero(b: Build, word: Value) -> Value:
    return b.compare(word, b.number_like(0, word), "EQ")


def is_negative(b: Build, x: Pair) -> Value:
    high = cast(b, x[1], "s32")
    return b.compare(high, b.number_like(0, high), "LT")


def either(b: Build, x: Value, y: Value) -> Value:
    return b.each(hlo.OrOp, x, y)


def both(b: Build, x: Value, y: Value) -> Value:
    return b.each(hlo.AndOp, x, y)


def select(b: Build, predicate: Value, x: Pair, y: Pair) -> Pair:
    return b.select(predicate, x[0], y[0]), b.select(predicate, x[1], y[1])


def apart(b: Build, kind: type[hlo.HloOp], *operands: Pair) -> Pair:
    """An op that treats each bit alike."""
    return b.each(kind, *(x[0] for x in operands)), b.each(kind, *(x[1] for x in operands))


# sums and products


def add(b: Build, x: Pair, y: Pair) -> Pair:
    low = b.add(x[0], y[0])
    carry = b.convert(b.compare(low, x[0], "LT"), "u32")
    return low, b.add(b.add(x[1], y[1]), carry)


def subtract(b: Build, x: Pair, y: Pair) -> Pair:
    borrow = b.convert(b.compare(x[0], y[0], "LT"), "u32")
    return b.sub(x[0], y[0]), b.sub(b.sub(x[1], y[1]), borrow)


def negate(b: Build, x: Pair) -> Pair:
    low = b.sub(b.number_like(0, x[0]), x[0])
    carry = b.convert(is_zero(b, x[0]), "u32")
    return low, b.add(b.each(hlo.NotOp, x[1]), carry)


def magnitude(b: Build, x: Pair) -> Pair:
    return select(b, is_negative(b, x), negate(b, x), x)


def product(b: Build, x: Value, y: Value) -> Pair:
    """All 64 bits of the product of two u32 arrays."""
    return b.mul(x, y), b.each(hlo.MulhiOp, x, y)


def multiply(b: Build, x: Pair, y: Pair) -> Pair:
    low, high = product(b, x[0], y[0])
    return low, b.add(high, b.add(b.mul(x[0], y[1]), b.mul(x[1], y[0])))


def multiply_words(b: Build, x: Value, y: Value) -> Pair:
    """The product of two s32 or two u32 arrays, which 64 bits hold."""
    if hlo.shape_of(x).dtype == "u32":
        return product(b, x, y)
    low, high = product(b, cast(b, x, "u32"), cast(b, y, "u32"))
    for factor, other in ((x, y), (y, x)):
        sign = b.each(hlo.ShiftRightArithmeticOp, factor, b.number_like(31, factor))
        high = b.sub(high, cast(b, both(b, sign, other), "u32"))
    return low, high


def multiply_high(b: Build, x: Pair, y: Pair, signed: bool) -> Pair:
    """The upper 64 bits of the product of 128."""
    zero = b.number_like(0, x[0])
    carried = product(b, x[0], y[0])[1]
    middle = add(b, product(b, x[0], y[1]), (carried, zero))
    other = add(b, product(b, x[1], y[0]), (middle[0], zero))
    high = add(b, product(b, x[1], y[1]), add(b, (middle[1], zero), (other[1], zero)))
    if signed:
        nothing = (zero, zero)
        high = subtract(b, high, select(b, is_negative(b, x), y, nothing))
        high = subtract(b, high, select(b, is_negative(b, y), x, nothing))
    return high


# comparisons


def equal(b: Build, x: Pair, y: Pair) -> Value:
    return both(b, b.compare(x[0], y[0], "EQ"), b.compare(x[1], y[1], "EQ"))


def less(b: Build, x: Pair, y: Pair, signed: bool, or_equal: bool = False) -> Value:
    high, other = (cast(b, word, "s32") if signed else word for word in (x[1], y[1]))
    lows = b.compare(x[0], y[0], "LE" if or_equal else "LT")
    return either(b, b.compare(high, other, "LT"), both(b, b.compare(high, other, "EQ"), lows))


def compare(b: Build, x: Pair, y: Pair, direction: str, signed: bool) -> Value:
    match direction:
        case "EQ":
            return equal(b, x, y)
        case "NE":
            return either(b, b.compare(x[0], y[0], "NE"), b.compare(x[1], y[1], "NE"))
        case "LT" | "LE":
            return less(b, x, y, signed, direction == "LE")
    return less(b, y, x, signed, direction == "GE")


def maximum(b: Build, x: Pair, y: Pair, signed: bool) -> Pair:
    return select(b, less(b, x, y, signed), y, x)


def minimum(b: Build, x: Pair, y: Pair, signed: bool) -> Pair:
    return select(b, less(b, y, x, signed), y, x)


def sign(b: Build, x: Pair, signed: bool) -> Pair:
    some = b.convert(either(b, b.compare(x[0], b.number_like(0, x[0]), "NE"), _is_set(b, x[1])), "u32")
    if not signed:
        return some, b.number_like(0, some)
    below = cast(b, _sign_bits(b, x[1]), "u32")
    return either(b, some, below), below


def _is_set(b: Build, word: Value) -> Value:
    return b.compare(word, b.number_like(0, word), "NE")


def _sign_bits(b: Build, high: Value) -> Value:
    word = cast(b, high, "s32")
    return b.each(hlo.ShiftRightArithmeticOp, word, b.number_like(31, word))


# bits


def population_count(b: Build, x: Pair) -> Pair:
    count = b.add(b.each(hlo.PopcntOp, x[0]), b.each(hlo.PopcntOp, x[1]))
    return count, b.number_like(0, count)


def leading_zeros(b: Build, x: Pair) -> Value:
    """u32, 64 for 0."""
    low = b.add(b.each(hlo.CountLeadingZerosOp, x[0]), b.number_like(32, x[0]))
    return b.select(is_zero(b, x[1]), low, b.each(hlo.CountLeadingZerosOp, x[1]))


def amount(b: Build, x: Pair) -> Value:
    """How far to shift, as u32: 64 for all that is more than that."""
    return b.select(is_zero(b, x[1]), x[0], b.number_like(64, x[0]))


def _shifts(b: Build, count: Value) -> tuple[Value, Value]:
    """``32 - count`` and ``count - 32``; outside 0 to 31, where HLO's shifts of words give 0, they wrap."""
    word = b.number_like(32, count)
    return b.sub(word, count), b.sub(count, word)


def shift_left(b: Build, x: Pair, count: Value) -> Pair:
    """``count``: u32."""
    rest, beyond = _shifts(b, count)
    low = b.each(hlo.ShiftLeftOp, x[0], count)
    high = either(b, b.each(hlo.ShiftLeftOp, x[1], count), b.each(hlo.ShiftRightLogicalOp, x[0], rest))
    return low, either(b, high, b.each(hlo.ShiftLeftOp, x[0], beyond))


def shift_right(b: Build, x: Pair, count: Value, arithmetic: bool) -> Pair:
    rest, beyond = _shifts(b, count)
    low = either(b, b.each(hlo.ShiftRightLogicalOp, x[0], count), b.each(hlo.ShiftLeftOp, x[1], rest))
    if not arithmetic:
        low = either(b, low, b.each(hlo.ShiftRightLogicalOp, x[1], beyond))
        return low, b.each(hlo.ShiftRightLogicalOp, x[1], count)
    high = cast(b, x[1], "s32")
    far = b.each(hlo.ShiftRightArithmeticOp, high, cast(b, beyond, "s32"))
    near = b.compare(count, b.number_like(32, count), "LT")
    shifted = b.each(hlo.ShiftRightArithmeticOp, high, cast(b, count, "s32"))
    return b.select(near, low, cast(b, far, "u32")), cast(b, shifted, "u32")


# division

STEPS = 4
"""Quotients of FP32 that make one of 64 bits: each leaves 2^-19 of the remainder and once the divisor."""
BELOW = 1 - 2.0**-20
"""Takes an FP32 quotient below the true one: five roundings of 2^-24 are less."""


def divide(b: Build, x: Pair, y: Pair, signed: bool) -> tuple[Pair, Pair]:
    """Quotient, truncated, and remainder.

    Of magnitudes ``r`` and ``y``, FP32 estimates the quotient from below: with
    ``q = floor(float(r) / float(y) * BELOW)``, ``r - q y`` is less than ``2^-19 r + y``, so that less than ``2 y`` is
    left after four estimates.
    """
    rest, divisor = (magnitude(b, x), magnitude(b, y)) if signed else (x, y)
    inverse = b.div(b.number(BELOW, "f32", hlo.shape_of(x[0]).dims), _roughly(b, divisor))
    quotient = number_like(b, 0, x)
    for _ in range(STEPS):
        estimate = _whole(b, b.mul(_roughly(b, rest), inverse))
        quotient = add(b, quotient, estimate)
        rest = subtract(b, rest, multiply(b, estimate, divisor))
    over = less(b, divisor, rest, False, or_equal=True)
    quotient = select(b, over, add(b, quotient, number_like(b, 1, quotient)), quotient)
    rest = select(b, over, subtract(b, rest, divisor), rest)
    if signed:
        differ = b.each(hlo.XorOp, is_negative(b, x), is_negative(b, y))
        quotient = select(b, differ, negate(b, quotient), quotient)
        rest = select(b, is_negative(b, x), negate(b, rest), rest)
    by_zero = both(b, is_zero(b, y[0]), is_zero(b, y[1]))
    return select(b, by_zero, number_like(b, -1, x), quotient), select(b, by_zero, x, rest)


def _roughly(b: Build, x: Pair) -> Value:
    """FP32 within 2^-23 of an unsigned integer."""
    high = b.convert(x[1], "f32")
    return b.add(b.mul(high, b.number_like(2.0**32, high)), b.convert(x[0], "f32"))


def _whole(b: Build, value: Value) -> Pair:
    """FP32 of at least 0 and less than 2^64, truncated."""
    high = b.convert(b.mul(value, b.number_like(2.0**-32, value)), "u32")
    rest = b.sub(value, b.mul(b.convert(high, "f32"), b.number_like(2.0**32, value)))
    return b.convert(rest, "u32"), high


# powers


def power(b: Build, x: Pair, y: Pair, signed: bool) -> Pair:
    """``x ** y`` by repeated squaring; negative exponents give 0 but for the bases 1 and -1."""

    def step(inner: Build, index: Value, state: list[Value]) -> list[Value]:
        result, square, left = ((state[place], state[place + 1]) for place in (0, 2, 4))
        odd = _is_set(inner, both(inner, left[0], inner.number_like(1, left[0])))
        result = select(inner, odd, multiply(inner, result, square), result)
        left = shift_right(inner, left, inner.number_like(1, left[0]), False)
        return [*result, *multiply(inner, square, square), *left]

    parts = b.loop(64, [*number_like(b, 1, x), *x, *y], step)
    result = parts[0], parts[1]
    if not signed:
        return result
    one = number_like(b, 1, x)
    odd = _is_set(b, both(b, y[0], b.number_like(1, y[0])))
    minus = equal(b, x, number_like(b, -1, x))
    unit = select(b, both(b, minus, odd), x, one)
    rest = select(b, either(b, minus, equal(b, x, one)), unit, number_like(b, 0, x))
    return select(b, is_negative(b, y), rest, result)
