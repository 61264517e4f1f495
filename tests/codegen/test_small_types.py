"""Types that the core has not: 8-bit floats of other chips and integers of 2 and 4 bits, to the bit as on XLA."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import compile_text, text_of
from jax import lax
from xla_oracle import run_text

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.ir.types import NUMPY_DTYPE

Array = np.ndarray[Any, Any]

FLOATS = ["f8e4m3fn", "f8e4m3fnuz", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e3m4"]
INTEGERS = ["s2", "u2", "s4", "u4"]


def check(text: str, *inputs: Array) -> None:
    """The values of XLA, signs of zeros included; any NaN for a NaN."""
    wanted, found = run_text(text, inputs), compile_text(text).run(inputs)
    for x, y in zip(wanted, found, strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        as_numbers = np.float32 if x.dtype.kind in "fV" else np.int64
        np.testing.assert_array_equal(x.astype(as_numbers), y.astype(as_numbers))
        if as_numbers is np.float32:
            numbers = ~np.isnan(x.astype(np.float32))
            assert (np.signbit(x.astype(np.float32)) == np.signbit(y.astype(np.float32)))[numbers].all()


def check_op(result: str, op: str, *inputs: Array) -> None:
    """``op`` applied to parameters p0, p1, ..."""
    names = {storage: dtype for dtype, storage in NUMPY_DTYPE.items() if dtype != "tf32"}
    lines = [f"  p{n} = {names[x.dtype]}[{','.join(map(str, x.shape))}] parameter({n})" for n, x in enumerate(inputs)]
    check("\n".join(["HloModule m", "ENTRY e {", *lines, f"  ROOT r = {result} {op}", "}"]), *inputs)


def codes(dtype: str) -> Array:
    return np.arange(256, dtype=np.uint8).view(NUMPY_DTYPE[dtype])


def whole_range(dtype: str) -> Array:
    width = int(dtype[1:])
    low = -(2 ** (width - 1)) if dtype.startswith("s") else 0
    return np.arange(low, low + 2**width).astype(NUMPY_DTYPE[dtype])


def pairs(values: Array) -> tuple[Array, Array]:
    return np.repeat(values, len(values)), np.tile(values, len(values))


def singles() -> Array:
    """Numbers around every limit of the formats, and random ones of all sizes."""
    random = np.random.default_rng(0)
    numbers = [random.standard_normal(2000) * 2.0 ** random.integers(-22, 18, 2000)]
    numbers += [codes(dtype).astype(np.float64) * factor for dtype in FLOATS for factor in (1, 1.03125, 1.0625, 1.125)]
    numbers += [np.array([0.0, np.inf, np.nan, 464.0, 464.1, 248.0, 247.9, 61440.0, 31.0, 1e30, 1e-30])]
    both = np.concatenate([*numbers, *(-x for x in numbers)])
    with np.errstate(invalid="ignore"):
        return both.astype(np.float32)


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_conversions(dtype: str) -> None:
    check_op("f32[256]", "convert(p0)", codes(dtype))
    numbers = singles()
    check_op(f"{dtype}[{len(numbers)}]", "convert(p0)", numbers)
    check_op(f"{dtype}[601]", "convert(p0)", np.arange(-300, 301, dtype=np.int32))
    check_op("s32[256]", "convert(p0)", np.nan_to_num(codes(dtype).astype(np.float32)).astype(NUMPY_DTYPE[dtype]))


def test_conversions_between_floats() -> None:
    for dtype in FLOATS[1:]:
        check_op(f"{dtype}[256]", "convert(p0)", codes("f8e4m3fn"))
        check_op("f8e4m3fn[256]", "convert(p0)", codes(dtype))


@pytest.mark.parametrize("op", ["add(p0, p1)", "multiply(p0, p1)", "divide(p0, p1)", "minimum(p0, p1)", "negate(p0)"])
@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2fnuz", "f8e3m4"])
def test_float_arithmetic(dtype: str, op: str) -> None:
    x = np.repeat(codes(dtype), 8)
    check_op(f"{dtype}[2048]", op, x, np.resize(codes(dtype)[::-1], x.shape))


def test_float_comparisons() -> None:
    x, y = pairs(codes("f8e4m3fn")[::5])
    for attributes in ("direction=LT", "direction=EQ", "direction=GE, type=TOTALORDER"):
        check_op(f"pred[{len(x)}]", f"compare(p0, p1), {attributes}", x, y)
    check_op("pred[256]", "is-finite(p0)", codes("f8e4m3fn"))


def small(dims: tuple[int, ...], dtype: Any = jnp.float8_e4m3fn, seed: int = 0) -> Array:
    """Quarters between -2 and 2: few enough sum up exactly."""
    return (np.random.default_rng(seed).integers(-8, 9, dims) / 4).astype(dtype)


def nibbles(dims: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-8, 8, dims).astype(ml_dtypes.int4)


def loop(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, state: (state[0] + x[i], x[i]), (x[0], x[1]))


FUNCTIONS: dict[str, tuple[Callable[..., Any], list[Array]]] = {
    "matmul": (lambda x, y: lax.dot(x, y, preferred_element_type=jnp.float32), [small((33, 40)), small((40, 17))]),
    "mixed": (
        lambda x, y: lax.dot(x, y, preferred_element_type=jnp.float32),
        [small((9, 40)), small((40, 5), jnp.float8_e5m2)],
    ),
    "weights": (lambda x, y: x @ y.astype(jnp.bfloat16), [small((8, 64), jnp.bfloat16), small((64, 16))]),
    "maximum": (lambda x: (x.max(1), x.argmax(1), jnp.sort(x, 0)), [small((20, 30))]),
    "movement": (
        lambda x, i: (x.T[::2], jnp.pad(x, 1), jnp.concatenate([x, x[:3]]), x[i]),
        [small((6, 5)), 1 + nibbles((4,)).astype(np.int32) % 5],
    ),
    "scatter": (lambda x, y: (x.at[2].set(y), x.at[1:4].set(y)), [small((6, 5)), small((5,), seed=1)]),
    "loop": (loop, [small((8, 5))]),
    "branch": (
        lambda x, y: lax.cond(y[0] > 0, lambda a: a + a, lambda a: -a, x),
        [small((8, 5)), small((3,), np.float32)],
    ),
    "scan of floats": (lambda x: lax.scan(lambda c, a: (a, c), x[0], x), [small((8, 5))]),
    "integer loop": (loop, [nibbles((8, 5))]),
    "integer sums": (lambda x: (x.sum(0, dtype=jnp.int4), x.prod(1, dtype=jnp.int4), x.max()), [nibbles((6, 7))]),
    "integer sort": (lambda x: (jnp.sort(x, 1), jnp.argmax(x, 0), lax.cummax(x, 1)), [nibbles((6, 7))]),
    "integer scatter": (lambda x, y: x.at[jnp.array([1, 1, 3])].add(y), [nibbles((6, 5)), nibbles((3, 5), 1)]),
    "integer weights": (lambda x, y: x @ y.astype(jnp.float32), [small((8, 64), np.float32), nibbles((64, 16))]),
    "indices": (lambda x, i: x[i.astype(jnp.int32) & 3], [small((4, 3), np.float32), nibbles((7,))]),
    "constants": (
        lambda x: (x + jnp.asarray(small((3,))), jnp.asarray(nibbles((5,)))),
        [small((3,), seed=3)],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    check(text_of(function, *inputs), *inputs)


BINARY = ["add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor", "power"]
BINARY += ["shift-left", "shift-right-arithmetic", "shift-right-logical"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic(dtype: str) -> None:
    x, y = pairs(whole_range(dtype))
    for op in BINARY:
        check_op(f"{dtype}[{len(x)}]", f"{op}(p0, p1)", x, y)
    unary = ["negate", "not", *(["abs", "sign"] if dtype.startswith("s") else ["popcnt"])]
    for op in unary:
        check_op(f"{dtype}[{len(whole_range(dtype))}]", f"{op}(p0)", whole_range(dtype))
    for direction in ("LT", "EQ"):
        check_op(f"pred[{len(x)}]", f"compare(p0, p1), direction={direction}", x, y)
    check_op(f"{dtype}[300]", "iota(), iota_dimension=0")


@pytest.mark.parametrize("dtype", ["s4", "u4"])
def test_bits_of_integers(dtype: str) -> None:
    """XLA counts the bits of a byte where s4 is negative; here it is those of the integer."""
    values = whole_range(dtype)
    low = values.astype(np.int32) & 15
    text = "HloModule m\nENTRY e {{\n  p = {0}[16] parameter(0)\n  ROOT r = {0}[16] {1}(p)\n}}"
    (found,) = compile_text(text.format(dtype, "popcnt")).run([values])
    np.testing.assert_array_equal(found.astype(np.int32), [int(x).bit_count() for x in low])
    (found,) = compile_text(text.format(dtype, "count-leading-zeros")).run([values])
    np.testing.assert_array_equal(found.astype(np.int32), [4 - int(x).bit_length() for x in low])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_conversions(dtype: str) -> None:
    values = whole_range(dtype)
    for target in ("f32", "s32", "u8", "s8", "pred", "bf16", "u4", "s2", "f8e4m3fn"):
        check_op(f"{target}[{len(values)}]", "convert(p0)", values)
    numbers = np.array(
        [0.5, -0.5, 1.5, -1.5, 3.9, 7.9, 15.9, 16.2, 100, -8.9, -100, np.inf, -np.inf, np.nan], np.float32
    )
    for source in (numbers, np.arange(-128, 128, dtype=np.int8), np.arange(-300, 300, 7, dtype=np.int32)):
        check_op(f"{dtype}[{len(source)}]", "convert(p0)", source)
    check_op(f"{dtype}[256]", "convert(p0)", codes("f8e4m3fn"))


@pytest.mark.parametrize(
    ("result", "source", "dims"),
    [
        ("s4[3,2]", np.uint8, (3,)),
        ("u2[3,4]", np.int8, (3,)),
        ("s4[3,5,8]", np.float32, (3, 5)),
        ("u8[6]", ml_dtypes.int4, (6, 2)),
        ("f32[6]", ml_dtypes.uint4, (6, 8)),
        ("s16[2,3]", ml_dtypes.int2, (2, 3, 8)),
        ("u4[6]", ml_dtypes.int4, (6,)),
        ("s2[3,2]", ml_dtypes.int4, (3,)),
        ("u4[5]", ml_dtypes.int2, (5, 2)),
        ("f8e4m3fn[6]", ml_dtypes.int4, (6, 2)),
        ("f8e4m3fn[7]", np.uint8, (7,)),
        ("f8e4m3fn[7,2]", np.int16, (7,)),
        ("u32[7]", ml_dtypes.float8_e4m3fn, (7, 4)),
        ("s4[7,2]", ml_dtypes.float8_e4m3fn, (7,)),
        ("f8e5m2fnuz[7]", ml_dtypes.float8_e4m3fn, (7,)),
    ],
)
def test_bit_casts(result: str, source: Any, dims: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    width = np.dtype(source).itemsize
    values = random.integers(0, 256, (*dims, width)).astype(np.uint8).view(source).reshape(dims)
    check_op(result, "bitcast-convert(p0)", values)


@pytest.mark.parametrize(("exponent", "mantissa"), [(8, 1), (5, 2), (5, 0), (4, 1)])
def test_reduced_precision_keeps_subnormals_of_f16(exponent: int, mantissa: int) -> None:
    """XLA rounds 8-bit floats in f16, where the smallest numbers of this one are subnormals."""
    attributes = f"exponent_bits={exponent}, mantissa_bits={mantissa}"
    check_op("f8e5m2fnuz[256]", f"reduce-precision(p0), {attributes}", codes("f8e5m2fnuz"))


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize(("source", "word"), [("f32", "u32"), ("f16", "u16"), ("f8e5m2fnuz", "u8")])
def test_stochastic_rounding_to_a_small_float(target: str, source: str, word: str) -> None:
    """XLA's CPU client has no such op; the reference semantics decide."""
    random, special = np.random.default_rng(2), [0.0, np.inf, np.nan, 447.9, 448.1, 463.9, 464.1, 1e4, 1e-9, 2.0**-18]
    drawn = random.standard_normal(700) * 2.0 ** random.integers(-20, 17, 700)
    with np.errstate(all="ignore"):
        numbers = np.concatenate([drawn, special, np.negative(special), codes(target).astype(np.float32)])
        x = numbers.astype(np.float32).astype(NUMPY_DTYPE[source])
    most = np.iinfo(NUMPY_DTYPE[word]).max
    bits = random.integers(0, most, x.size, NUMPY_DTYPE[word], endpoint=True)
    bits[::3] = np.where(random.random(bits[::3].size) < 0.5, 0, most)
    text = (
        f"HloModule m\nENTRY e {{\n  p0 = {source}[{x.size}] parameter(0)\n  p1 = {word}[{x.size}] parameter(1)\n"
        f"  ROOT r = {target}[{x.size}] stochastic-convert(p0, p1)\n}}"
    )
    (found,) = compile_text(text).run([x, bits])
    (wanted,) = evaluate(parse_text(text), [x, bits])
    real = ~np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), ~real)
    np.testing.assert_array_equal(found.view(np.uint8)[real], wanted.view(np.uint8)[real])


def test_stochastic_rounding_of_a_small_float_to_another_type_is_refused() -> None:
    text = (
        "HloModule m\nENTRY e {\n  p0 = f8e4m3fn[8] parameter(0)\n  p1 = u8[8] parameter(1)\n"
        "  ROOT r = s8[8] stochastic-convert(p0, p1)\n}"
    )
    with pytest.raises(CompileError, match="stochastic-convert of"):
        compile_text(text)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: lax.bitcast_convert_type(x, jnp.uint8) ^ n,
        lambda x, n: lax.bitcast_convert_type(lax.bitcast_convert_type(x + x, jnp.uint8) + n, x.dtype) + (x + x),
        lambda x, n: lax.bitcast_convert_type(x, jnp.uint8) > lax.bitcast_convert_type(x[::-1], jnp.uint8),
        lambda x, n: (lax.bitcast_convert_type(n, x.dtype) + x, n + n),
    ],
    ids=["bits", "bits and numbers", "bits compared", "numbers of bits"],
)
@pytest.mark.parametrize("dtype", FLOATS[:2])
def test_bits_are_numbers_of_their_own(dtype: str, function: Callable[..., Any]) -> None:
    """The bytes of floats that are carried as bytes: they were taken for the floats."""
    x, n = codes(dtype)[1:120], np.arange(119, dtype=np.uint8)
    check(text_of(function, x, n), x, n)


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "s4"])
def test_scatters_of_what_is_carried(dtype: str) -> None:
    """The computation that replaces elements is one of bytes, that of others by the same name one of numbers."""
    x, i = np.arange(8).astype(NUMPY_DTYPE[dtype]), np.array([5, 2], np.int32)
    text = text_of(lambda x, i: (x.at[i].set(x[:2]), x.at[i].max(x[1:3])), x, i)
    found = compile_text(text, verify_each=True).run([x, i])
    for result, wanted in zip(found, run_text(text, [x, i]), strict=True):
        np.testing.assert_array_equal(result.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_what_the_host_has_above_the_bits_is_none_of_a_number(dtype: str) -> None:
    """Nor is anything computed for that: a contraction reads the bytes where they lie."""
    random = np.random.default_rng(0)
    rows = random.integers(-3, 4, (8, 256)).astype(np.float32)
    numbers = random.integers(0, 256, (256, 384)).astype(np.uint8).view(NUMPY_DTYPE[dtype])
    text = f"""HloModule m
ENTRY e {{{{
  x = f32[8,256] parameter(0)
  q = {dtype}[256,384] parameter(1)
  w = f32[256,384] convert(q)
  d = f32[8,384] dot(x, w), lhs_contracting_dims={{{{1}}}}, rhs_contracting_dims={{{{0}}}}
  ROOT r = {{result}}
}}}}"""
    multiplied = text.format(result="f32[8,384] add(d, d)")
    check(multiplied, rows, numbers)
    assert not [name for name in compile_text(multiplied).program.kernels if name.endswith("map")]
    check(text.format(result=f"(f32[8,384], {dtype}[256,384]) tuple(d, q)"), rows, numbers)
