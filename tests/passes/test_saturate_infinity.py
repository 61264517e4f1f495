"""``--enable-saturate-infinity``: what TensorE transposes as values has no infinities."""

import numpy as np
import pytest
from ml_dtypes import bfloat16, finfo, float8_e4m3

import neuronx_cc

TYPES = {"bf16": bfloat16, "f16": np.float16, "f8e4m3": float8_e4m3}


def module(dtype, n):
    return f"""HloModule m
ENTRY main {{
  x = {dtype}[{n},{n}] parameter(0)
  w = {dtype}[{n},8] parameter(1)
  ROOT d = f32[{n},8] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""


def arrays(dtype, n):
    x = np.zeros((n, n), TYPES[dtype])
    x[np.arange(n), np.arange(n)] = 1
    x[0, 1], x[1, 0] = np.inf, -np.inf
    w = np.ones((n, 8), TYPES[dtype])
    w[1, 4:] = 0
    w[0] = 0
    return x, w


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("n", [2, 129])
def test_infinities_become_the_largest_number(dtype, n):
    x, w = arrays(dtype, n)
    largest = float(finfo(TYPES[dtype]).max)
    executable = neuronx_cc.compile(module(dtype, n), auto_cast="none", enable_saturate_infinity=True)
    (result,) = executable(x, w)
    finite = np.clip(x.astype(np.float64), -largest, largest)
    np.testing.assert_allclose(result, finite @ w.astype(np.float64), rtol=1e-6)
    assert np.isfinite(result).all()
    x[0, 1] = np.nan
    assert np.isnan(executable(x, w)[0][0]).all(), "NaNs are no infinities"


def test_without_the_option_they_spread():
    x, w = arrays("bf16", 129)
    (result,) = neuronx_cc.compile(module("bf16", 129), auto_cast="none")(x, w)
    assert np.isnan(result).any()


def test_casts_that_overflow_saturate():
    x = np.full((128, 128), 3.4e38, np.float32)  # rounds to an infinity in bf16
    w = np.zeros((128, 8), np.float32)
    text = module("f32", 128)
    options = {"auto_cast": "matmult", "auto_cast_type": "bf16"}
    np.testing.assert_array_equal(neuronx_cc.compile(text, enable_saturate_infinity=True, **options)(x, w)[0], 0)


@pytest.mark.parametrize("options", [{"fast_relayout": False}, {"auto_cast": "none"}])
def test_nothing_is_clamped_where_bits_move(options):
    text = module("f32", 16)
    plain = neuronx_cc.compile(text, **options).program.records
    asked = neuronx_cc.compile(text, enable_saturate_infinity=True, **options).program.records
    assert len(plain) == len(asked)
