"""Literal text: bit-exact round trips in every element type, and agreement with XLA's reading of the same text."""

from typing import Any

import numpy as np
import pytest
from jaxlib import _hlo

from neuronx_cc.hlo_import.literals import LiteralError, literal_text, parse_literal, splat_view
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.proto import parse_proto
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.types import NUMPY_DTYPE, SIGNED, Shape, bits, shape

DTYPES = sorted(set(NUMPY_DTYPE) - {"tf32"})
FORMATS_WITH_PAYLOADS = {"f16", "bf16", "f32", "f64", "f8e5m2"}


def bit_patterns(dtype: str, count: int) -> np.ndarray[Any, Any]:
    """Arrays of random bits; of all bits where there are at most ``count``."""
    storage = NUMPY_DTYPE[dtype]
    random = np.random.default_rng(3)
    if dtype == "pred":
        return random.integers(0, 2, count).astype(np.bool_)
    if bits(dtype) < 8:
        numbers = 2 ** bits(dtype)
        return (np.arange(count) % numbers - (numbers // 2 if dtype in SIGNED else 0)).astype(storage)
    if storage.itemsize == 1:
        return (np.arange(count) % 256).astype(np.uint8).view(storage)
    return np.frombuffer(random.bytes(count * storage.itemsize), storage)


@pytest.mark.parametrize("count", [7, 1200])
@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip_is_bit_exact(dtype: str, count: int) -> None:
    array = bit_patterns(dtype, count)
    again = parse_literal(literal_text(array, dtype), shape(dtype, (count,)))
    if dtype in FORMATS_WITH_PAYLOADS or dtype[0] in "sup":
        assert again.tobytes() == array.tobytes()
    else:
        # one NaN a sign in these formats, or complex parts
        with np.errstate(invalid="ignore"):
            same = (again == array) | (np.isnan(again) & np.isnan(array))
        assert same.all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_xla_reads_the_same_values(dtype: str) -> None:
    """Our text, parsed by XLA, gives the same constant as our own reading of it."""
    array = bit_patterns(dtype, 24).reshape(2, 3, 4)
    if dtype[0] in "fbc":
        with np.errstate(invalid="ignore"):
            array = np.where(np.isnan(array.astype(np.complex128)), np.ones_like(array), array)
    text = f"HloModule m\n\nENTRY main {{\n  ROOT c = {dtype}[2,3,4] constant({literal_text(array, dtype)})\n}}\n"
    proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    ours, theirs = constant(parse_text(text)), constant(parse_proto(proto))
    assert ours.tobytes() == theirs.tobytes() == array.tobytes()


def constant(module: hlo.HloModule) -> np.ndarray[Any, Any]:
    op = module.entry.block.first_op
    assert isinstance(op, hlo.ConstantOp)
    return module.constants[op.value.data]


@pytest.mark.parametrize(
    ("text", "dtype", "bits"),
    [
        ("nan", "f32", 0x7FC00000),
        ("-nan", "f32", 0xFFC00000),
        ("nan(0x1)", "f32", 0x7F800001),
        ("-nan(0x200000)", "f32", 0xFFA00000),
        ("inf", "f32", 0x7F800000),
        ("-inf", "bf16", 0xFF80),
        ("-0", "f32", 0x80000000),
        ("1e-45", "f32", 1),
        ("3.4028235e38", "f32", 0x7F7FFFFF),
        ("nan(0x3)", "f16", 0x7C03),
        ("18446744073709551615", "u64", 2**64 - 1),
        ("-9223372036854775808", "s64", 2**63),
        ("true", "pred", 1),
    ],
)
def test_special_values(text: str, dtype: str, bits: int) -> None:
    array = parse_literal(text, Shape(dtype, ()))
    assert int.from_bytes(array.tobytes(), "little") == bits


@pytest.mark.parametrize(
    ("text", "dims", "expected"),
    [
        ("{ {1, 2}, {3, 4} }", (2, 2), [[1, 2], [3, 4]]),
        ("{ { /*i0=0*/ {1} }, { {2} } }", (2, 1, 1), [[[1]], [[2]]]),
        ("{}", (0,), []),
        ("{}", (0, 3), np.zeros((0, 3))),
        ("{ { }, { } }", (2, 0), np.zeros((2, 0))),
        ("7", (2, 2), [[7, 0], [0, 0]]),
    ],
)
def test_structure(text: str, dims: tuple[int, ...], expected: Any) -> None:
    np.testing.assert_array_equal(parse_literal(text, Shape("f32", dims)), np.array(expected, np.float32))


@pytest.mark.parametrize("text", ["{1, 2", "{1, 2}}", "{{1}, 2}", "{}", "{1, 2, 3}", "{1, 2},"])
def test_wrong_structure(text: str) -> None:
    with pytest.raises(LiteralError):
        parse_literal(text, Shape("f32", (2,)))


@pytest.mark.parametrize("text", ["{1 2}", "{1,, 2}", "{,1, 2,}", "{ 1 /*,*/ 2 }"])
def test_commas_are_where_they_are(text: str) -> None:
    """As XLA has it."""
    _hlo.hlo_module_from_text(f"HloModule m\n\nENTRY e {{\n  ROOT a = f32[2] constant({text})\n}}\n")
    np.testing.assert_array_equal(parse_literal(text, Shape("f32", (2,))), np.array([1, 2], np.float32))


@pytest.mark.parametrize("count", [3, 300])
@pytest.mark.parametrize("bad", ["x", "1-2", "1 2", "1e", "--1", "infnan", ""])
def test_wrong_numbers(bad: str, count: int) -> None:
    words = ["1"] * count
    words[1] = bad
    for dtype in ("f32", "s32", "bf16"):
        with pytest.raises(LiteralError):
            parse_literal(f"{{{','.join(words)}}}", Shape(dtype, (count,)))


def test_splats_are_views() -> None:
    view = splat_view(np.full((1000, 1000), 2.5, np.float32))
    assert view.strides == (0, 0)
    mixed = np.zeros(10_000, np.float32)
    mixed[5000] = -0.0
    assert splat_view(mixed) is mixed


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("f32[]", "0}"), ("f32[]", "{0"), ("c64[]", "{(1,2)}"), ("f32[0]", ""), ("f32[0]", "0"), ("f32[0]", "{}}"),
        ("f32[2,0]", "{}"), ("f32[2,0]", "{{}}"), ("f32[0,2]", "{{},{}}"), ("f32[2,0,3]", "{{{}},{{}}}"),
    ],
)  # fmt: skip
def test_braces_are_those_of_the_shape(type_: str, text: str) -> None:
    with pytest.raises(CompileError, match="EVRF064"):
        parse_text(f"ENTRY main {{ ROOT z = {type_} constant({text}) }}")


@pytest.mark.parametrize(
    ("type_", "text"), [("f32[2,0]", "{{}, {}}"), ("f32[0,2]", "{ }"), ("f32[2,0,3]", "{{},{}}"), ("f32[0]", "{,}")]
)
def test_empty_literals(type_: str, text: str) -> None:
    assert parse_text(f"ENTRY main {{ ROOT z = {type_} constant({text}) }}").entry
