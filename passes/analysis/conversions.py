"""Which element types hold every value of which others, for passes that move or drop ``convert`` ops."""

from neuronx_cc.ir.types import INTEGERS, NUMPY_DTYPE, SIGNED, bits

_FLOAT_BITS = {
    "f8e4m3": (4, 3),
    "f8e4m3fn": (4, 3),
    "f8e5m2": (5, 2),
    "f8e3m4": (3, 4),
    "f16": (5, 10),
    "bf16": (8, 7),
    "f32": (8, 23),
    "f64": (11, 52),
}
"""Exponent and mantissa bits. The fn type lacks infinity, so it is only ever a source."""


def is_lossless(source: str, target: str) -> bool:
    """Whether converting any ``source`` value to ``target`` keeps it (NaN stays NaN, signed zeros stay)."""
    if source == target:
        return True
    if source == "pred":
        return target in INTEGERS or target in _FLOAT_BITS
    if source in INTEGERS:
        return _integer_fits(source, target)
    if source not in _FLOAT_BITS or target not in _FLOAT_BITS or target == "f8e4m3fn":
        return False
    from_bits, to_bits = _FLOAT_BITS[source], _FLOAT_BITS[target]
    # the fn type has one more exponent at the top than its bits say
    exponent = from_bits[0] + (1 if source == "f8e4m3fn" else 0)
    return exponent <= to_bits[0] and from_bits[1] <= to_bits[1]


def _value_bits(integer: str) -> int:
    """Bits of the magnitude."""
    return int(integer[1:]) - (1 if integer in SIGNED else 0)


def _integer_fits(source: str, target: str) -> bool:
    if target in INTEGERS:
        if source in SIGNED and target not in SIGNED:
            return False
        return _value_bits(source) <= _value_bits(target)
    if target not in _FLOAT_BITS:
        return False
    exponent, mantissa = _FLOAT_BITS[target]
    # a magnitude of n bits needs n significant bits and an exponent of n (2**n itself occurs as -2**n)
    return _value_bits(source) <= mantissa + 1 and _value_bits(source) < (1 << (exponent - 1))


def skips_middle(source: str, middle: str, target: str) -> bool:
    """Whether ``source -> middle -> target`` gives the same values as ``source -> target``; and is one conversion: of a
    parameter of fewer than 8 bits to the type of its bytes is none, and there is none to other types."""
    if not is_lossless(source, middle) or bits(source) < 8:
        return False
    if source in INTEGERS and middle not in INTEGERS and target in INTEGERS:
        # float to integer saturates where integer to integer wraps
        return is_lossless(source, target)
    return source in NUMPY_DTYPE and target in NUMPY_DTYPE
