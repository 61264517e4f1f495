"""Every instruction against an independent NumPy expression, over element types and shapes."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from one_instruction import Bench, dense, run_one, sample

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import Instr, Space, Stream
from neuronx_cc.ir.isa.table import TABLE
from neuronx_cc.ir.types import NUMPY_DTYPE

V, S, G = Stream.VECTOR, Stream.SCALAR, Stream.GPSIMD
FLOATS = ["f32", "bf16", "f16", "f8e4m3", "f8e5m2", "f8e3m4"]
SHAPES = [(128, 512), (1, 1), (33, 7), (128, 3, 5), (64, 2, 3, 4), (17, 2, 2, 2, 3)]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def f32(x):
    return np.asarray(x).astype(np.float32)


def rounded(x, dtype):
    """f32 values in a float dtype."""
    return f32(x).astype(NUMPY_DTYPE[dtype])


def same(actual, expected):
    """Equal bits, NaN for NaN."""
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_tensor_tensor_rounds_once(rng, dtype, shape):
    a, b = sample(rng, dtype, shape), sample(rng, "f32", shape)
    got = run_one("tensor_tensor", V, [(a, dtype), (b, "f32")], (dtype, shape), ["multiply"])
    same(got, rounded(f32(a) * b, dtype))


@pytest.mark.parametrize(
    ("alu", "function"),
    [
        ("add", np.add),
        ("subtract", np.subtract),
        ("multiply", np.multiply),
        ("divide", np.divide),
        ("max", np.maximum),
        ("min", np.minimum),
        ("is_equal", np.equal),
        ("not_equal", np.not_equal),
        ("is_ge", np.greater_equal),
        ("is_gt", np.greater),
        ("is_le", np.less_equal),
        ("is_lt", np.less),
    ],
)
@pytest.mark.parametrize("out", ["f32", "pred", "bf16", "u8"])
def test_arithmetic_operators(rng, alu, function, out):
    a, b = rng.integers(-3, 4, (40, 9)).astype(np.float32), rng.integers(1, 4, (40, 9)).astype(np.float32)
    got = run_one("tensor_tensor", V, [(a, "f32"), (b, "f32")], (out, (40, 9)), [alu])
    value = f32(function(a, b))
    expected = {"pred": value != 0, "u8": np.clip(np.rint(value), 0, 255).astype(np.uint8)}.get(out)
    same(got, rounded(value, out) if expected is None else expected)


@pytest.mark.parametrize("dtype", ["u8", "s16", "u32", "s32"])
def test_bit_operators(rng, dtype):
    storage = NUMPY_DTYPE[dtype]
    bits = storage.itemsize * 8
    a, b = (rng.integers(0, 1 << bits, (20, 6), np.uint64).astype(f"u{storage.itemsize}") for _ in range(2))
    shift = rng.integers(0, bits + 3, (20, 6)).astype(a.dtype)
    expected = {
        "bitwise_and": a & b,
        "bitwise_or": a | b,
        "bitwise_xor": a ^ b,
        "logical_shift_left": np.where(shift < bits, a << np.minimum(shift, bits - 1), 0).astype(a.dtype),
        "logical_shift_right": np.where(shift < bits, a >> np.minimum(shift, bits - 1), 0).astype(a.dtype),
    }
    for op, value in expected.items():
        other = shift if "shift" in op else b
        got = run_one(
            "tensor_tensor", V, [(a.view(storage), dtype), (other.view(storage), dtype)], (dtype, (20, 6)), [op]
        )
        same(got, value.view(storage))


def test_tensor_scalar_orders_and_operands(rng):
    x, s0, s1 = sample(rng, "f32", (65, 11)), sample(rng, "f32", (65, 1)), sample(rng, "f32", (65, 1))
    run = lambda arrays, **more: run_one("tensor_scalar", V, arrays, ("f32", (65, 11)), **more)  # noqa: E731
    same(run([(x, "f32")], alu=["subtract"], imm=[2.5]), x - np.float32(2.5))
    same(run([(x, "f32")], alu=["subtract"], imm=[2.5], flags=["reverse0"]), np.float32(2.5) - x)
    same(run([(x, "f32"), (s0, "f32")], alu=["multiply", "add"], imm=[3.0], flags=["ap0"]), x * s0 + np.float32(3))
    both = run([(x, "f32"), (s0, "f32"), (s1, "f32")], alu=["add", "divide"], flags=["ap0", "ap1", "reverse1"])
    same(both, s1 / (x + s0))
    same(run([(x, "f32")], alu=["abs", "max"], imm=[0.0, 0.5]), np.maximum(np.abs(x), np.float32(0.5)))


def test_tensor_scalar_on_bits(rng):
    x = rng.integers(-(2**31), 2**31, (8, 16)).astype(np.int32)
    run = lambda **more: run_one("tensor_scalar", V, [(x, "s32")], ("s32", (8, 16)), **more)  # noqa: E731
    same(run(alu=["bitwise_not"], imm=[0.0]), ~x)
    expected = (x.view(np.uint32) >> np.uint32(16)) & np.uint32(255)
    same(run(alu=["logical_shift_right", "bitwise_and"], imm=[16, 255]), expected.view(np.int32))


def test_scalar_tensor_tensor(rng):
    x, y, s = sample(rng, "bf16", (32, 40)), sample(rng, "f32", (32, 40)), sample(rng, "f32", (32, 1))
    got = run_one(
        "scalar_tensor_tensor",
        V,
        [(x, "bf16"), (y, "f32"), (s, "f32")],
        ("f32", (32, 40)),
        ["subtract", "multiply"],
        (),
        ["ap0"],
    )
    same(got, (f32(x) - s) * y)
    got = run_one(
        "scalar_tensor_tensor",
        V,
        [(x, "bf16"), (y, "f32")],
        ("f32", (32, 40)),
        ["multiply", "subtract"],
        [2.0],
        ["reverse1"],
    )
    same(got, y - f32(x) * 2)


@pytest.mark.parametrize("alu", ["add", "multiply", "max", "min"])
def test_tensor_reduce(rng, alu):
    x = sample(rng, "f32", (96, 4, 5, 3))
    reduce = {"add": np.sum, "multiply": np.prod, "max": np.max, "min": np.min}[alu]
    for kept, flags in ((1, ()), (2, ("negate",)), (3, ())):
        counts = x.shape[:kept] if kept > 1 else (96, 1)
        got = run_one("tensor_reduce", V, [(x, "f32")], ("f32", counts), [alu], (), flags)
        expected = reduce(x.astype(np.float64), axis=tuple(range(kept, 4))).reshape(counts)
        np.testing.assert_allclose(got, -expected if flags else expected, rtol=2e-6, atol=1e-6)


def test_tensor_reduce_on_bits(rng):
    x = rng.integers(0, 2, (9, 31)).astype(bool)
    same(run_one("tensor_reduce", V, [(x, "pred")], ("pred", (9, 1)), ["bitwise_or"]), x.any(1, keepdims=True))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "s32", "pred"])
def test_copy_predicated(rng, dtype):
    y, x = sample(rng, dtype, (50, 13)), sample(rng, dtype, (50, 13))
    mask = rng.integers(0, 3, (50, 13)).astype(np.uint8)
    got = run_one("copy_predicated", V, [(mask, "u8"), (x, dtype)], (dtype, (50, 13)), initial=y)
    same(got, np.where(mask != 0, x, y))
    got = run_one("copy_predicated", V, [(mask, "u8")], (dtype, (50, 13)), imm=[1], flags=["reverse"], initial=y)
    same(got, np.where(mask == 0, np.ones((), y.dtype), y))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
def test_transpose_moves_bits(rng, dtype):
    x = sample(rng, dtype, (32, 20))
    if dtype == "f32":
        x[3, 4] = np.nan
    same(run_one("transpose", V, [(x, dtype)], (dtype, (20, 32))), x.T.copy())


def test_reciprocal_and_special_values():
    x = np.array([[1.0, -0.0, 0.0, np.inf, np.nan, 3.0]], np.float32)
    with np.errstate(divide="ignore"):
        same(run_one("reciprocal", V, [(x, "f32")], ("f32", (1, 6))), np.float32(1) / x)


@pytest.mark.parametrize("source", ["f32", "bf16", "s32", "u8", "pred", "f8e4m3"])
@pytest.mark.parametrize("target", ["f32", "bf16", "s32", "s8", "u8", "pred", "f8e5m2"])
@pytest.mark.parametrize("stream", [V, G])
def test_tensor_copy_casts(rng, source, target, stream):
    x = sample(rng, source, (30, 8))
    if source == "f32":
        x[0, :4] = [300.5, -300.5, 2.5, 3.5]
    got = run_one("tensor_copy", stream, [(x, source)], (target, (30, 8)))
    value = f32(x)
    if source == target:
        expected = x
    elif target == "pred":
        expected = value != 0
    elif NUMPY_DTYPE[target].kind in "iu":
        info = np.iinfo(NUMPY_DTYPE[target])
        expected = np.clip(np.rint(value.astype(np.float64)), info.min, info.max).astype(NUMPY_DTYPE[target])
    else:
        expected = rounded(value, target)
    same(got, expected)


def test_copy_of_integers_is_exact_within_a_type_only():
    x = np.array([[2**24 + 1, -(2**31), 2**31 - 1]], np.int32)
    same(run_one("tensor_copy", V, [(x, "s32")], ("s32", (1, 3))), x)
    got = run_one("tensor_copy", V, [(x, "s32")], ("f32", (1, 3)))
    same(got, x.astype(np.float32))


@pytest.mark.parametrize(
    ("dtype", "value"), [("f32", -0.1), ("bf16", 3.0), ("s32", 2**31 - 1), ("u32", 2**32 - 1), ("pred", 1)]
)
def test_memset(dtype, value):
    got = run_one("memset", G, [], (dtype, (128, 5)), imm=[value])
    same(got, np.full((128, 5), value, NUMPY_DTYPE[dtype]))


ACTIVATIONS = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + np.vectorize(__import__("math").erf)(x / np.sqrt(2))) / 2,
    "gelu_apprx_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sign": np.sign,
    "abs": np.abs,
    "erf": np.vectorize(__import__("math").erf),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "arctan": np.arctan,
    "sin": np.sin,
}


def test_all_activation_functions_are_tested():
    assert set(ACTIVATIONS) == TABLE["activation"].alu[0]


@pytest.mark.parametrize("function", sorted(ACTIVATIONS))
def test_activation_functions(rng, function):
    x = rng.uniform(-3, 3, (128, 200)).astype(np.float32)
    if function in ("log", "sqrt", "rsqrt"):
        x = np.abs(x) + np.float32(1e-3)
    got = run_one("activation", S, [(x, "f32")], ("f32", x.shape), [function], [1.0])
    np.testing.assert_allclose(got, ACTIVATIONS[function](x.astype(np.float64)), rtol=1e-6, atol=6e-7)


def test_activation_scale_bias_and_sum(rng):
    x, scale, bias = sample(rng, "bf16", (77, 30)), sample(rng, "f32", (77, 1)), sample(rng, "f32", (77, 1))
    bench = Bench()
    refs = [bench.load(x, "bf16"), bench.load(scale, "f32"), bench.load(bias, "f32")]
    y, total = bench.tile("bf16", (77, 30)), bench.tile("f32", (77, 1))
    flags = frozenset(["scale_ap", "bias", "accumulate"])
    bench.emit(Instr("activation", S, (y, total), tuple(refs), ("exp",), (), flags))
    (got, got_sum), _ = bench.run([y, total])
    value = np.exp(f32(x) * scale + bias)
    np.testing.assert_allclose(f32(got), f32(rounded(value, "bf16")), rtol=1e-2)
    np.testing.assert_allclose(got_sum, value.sum(1, keepdims=True), rtol=1e-5)


def test_sine_outside_its_range_extrapolates():
    got = run_one("activation", S, [(np.array([[9.0, -9.0]], np.float32), "f32")], ("f32", (1, 2)), ["sin"])
    np.testing.assert_allclose(got, [[27.65, -27.65]], rtol=1e-3)


@pytest.mark.parametrize("dtype", ["s32", "f32", "u8"])
def test_iota(dtype):
    got = run_one("iota", G, [], (dtype, (100, 3, 4)), imm=[5, 2, 8, 1])
    p, i, j = np.meshgrid(np.arange(100), np.arange(3), np.arange(4), indexing="ij")
    same(got, (5 + 2 * p + 8 * i + j).astype(np.int32).astype(NUMPY_DTYPE[dtype]))


def test_iota_wraps_in_32_bits():
    got = run_one("iota", G, [], ("s32", (1, 3)), imm=[2**31 - 2, 0, 1])
    np.testing.assert_array_equal(got, [[2**31 - 2, 2**31 - 1, -(2**31)]])


def test_affine_select(rng):
    x = sample(rng, "f32", (128, 128))
    got = run_one("affine_select", G, [(x, "f32")], ("f32", (128, 128)), ["is_ge"], [-1e30, 0, 1, -1])
    same(got, np.where(np.tril(np.ones((128, 128))) != 0, x, np.float32(-1e30)))


INTEGERS = ["s8", "s16", "s32", "u8", "u16", "u32"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_exact_integer_arithmetic(dtype):
    storage = NUMPY_DTYPE[dtype]
    info = np.iinfo(storage)
    edge = [info.min, info.min + 1, -7, -1, 0, 1, 2, 7, 31, info.max - 1, info.max]
    values = np.array([v for v in edge if info.min <= v <= info.max], storage)
    a, b = (x.reshape(1, -1) for x in np.meshgrid(values, values))

    def wrap(f):
        results = [f(int(x), int(y)) & ((1 << info.bits) - 1) for x, y in zip(a[0], b[0], strict=True)]
        return np.array(results).astype(f"u{storage.itemsize}")

    quotient = lambda x, y: -1 if y == 0 else abs(x) // abs(y) * (1 if x * y >= 0 else -1)  # noqa: E731
    unsigned = lambda x: x & ((1 << info.bits) - 1)  # noqa: E731
    expected = {
        "add": lambda x, y: x + y,
        "subtract": lambda x, y: x - y,
        "multiply": lambda x, y: x * y,
        "divide": quotient,
        "remainder": lambda x, y: x if y == 0 else x - quotient(x, y) * y,
        "maximum": max,
        "minimum": min,
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | y,
        "xor": lambda x, y: x ^ y,
        "shift-left": lambda x, y: x << unsigned(y) if unsigned(y) < info.bits else 0,
        "shift-right-logical": lambda x, y: unsigned(x) >> unsigned(y) if unsigned(y) < info.bits else 0,
        "power": lambda x, y: pow(x, y, 1 << info.bits) if y >= 0 else (x ** (y & 1) if x in (1, -1) else 0),
        "mulhi": lambda x, y: (x * y) >> info.bits,
    }
    if info.min < 0:
        expected["shift-right-arithmetic"] = lambda x, y: x >> min(unsigned(y), info.bits - 1)
    for op, function in expected.items():
        got = run_one("int_tensor_tensor", G, [(a, dtype), (b, dtype)], (dtype, a.shape), [op])
        np.testing.assert_array_equal(got[0].view(f"u{storage.itemsize}"), wrap(function), err_msg=op)
    for op, function in (
        ("eq", np.equal),
        ("ne", np.not_equal),
        ("lt", np.less),
        ("le", np.less_equal),
        ("gt", np.greater),
        ("ge", np.greater_equal),
    ):
        got = run_one("int_tensor_tensor", G, [(a, dtype), (b, dtype)], ("pred", a.shape), [f"compare-{op}"])
        np.testing.assert_array_equal(got, function(a, b), err_msg=op)


def test_integer_constant_and_reverse():
    a = np.array([[1, 2, 3]], np.int32)
    same(run_one("int_tensor_tensor", G, [(a, "s32")], ("s32", (1, 3)), ["subtract"], [10], ["reverse"]), 10 - a)
    same(run_one("int_tensor_tensor", G, [(a, "s32")], ("s32", (1, 3)), ["multiply"], [-4]), a * -4)


PROGRAMS = {
    "sine": np.sin,
    "cosine": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "exponential-minus-one": np.expm1,
    "log-plus-one": np.log1p,
    "floor": np.floor,
    "ceil": np.ceil,
    "round-nearest-afz": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "round-nearest-even": np.rint,
    "sign": np.sign,
    "exponential": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(__import__("math").erf),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "negate": np.negative,
    "abs": np.abs,
    "is-finite": np.isfinite,
}


@pytest.mark.parametrize("function", sorted(PROGRAMS))
def test_programs_of_one_argument(rng, function):
    low, high = {"acosh": (1, 9), "log": (1e-3, 9), "rsqrt": (1e-3, 9), "sqrt": (0, 9)}.get(function, (-0.99, 0.99))
    if function in ("sine", "cosine", "floor", "ceil", "round-nearest-afz", "round-nearest-even"):
        low, high = -40, 40
    x = rng.uniform(low, high, (128, 40)).astype(np.float32)
    out = "pred" if function == "is-finite" else "f32"
    got = run_one("program_unary", G, [(x, "f32")], (out, x.shape), [function])
    np.testing.assert_allclose(got.astype(np.float64), PROGRAMS[function](x.astype(np.float64)), rtol=1e-6, atol=2e-7)


def test_programs_on_integers():
    x = np.array([[0, 1, -1, 255, -(2**31), 2**31 - 1]], np.int32)
    for function, expected in {
        "not": ~x,
        "negate": (0 - x.astype(np.int64)).astype(np.int32),
        "abs": np.abs(x),
        "sign": np.sign(x),
        "popcnt": np.array([[0, 1, 32, 8, 1, 31]], np.int32),
        "count-leading-zeros": np.array([[32, 31, 0, 24, 0, 1]], np.int32),
    }.items():
        same(run_one("program_unary", G, [(x, "s32")], ("s32", x.shape), [function]), expected)


def test_reduce_precision_agrees_with_bfloat16(rng):
    x = rng.standard_normal((16, 64)).astype(np.float32)
    x[0, :3] = [np.inf, np.nan, 3.4e38]
    got = run_one("program_unary", G, [(x, "f32")], ("f32", x.shape), ["reduce-precision"], [8, 7])
    same(got, f32(x.astype(ml_dtypes.bfloat16)))
    half = run_one("program_unary", G, [(x, "f32")], ("f32", x.shape), ["reduce-precision"], [5, 10])
    with np.errstate(over="ignore"):
        same(half, f32(x.astype(np.float16)))


def test_programs_of_two_arguments(rng):
    a, b = rng.uniform(0.1, 4, (20, 9)).astype(np.float32), rng.uniform(-3, 3, (20, 9)).astype(np.float32)
    for function, expected in {
        "power": np.power,
        "remainder": np.fmod,
        "atan2": np.arctan2,
        "divide": np.divide,
    }.items():
        got = run_one("program_binary", G, [(a, "f32"), (b, "f32")], ("f32", a.shape), [function])
        np.testing.assert_allclose(got, expected(a.astype(np.float64), b.astype(np.float64)), rtol=2e-6, atol=1e-6)
    got = run_one("program_binary", G, [(b, "f32")], ("f32", a.shape), ["power"], [2.0], ["reverse"])
    np.testing.assert_allclose(got, 2.0 ** b.astype(np.float64), rtol=1e-6)


def test_total_order_comparison():
    values = np.array([[-np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan]], np.float32)
    values[0, 0] = np.copysign(np.nan, -1)
    rank = np.arange(8)
    for shift in range(8):
        other = np.roll(values, shift, 1)
        got = run_one(
            "program_binary", G, [(values, "f32"), (other, "f32")], ("pred", (1, 8)), ["compare-totalorder-lt"]
        )
        np.testing.assert_array_equal(got[0], rank < np.roll(rank, shift))


def test_stochastic_convert_uses_its_random_bits():
    x = np.full((1, 4), 1 + 2**-9, np.float32)  # a quarter of the way from 1 to the next bf16
    random = np.array([[0, 2**30 - 1, 2**30, 2**32 - 1]], np.uint32)
    got = run_one("program_binary", G, [(x, "f32"), (random, "u32")], ("bf16", (1, 4)), ["stochastic-convert"])
    np.testing.assert_array_equal(f32(got), [[1 + 2**-7, 1 + 2**-7, 1, 1]])


def test_convert_follows_hlo():
    x = np.array([[1.9, -1.9, np.nan, np.inf, -np.inf, 300.0]], np.float32)
    same(run_one("convert", G, [(x, "f32")], ("s8", x.shape)), np.array([[1, -1, 0, 127, -128, 127]], np.int8))
    wide = np.array([[300, -1, 0]], np.int32)
    same(run_one("convert", G, [(wide, "s32")], ("u8", wide.shape)), np.array([[44, 255, 0]], np.uint8))
    same(run_one("convert", G, [(wide, "s32")], ("pred", wide.shape)), np.array([[True, True, False]]))
    same(run_one("convert", G, [(wide, "s32")], ("f32", wide.shape)), wide.astype(np.float32))


def test_partition_reduce_and_broadcast(rng):
    x = sample(rng, "f32", (128, 33))
    got = run_one("partition_reduce", G, [(x, "f32")], ("f32", (1, 33)), ["add"])
    np.testing.assert_allclose(got, x.astype(np.float64).sum(0, keepdims=True), rtol=1e-5, atol=1e-5)
    big = np.full((100, 2), 2**24 + 1, np.int32)
    got = run_one("partition_reduce", G, [(big, "s32")], ("s32", (1, 2)), ["add"])
    np.testing.assert_array_equal(got, [[100 * (2**24 + 1)] * 2])
    row = sample(rng, "bf16", (1, 20))
    same(run_one("partition_broadcast", G, [(row, "bf16")], ("bf16", (128, 20))), np.repeat(row, 128, 0))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f8e4m3"])
@pytest.mark.parametrize(("k", "m", "n"), [(128, 128, 512), (1, 1, 1), (65, 33, 17)])
def test_matmul(rng, dtype, k, m, n):
    w, x = sample(rng, dtype, (k, m)), sample(rng, dtype, (k, n))
    bench = Bench()
    weights, moving = bench.load(w, dtype), bench.load(x, dtype)
    out = dense(Space.PSUM, "f32", 2048, (m, n))
    bench.emit(Instr("load_stationary", Stream.TENSOR, (), (weights,)))
    bench.emit(Instr("multiply_moving", Stream.TENSOR, (out,), (moving,)))
    bench.emit(Instr("multiply_moving", Stream.TENSOR, (out,), (moving,), flags=frozenset(["accumulate"])))
    (got,), report = bench.run([out])
    exact = 2 * (w.astype(np.float64).T @ x.astype(np.float64))
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5 * np.sqrt(k))
    assert report.summary["matmul_flops"] == 4 * k * m * n


def test_tf32_rounds_inputs_to_ten_bits():
    x = np.array([[1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-10]], np.float32)
    bench = Bench()
    weights, moving = bench.load(np.ones((1, 1), np.float32), "f32"), bench.load(x, "f32")
    out = dense(Space.PSUM, "f32", 0, (1, 3))
    bench.emit(Instr("load_stationary", Stream.TENSOR, (), (weights,)))
    bench.emit(Instr("multiply_moving", Stream.TENSOR, (out,), (moving,), flags=frozenset(["tf32"])))
    (got,), _ = bench.run([out])
    np.testing.assert_array_equal(got, [[1, 1 + 2**-9, 1 + 2**-10]])


def test_multiplication_with_the_wrong_stationary_tile_is_a_fault(rng):
    bench = Bench()
    weights, moving = bench.load(np.ones((4, 4), np.float32), "f32"), bench.load(np.ones((8, 4), np.float32), "f32")
    bench.emit(Instr("load_stationary", Stream.TENSOR, (), (weights,)))
    out = dense(Space.PSUM, "f32", 0, (4, 4))
    bench.emit(Instr("multiply_moving", Stream.TENSOR, (out,), (moving,)))
    with pytest.raises(RunError, match=r"stationary tile is \[4, 4\].*op.1.*model.py:7"):
        bench.run([out])


def test_dma_copies_and_casts(rng):
    x = sample(rng, "f32", (20, 30))
    same(run_one("dma_copy", Stream.DMA_LOAD, [(x, "f32")], ("f32", x.shape)), x)
    same(run_one("dma_copy", Stream.DMA_LOAD, [(x, "f32")], ("bf16", x.shape)), rounded(x, "bf16"))
    same(run_one("dma_copy", Stream.DMA_LOAD, [(x, "f32")], ("s32", x.shape)), np.rint(x).astype(np.int32))


def test_gather_and_scatter(rng):
    table = sample(rng, "f32", (50, 8))
    index = np.array([[3], [49], [0], [60]], np.int32)
    bench = Bench()
    rows = bench.variable("input", "f32", table.shape, 0)
    bench.inputs.append(table)
    where = bench.load(index, "s32")
    out = bench.tile("f32", (4, 8))
    bench.emit(Instr("dma_gather", Stream.DMA_DYNAMIC, (out,), (rows, where), flags=frozenset(["clamp"])))
    result = bench.variable("output", "f32", (50, 8), 0)
    bench.stores = 1
    bench.emit(Instr("dma_copy", Stream.DMA_STORE, (result,), (rows,)))
    bench.emit(Instr("dma_scatter", Stream.DMA_DYNAMIC, (result,), (out, where), flags=frozenset(["skip", "add"])))
    (updated, gathered), _ = bench.run([out])
    picked = table[[3, 49, 0, 49]]
    np.testing.assert_array_equal(gathered, picked)
    expected = table.copy()
    expected[[3, 49, 0]] += picked[:3]
    np.testing.assert_array_equal(updated, expected)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "s16", "u8", "pred"])
def test_group_gather(rng, dtype):
    table, index = sample(rng, dtype, (32, 5, 3)), rng.integers(-9, 90, (32, 7)).astype(np.int32)
    kept = sample(rng, dtype, (32, 7, 3))
    for flags, outside in (([], np.zeros_like(kept)), (["keep"], kept)):
        got = run_one(
            "group_gather", G, [(table, dtype), (index, "s32")], (dtype, kept.shape), flags=flags, initial=kept
        )
        wanted = outside.copy()
        for lane, place in np.ndindex(*index.shape):
            group, row = table[lane // 16 * 16 :][:16].reshape(80, 3), index[lane, place]
            if 0 <= row < 80:
                wanted[lane, place] = group[row]
        same(got, wanted)


@pytest.mark.parametrize("kind", ["assign", "add", "multiply", "maximum", "minimum", "and", "or", "xor"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f8e5m2", "s16", "u8"])
def test_group_scatter_takes_one_entry_after_the_other(rng, dtype, kind):
    if kind in ("and", "or", "xor") and dtype in FLOATS:
        return
    table, index = sample(rng, dtype, (32, 2, 3)), rng.integers(-9, 40, (32, 7)).astype(np.int32)
    updates = sample(rng, dtype, (32, 7, 3))
    got = run_one("group_scatter", G, [(updates, dtype), (index, "s32")], (dtype, table.shape), [kind], initial=table)
    combine = {"assign": lambda a, b: b, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    combine |= {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
    wanted = table.reshape(2, 32, 3).copy()
    for lane, place in np.ndindex(*index.shape):
        if 0 <= index[lane, place] < 32:
            row = wanted[lane // 16, index[lane, place]]
            row[...] = combine[kind](row, updates[lane, place])
    same(got, wanted.reshape(table.shape))


def test_gather_outside_the_rows_is_a_fault():
    bench = Bench()
    rows = bench.variable("input", "f32", (5, 2), 0)
    bench.inputs.append(np.zeros((5, 2), np.float32))
    where = bench.load(np.array([[5]], np.int32), "s32")
    out = bench.tile("f32", (1, 2))
    bench.emit(Instr("dma_gather", Stream.DMA_DYNAMIC, (out,), (rows, where)))
    with pytest.raises(RunError, match="index 5 of partition 0 is outside the 5 rows"):
        bench.run([out])


def test_loaded_register_moves_an_address_within_its_range(rng):
    table = sample(rng, "f32", (10, 4))
    for index, row in ((3, 3), (99, 9), (-1, 0)):
        bench = Bench()
        rows = bench.variable("input", "f32", table.shape, 0)
        bench.inputs.append(table)
        where = bench.load(np.array([[index]], np.int32), "s32")
        bench.emit(Instr("reg_load", Stream.DMA_DYNAMIC, (), (where,), imm=(7, 0, 9)))
        source = dense(Space.HBM, "f32", rows.offset, (1, 4))
        source = type(source)(source.space, "f32", source.offset, source.dims, 0, ((7, 16),))
        out = bench.tile("f32", (1, 4))
        bench.emit(Instr("dma_copy", Stream.DMA_DYNAMIC, (out,), (source,)))
        (got,), _ = bench.run([out])
        np.testing.assert_array_equal(got[0], table[row])


def test_nop_only_waits():
    x = np.ones((4, 4), np.float32)
    bench = Bench()
    tile = bench.load(x, "f32")
    bench.emit(Instr("nop", Stream.SYNC))
    same(bench.run([tile])[0][0], x)


def test_every_instruction_is_tested():
    text = "".join(file.read_text() for file in Path(__file__).parent.glob("test_instructions*.py"))
    assert [op for op in TABLE if f'"{op}"' not in text] == []
