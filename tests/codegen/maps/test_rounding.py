"""Floats as integers: what is rounded, or whole, is converted by the instruction that makes it, not by GpSimd."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, text_of

import neuronx_cc
from neuronx_cc.ir.isa.program import Stream

SPECIAL = [
    np.nan,
    np.inf,
    -np.inf,
    1e30,
    -1e30,
    0.5,
    1.5,
    2.5,
    -0.5,
    -1.5,
    -0.0,
    127.5,
    -128.5,
    254.5,
    255.5,
    2**23 + 1,
]


def numbers(dtype, rows=130, columns=300):
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, columns)) * random.choice([1, 100, 1e4], (rows, 1))
    x[:, : len(SPECIAL)] = SPECIAL
    x[: rows // 2] = np.round(x[: rows // 2] * 2) / 2  # ties
    return x.astype(dtype)


def by_rows(x):
    scale = jnp.abs(jnp.nan_to_num(x)).max(-1, keepdims=True) / 127
    return jnp.clip(jnp.round(x / scale), -128, 127).astype(jnp.int8), scale


def with_zero_point(x):
    y = jnp.nan_to_num(x).astype(jnp.float32)
    low, high = y.min(-1, keepdims=True), y.max(-1, keepdims=True)
    scale = (high - low) / 255
    zero = jnp.round(-low / scale)
    return jnp.clip(jnp.round(y / scale) + zero, 0, 255).astype(jnp.uint8), scale, zero


FORMS = {
    "round": lambda x: jnp.round(x).astype(jnp.int32),
    "product": lambda x: jnp.round(x * 1.5).astype(jnp.int16),
    "clip": lambda x: jnp.clip(jnp.round(x * 11.3), -128, 127).astype(jnp.int8),
    "clamp": lambda x: jax.lax.clamp(jnp.asarray(-7, x.dtype), jnp.round(x), jnp.asarray(8, x.dtype)).astype(jnp.int8),
    "fractions": lambda x: jnp.clip(jnp.round(x), -7.5, 7.5).astype(jnp.int8),
    "unsigned": lambda x: jnp.clip(jnp.round(x * x), 0, 255).astype(jnp.uint8),
    "floor": lambda x: jnp.floor(x * 3).astype(jnp.int32),
    "whole": lambda x: (jnp.floor(x) * 2 + jnp.sign(x) - 1).astype(jnp.int16),
    "cut off": lambda x: (x * 3).astype(jnp.int32),
    "read twice": lambda x: (jnp.round(x).astype(jnp.int8), jnp.round(x) * 2),
    "divided": lambda x: jnp.clip(jnp.round(x / 3), -128, 127).astype(jnp.int8),
    "by rows": by_rows,
    "zero point": with_zero_point,
}


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("form", FORMS)
def test_values(form, dtype):
    if dtype is np.float16 and form in ("divided", "by rows"):
        pytest.skip("jaxlib multiplies by inverses of constants in FP16")
    check_function(FORMS[form], numbers(dtype))


@pytest.mark.parametrize("form", ["round", "product", "clip", "clamp", "unsigned", "divided", "by rows"])
def test_gpsimd_has_nothing_to_do(form):
    compiled = neuronx_cc.compile(text_of(FORMS[form], numbers(np.float32)), auto_cast="none")
    works = [record for record in compiled.program.records if getattr(record, "stream", None) is Stream.GPSIMD]
    assert [record.op for record in works if record.op in ("convert", "program_unary")] == []


def test_contractions_that_are_quantised():
    """As their sums leave PSUM."""

    def function(x, w):
        return jnp.clip(jnp.round(x @ w), -128, 127).astype(jnp.int8), jnp.round((x @ w) * 0.25).astype(jnp.int32)

    random = np.random.default_rng(1)
    x, w = (random.integers(-4, 5, dims).astype(np.float32) / 2 for dims in ((70, 64), (64, 200)))
    check_function(function, x, w)


@pytest.mark.parametrize("scale", [1e-3, 0.02, 1.0, 240.0, 448.0])
def test_eight_bit_floats(scale):
    """Codes of f8e4m3fn come of casts to the core's f8e4m3."""
    random = np.random.default_rng(2)
    x = (random.uniform(-1.1, 1.1, (64, 1000)) * scale).astype(np.float32)
    codes = np.arange(256, dtype=np.uint8).view(jnp.float8_e4m3fn).astype(np.float32)
    exact = np.sort(codes[np.isfinite(codes)])
    ties = (exact[1:] + exact[:-1]) / 2
    x[0] = np.resize(np.concatenate([exact, ties]), 1000)
    x[1] = np.resize(np.nextafter(ties, np.float32(1e9)), 1000)
    x[2] = np.resize(np.nextafter(ties, np.float32(-1e9)), 1000)
    x[3, :8] = np.inf, -np.inf, np.nan, 463.99, 464, 464.01, -480, 1e30
    check_function(lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32), x)
