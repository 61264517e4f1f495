"""Reductions over every subset of dims, by every combiner and type; argmax and argmin; fused rows."""

import random as random_
from itertools import combinations, permutations
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import assert_close, check_function, check_text, compile_text, text_of
from jax import lax

import neuronx_cc
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.types import NUMPY_DTYPE

Array = np.ndarray[Any, Any]

# NumPy is the oracle of the many small cases: it compiles nothing
DIMS = [(5,), (130,), (3, 7), (130, 257), (2, 3, 5), (4, 130, 9), (3, 5, 2, 129), (1, 257, 1, 3)]
CASES = [
    (dims, folded)
    for dims in DIMS
    for count in range(1, len(dims) + 1)
    for folded in combinations(range(len(dims)), count)
]


def normal(random: np.random.Generator, *dims: int) -> Array:
    return random.standard_normal(dims).astype(np.float32)


def integers(random: np.random.Generator, *dims: int) -> Array:
    return random.integers(-1000, 1000, dims).astype(np.int32)


@pytest.mark.parametrize(("dims", "folded"), CASES, ids=str)
def test_neutral_start(dims: tuple[int, ...], folded: tuple[int, ...], random: np.random.Generator) -> None:
    def function(x: Any, n: Any, p: Any) -> Any:
        bits = lax.reduce(n, np.int32(-1), lax.bitwise_and, folded), lax.reduce(n, np.int32(0), lax.bitwise_or, folded)
        floats = x.sum(folded), x.max(folded), (x * 2).min(folded), (1 + x / 64).prod(folded)
        return *floats, n.sum(folded), n.min(folded), n.max(folded), n.prod(folded), *bits, p.any(folded), p.all(folded)

    x, n = normal(random, *dims) + 2, integers(random, *dims)
    p = n > 900
    results = compile_text(text_of(function, x, n, p)).run([x, n, p])
    wide = x.astype(np.float64)
    want = [wide.sum(folded), wide.max(folded), wide.min(folded) * 2, (1 + wide / 64).prod(folded)]
    want = [np.asarray(array).astype(np.float32) for array in want]
    want += [n.sum(folded, dtype=np.int32), n.min(folded), n.max(folded), n.prod(folded, dtype=np.int32)]
    want += [np.bitwise_and.reduce(n, axis=folded), np.bitwise_or.reduce(n, axis=folded)]
    want += [p.any(folded), p.all(folded)]
    for index, (result, expected) in enumerate(zip(results, want, strict=True)):
        assert_close(result, np.asarray(expected), name=f"result {index}")


@pytest.mark.parametrize(("dims", "folded"), CASES, ids=str)
def test_bf16(dims: tuple[int, ...], folded: tuple[int, ...], random: np.random.Generator) -> None:
    x = (normal(random, *dims) + 2).astype(ml_dtypes.bfloat16)
    text = text_of(lambda x: (lax.reduce(x, np.float32(0).astype(x.dtype), lax.add, folded), x.max(folded)), x)
    total, largest = compile_text(text).run([x])
    assert_close(total, np.asarray(x.astype(np.float64).sum(folded)).astype(x.dtype), relative=0.0)
    np.testing.assert_array_equal(largest, x.max(folded))


@pytest.mark.parametrize(("dims", "folded"), CASES, ids=str)
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given"])
def test_other_start(
    dims: tuple[int, ...], folded: tuple[int, ...], constant: bool, random: np.random.Generator
) -> None:
    """NumPy is the oracle: XLA may use the initial value more than once."""
    x, n = normal(random, *dims) + 2, integers(random, *dims)
    start, count, flag = np.float32(3.25), np.int32(7), np.bool_(True)

    def function(x: Any, n: Any, f: Any = start, i: Any = count, b: Any = flag) -> Any:
        floats = lax.reduce(x * 2, f, lax.add, folded), lax.reduce(x, f, lax.max, folded)
        whole = lax.reduce(n, i, lax.add, folded), lax.reduce(n, i, lax.min, folded)
        return *floats, *whole, lax.reduce(n > 2000, b, lax.bitwise_or, folded)

    given = (x, n) if constant else (x, n, start, count, flag)
    results = compile_text(text_of(function, *given)).run([np.asarray(array) for array in given])
    exact = x.astype(np.float64) * 2
    want = [np.asarray(exact.sum(folded) + 3.25).astype(np.float32), np.maximum(x.max(folded), start)]
    want += [n.sum(folded, dtype=np.int32) + count, np.minimum(n.min(folded), count)]
    want += [np.ones_like(want[-1], np.bool_)]
    for index, (result, expected) in enumerate(zip(results, want, strict=True)):
        assert_close(result, np.asarray(expected), name=f"result {index}")


@pytest.mark.parametrize("dims", [(5,), (1009,), (130, 257), (4, 130, 9), (3, 5, 2, 129), (7, 1)], ids=str)
def test_positions_of_extremes(dims: tuple[int, ...], random: np.random.Generator) -> None:
    x = normal(random, *dims)
    holes, ties = x.copy(), np.round(x)
    holes.flat[3] = np.nan

    def function(*given: Any) -> Any:
        axes = range(len(dims))
        return [f(x, axis) for x in given for axis in axes for f in (jnp.argmax, jnp.argmin)]

    check_function(function, x, holes, ties, integers(random, *dims) // 300)


@pytest.mark.parametrize("dims", [(0, 5), (5, 0), (0,), (3, 0, 2)], ids=str)
def test_of_nothing(dims: tuple[int, ...]) -> None:
    x = np.zeros(dims, np.float32)
    check_function(lambda x: [x.sum(axis) for axis in range(len(dims))] + [x.sum(), x.astype(np.int32).prod()], x)


@pytest.mark.parametrize("dims", [(5, 0), (0,), (3, 0, 2)], ids=str)
def test_of_nothing_from_a_given_start(dims: tuple[int, ...]) -> None:
    folded = (dims.index(0),)
    check_function(lambda x, start: lax.reduce(x, start, lax.add, folded), np.zeros(dims, np.float32), np.float32(7))


@pytest.mark.parametrize("dims", [(127, 129), (1009, 33), (3, 50257), (2, 5, 7, 1000), (1, 20000)], ids=str)
def test_fused_rows(dims: tuple[int, ...], random: np.random.Generator) -> None:
    def function(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        norm = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift
        mask = jnp.arange(dims[-1]) % 3 > 0
        return jax.nn.softmax(x), norm, jax.nn.log_softmax(jnp.where(mask, x, -1e9)), jax.nn.logsumexp(x * 2, -1)

    check_function(function, normal(random, *dims), normal(random, dims[-1]), normal(random, dims[-1]))


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_over_leading_dims(axis: int, random: np.random.Generator) -> None:
    check_function(lambda x: jax.nn.softmax(jnp.tanh(x), axis) + x, normal(random, 37, 129, 5))


APART = [
    ((64, 40, 24, 3), (0, 2)),
    ((64, 40, 24, 3), (1, 3)),
    ((3, 7, 300, 16), (1,)),
    ((24, 16, 16, 20), (0, 2)),
    ((8, 12, 6, 5, 32), (0, 2, 4)),
    ((8, 12, 6, 5, 33), (1, 3)),
    ((5, 257, 129), (0, 2)),
    ((600, 2, 96), (1,)),
    ((1021, 7), (0,)),
]


@pytest.mark.parametrize(("dims", "folded"), APART, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_over_dims_that_lie_apart(
    dims: tuple[int, ...], folded: tuple[int, ...], dtype: str, random: np.random.Generator
) -> None:
    """Given, made by an op, and transposed: from HBM, and from a home on chip."""
    x = (normal(random, *dims) * 40).astype(dtype)

    def function(x: Any) -> Any:
        made = x * 2
        transposed = jnp.transpose(x, range(len(dims))[::-1])
        wide = jnp.int32 if dtype == "int32" else jnp.float32
        found = [value.sum(folded, dtype=wide) for value in (x, made, transposed)]
        return *found, x.max(folded), made.min(folded), (made + 1).max(folded)

    check_function(function, x)


@pytest.mark.parametrize("last", [1, 2, 7, 16, 64, 129])
@pytest.mark.parametrize(("middle", "folded"), [((32, 16), (0, 2)), ((32, 16), (1, 3)), ((16,), (0, 2)), ((16,), (1,))])
def test_dims_that_lie_apart_take_as_long_as_neighbours(
    middle: tuple[int, ...], folded: tuple[int, ...], last: int, request: pytest.FixtureRequest
) -> None:
    if (middle, folded, last) == ((32, 16), (0, 2), 129):
        request.applymarker(pytest.mark.xfail(strict=True, reason="1.9 times 19 us, its neighbours as one dim"))
    dims = ((1 << 19) // last // np.prod(middle), *middle, last)
    count = int(np.prod([dims[dim] for dim in folded]))

    def time(dims: tuple[int, ...], folded: tuple[int, ...]) -> float:
        lowered = jax.jit(lambda x: x.mean(folded)).lower(jax.ShapeDtypeStruct(dims, np.float32))
        return neuronx_cc.compile(lowered).run([], timing_only=True, check_races=False).report.kernel_ns

    kept = int(np.prod(dims)) // count
    assert time(dims, folded) < 1.5 * max(time((kept, count), (1,)), time((count, kept), (0,)))


@pytest.mark.parametrize("dims", [(2, 1_500_000), (1_500_000, 2), (1_000_003,), (3, 300_000, 3)], ids=str)
def test_long(dims: tuple[int, ...], random: np.random.Generator) -> None:
    def function(x: Any) -> Any:
        return [f(axis) for axis in range(len(dims)) for f in (x.sum, x.max)] + [x.sum()]

    check_function(function, np.abs(normal(random, *dims)))


@pytest.mark.parametrize("dims", [(32, 4, 56, 64), (3, 43, 97, 131), (129, 2, 6145), (128, 3, 12288)])
def test_long_rows_after_elementwise_ops(dims: tuple[int, ...], random: np.random.Generator) -> None:
    """Rows too long for a tile, folded in two steps, the first together with the ops that make them."""
    folded = tuple(range(1, len(dims)))

    def function(x: Any, n: Any, b: Any) -> Any:
        centred = x - x.mean(folded, keepdims=True)
        narrow = b.sum(folded), (b * 2).max(folded)
        return *narrow, (centred * centred).mean(folded), centred, (n * 3).max(folded), (n ^ 5).sum(folded)

    x, n = normal(random, *dims) + 2, integers(random, *dims)
    check_function(function, x, n, x.astype(ml_dtypes.bfloat16))


def test_special_values() -> None:
    x = np.array([[1, np.nan, 3], [np.inf, 2, -np.inf], [-np.inf, -np.inf, 1], [-0.0, -0.0, -0.0]], np.float32)
    check_function(lambda x: (x.sum(1), x.max(1), x.min(1), x.max(0), x.min(0), x.prod(1), x.sum(), x.max()), x)


@pytest.mark.parametrize("dims", [(1, 258), (300, 7), (3, 20_000)], ids=str)
def test_of_a_constant(dims: tuple[int, ...]) -> None:
    """Not folded: XLA text with a broadcast, or a counting operand along a dim of size 1."""
    size, (rows, columns) = f"[{dims[0]},{dims[1]}]", dims
    text = f"""HloModule m

f {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}}

ENTRY main {{
  x = f32[{rows}] parameter(0)
  c = f32[] constant(1.5)
  z = f32[] constant(0)
  i = f32{size} broadcast(c), dimensions={{}}
  n = f32[1,{columns}] iota(), iota_dimension=0
  s = f32[{rows}] reduce(i, z), dimensions={{1}}, to_apply=f
  t = f32[{columns}] reduce(i, z), dimensions={{0}}, to_apply=f
  u = f32[1] reduce(n, z), dimensions={{1}}, to_apply=f
  y = f32[{rows}] add(s, x)
  ROOT r = (f32[{rows}], f32[{columns}], f32[1]) tuple(y, t, u)
}}
"""
    check_text(text, np.ones(rows, np.float32))


def test_integer_overflow_wraps() -> None:
    x = np.full((3, 300), 2**30, np.int32)
    check_function(lambda x: (x.sum(1), x.sum(0), x.sum(), (x.astype(np.int8) + 100).sum(1, dtype=np.int8)), x)


def test_a_computation_on_arrays_is_refused() -> None:
    text = """HloModule m

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

f {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  pair = f32[2] broadcast(a), dimensions={}
  ROOT r = f32[] reduce(pair, b), dimensions={0}, to_apply=sum
}

ENTRY main {
  x = f32[8,4] parameter(0)
  z = f32[] constant(0)
  ROOT y = f32[8] reduce(x, z), dimensions={1}, to_apply=f
}
"""
    with pytest.raises(CompileError, match=r"EVRF001.*%y"):
        compile_text(text)


@pytest.mark.parametrize(
    ("dims", "folded"), [((4, 8), (1,)), ((64, 32), (0,)), ((4, 8), (0, 1)), ((30, 5, 7), (0, 2)), ((2000,), (0,))]
)
def test_sum_of_negative_zeros(dims: tuple[int, ...], folded: tuple[int, ...]) -> None:
    zeros = np.full(dims, -0.0, np.float32)

    def function(x: Any) -> Any:
        zero = np.float32(0)
        return lax.reduce(x, zero, lax.add, folded), lax.reduce(x * -1, zero, lax.max, folded), x.max(folded)

    wanted = [np.signbit(array) for array in jax.jit(function)(zeros)]
    got = compile_text(text_of(function, zeros)).run([zeros])
    for result, want in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(np.signbit(result), want)


@pytest.mark.parametrize("axis", [0, 1])
def test_running_sum_of_negative_zeros(axis: int) -> None:
    for dims in ((3, 20), (200, 9), (2, 5000)):
        zeros = np.full(dims, -0.0, np.float32)
        (got,) = compile_text(text_of(lambda x: jnp.cumsum(x, axis), zeros)).run([zeros])
        want = jax.jit(lambda x: jnp.cumsum(x, axis))(zeros)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_combiner_with_swapped_parameters() -> None:
    text = """HloModule m

f {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] maximum(b, a)
}

ENTRY main {
  x = f32[8,4] parameter(0)
  z = f32[] constant(-inf)
  ROOT y = f32[8] reduce(x, z), dimensions={1}, to_apply=f
}
"""
    check_text(text, np.arange(32, dtype=np.float32).reshape(8, 4))


@pytest.mark.parametrize(("rows", "row"), [(4190, 300), (1270, 1100), (2048, 640)], ids=str)
def test_rows_on_few_partitions_are_stored_together(rows: int, row: int, random: np.random.Generator) -> None:
    """Results of many tiles, one element a partition each, are collected; with a vector that all rows share."""
    x, v = random.standard_normal((rows, row), np.float32), random.standard_normal(row, np.float32)
    check_function(lambda x, v: (x @ v, jnp.max(x, 1), jnp.sum(x * x, 1)), x, v, relative=5e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_kept_dims_in_another_order_than_in_memory(order: tuple[int, ...], dtype: type) -> None:
    """Joint partitions are neighbours of the operand, not always of the result."""
    x = np.random.default_rng(7).integers(-9, 9, (4, 7, 127)).astype(dtype)
    for axis in range(3):
        check_function(lambda x, axis=axis: jnp.max(x.transpose(order), axis), x)
        check_function(lambda x, axis=axis: jnp.sum(x.transpose(order), axis), x)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f8e5m2"])
def test_start_of_a_narrow_sum_is_a_parameter(dtype: str) -> None:
    text = f"""HloModule m
    add_them {{ a = {dtype}[] parameter(0) b = {dtype}[] parameter(1) ROOT c = {dtype}[] add(a, b) }}
    ENTRY main {{
      x = {dtype}[129,5] parameter(0)
      z = {dtype}[] parameter(1)
      ROOT r = {dtype}[5] reduce(x, z), dimensions={{0}}, to_apply=add_them
    }}"""
    (result,) = compile_text(text).run([np.ones((129, 5), NUMPY_DTYPE[dtype]), np.array(-1, NUMPY_DTYPE[dtype])])
    assert (result.astype(np.float32) == 128).all()


@pytest.mark.parametrize("dims", [(31, 1024), (64, 513), (127, 640), (128, 640), (129, 640), (2, 4096)], ids=str)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_extremes_over_leading_dims_with_special_values(dims: tuple[int, int], dtype: Any) -> None:
    """What is one on each partition changes places with them: as bit patterns, whatever it is. NumPy is the oracle, for
    jaxlib's CPU client drops NaNs."""
    random = np.random.default_rng(sum(dims))
    x = random.standard_normal(dims).astype(np.float32)
    for value in (np.nan, np.inf, -np.inf, -0.0):
        x[tuple(random.integers(0, size) for size in dims)] = value
    given = np.asarray(jnp.asarray(x, dtype))
    found = compile_text(text_of(lambda x: (jnp.max(x, 0), jnp.min(x * 2, 0)), given)).run([given])
    wide = given.astype(np.float32)
    for each, want in zip(found, (wide.max(0), wide.min(0) * 2), strict=True):
        np.testing.assert_array_equal(np.asarray(each, np.float32), want)


def test_extremes_over_leading_dims_take_hardly_longer_than_sums() -> None:
    """Before, 3.1 times: Vector transposed them square by square."""
    x = jax.ShapeDtypeStruct((128, 6144), jnp.float32)

    def time(function: Any) -> float:
        return neuronx_cc.compile(jax.jit(function).lower(x)).run([], timing_only=True).report.kernel_ns

    assert time(lambda x: jnp.max(x, 0)) < 2.7 * time(lambda x: jnp.sum(x, 0))


@pytest.mark.parametrize("seed", range(16))
def test_a_last_block_of_other_rows(seed: int) -> None:
    """Means of images whose count leaves fewer for the last block, which then folds its partitions in another way."""
    draw = random_.Random(seed)
    images, side, features = draw.choice((5, 7, 11, 13, 37)), draw.choice((19, 23, 31)), draw.choice((19, 32, 77, 128))
    x = np.random.default_rng(seed).standard_normal((images, side, side, features)).astype(np.float32)
    if draw.random() < 0.5:
        check_function(lambda x: x.mean((1, 2)), x)
    else:
        check_function(lambda x: x.astype(jnp.bfloat16).max((1, 2)), x)
