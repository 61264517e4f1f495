"""Variants at the ends of the types: zeros, largest values, infinities, NaN, halves (see ``sweeps``)."""

from collections.abc import Iterator

import numpy as np
from op_cases import ROUNDING, Array
from sweep_variants import Variant, variant

from neuronx_cc.ir.types import FLOATS, INTEGERS, NUMPY_DTYPE

UNARY_INTEGER = ("abs", "count-leading-zeros", "negate", "not", "popcnt", "sign")
BINARY_INTEGER = (
    *("add", "and", "divide", "maximum", "minimum", "multiply", "or", "remainder", "subtract", "xor"),
    *("shift-left", "shift-right-arithmetic", "shift-right-logical"),
)
UNARY_FLOAT = ("abs", "ceil", "floor", "negate", "round-nearest-afz", "round-nearest-even", "sign", "sqrt", "tanh")
BINARY_FLOAT = ("add", "atan2", "divide", "multiply", "remainder", "subtract")
IN_NUMPY = {
    **{"add": np.add, "atan2": np.arctan2, "divide": np.divide},
    **{"multiply": np.multiply, "remainder": np.fmod, "subtract": np.subtract},
}
INEXACT = ("atan2", "divide", "remainder", "sqrt", "tanh")
TARGETS = ("f32", "bf16", "f16", "f8e4m3", "f8e5m2", "s32", "s16", "s8", "u32", "u16", "u8", "pred")
FORMATS = ((5, 10), (8, 7), (4, 3), (5, 2), (2, 1), (8, 0), (11, 52))
NORMAL = 1.2e-38
"""XLA's CPU back end takes what is smaller for zero."""


def special(dtype: str) -> Array:
    """A vector of values of ``dtype``."""
    numpy = NUMPY_DTYPE[dtype]
    if dtype == "pred":
        return np.array([False, True])
    if dtype in INTEGERS:
        info = np.iinfo(numpy)
        near = [info.min, info.min + 1, info.max - 1, info.max, 0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 100]
        near += [-1, -2, -7, -8] if info.min < 0 else []
        near += [value for power in (11, 15, 16, 24) for value in ((1 << power) - 1, (1 << power) + 1, 3 << power)]
        return np.array(sorted({value for value in near if info.min <= value <= info.max})).astype(numpy)
    if numpy.itemsize == 1:
        return np.arange(256, dtype=np.uint8).view(numpy)
    ends = [0.0, 0.5, 1, 1.5, 2.5, 0.99999994, 1 + 2.0**-8, 1 + 2.0**-9, 1 + 3 * 2.0**-11, 15.5, 15.75, 16, np.inf]
    ends += [value + step for value in (127, 255, 32767, 65535) for step in (0, 0.5, 1)]
    ends += [
        65504,
        65519,
        65520,
        57344,
        61440,
        448,
        464,
        240,
        248,
        2.0**31 - 128,
        2.0**31,
        2.0**32 - 256,
        2.0**32,
        1e20,
    ]
    ends += [2.0**-14, 2.0**-15, 2.0**-16, 3 * 2.0**-18, 2.0**-24, 2.0**-25, 3 * 2.0**-26, 2.0**-126, 3.4028235e38]
    both = np.array([*ends, *(-value for value in ends), np.nan], np.float32)
    with np.errstate(over="ignore"):
        narrow = both.astype(numpy)
    wide = narrow.astype(np.float64)
    return narrow[(wide == 0) | (np.abs(wide) >= NORMAL) | np.isnan(wide)]


def elementwise(opcode: str, dtype: str) -> Iterator[Variant]:
    """One op on all values, or on all pairs of them but those that give subnormal numbers."""
    values = special(dtype) if dtype in FLOATS or dtype in INTEGERS else np.zeros(0)
    unary, binary = (UNARY_INTEGER, BINARY_INTEGER) if dtype in INTEGERS else (UNARY_FLOAT, BINARY_FLOAT)
    tolerance = ROUNDING.get(dtype, 0.0) if opcode in INEXACT and dtype in FLOATS else 0.0
    if opcode in unary and values.size:
        yield variant(opcode, dtype, values.shape, (values,), tolerance=tolerance)
    elif opcode in binary and values.size:
        pairs = [np.resize(side, values.size**2) for side in (np.repeat(values, values.size), values)]
        if dtype in FLOATS:
            with np.errstate(all="ignore"):
                size = np.abs(IN_NUMPY[opcode](*(x.astype(np.float64) for x in pairs)))
            pairs = [x[(size == 0) | ~(size < NORMAL)] for x in pairs]
        yield variant(opcode, dtype, pairs[0].shape, pairs, tolerance=tolerance)


def convert(dtype: str) -> Iterator[Variant]:
    for target in TARGETS:
        if dtype != "c64":
            yield variant("convert", target, special(dtype).shape, (special(dtype),))


def reduce_precision(dtype: str) -> Iterator[Variant]:
    for exponent, mantissa in FORMATS:
        attributes = f", exponent_bits={exponent}, mantissa_bits={mantissa}"
        yield variant("reduce-precision", dtype, special(dtype).shape, (special(dtype),), attributes)


def bitcast_convert(dtype: str) -> Iterator[Variant]:
    """To types of every other width; 64-bit ones are results of the program."""
    width = NUMPY_DTYPE[dtype].itemsize
    if dtype in ("pred", "c64"):
        return
    for target in ("s8", "u16", "bf16", "f32", "u32", "s64", "u64"):
        other = NUMPY_DTYPE[target].itemsize
        words = np.random.default_rng(width).integers(0, 256, (12, max(width, other)), np.uint8)
        source = words.view(NUMPY_DTYPE[dtype])
        source, dims = (source[:, 0], (12, width // other)) if width > other else (source, (12,))
        if width == other:
            source = source[:, 0]
        yield variant("bitcast-convert", target, dims, (np.ascontiguousarray(source),))


def more(opcode: str, dtype: str) -> Iterator[Variant]:
    """All of them for one opcode and element type."""
    others = {"bitcast-convert": bitcast_convert, "convert": convert, "reduce-precision": reduce_precision}
    yield from others[opcode](dtype) if opcode in others else elementwise(opcode, dtype)
