"""Immediate values as elements of every type of the instruction set."""

import math

import numpy as np
import pytest

from neuronx_cc.ir.isa.elements import STORAGE, constant

VALUES = (0.0, -1.0, 0.5, 2.5, -1.5, 255.5, -300.75, 1e30, -1e30, math.inf, -math.inf, math.nan, 2.0**63, 2.0**64)
SHORT = [dtype for dtype in STORAGE if STORAGE[dtype].kind in "iu" and STORAGE[dtype].itemsize < 8]


@pytest.mark.parametrize("dtype", sorted(STORAGE))
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.filterwarnings("ignore:overflow")
def test_every_number_is_a_constant_of_every_type(value: float, dtype: str) -> None:
    result = constant(value, dtype)
    assert result.shape == ()
    assert result.dtype == STORAGE[dtype]


@pytest.mark.parametrize("dtype", SHORT)
def test_fractions_saturate_and_round_to_even(dtype: str) -> None:
    info = np.iinfo(STORAGE[dtype])
    for value in (0.5, 1.5, 2.5, 254.5, -0.5, -2.5, 1e9 + 0.5, -1e9 - 0.5):
        assert constant(value, dtype) == min(max(round(value), info.min), info.max)
    assert constant(math.nan, dtype) == 0
