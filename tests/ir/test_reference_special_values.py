"""Elementwise reference semantics on the values that go wrong: against jaxlib's CPU client, bit for bit where exact.

Subnormals are left out: jaxlib's CPU client flushes them (see ``ir.reference.elementwise``).
"""

import ml_dtypes
import numpy as np
import op_cases
import pytest

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE

FLOAT = ["f32", "bf16", "f16", "f8e4m3", "f8e5m2", "f64"]
INTEGER = ["s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"]
LOGICAL = [*INTEGER, "pred"]

UNARY = {
    "abs": [*FLOAT, *INTEGER[:4]],
    "ceil": FLOAT,
    "copy": [*FLOAT, *LOGICAL],
    "count-leading-zeros": INTEGER,
    "floor": FLOAT,
    "negate": [*FLOAT, *INTEGER],
    "not": LOGICAL,
    "popcnt": INTEGER,
    "round-nearest-afz": FLOAT,
    "round-nearest-even": FLOAT,
    "sign": [*FLOAT, *INTEGER[:4]],
    "sqrt": FLOAT,
}
BINARY = {
    "add": [*FLOAT, *LOGICAL],
    "and": LOGICAL,
    "divide": [*FLOAT, *INTEGER],
    "maximum": [*FLOAT, *LOGICAL],
    "minimum": [*FLOAT, *LOGICAL],
    "multiply": [*FLOAT, *LOGICAL],
    "or": LOGICAL,
    "remainder": [*FLOAT, *INTEGER],
    "shift-left": INTEGER,
    "shift-right-arithmetic": INTEGER,
    "shift-right-logical": INTEGER,
    "subtract": [*FLOAT, *INTEGER],
    "xor": LOGICAL,
}


def specials(dtype: str) -> np.ndarray:
    """Zeros, halves, limits, infinities, NaN; small numbers, powers of two and extremes of integers."""
    kind = NUMPY_DTYPE[dtype]
    if dtype == "pred":
        return np.array([True, False])
    if dtype in FLOATS:
        limits = ml_dtypes.finfo(kind)
        values = [0.0, 0.5, 0.49999997, 1, 1.5, 2.5, 3.7, 100.5, 127.5, 255, 256, 1e5, 2.0**24 + 1, 2.0**31, 2.0**32]
        values += [9.3e18, 1e20, float(limits.max), float(limits.tiny) * 4, np.inf, np.nan]
        with np.errstate(over="ignore"):
            return np.array([*values, *(-value for value in values)]).astype(kind)
    if dtype in ("s4", "u4"):
        return np.arange(-8, 8).astype(kind) if dtype == "s4" else np.arange(16).astype(kind)
    info = np.iinfo(kind)
    values = [0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 100, info.max, info.max - 1, info.max // 2, 2**24 + 1]
    values += [info.min, info.min + 1, -1, -2, -7, -100]
    return np.array(sorted({value for value in values if info.min <= value <= info.max}), kind)


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of special values."""
    values = specials(dtype)
    lhs, rhs = np.meshgrid(np.arange(values.size), np.arange(values.size))
    return values[lhs.reshape(-1)], values[rhs.reshape(-1)]


def check(case: op_cases.Case) -> None:
    results = evaluate(parse_text(case.text), list(case.inputs))
    wanted = op_cases.expected(case)
    for result, want in zip(results, wanted, strict=True):
        assert (result.shape, result.dtype) == (want.shape, want.dtype)
        op_cases.assert_same(flushed(result), want, f"{case.opcode} {case.dtype}")


def flushed(array: np.ndarray) -> np.ndarray:
    """Subnormals of the types whose arithmetic XLA's CPU client flushes, as signed zeros."""
    if array.dtype.name not in ("float32", "float64", "bfloat16"):
        return array
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(array) < ml_dtypes.finfo(array.dtype).tiny, array * 0, array).astype(array.dtype)


@pytest.mark.parametrize("opcode", UNARY)
def test_unary(opcode: str) -> None:
    for dtype in UNARY[opcode]:
        check(op_cases.elementwise(opcode, dtype, (specials(dtype),)))


@pytest.mark.parametrize("opcode", BINARY)
def test_binary(opcode: str) -> None:
    for dtype in BINARY[opcode]:
        check(op_cases.elementwise(opcode, dtype, pairs(dtype)))


@pytest.mark.parametrize("direction", ["EQ", "NE", "GE", "GT", "LE", "LT"])
def test_compare(direction: str) -> None:
    for dtype in [*FLOAT, *LOGICAL]:
        check(op_cases.elementwise("compare", dtype, pairs(dtype), "pred", f", direction={direction}"))
    for dtype in FLOAT:
        order = f", direction={direction}, type=TOTALORDER"
        check(op_cases.elementwise("compare", dtype, pairs(dtype), "pred", order))


@pytest.mark.parametrize("target", [*FLOAT, *LOGICAL, "s4", "u4"])
def test_convert(target: str) -> None:
    for source in [*FLOAT, *LOGICAL, "s4", "u4"]:
        check(op_cases.elementwise("convert", source, (specials(source),), target))


@pytest.mark.parametrize("bits", [(8, 7), (5, 10), (8, 10), (4, 3), (5, 2), (2, 2), (8, 23), (11, 52)])
def test_reduce_precision(bits: tuple[int, int]) -> None:
    for dtype in FLOAT:
        attributes = f", exponent_bits={bits[0]}, mantissa_bits={bits[1]}"
        check(op_cases.elementwise("reduce-precision", dtype, (specials(dtype),), dtype, attributes))


def test_integer_power_wraps_with_every_bit_of_the_exponent() -> None:
    base, exponent = (
        np.array([3, 2, 0, -1, 1, -1, 5, 0], np.int32),
        np.array([100, 31, 64, -3, -9, -4, -1, -2], np.int32),
    )
    case = op_cases.elementwise("power", "s32", (base, exponent))
    result = evaluate(parse_text(case.text), [base, exponent])[0]
    wrapped = [(pow(3, 100, 2**32) + 2**31) % 2**32 - 2**31, -(2**31), 0, -1, 1, 1, 0, 0]
    np.testing.assert_array_equal(result, wrapped)


def test_subnormals_are_kept() -> None:
    tiny = np.array([1e-45, -1e-45], np.float32)
    case = op_cases.elementwise("add", "f32", (tiny, tiny))
    np.testing.assert_array_equal(
        evaluate(parse_text(case.text), [tiny, tiny])[0], np.array([3e-45, -3e-45], np.float32)
    )
