"""What products of a few rows with 8-bit weights take by the clock, so that none gets slower unseen."""

import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.ir.types import NUMPY_DTYPE

MORE = 1.02
"""Times that are right may move by so much."""
SHAPES = ((4096, 4096), (1024, 2816), (2816, 1024), (8192, 1024), (768, 3072))
TIMES = {
    "s8": (89.1, 33.8, 34.2, 61.2, 32.1),
    "f8e4m3": (89.7, 32.7, 33.1, 55.2, 31.0),
    "f8e4m3fn": (152.8, 48.4, 50.7, 89.8, 44.4),
    "f8e4m3fn without NaNs": (102.3, 42.9, 38.3, 68.4, 39.5),
}
"""Microseconds of one row times matrices of ``SHAPES`` with scales of columns, start and end included."""
CONSTANTS = {"s8": 38.5, "f8e4m3": 37.5, "f8e4m3fn": 47.8}
"""The same of a matrix of 2048 x 2048 that is a constant, in which all codes are."""


def product(dtype: str, k: int, n: int) -> str:
    """HLO text."""
    return f"""HloModule product
ENTRY main {{
  x = bf16[1,{k}] parameter(0)
  w = {dtype}[{k},{n}] parameter(1)
  s = f32[1,{n}] parameter(2)
  wide = bf16[{k},{n}] convert(w)
  sums = f32[1,{n}] dot(x, wide), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT scaled = f32[1,{n}] multiply(sums, s)
}}"""


def microseconds(module: object, **options: object) -> float:
    """Simulated."""
    program = neuronx_cc.compile(module, auto_cast="none", **options)
    return program.run([], timing_only=True, check_races=False).report.time_ns / 1e3


@pytest.mark.parametrize("weights", TIMES)
def test_parameters(weights: str) -> None:
    dtype, *without = weights.split(maxsplit=1)
    times = [microseconds(product(dtype, k, n), defined_codes=bool(without)) for k, n in SHAPES]
    most = zip(SHAPES, times, TIMES[weights], strict=True)
    slower = [(shape, time) for shape, time, right in most if time > right * MORE]
    assert not slower, f"{weights}: {slower}"


@pytest.mark.parametrize("dtype", CONSTANTS)
def test_constants(dtype: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] = 0x7E
    matrix = np.resize(codes, (2048, 2048)).view(NUMPY_DTYPE[dtype])
    model = neuronx_cc.load_model(product(dtype, 2048, 2048).encode(), constants={"w": matrix})
    assert microseconds(model) <= CONSTANTS[dtype] * MORE
