"""Accuracy of the f32 functions, in units in the last place of the exact value."""

import math

import numpy as np
import pytest

from neuronx_cc.ir.isa import functions

EXACT = {
    "erf": (math.erf, -5, 5, 7),
    "sigmoid": (lambda x: 1 / (1 + math.exp(-x)), -20, 20, 4),
    "softplus": (lambda x: max(x, 0) + math.log1p(math.exp(-abs(x))), -20, 20, 3),
    "exp": (math.exp, -80, 80, 3),
    "log": (math.log, 1e-6, 1e6, 2),
    "tanh": (math.tanh, -9, 9, 3),
    "rsqrt": (lambda x: 1 / math.sqrt(x), 1e-6, 1e6, 2),
    "arctan": (math.atan, -30, 30, 3),
    "sin": (math.sin, -3.14, 3.14, 2),
}


@pytest.mark.parametrize("name", sorted(EXACT))
def test_units_in_the_last_place(name):
    exact, low, high, limit = EXACT[name]
    x = np.random.default_rng(1).uniform(low, high, 20000).astype(np.float32)
    expected = np.array([exact(float(v)) for v in x])
    unit = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    error = np.abs(functions.ACTIVATION[name](x).astype(np.float64) - expected) / unit
    assert error.max() <= limit


@pytest.mark.parametrize("name", sorted(functions.ACTIVATION))
def test_nan_stays_nan(name):
    with np.errstate(all="ignore"):
        assert np.isnan(functions.ACTIVATION[name](np.array([np.nan], np.float32))).all()


@pytest.mark.parametrize(
    ("name", "at_minus_infinity", "at_infinity"),
    [
        ("exp", 0, np.inf),
        ("tanh", -1, 1),
        ("erf", -1, 1),
        ("sigmoid", 0, 1),
        ("silu", np.nan, np.inf),
        ("softplus", 0, np.inf),
        ("relu", 0, np.inf),
        ("gelu", np.nan, np.inf),
        ("gelu_apprx_tanh", np.nan, np.inf),
        ("arctan", -np.pi / 2, np.pi / 2),
    ],
)
def test_infinities(name, at_minus_infinity, at_infinity):
    with np.errstate(all="ignore"):
        got = functions.ACTIVATION[name](np.array([-np.inf, np.inf], np.float32))
    np.testing.assert_allclose(got, [at_minus_infinity, at_infinity], rtol=1e-6)


def test_exact_points():
    x = np.array([0.0], np.float32)
    assert functions.ACTIVATION["exp"](x) == 1
    assert functions.ACTIVATION["erf"](x) == 0
    assert np.signbit(functions.ACTIVATION["sign"](-x))


def test_rounding_of_mantissas():
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-10), np.inf, 0.0], np.float32)
    np.testing.assert_array_equal(
        functions.round_mantissa(x, 10), np.array([1, 1 + 2**-9, -(1 + 2**-10), np.inf, 0], np.float32)
    )
    assert np.isnan(functions.round_mantissa(np.array([np.nan], np.float32), 10))
