"""FP32 times what 16 bits hold: in three parts, exact for whole numbers, and right beside infinities."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, compile_text, text_of

import neuronx_cc
from neuronx_cc.codegen.dots import statement

LITTLE = TRN1.with_settings(["memory.sbuf_partition_bytes=32768"])
KINDS = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "s8": np.int8,
    "u8": np.uint8,
    "f8e4m3": ml_dtypes.float8_e4m3,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
}
FORMS: dict[str, Callable[..., Any]] = {
    "plain": lambda x, w: x @ w.astype(x.dtype),
    "columns": lambda x, w: w.T.astype(x.dtype) @ x.T,
    "on chip": lambda x, w: (x * 2) @ w.astype(x.dtype) + 1,
    "chain": lambda x, w: jnp.maximum(x @ w.astype(x.dtype), 0) @ w.T.astype(x.dtype),
    "batch": lambda x, w: jnp.einsum("bmk,bkn->bmn", jnp.stack([x, -x]), w[None].repeat(2, 0).astype(x.dtype)),
}


@pytest.fixture(autouse=True)
def _split_wherever_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = statement._splits
    monkeypatch.setattr(statement, "_splits", lambda *asked: ways(*asked)[-1:])


def weights(kind: str, *dims: int) -> Any:
    drawn = np.random.default_rng(dims[-1]).integers(-7, 8, dims).astype(np.float32)
    return np.abs(drawn).astype(KINDS[kind]) if kind == "u8" else drawn.astype(KINDS[kind])


def run(form: str, x: Any, w: Any, machine: Any = TRN1) -> tuple[Any, Any]:
    compiled = compile_text(text_of(FORMS[form], x, w), machine)
    assert any(" bf16" in line for line in compiled.program.schedules.values())
    with jax.enable_x64(True), np.errstate(all="ignore"):
        want = FORMS[form](jnp.asarray(x, np.float64), jnp.asarray(w.astype(np.float32)))
    return compiled.run([x, w])[0], np.asarray(want)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "k", "n"), [(1, 128, 256), (3, 129, 130), (16, 300, 128), (130, 127, 513)])
def test_whole_numbers_are_exact(m: int, k: int, n: int, kind: str, form: str) -> None:
    """Of more bits than a part has; sums that are 0 are, and none is above 2^24."""
    most = 3 if form == "chain" else (1 << 24) // (8 * k)
    x = np.random.default_rng(m).integers(-most, most, (m, k)).astype(np.float32)
    w = weights(kind, k, n)
    w[2:] = w[:2][np.arange(k - 2) % 2] if kind != "u8" else w[2:]
    x[:, 1::2] = -x[:, ::2][:, : k // 2] if form == "plain" else x[:, 1::2]
    result, want = run(form, x, w)
    np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("kind", ["bf16", "s8"])
def test_all_bits_of_all_exponents(kind: str) -> None:
    """One of three weights is 1, on either side: each number comes out as it went in."""
    random = np.random.default_rng(5)
    x = random.integers(0, 1 << 32, (3, 200), np.uint64).astype(np.uint32).view(np.float32)
    x[~np.isfinite(x)] = np.finfo(np.float32).max
    x = np.where(np.abs(x) > 2.0**-100, x, np.float32(1.0000001))  # parts of less are denormal
    w = np.eye(200, dtype=np.float32).astype(KINDS[kind])
    for form in ("plain", "columns"):
        result, want = run(form, x, w)
        np.testing.assert_array_equal(result, want.astype(np.float32))


@pytest.mark.parametrize("form", ["plain", "columns", "on chip"])
@pytest.mark.parametrize("kind", ["bf16", "f8e4m3", "s8", "f8e4m3fn"])
@pytest.mark.parametrize("m", [2, 40])
def test_infinities_and_nan(m: int, kind: str, form: str) -> None:
    x, w = np.ones((m, 130), np.float32), np.ones((130, 128), np.float32).astype(KINDS[kind])
    x[0, 3], x[1, 5], x[1, 7], x[m - 1, 0] = np.inf, -np.inf, 0.1, 0
    if kind != "s8":
        w[3, 1] = np.nan
    if kind in ("bf16", "f8e4m3"):
        w[3, 0], w[5, 2], w[5, 3], w[7, 4], w[0, 5] = np.inf, np.inf, -np.inf, np.inf, np.inf
    result, want = run(form, x, w)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(want))
    np.testing.assert_allclose(result, want, rtol=1e-6)


@pytest.mark.parametrize("kind", ["bf16", "s8", "f8e4m3fn"])
def test_little_memory(kind: str) -> None:
    x = np.random.default_rng(0).integers(-999, 999, (300, 1500)).astype(np.float32)
    for form in ("plain", "columns"):
        result, want = run(form, x, weights(kind, 1500, 700), LITTLE)
        np.testing.assert_array_equal(result, want)


def test_few_rows_take_as_long_as_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def time(dtype: Any, kind: str, m: int) -> float:
        x, w = jax.ShapeDtypeStruct((m, 2048), dtype), jax.ShapeDtypeStruct((2048, 4096), KINDS[kind])
        lowered = jax.jit(lambda x, w: x @ w.astype(dtype)).lower(x, w)
        compiled = neuronx_cc.compile(lowered, auto_cast="none")
        return float(compiled.run([], timing_only=True, check_races=False).report.time_ns)

    for kind in ("bf16", "s8", "f8e4m3", "f8e4m3fn"):
        assert time(jnp.float32, kind, 1) < 1.05 * time(jnp.bfloat16, kind, 1)
        assert time(jnp.float32, kind, 8) < 1.3 * time(jnp.bfloat16, kind, 8)


def test_loops_stage_weights_in_8_bits() -> None:
    """Of which a piece at a time is converted."""
    x = np.random.default_rng(0).standard_normal((4, 256), np.float32)

    def function(x: Any, w: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, c: jnp.tanh(c @ w.astype(x.dtype) / 100), x)

    for kind in ("s8", "f8e4m3"):
        w = weights(kind, 256, 256)
        (result,) = compile_text(text_of(function, x, w)).run([x, w])
        np.testing.assert_allclose(result, jax.jit(function)(x, w), atol=1e-5)
