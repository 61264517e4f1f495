"""Products of few rows with 8-bit weights as a grid: every format, order and place, shapes that nothing divides, and
codes that are special. Values are exact."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from eight_bit_texts import product
from generated import compile_text

import neuronx_cc
from neuronx_cc.codegen.dots import conversion, pairs
from neuronx_cc.codegen.dots.problem import Segment
from neuronx_cc.ir.types import NUMPY_DTYPE

Array = np.ndarray[Any, Any]
FORMATS = ("f8e4m3", "f8e5m2", "f8e4m3fn", "s8", "u8")
SHAPES = (
    *((1, 512, 512), (2, 1000, 300), (3, 514, 1031), (16, 1600, 640), (5, 1021, 257), (33, 768, 300), (8, 256, 6000)),
    (1, 6, 700),
)
"""Rows, terms and columns: odd ones, halves of which are odd, one block of columns and loops."""
FEW = ((3, 514, 700), (1, 1021, 257), (16, 1600, 640))
ONES = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}


def small(random: np.random.Generator, dtype: str, *dims: int) -> Array:
    """Numbers whose products with whole ones FP32 adds without rounding, minus zero among the floats."""
    if dtype in ("s8", "u8"):
        limits = np.iinfo(NUMPY_DTYPE[dtype])
        return random.integers(limits.min, limits.max + 1, dims).astype(NUMPY_DTYPE[dtype])
    numbers = (random.integers(-14, 15, dims) / 4).astype(np.float32)
    numbers[random.random(dims) < 0.1] = -0.0
    return numbers.astype(NUMPY_DTYPE[dtype])


def every_code(dtype: str, k: int, n: int) -> Array:
    """All codes that are numbers, in all places in turn: subnormals, the largest ones, minus zero."""
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(NUMPY_DTYPE[dtype]).astype(np.float32)
    return np.resize(codes[np.isfinite(numbers)], k * n).reshape(k, n).view(NUMPY_DTYPE[dtype])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("other", ["bf16", "f32"])
@pytest.mark.parametrize("weights", FORMATS)
def test_values(weights: str, other: str, turned: bool) -> None:
    for m, k, n in SHAPES:
        random = np.random.default_rng(k + n)
        x, w = random.integers(-3, 4, (m, k)).astype(ONES[other]), small(random, weights, k, n)
        scales = np.exp2(random.integers(-3, 3, n)).astype(np.float32)
        given = [x, np.ascontiguousarray(w.T) if turned else w, scales]
        (result,) = compile_text(product(weights, k, n, m, turned, other)).run(given)
        want = (x.astype(np.float64) @ w.astype(np.float64)) * scales
        np.testing.assert_array_equal(result, want, err_msg=f"{m} {k} {n}")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("other", ["bf16", "f32"])
@pytest.mark.parametrize("weights", FORMATS)
def test_special_codes(weights: str, other: str, turned: bool) -> None:
    """Rows with a single one in them read each code as it is."""
    for m, k, n in FEW:
        w, x = every_code(weights, k, n), np.zeros((m, k), ONES[other])
        x[np.arange(m), (np.arange(m) * 37 + k - 1) % k] = 1
        given = [x, np.ascontiguousarray(w.T) if turned else w, np.ones(n, np.float32)]
        (result,) = neuronx_cc.compile(product(weights, k, n, m, turned, other), auto_cast="none").run(given).outputs
        np.testing.assert_array_equal(result, x.astype(np.float64) @ w.astype(np.float64), err_msg=f"{m} {k} {n}")


@pytest.mark.parametrize("other", ["bf16", "f32"])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 16384, 256), (2, 32768, 130), (3, 19200, 70)])
def test_long_sums(m: int, k: int, n: int, other: str) -> None:
    """Rows come straight to the partitions, as many of their terms to each as there are partitions, and more."""
    random = np.random.default_rng(k)
    given = [random.integers(-1, 2, (m, k)).astype(ONES[other]), small(random, "s8", k, n), np.ones(n, np.float32)]
    program = compile_text(product("s8", k, n, m, other=other))
    assert all("transposed" not in line for line in program.program.schedules.values())
    np.testing.assert_array_equal(program.run(given)[0], given[0].astype(np.float64) @ given[1].astype(np.float64))


@pytest.mark.parametrize("form", ["mk,nk->mn", "nk,mk->nm", "bmk,bnk->bmn", "mk,abnk->mabn"])
@pytest.mark.parametrize("other", ["bf16", "f32"])
def test_pairs_that_are_decoded(other: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes that are transposed two at a time become numbers as they leave PSUM, those of odd terms behind the others:
    one segment of terms and two, blocks of columns that are cut, and both places of the operand."""
    decoded: list[int] = []
    leave = conversion.leave_pairs
    monkeypatch.setattr(conversion, "leave_pairs", lambda *given: decoded.append(given[1]) or leave(*given))
    for m, k, n in ((1, 512, 1300), (3, 514, 700), (16, 1600, 640), (5, 130, 129), (128, 256, 520)):
        sizes = {"m": m, "k": k, "n": n, "b": 2, "a": 2}
        x, w = (tuple(sizes[letter] for letter in part) for part in form.split("->")[0].split(","))
        turned = form.startswith("n")
        random = np.random.default_rng(n)
        codes = every_code("f8e4m3fn", 1, int(np.prod(x if turned else w)))
        numbers = random.integers(-1, 2, w if turned else x).astype(ONES[other])
        given = [numbers, codes.reshape(x if turned else w)][:: -1 if turned else 1]

        def function(x: Any, w: Any) -> Any:
            return jnp.einsum(form, x.astype(ONES[other]), w.astype(ONES[other]), preferred_element_type=jnp.float32)

        (result,) = neuronx_cc.compile(jax.jit(function).lower(*given), auto_cast="none").run(given).outputs
        np.testing.assert_array_equal(result, np.einsum(form, *(each.astype(np.float64) for each in given)), f"{m} {k}")
    assert decoded or form in ("nk,mk->nm", "mk,abnk->mabn")


@pytest.mark.parametrize("other", ["bf16", "f32"])
@pytest.mark.parametrize("code", [0x7F, 0xFF, 0x7C])
@pytest.mark.parametrize("weights", ["f8e4m3", "f8e5m2", "f8e4m3fn"])
def test_not_finite(weights: str, code: int, other: str) -> None:
    """Infinities and NaNs stay in their columns, as the first code of a pair and as the second one."""
    m, k, n = 3, 514, 700
    random = np.random.default_rng(code)
    x, w = np.ones((m, k), ONES[other]), small(random, weights, k, n)
    for row, column in ((0, 5), (1, 6), (513, 699), (512, 131)):
        w.view(np.uint8)[row, column] = code
    w.view(np.uint8)[[1, 0], [5, 6]] = 0x81, 0x01
    given = [x, np.ascontiguousarray(w.T), np.ones(n, np.float32)]
    text = product(weights, k, n, m, True, other)
    (result,) = neuronx_cc.compile(text, auto_cast="none", fast_relayout=False).run(given).outputs
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float64) @ w.astype(np.float32).astype(np.float64)
    np.testing.assert_array_equal(result, want)


def test_infinite_rows() -> None:
    """Parts of rows whose sums are infinite stream beside others."""
    random = np.random.default_rng(0)
    x, w = np.ones((3, 512), np.float32), (random.integers(1, 9, (700, 512)) / 4).astype(ml_dtypes.float8_e4m3)
    x[1, 7], x[2, 8], w[5, 8] = np.inf, -np.inf, 0
    given = [x, w, np.ones(700, np.float32)]
    (result,) = neuronx_cc.compile(product("f8e4m3", 512, 700, 3, True, "f32"), auto_cast="none").run(given).outputs
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(result, x @ w.astype(np.float32).T)


@pytest.mark.parametrize("weights", ["f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("on_left", [False, True])
def test_pairs_are_taken(weights: str, on_left: bool) -> None:
    """Weights with the sum last come so on either side, also beside rows of the same kind of parts."""
    m, k, n = 2, 1024, 2048
    text = product(weights, k, n, m, True)
    if on_left:
        text = text.replace("dot(x, wide)", "dot(wide, x)").replace("sums = f32[2,2048]", "sums = f32[2048,2]")
        text = text.replace("f32[2,2048]", "f32[2048,2]").replace("dimensions={1}", "dimensions={0}")
    program = compile_text(text)
    assert any(f"as pairs of {weights}" in line for line in program.program.schedules.values())
    random = np.random.default_rng(0)
    x, w = random.integers(-3, 4, (m, k)).astype(ml_dtypes.bfloat16), small(random, weights, k, n)
    (result,) = program.run([x, np.ascontiguousarray(w.T), np.ones(n, np.float32)])
    want = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_array_equal(result, want.T if on_left else want)


def test_even_terms_follow_each_other() -> None:
    """Where chunks come one by one, those of even terms have one stride."""
    assert pairs.stay_apart((2048, 2), 0, (Segment(0, 128, 16),))
    assert pairs.stay_apart((128, 16, 2), 0, (Segment(0, 128, 1),))
    assert not pairs.stay_apart((1024, 3, 2), 0, (Segment(0, 128, 8),))
    assert not pairs.stay_apart((3, 2), 1, (Segment(0, 2, 1),))
