"""Every elementwise opcode in every element type, with special values and constants or broadcasts on either side."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import assert_close, check_text, compile_text, text_of
from op_cases import NUMPY_UNARY, assert_same, module_text
from xla_oracle import run_text

from neuronx_cc.codegen.formation.graph import ELEMENTWISE
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.ir.types import FLOATS, INTEGERS, NUMPY_DTYPE

Array = np.ndarray[Any, Any]

FLOAT_TYPES = ("f32", "bf16", "f16", "f8e4m3", "f8e5m2")
SIGNED = ("s8", "s16", "s32")
UNSIGNED = ("u8", "u16", "u32")
INTEGER_TYPES = SIGNED + UNSIGNED
ALL = (*FLOAT_TYPES, *INTEGER_TYPES, "pred")

_ROUNDING = ("ceil", "floor", "round-nearest-afz", "round-nearest-even", "abs", "negate", "sign")
_POWERS = ("cbrt", "exponential", "exponential-minus-one", "log", "log-plus-one", "rsqrt", "sqrt")
FLOAT_UNARY = (*_ROUNDING, *_POWERS, "cosine", "erf", "logistic", "sine", "tan", "tanh")
FLOAT_BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder", "atan2"]
_BITS = ("and", "or", "xor", "shift-left", "shift-right-arithmetic", "shift-right-logical")
INTEGER_BINARY = ("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "power", *_BITS)
PRED_BINARY = ("and", "or", "xor", "add", "multiply", "maximum", "minimum")
DIRECTIONS = ("EQ", "NE", "GE", "GT", "LE", "LT")
TESTED_APART = {"clamp", "compare", "convert", "is-finite", "mulhi", "reduce-precision", "select", "stochastic-convert"}
TESTED_APART |= {"complex", "imag", "real"}


def test_every_elementwise_opcode_is_tested() -> None:
    tested = {*FLOAT_UNARY, *NUMPY_UNARY, *FLOAT_BINARY, *INTEGER_BINARY, "not", "popcnt", "count-leading-zeros"}
    assert tested | TESTED_APART == ELEMENTWISE


def special(dtype: str) -> Array:
    """Values around every limit of ``dtype``; denormals are left out, which XLA's CPU client flushes to zero."""
    storage = NUMPY_DTYPE[dtype]
    if dtype == "pred":
        return np.array([True, False])
    if dtype in INTEGERS:
        info = np.iinfo(storage)
        width = info.bits
        values = [info.min, info.max, 0, 1, 2, 3, 7, width - 1, width, width + 1, info.max - 1, info.max // 3]
        values += [-1, -2, -7, info.min + 1] if info.min else []
        return np.array(values, storage)
    info_f = ml_dtypes.finfo(storage)
    values_f = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 0.75, 7.0, 100.0, -100.0, np.inf, -np.inf, np.nan]
    values_f += [float(info_f.max), float(info_f.min), float(info_f.smallest_normal)]
    return np.array(values_f).astype(storage)


def pairs(dtype: str) -> tuple[Array, Array]:
    values = special(dtype)
    left, right = np.meshgrid(values, values, indexing="ij")
    return np.ascontiguousarray(left), np.ascontiguousarray(right)


def with_normal(dtype: str, random: np.random.Generator) -> Array:
    """The special values among normal ones, [128, 4]."""
    values = special(dtype)
    normal = random.standard_normal(512 - values.size) * 3
    return np.concatenate([values, normal.astype(values.dtype)]).reshape(128, 4)


def literal(value: Any, dtype: str) -> str:
    if dtype == "pred":
        return "true" if value else "false"
    return str(int(value)) if dtype in INTEGERS else repr(float(value))


def unary_text(opcode: str, dtype: str, dims: Sequence[int], out: str = "", attributes: str = "") -> str:
    array = f"[{','.join(map(str, dims))}]"
    return f"HloModule m\n\nENTRY main {{\n  x = {dtype}{array} parameter(0)\n" + (
        f"  ROOT y = {out or dtype}{array} {opcode}(x){attributes}\n}}\n"
    )


def binary_text(
    opcode: str, dtype: str, dims: Sequence[int], constants: Sequence[Any], out: str = "", attributes: str = ""
) -> str:
    """x op y, constant op x, x op constant, and x with one value a row and a column on either side."""
    array, (rows, columns) = f"[{dims[0]},{dims[1]}]", dims
    result = (out or dtype) + array
    lines = [
        f"x = {dtype}{array} parameter(0)",
        f"y = {dtype}{array} parameter(1)",
        f"r = {dtype}[{rows}] parameter(2)",
        f"c = {dtype}[{columns}] parameter(3)",
        f"rb = {dtype}{array} broadcast(r), dimensions={{0}}",
        f"cb = {dtype}{array} broadcast(c), dimensions={{1}}",
    ]
    forms = [("x", "y"), ("x", "rb"), ("rb", "x"), ("x", "cb"), ("cb", "x"), ("rb", "cb")]
    for index, value in enumerate(constants):
        lines.append(f"k{index} = {dtype}[] constant({literal(value, dtype)})")
        lines.append(f"kb{index} = {dtype}{array} broadcast(k{index}), dimensions={{}}")
        forms += [("x", f"kb{index}"), (f"kb{index}", "x")]
    lines += [f"o{i} = {result} {opcode}({a}, {b}){attributes}" for i, (a, b) in enumerate(forms)]
    names = ", ".join(f"o{i}" for i in range(len(forms)))
    types = ", ".join([result] * len(forms))
    body = "\n  ".join([*lines, f"ROOT t = ({types}) tuple({names})"])
    return f"HloModule m\n\nENTRY main {{\n  {body}\n}}\n"


def check_binary(opcode: str, dtype: str, constants: Sequence[Any], out: str = "", attributes: str = "") -> None:
    """The oracle computes all forms at once, as one op on their stacked operands."""
    left, right = pairs(dtype)
    values = special(dtype)
    program = compile_text(binary_text(opcode, dtype, left.shape, constants, out, attributes))
    results = np.stack(program.run([left, right, values, values]))
    a, b = stacked_forms(left, right, values, np.array(constants, left.dtype))
    assert_close(results, oracle(opcode, a, b, dtype, out, attributes), elementwise=True)


def stacked_forms(left: Array, right: Array, values: Array, constants: Array) -> tuple[Array, Array]:
    """Operands of the forms of ``binary_text``, one form an index of dim 0."""
    rows, columns = np.broadcast_to(values[:, None], left.shape), np.broadcast_to(values, left.shape)
    forms = [(left, right), (left, rows), (rows, left), (left, columns), (columns, left), (rows, columns)]
    for value in constants:
        full = np.full_like(left, value)
        forms += [(left, full), (full, left)]
    return np.stack([a for a, _ in forms]), np.stack([b for _, b in forms])


def oracle(opcode: str, a: Array, b: Array, dtype: str, out: str = "", attributes: str = "") -> Array:
    if opcode == "power" and dtype in INTEGERS:
        return integer_power(a, b)
    array = f"[{','.join(map(str, a.shape))}]"
    text = f"HloModule m\n\nENTRY main {{\n  a = {dtype}{array} parameter(0)\n  b = {dtype}{array} parameter(1)\n" + (
        f"  ROOT y = {out or dtype}{array} {opcode}(a, b){attributes}\n}}\n"
    )
    return run_text(text, [a, b])[0]


def integer_power(a: Array, b: Array) -> Array:
    """Modulo 2**bits; 1 / x truncated for negative exponents. (XLA's CPU client is wrong for large exponents.)"""
    modulus = 1 << a.dtype.itemsize * 8

    def power(x: int, y: int) -> int:
        if y >= 0:
            return pow(x, y, modulus)
        return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)

    wide = [power(int(x), int(y)) for x, y in zip(a.ravel(), b.ravel(), strict=True)]
    return np.array([value % modulus for value in wide], f"u{a.dtype.itemsize}").view(a.dtype).reshape(a.shape)


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("opcode", FLOAT_UNARY)
def test_float_unary(opcode: str, dtype: str, random: np.random.Generator) -> None:
    values = np.concatenate([special(dtype), (random.standard_normal(492) * 3).astype(NUMPY_DTYPE[dtype])]).reshape(
        128, 4
    )
    check_text(unary_text(opcode, dtype, values.shape), values, elementwise=True)


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("opcode", NUMPY_UNARY)
def test_float_unary_that_xla_has_not(opcode: str, dtype: str, random: np.random.Generator) -> None:
    values = np.concatenate([special(dtype), (random.standard_normal(492) * 3).astype(NUMPY_DTYPE[dtype])]).reshape(
        128, 4
    )
    (result,) = compile_text(unary_text(opcode, dtype, values.shape)).run([values])
    with np.errstate(all="ignore"):
        want = NUMPY_UNARY[opcode](values.astype(np.float64)).astype(values.dtype)
    assert_close(result, want, elementwise=True)


@pytest.mark.parametrize("dtype", INTEGER_TYPES)
@pytest.mark.parametrize("opcode", ["not", "popcnt", "count-leading-zeros", "negate"])
def test_integer_unary(opcode: str, dtype: str) -> None:
    values = special(dtype)
    check_text(unary_text(opcode, dtype, values.shape), values)


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("opcode", ["abs", "sign"])
def test_signed_unary(opcode: str, dtype: str) -> None:
    values = special(dtype)
    check_text(unary_text(opcode, dtype, values.shape), values)


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("opcode", ["abs", "negate", "ceil", "round-nearest-even", "sqrt", "sign"])
def test_sign_of_zeros(opcode: str, dtype: str) -> None:
    values = np.array([0.0, -0.0, -0.25], NUMPY_DTYPE[dtype])
    text = unary_text(opcode, dtype, values.shape)
    (result,) = compile_text(text).run([values])
    (want,) = run_text(text, [values])
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(result)[numbers], np.signbit(want)[numbers])


@pytest.mark.parametrize("target", ["s8", "s32", "bf16", "f16", "f8e4m3"])
def test_stochastic_convert(target: str, random: np.random.Generator) -> None:
    """XLA's CPU client has no such op; the reference semantics decide."""
    x = np.concatenate([special("f32"), (random.standard_normal(500) * 20).astype(np.float32)])
    bits = random.integers(0, 1 << 32, x.size, dtype=np.uint32)
    root = f"  ROOT y = {target}[{x.size}] stochastic-convert(p0, p1)"
    text = module_text([("f32", x.shape), ("u32", x.shape)], root)
    (result,) = compile_text(text).run([x, bits])
    assert_same(result, evaluate(parse_text(text), [x, bits])[0])


def test_not_of_predicates() -> None:
    check_text(unary_text("not", "pred", (2,)), special("pred"))


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("opcode", FLOAT_BINARY)
def test_float_binary(opcode: str, dtype: str) -> None:
    check_binary(opcode, dtype, [0.0, -0.0, 1.0, -1.5, 2.0, 3.0, np.inf, np.nan])


@pytest.mark.parametrize("dtype", INTEGER_TYPES)
@pytest.mark.parametrize("opcode", INTEGER_BINARY)
def test_integer_binary(opcode: str, dtype: str) -> None:
    info = np.iinfo(NUMPY_DTYPE[dtype])
    check_binary(opcode, dtype, [0, 1, 3, 8, info.bits, info.max, info.min])


@pytest.mark.parametrize("opcode", PRED_BINARY)
def test_predicate_binary(opcode: str) -> None:
    check_binary(opcode, "pred", [True, False])


@pytest.mark.parametrize("dtype", ["s8", "s16", "s32", "u8", "u16", "u32"])
def test_high_part_of_products(dtype: str) -> None:
    left, right = pairs(dtype)
    text = binary_text("mulhi", dtype, left.shape, [])
    values = special(dtype)
    results = np.stack(compile_text(text).run([left, right, values, values]))
    a, b = stacked_forms(left, right, values, np.array([], left.dtype))
    want = (a.astype(object) * b.astype(object) >> a.dtype.itemsize * 8).astype(a.dtype)
    np.testing.assert_array_equal(results, want)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_compare(direction: str, dtype: str) -> None:
    constants = {"pred": [True, False]}.get(dtype, [0, 1, 3] if dtype in INTEGERS else [0.0, 1.5, np.nan, np.inf])
    check_binary("compare", dtype, constants, "pred", f", direction={direction}")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_compare_total_order(direction: str, dtype: str) -> None:
    values = special(dtype)
    values = np.concatenate([values, np.array([-np.nan]).astype(values.dtype)])
    left, right = (np.ascontiguousarray(side) for side in np.meshgrid(values, values, indexing="ij"))
    attributes = f", direction={direction}, type=TOTALORDER"
    program = compile_text(binary_text("compare", dtype, left.shape, [0.0, np.nan], "pred", attributes))
    results = np.stack(program.run([left, right, values, values]))
    a, b = stacked_forms(left, right, values, np.array([0.0, np.nan], left.dtype))
    np.testing.assert_array_equal(results, oracle("compare", a, b, dtype, "pred", attributes))


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
def test_is_finite(dtype: str) -> None:
    values = special(dtype)
    check_text(unary_text("is-finite", dtype, values.shape, "pred"), values)


@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("source", ALL)
def test_convert(source: str, target: str, random: np.random.Generator) -> None:
    values = special(source)
    if source in FLOATS:
        more = random.standard_normal(100) * 200
        values = np.concatenate([values, more.astype(values.dtype)])
    check_text(unary_text("convert", source, values.shape, target), values, relative=0.0, elementwise=True)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("exponent", "mantissa"), [(8, 7), (5, 10), (8, 10), (4, 3), (5, 2), (8, 23)])
def test_reduce_precision(exponent: int, mantissa: int, dtype: str, random: np.random.Generator) -> None:
    values = np.concatenate([special(dtype), (random.standard_normal(1000) * 50).astype(NUMPY_DTYPE[dtype])])
    attributes = f", exponent_bits={exponent}, mantissa_bits={mantissa}"
    check_text(unary_text("reduce-precision", dtype, values.shape, attributes=attributes), values, relative=0.0)


@pytest.mark.parametrize("dtype", ALL)
def test_select(dtype: str, random: np.random.Generator) -> None:
    on_true, on_false = pairs(dtype)
    rows, columns = on_true.shape
    array = f"[{rows},{columns}]"
    one = literal(1, dtype)
    zero = literal(0, dtype)
    text = f"""HloModule m

ENTRY main {{
  p = pred{array} parameter(0)
  x = {dtype}{array} parameter(1)
  y = {dtype}{array} parameter(2)
  r = pred[{rows}] parameter(3)
  q = pred[] parameter(4)
  c = {dtype}[{columns}] parameter(5)
  rb = pred{array} broadcast(r), dimensions={{0}}
  qb = pred{array} broadcast(q), dimensions={{}}
  cb = {dtype}{array} broadcast(c), dimensions={{1}}
  k1 = {dtype}[] constant({one})
  kb1 = {dtype}{array} broadcast(k1), dimensions={{}}
  k0 = {dtype}[] constant({zero})
  kb0 = {dtype}{array} broadcast(k0), dimensions={{}}
  a = {dtype}{array} select(p, x, y)
  b = {dtype}{array} select(rb, x, y)
  d = {dtype}{array} select(qb, cb, y)
  e = {dtype}{array} select(p, kb1, y)
  f = {dtype}{array} select(p, x, kb0)
  g = {dtype}{array} select(p, kb1, kb0)
  h = {dtype}{array} select(rb, cb, kb0)
  ROOT t = ({", ".join([dtype + array] * 7)}) tuple(a, b, d, e, f, g, h)
}}
"""
    inputs = [random.random((rows, columns)) < 0.5, on_true, on_false, random.random(rows) < 0.5, np.array(True)]
    check_text(text, *inputs, special(dtype), relative=0.0)


@pytest.mark.parametrize("dtype", [*FLOAT_TYPES, *INTEGER_TYPES])
def test_clamp(dtype: str) -> None:
    x, high = pairs(dtype)
    low = np.roll(high, 3, axis=1)
    array = f"[{x.shape[0]},{x.shape[1]}]"
    text = f"""HloModule m

ENTRY main {{
  low = {dtype}{array} parameter(0)
  x = {dtype}{array} parameter(1)
  high = {dtype}{array} parameter(2)
  s = {dtype}[] parameter(3)
  k1 = {dtype}[] constant({literal(1, dtype)})
  k5 = {dtype}[] constant({literal(5, dtype)})
  a = {dtype}{array} clamp(low, x, high)
  b = {dtype}{array} clamp(k1, x, k5)
  c = {dtype}{array} clamp(s, x, k5)
  ROOT t = ({", ".join([dtype + array] * 3)}) tuple(a, b, c)
}}
"""
    check_text(text, low, x, high, np.asarray(special(dtype)[2]), relative=0.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: jnp.tanh(x * 2),
        lambda x, y: x * y + 3,
        lambda x, y: x / jnp.sum(x, axis=1, keepdims=True),
        lambda x, y: (0.5 * x) * (1 + jnp.tanh(y)),
        lambda x, y: x * jnp.max(y, axis=1, keepdims=True),
    ],
)
def test_casts_need_no_instruction(function: Any, dtype: str) -> None:
    """The last instruction writes the narrower type itself, rounding as the cast would."""
    x = np.linspace(-3, 5, 40 * 130, dtype=np.float32).reshape(40, 130)
    inputs = x, x[::-1].copy()
    plain = compile_text(text_of(function, *inputs))
    cast = compile_text(text_of(lambda *arrays: function(*arrays).astype(dtype), *inputs))
    np.testing.assert_array_equal(cast.run(list(inputs))[0], plain.run(list(inputs))[0].astype(dtype))
    count = [sum(isinstance(record, Instr) for record in each.program.records) for each in (plain, cast)]
    assert count[0] == count[1]


@pytest.mark.parametrize(("exponent", "mantissa"), [(5, 2), (5, 10), (8, 7), (6, 0), (4, 3), (11, 52)])
@pytest.mark.parametrize("dtype", ["f16", "f8e5m2", "f8e4m3"])
def test_reduced_precision_of_small_numbers(dtype: str, exponent: int, mantissa: int) -> None:
    """Numbers below the smallest normal ones of FP16 are rounded as its bits are."""
    words = np.arange(0, 1 << 16, 7).astype(np.uint16) if dtype == "f16" else np.arange(256).astype(np.uint8)
    values = words.view(NUMPY_DTYPE[dtype])
    attributes = f", exponent_bits={exponent}, mantissa_bits={mantissa}"
    text = unary_text("reduce-precision", dtype, values.shape, attributes=attributes)
    assert_same(compile_text(text).run([values])[0], run_text(text, [values])[0])


@pytest.mark.parametrize("dtype", ["u8", "u32"])
@pytest.mark.parametrize("opcode", ["abs", "sign"])
def test_signs_of_unsigned_numbers_are_refused(opcode: str, dtype: str) -> None:
    """As StableHLO does, by which jaxlib reads HLO."""
    with pytest.raises(CompileError, match=f"{opcode}: element type {dtype} is not supported"):
        compile_text(unary_text(opcode, dtype, (3,)))
    with pytest.raises(Exception, match=f"stablehlo.{opcode}"):
        run_text(unary_text(opcode, dtype, (3,)), [np.zeros(3, NUMPY_DTYPE[dtype])])
