"""``--int64 exact``: what 64-bit integers give has jaxlib's bits; ``truncate``: what fits 32 bits does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text
from int64_programs import S64, U64, check_exact, floats, integers, lowered, random_program
from jax import lax
from xla_oracle import run_text

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names

BOTH = pytest.mark.parametrize("dtype", [S64, U64], ids=str)
ARITHMETIC = (jnp.add, jnp.subtract, jnp.multiply, lax.div, lax.rem, jnp.maximum, jnp.minimum)
BITWISE = (jnp.bitwise_and, jnp.bitwise_or, jnp.bitwise_xor)
SHIFTS = (lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic)
NARROW = (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.bool_, np.float32, jnp.bfloat16, np.float16)


@BOTH
def test_arithmetic(dtype):
    x, y = (integers(dtype, (4, 33), seed) for seed in (1, 2))
    check_exact(lambda x, y: [op(x, y) for op in (*ARITHMETIC, *BITWISE)], x, y)
    compared = (jnp.less, jnp.less_equal, jnp.greater, jnp.greater_equal, jnp.equal, jnp.not_equal)
    check_exact(lambda x, y: [op(x, y) for op in compared], x, np.where(x % 3 == 0, x, y))
    unary = (jnp.negative, jnp.bitwise_not, jnp.sign, lax.population_count, lax.clz, jnp.square)
    check_exact(lambda x: [*(op(x) for op in unary), x < 0, jnp.clip(x, 5, 2**40), x**3], x)


@BOTH
def test_shifts(dtype):
    x, by = integers(dtype, (4, 33), 3), (integers(dtype, (4, 33), 4) % 70).astype(dtype)
    check_exact(lambda x, by: [op(x, by) for op in SHIFTS], x, by)
    constant = [0, 1, 31, 32, 33, 63, 64, 100]
    check_exact(lambda x: [op(x, jnp.full_like(x, count)) for op in SHIFTS for count in constant], x)


@BOTH
def test_conversions(dtype):
    x = integers(dtype, (4, 33), 5)
    check_exact(lambda x: [x.astype(narrow) for narrow in (*NARROW, S64, U64)], x)
    check_exact(lambda x: [lax.convert_element_type(x.astype(narrow), dtype) for narrow in NARROW[:7]], x)
    check_exact(lambda x: [lax.convert_element_type(x.astype(y), dtype) for y in NARROW[7:]], floats((4, 33)))
    check_exact(lambda x: [lax.bitcast_convert_type(x + 1, y) for y in NARROW[:6]], x)


@BOTH
def test_reductions(dtype):
    x = integers(dtype, (5, 37), 6)
    folds = (jnp.sum, jnp.prod, jnp.max, jnp.min, jnp.argmax, jnp.argmin)
    check_exact(lambda x: [fold(x, axis) for fold in folds for axis in (0, 1)], x)
    bits = ((lax.bitwise_and, -1), (lax.bitwise_or, 0), (lax.bitwise_xor, 0))
    check_exact(lambda x: [lax.reduce(x, np.asarray(y).astype(x.dtype), op, (0,)) for op, y in bits], x)
    check_exact(lambda x: [jnp.cumsum(x, 1, dtype=x.dtype), jnp.cumprod(x, 0, dtype=x.dtype), lax.cummax(x, 1)], x)
    zero = np.zeros((), dtype)
    windows = ((lax.add, "SAME"), (lax.max, "VALID"))
    check_exact(lambda x: [lax.reduce_window(x, zero, op, (2, 3), (1, 1), pad) for op, pad in windows], x)


def test_long_sums():
    """More terms than 16-bit digits allow for."""
    check_exact(lambda x: [x.sum(), x.sum(0), x.max(0), x.argmax()], np.full((70001, 2), 2**63 - 1))


@BOTH
def test_sorts(dtype):
    x = integers(dtype, (3, 41), 7)
    check_exact(lambda x: [jnp.sort(x), jnp.argsort(x), jnp.sort(x, descending=True), *lax.top_k(x, 5)], x)
    check_exact(lambda x: [*lax.sort((x % 3, x[:, ::-1], x), num_keys=2), *jnp.unique(x % 5, True, size=6)], x)
    check_exact(lambda x: [jnp.searchsorted(jnp.sort(x[0]), x[1])], x)


@BOTH
def test_indices(dtype):
    """Tables and places of 64 bits; places beyond the table are clamped, skipped or filled in."""
    x, at = integers(dtype, (6, 7), 8), integers(S64, (9,), 9)
    check_exact(lambda x, at: [jnp.take(x, at, 0, mode=mode) for mode in ("clip", "fill", "wrap")], x, at)
    rows = np.array([2, 2, 5, -7, 2**32 + 1, 0, -1, 2**40, -(2**63)])
    check_exact(lambda x, at: [x.at[at].set(7), x.at[at].add(2**40 + 1), x.at[at].max(2**50)], x, rows)
    check_exact(lambda x, at: [x.at[at % 3].multiply(2**30 + 1), x.at[at % 3].min(2**20)], x, rows)
    check_exact(lambda x, at: [lax.dynamic_slice(x, (at[4], at[6]), (2, 3)), x[at[3] % 6]], x, rows)
    check_exact(lambda x, at: lax.dynamic_update_slice(x, x[:1] * 5, (at[5], at[7])), x, rows)


@BOTH
def test_gradients_of_pooling(dtype):
    text = """HloModule m
ge { a = s64[] parameter(0) b = s64[] parameter(1) ROOT r = pred[] compare(a, b), direction=GE }
add { a = s64[] parameter(0) b = s64[] parameter(1) ROOT r = s64[] add(a, b) }
ENTRY main {
  x = s64[9,11] parameter(0)
  s = s64[5,6] parameter(1)
  i = s64[] parameter(2)
  ROOT r = s64[9,11] select-and-scatter(x, s, i), window={size=3x2 stride=2x2 pad=1_1x0_1}, select=ge, scatter=add
}
""".replace("s64", "s64" if dtype == S64 else "u64")
    distinct = np.random.default_rng(14).permutation(99).reshape(9, 11).astype(dtype) * dtype.type(2**56 + 12345)
    inputs = distinct, integers(dtype, (5, 6), 15), integers(dtype, (), 16)
    (got,), (want,) = compile_text(text, int64="exact").run(inputs), run_text(text, inputs)
    np.testing.assert_array_equal(got, want)


def test_contractions():
    x, y = integers(S64, (5, 300), 10), integers(S64, (300, 3), 11)
    check_exact(lambda x, y: [x @ y, x.astype(np.int8).astype(S64) @ y, x[0] @ x[1]], x, y)
    check_exact(lambda x, y: jnp.einsum("ij,kj->ik", x.astype(U64), y.T.astype(U64)), x, y)


@BOTH
def test_control_flow(dtype):
    x = integers(dtype, (4, 9), 12)
    big = np.asarray(2**40, dtype)
    check_exact(lambda x: lax.scan(lambda c, row: (c * 3 + row, c ^ row), x[0], x), x)
    check_exact(lambda x: lax.fori_loop(0, 5, lambda i, c: c * 3 + i.astype(c.dtype) * big, x), x)
    check_exact(lambda x: lax.cond(x[0, 0] > x[0, 1], lambda y: y * 2, lambda y: y - big, x), x)

    def halved(state):
        return state[0] + 1, state[1] // 7

    check_exact(lambda x: lax.while_loop(lambda c: jnp.any(c[1] > 2**20), halved, (0, jnp.abs(x.astype(S64) >> 1))), x)


def test_random_bits():
    key = np.array([1, 2], np.uint32)
    check_exact(lambda k: [jax.random.bits(k, (33,), U64), jax.random.randint(k, (9,), -(2**60), 2**60, S64)], key)
    state = np.array([1, 2**63 + 5], U64)
    check_exact(lambda s: [*lax.rng_bit_generator(s, (9,), U64), *lax.rng_bit_generator(s, (9,), np.uint32)], state)
    check_exact(lambda k: [jax.random.permutation(k, 40), jax.random.randint(k, (40,), 0, 10)], key)


def test_boundaries():
    """What is neither computed nor read stays as it is; scalars, empty arrays and constants are 64 bits wide."""
    x = integers(S64, (3, 5), 13)
    check_exact(lambda x: [x, x.T, x[1:], x.reshape(5, 3), jnp.array([2**40, -1]), x[:0], jnp.int64(-(2**63))], x)
    check_exact(lambda x: x * 2**33 + 5, np.int64(12345678901))


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    check_exact(*random_program(seed))


CASTS = ("bf16", "fp16", "fp8_e4m3")
"""FP32 is cast to these; integers are not FP32, whatever they are computed with."""


@BOTH
@pytest.mark.parametrize("kind", CASTS)
def test_casts_of_floats_change_no_integer(dtype, kind):
    x, y = (integers(dtype, (4, 33), seed) for seed in (7, 8))
    options = {"auto_cast": "all", "auto_cast_type": kind}
    check_exact(lambda x, y: [op(x, y) for op in (lax.div, lax.rem, jnp.power)], x, y % 1000, **options)
    check_exact(lambda x: [lax.convert_element_type(x, dtype)], floats((4, 33)), **options)
    check_exact(lambda x: [x.astype(np.float32) * 0.5], x % 8, **options)


@pytest.mark.parametrize("seed", range(300, 306))
def test_random_programs_whose_floats_are_cast(seed):
    check_exact(*random_program(seed), auto_cast="all", auto_cast_type=CASTS[seed % 3])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_larger_random_programs(seed):
    check_exact(*random_program(seed, 14))


# truncate


def warnings(function, *inputs):
    context = PassContext(PassOptions(auto_cast="none", int64="truncate"))
    run_passes(parse_text(lowered(function, *inputs)), pass_names(DEFAULT_PIPELINE), context)
    return [warning.message for warning in context.warnings]


@BOTH
def test_truncated_values_that_fit(dtype):
    """Counts of bits are those of 64 bits, and what fits is right."""
    low = 0 if dtype == U64 else -(2**31)
    x = np.random.default_rng(0).integers(low, low + 2**31, (4, 33)).astype(dtype)
    x[0, :3] = low, low + 2**31 - 1, 1
    check_exact(lambda x: [lax.population_count(x), lax.clz(x), x // 3, x % 7, x >> 3, x < 5], x, int64="truncate")
    check_exact(lambda x: [jnp.sort(x), x.max(0), x.argmax(0), jnp.clip(x, 3, 2**40)], x, int64="truncate")
    check_exact(lambda x: [lax.shift_right_logical(x, jnp.full_like(x, 40)), x.astype(np.float32)], x, int64="truncate")


def test_truncate_warns_where_values_may_leave():
    x = np.arange(8)
    assert [text.split(" (")[0] for text in warnings(lambda x: x * 2**33 + 5, x)] == [
        "multiply on s64 may leave the range of s32",
        "add on s64 may leave the range of s32",
        "64-bit integer inputs are truncated to 32 bits: x.1",
        "s64 constant 8589934592 does not fit 32 bits and wraps",
    ]
    assert any(
        "u64 constant" in text
        for text in warnings(lambda x: x.astype(U64) ^ np.uint64(2**40), np.arange(8, dtype=np.uint32))
    )


def sliced(x):
    return lax.fori_loop(0, 6, lambda i, c: c + lax.dynamic_slice_in_dim(x, (i * 3 + 1) % 5, 2), jnp.zeros(2, x.dtype))


def picked(x):
    at = jnp.clip(x.astype(np.int32), 0, 7).astype(S64)
    return x[at] + x[-1] + x[jnp.arange(8) * 100 % 8] + x[jnp.argmax(x)]


def counted(x):
    def step(state):
        return state[0] + 1, state[1] + state[0], state[2] * 0.5

    return lax.while_loop(lambda state: state[0] < 100, step, (0, 0, x))


@pytest.mark.parametrize("function", [sliced, picked, counted, lambda x: lax.scan(lambda c, y: (c + y, c), x[0], x)])
def test_truncate_is_silent_where_values_fit(function):
    assert warnings(function, np.ones(8, np.float32)) == []


def test_counters_cost_nothing():
    """What fits 32 bits is computed in 32 bits by ``exact``, too: the programs are the same."""
    text = lowered(sliced, np.ones(8, np.float32))
    exact, truncated = (compile_text(text, int64=mode) for mode in ("exact", "truncate"))
    assert len(exact.program.records) == len(truncated.program.records)
