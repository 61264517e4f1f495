"""8-bit operands of contractions: exact against NumPy in every place and size, and as quick as the DMA brings them."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from contraction_cases import machine_of
from generated import TRN1, compile_text, text_of

import neuronx_cc
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import NUMPY_DTYPE

Array = np.ndarray[Any, Any]
SIZES = ((1, 1, 1), (1, 131, 257), (3, 130, 1), (7, 641, 1031), (128, 257, 96), (130, 1024, 520), (2, 5000, 300))


def contraction(m: int, k: int, n: int, weights: str, other: str, form: str) -> str:
    """HLO text of ``x w`` with w cast to the type of x; ``form``: ``wx`` has the weights on the left, ``t``
    transposed.
    """
    w, at = f"{n},{k}" if "t" in form else f"{k},{n}", int("t" in form)
    dot = f"f32[{m},{n}] dot(x, wide), lhs_contracting_dims={{1}}, rhs_contracting_dims={{{at}}}"
    if "w" in form:
        dot = f"f32[{n},{m}] dot(wide, x), lhs_contracting_dims={{{at}}}, rhs_contracting_dims={{1}}"
    return f"""HloModule eight
ENTRY main {{
  x = {other}[{m},{k}] parameter(0)
  w = {weights}[{w}] parameter(1)
  wide = {other}[{w}] convert(w)
  ROOT dot = {dot}
}}"""


def whole_numbers(random: np.random.Generator, dtype: str, *dims: int) -> Array:
    """Numbers that ``dtype`` holds and whose products FP32 adds without rounding."""
    if dtype in ("s8", "u8"):
        limits = np.iinfo(NUMPY_DTYPE[dtype])
        return random.integers(limits.min, limits.max + 1, dims).astype(NUMPY_DTYPE[dtype])
    return (random.integers(-14, 15, dims) / 4).astype(np.float32).astype(NUMPY_DTYPE[dtype])


def check(m: int, k: int, n: int, weights: str, other: str, form: str) -> None:
    random = np.random.default_rng(m + 7 * k + 11 * n)
    x, w = whole_numbers(random, other, m, k), whole_numbers(random, weights, k, n)
    want = x.astype(np.float64) @ w.astype(np.float64)
    given = [x, np.ascontiguousarray(w.T) if "t" in form else w]
    (result,) = compile_text(contraction(m, k, n, weights, other, form)).run(given)
    np.testing.assert_array_equal(result, want.T if "w" in form else want)


@pytest.mark.parametrize("form", ["", "t", "w", "wt"])
@pytest.mark.parametrize("other", ["bf16", "f32", "f16"])
@pytest.mark.parametrize("weights", ["s8", "u8", "f8e4m3", "f8e5m2", "f8e4m3fn"])
def test_values(weights: str, other: str, form: str) -> None:
    for m, k, n in SIZES:
        check(m, k, n, weights, other, form)


@pytest.mark.parametrize("room", [1.0, 0.4, 0.15])
@pytest.mark.parametrize("other", ["bf16", "f32"])
@pytest.mark.parametrize("weights", ["s8", "u8", "f8e4m3", "f8e4m3fn", "bf16"])
def test_blocks_of_rows_that_are_transposed(weights: str, other: str, room: float) -> None:
    """Rows that the DMA casts in part are converted before others are transposed, and sums of one block are made while
    the next one is, in straight-line code and in loops."""
    random = np.random.default_rng(0)
    for m, k, n in ((1, 512, 2600), (16, 1000, 1537), (33, 300, 5000), (129, 260, 1200)):
        x, w = whole_numbers(random, other, m, k), whole_numbers(random, weights, n, k)
        program = compile_text(contraction(m, k, n, weights, other, "t"), machine_of(room))
        np.testing.assert_array_equal(program.run([x, w])[0], x.astype(np.float64) @ w.astype(np.float64).T)


@pytest.mark.parametrize("columns", [9000, 12_288, 16_385])
@pytest.mark.parametrize("weights", ["s8", "f8e5m2", "f8e4m3fn", "bf16"])
def test_many_columns(weights: str, columns: int) -> None:
    """Blocks of columns in a loop, each with several banks of sums."""
    check(2, 1024, columns, weights, "bf16", "")


@pytest.mark.parametrize("dtype", ["s8", "bf16"])
def test_batches(dtype: str) -> None:
    """The next batch index's rows are staged where those of the one before wait to be multiplied."""
    random = np.random.default_rng(0)
    x, w = whole_numbers(random, "bf16", 3, 2, 1100), whole_numbers(random, dtype, 3, 1100, 40)
    text = f"""HloModule batches
ENTRY main {{
  x = bf16[3,2,1100] parameter(0)
  w = {dtype}[3,1100,40] parameter(1)
  wide = bf16[3,1100,40] convert(w)
  ROOT dot = f32[3,2,40] dot(x, wide), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, lhs_contracting_dims={{2}}, rhs_contracting_dims={{1}}
}}"""  # noqa: E501
    (result,) = compile_text(text).run([x, w])
    np.testing.assert_array_equal(result, x.astype(np.float64) @ w.astype(np.float64))


def test_many_terms() -> None:
    """Blocks of k in a loop."""
    check(2, 30_000, 96, "s8", "bf16", "")
    check(130, 30_000, 600, "f8e4m3", "bf16", "t")


@pytest.mark.parametrize("weights", ["s8", "f8e4m3", "f8e4m3fn"])
def test_without_transposes_of_values(weights: str) -> None:
    """TensorE turns the parts of bit patterns then."""
    random = np.random.default_rng(0)
    x, w = whole_numbers(random, "bf16", 5, 200), whole_numbers(random, weights, 140, 200)
    text = contraction(5, 200, 140, weights, "bf16", "t")
    (result,) = compile_text(text, fast_relayout=False).run([x, w])
    np.testing.assert_array_equal(result, x.astype(np.float64) @ w.astype(np.float64).T)


def test_not_finite() -> None:
    """Infinities and NaN of weights that TensorE takes as they are."""
    x = np.ones((2, 130), ml_dtypes.bfloat16)
    w = np.ones((130, 3), ml_dtypes.float8_e4m3)
    w[129, 1], w[5, 2] = np.inf, np.nan
    (result,) = compile_text(contraction(2, 130, 3, "f8e4m3", "bf16", "")).run([x, w])
    np.testing.assert_array_equal(result, x.astype(np.float32) @ w.astype(np.float32))


def every_code(k: int, n: int) -> Array:
    """Every code of f8e4m3fn but the NaNs, in all places in turn."""
    codes = np.arange(254, dtype=np.uint8)
    codes += codes >= 0x7F
    return np.resize(codes, k * n).reshape(k, n).view(ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize("form", ["", "t", "w", "wt"])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (1, 127, 511), (3, 513, 130), (2, 4096, 2049), (129, 1031, 512)])
def test_codes_that_are_not_nan(m: int, k: int, n: int, form: str) -> None:
    """A run looks at parameters; those with NaNs are for another program, which a file has not."""
    x, w = np.ones((m, k), ml_dtypes.bfloat16), every_code(k, n)
    given = np.ascontiguousarray(w.T) if "t" in form else w
    program = neuronx_cc.compile(contraction(m, k, n, "f8e4m3fn", "bf16", form), auto_cast="none", fast_relayout=False)
    (result,) = program.run([x, given]).outputs
    want = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_array_equal(result, want.T if "w" in form else want)
    given = given.copy()
    given.view(np.uint8)[-1, -1] |= 0x7F
    with pytest.warns(RuntimeWarning, match=r"input 1 \(w\) has codes that are NaN"):
        (result,) = program.run([x, given]).outputs
    want[:, -1] = np.nan
    np.testing.assert_array_equal(result, want.T if "w" in form else want)


def test_a_program_of_a_file_refuses_nan_codes(tmp_path: Path) -> None:
    """``--nan-codes`` is for parameters that may have some."""
    x, w, text = (
        np.ones((2, 64), ml_dtypes.bfloat16),
        every_code(64, 32),
        contraction(2, 64, 32, "f8e4m3fn", "bf16", ""),
    )
    x[:, 3], w[3, 5] = 0, np.nan
    path = tmp_path / "product.neff"
    neuronx_cc.compile(text, auto_cast="none", output=path)
    with pytest.raises(RunError, match=r"ERUN906.*input 1 \(w\).*--nan-codes"):
        neuronx_cc.load(path).run([x, w])
    neuronx_cc.compile(text, auto_cast="none", nan_codes=True, output=path)
    (result,) = neuronx_cc.load(path).run([x, w]).outputs
    np.testing.assert_array_equal(result, x.astype(np.float64) @ w.astype(np.float64))


@pytest.mark.parametrize("dtype", ["s8", "f8e4m3", "f8e4m3fn"])
def test_layers_under_scan(dtype: str) -> None:
    """The weights of a layer are a window of a parameter: loaded as stored, and without NaNs where that has none."""
    random = np.random.default_rng(0)
    x, ws = whole_numbers(random, "bf16", 2, 256), np.stack([whole_numbers(random, dtype, 256, 256) for _ in range(5)])
    ws = (ws.astype(np.float32) / 2).astype(ws.dtype) if dtype != "s8" else ws

    def model(x: Any, ws: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            sums = jnp.dot(x, w.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
            return jnp.clip(jnp.floor(sums / 16), -8, 8).astype(jnp.bfloat16), sums

        return jax.lax.scan(layer, x, ws)[1]

    program = neuronx_cc.compile(jax.jit(model), x, ws, auto_cast="none", fast_relayout=False)
    assert [each.defined for each in program.program.variables if each.kind == "input"] == [False, dtype == "f8e4m3fn"]
    np.testing.assert_array_equal(program(x, ws)[0], model(x, ws))
    if dtype == "f8e4m3fn":
        ws[3, 7, 8] = np.nan
        with pytest.warns(RuntimeWarning, match="has codes that are NaN"):
            np.testing.assert_array_equal(program(x, ws)[0], model(x, ws))


def test_only_codes_that_the_program_relies_on_are_looked_at() -> None:
    """Those of what it computes, and of parameters that no contraction reads, may be NaN."""
    text = """HloModule reads
ENTRY main {
  x = bf16[4,64] parameter(0)
  w = f8e4m3fn[64,32] parameter(1)
  v = f8e4m3fn[64,32] parameter(2)
  wide = bf16[64,32] convert(w)
  first = f32[4,32] dot(x, wide), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  halves = f32[64,32] convert(v)
  two = f32[] constant(2)
  twos = f32[64,32] broadcast(two), dimensions={}
  more = f32[64,32] multiply(halves, twos)
  again = f8e4m3fn[64,32] convert(more)
  code = bf16[64,32] convert(again)
  second = f32[4,32] dot(x, code), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT both = (f32[4,32], f32[4,32]) tuple(first, second)
}"""
    x, w, v = np.ones((4, 64), ml_dtypes.bfloat16), every_code(64, 32), np.ones((64, 32), ml_dtypes.float8_e4m3fn)
    v[5, 7] = np.nan
    program = neuronx_cc.compile(text, auto_cast="none", fast_relayout=False)
    first, second = program.run([x, w, v]).outputs
    np.testing.assert_array_equal(first, x.astype(np.float64) @ w.astype(np.float64))
    np.testing.assert_array_equal(second, x.astype(np.float64) @ (2 * v.astype(np.float64)))


@pytest.mark.parametrize("form", ["", "t", "w", "wt"])
@pytest.mark.parametrize("other", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("weights", ["s8", "u8", "f8e4m3", "f8e5m2", "f8e4m3fn", "f8e4m3fnuz"])
def test_every_code(weights: str, other: str, form: str) -> None:
    """Each of the 256, alone in its column: its value, and no infinity or NaN anywhere else."""
    codes = np.arange(256, dtype=np.uint8).view(NUMPY_DTYPE[weights])
    w = np.zeros((150, 256), NUMPY_DTYPE[weights])
    w[np.arange(256) % 150, np.arange(256)] = codes
    x = np.ones((2, 150), NUMPY_DTYPE[other])
    with np.errstate(invalid="ignore"):
        want = codes.astype(NUMPY_DTYPE[other]).astype(np.float32)[None].repeat(2, 0)
    finite = np.isfinite(want[0])
    if "t" in form:  # TensorE transposes values, and what is not finite spreads
        w[:, ~finite], want[:, ~finite] = 0, 0
    (result,) = compile_text(contraction(2, 150, 256, weights, other, form)).run([x, w.T.copy() if "t" in form else w])
    np.testing.assert_array_equal(result.T if "w" in form else result, want)


@pytest.mark.parametrize("form", ["", "t", "w", "wt"])
def test_nan_among_decoded_codes(form: str) -> None:
    """They are NaN beside zeros, too, on both sides, and where blocks of k are added up."""
    random = np.random.default_rng(0)
    for m, k, n in ((2, 150, 7), (3, 1300, 2100), (130, 257, 40)):
        x, w = whole_numbers(random, "f8e4m3fn", m, k), whole_numbers(random, "f8e4m3fn", k, n)
        x[m - 1, k // 2], w[k - 1, n - 1], w[0, 0] = np.nan, np.nan, -np.float32(np.nan)
        x[:, k - 1] = 0
        text = contraction(m, k, n, "f8e4m3fn", "bf16", form).replace(f"x = bf16[{m},{k}]", f"c = f8e4m3fn[{m},{k}]")
        text = text.replace("parameter(0)", f"parameter(0)\n  x = bf16[{m},{k}] convert(c)", 1)
        (result,) = compile_text(text).run([x, w.T.copy() if "t" in form else w])
        want = x.astype(np.float64) @ w.astype(np.float64)
        np.testing.assert_array_equal(result.T if "w" in form else result, want)


@pytest.mark.parametrize("most", [240.0, 448.0])
def test_constants_of_codes(most: float) -> None:
    """Where no code needs the highest exponent, TensorE takes the bytes."""
    random = np.random.default_rng(0)
    w = random.integers(-14, 15, (140, 30)).astype(ml_dtypes.float8_e4m3fn)
    w[3, 4] = most
    x = whole_numbers(random, "bf16", 3, 140)

    def product(x: Any) -> Any:
        return jnp.dot(x, jnp.asarray(w).astype(jnp.bfloat16), preferred_element_type=jnp.float32)

    (result,) = compile_text(text_of(product, x)).run([x])
    np.testing.assert_array_equal(result, x.astype(np.float64) @ w.astype(np.float64))


@pytest.mark.parametrize("nan", [False, True])
def test_constants_are_decoded_by_all_engines(nan: bool) -> None:
    """The DMA casts a part of the codes; which may be NaN is known."""
    random = np.random.default_rng(1)
    for m, k, n in ((1, 257, 1031), (3, 1024, 2048), (130, 130, 96), (2, 5, 3), (1, 128, 1)):
        codes = random.integers(0, 256, (k, n)).astype(np.uint8)
        codes[codes & 0x7F == 0x7F] ^= 1
        codes.reshape(-1)[:2] = 0x7E, 0xFE
        if nan:
            codes[k - 1, n - 1] = 0xFF
        w, x = codes.view(ml_dtypes.float8_e4m3fn), np.zeros((m, k), ml_dtypes.bfloat16)
        x[np.arange(m), random.integers(0, k, m)] = 0.5  # one product a row: exact

        def product(x: Any, w: Any = w) -> Any:
            return jnp.dot(x, jnp.asarray(w).astype(jnp.bfloat16), preferred_element_type=jnp.float32)

        (result,) = compile_text(text_of(product, x)).run([x])
        np.testing.assert_array_equal(result, x.astype(np.float32) @ w.astype(np.float32))


@pytest.mark.parametrize("opcode", ["add", "multiply"])
@pytest.mark.parametrize("dims", ["n", "m", "mn", ""])
def test_decoded_sums_are_combined(dims: str, opcode: str) -> None:
    """What is added to sums is no smaller than they are."""
    random = np.random.default_rng(0)
    for m, k, n in ((1, 300, 200), (5, 128, 1030), (129, 2600, 90)):
        x, w = whole_numbers(random, "bf16", m, k), whole_numbers(random, "f8e4m3fn", k, n)
        s = (2.0 ** random.integers(-2, 3, [{"m": m, "n": n}[dim] for dim in dims])).astype(np.float32)

        def function(x: Any, w: Any, s: Any) -> Any:
            dot = jnp.dot(x, w.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
            spread = s[:, None] if dims == "m" else s
            return dot * spread if opcode == "multiply" else dot + spread

        (result,) = compile_text(text_of(function, x, w, s)).run([x, w, s])
        dot, spread = x.astype(np.float64) @ w.astype(np.float64), s[:, None] if dims == "m" else s
        np.testing.assert_array_equal(result, dot * spread if opcode == "multiply" else dot + spread)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["s8", "f8e4m3", "f8e5m2", "f8e4m3fn"])
def test_decoding_is_bound_by_the_dma(weights: str) -> None:
    """One vector times a large matrix: at most 1.3 times the transfer of its 8 bits, start and end included."""
    size = 4096
    random = np.random.default_rng(0)
    x, w = whole_numbers(random, "bf16", 1, size), whole_numbers(random, weights, size, size)
    text = contraction(1, size, size, weights, "bf16", "").replace("ROOT dot", "dot").removesuffix("}")
    text += f"""  s = f32[{size}] parameter(2)
  row = f32[1,{size}] reshape(s)
  ROOT scaled = f32[1,{size}] multiply(dot, row)
}}"""
    scales = (2.0 ** random.integers(-3, 4, size)).astype(np.float32)
    result = neuronx_cc.compile(text, auto_cast="none").run([x, w, scales])
    np.testing.assert_array_equal(result.outputs[0], x.astype(np.float64) @ w.astype(np.float64) * scales)
    ends = result.report.time_ns - result.report.kernel_ns
    assert result.report.time_ns <= 1.3 * (ends + size * size / Timing(TRN1).dma_rate)


def test_conversions_of_many_columns_wait_for_nothing() -> None:
    """What is loaded next comes while both engines are at other blocks, or at sums that leave on one partition."""
    terms, columns = 1024, 32_000
    text = contraction(1, terms, columns, "s8", "bf16", "").replace("ROOT dot", "dot").removesuffix("}")
    text += f"""  s = f32[{columns}] parameter(2)
  row = f32[1,{columns}] reshape(s)
  ROOT scaled = f32[1,{columns}] multiply(dot, row)
}}"""
    report = neuronx_cc.compile(text, auto_cast="none").run([], timing_only=True).report
    ends = report.time_ns - report.kernel_ns
    assert report.time_ns <= ends + 1.3 * terms * columns / Timing(TRN1).dma_rate
