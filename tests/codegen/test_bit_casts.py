"""Bit casts between 64-bit integers and types of every width: the program's own words, low ones first."""

import numpy as np
import pytest
from generated import check_text

from neuronx_cc.ir.types import NUMPY_DTYPE


def _text(source: str, dims: str, target: str, result: str) -> str:
    converted = f"  p = {source}[{dims}] parameter(0)\n  ROOT r = {target}[{result}] bitcast-convert(p)\n"
    return f"HloModule m\nENTRY main {{\n{converted}}}\n"


def _words(count: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, 8)).astype(np.uint8)


@pytest.mark.parametrize("wide", ["s64", "u64"])
@pytest.mark.parametrize("narrow", ["s8", "u16", "bf16", "f32", "f8e5m2"])
def test_narrow_to_wide_and_back(narrow: str, wide: str) -> None:
    parts = 8 // NUMPY_DTYPE[narrow].itemsize
    narrow_values = _words(3).view(NUMPY_DTYPE[narrow]).reshape(3, parts)
    check_text(_text(narrow, f"3,{parts}", wide, "3"), narrow_values)
    check_text(_text(wide, "3", narrow, f"3,{parts}"), _words(3).view(NUMPY_DTYPE[wide]).reshape(3))


@pytest.mark.parametrize(("source", "target"), [("s64", "u64"), ("u64", "s64"), ("s64", "s64")])
def test_both_wide(source: str, target: str) -> None:
    check_text(_text(source, "5", target, "5"), _words(5).view(NUMPY_DTYPE[source]).reshape(5))


def test_computed_value() -> None:
    """The high words of what was computed extend the low ones."""
    text = """HloModule m
ENTRY main {
  p = s64[3] parameter(0)
  n = s64[3] negate(p)
  b = s8[3,8] bitcast-convert(n)
  c = u64[3] bitcast-convert(n)
  ROOT t = (s8[3,8], u64[3]) tuple(b, c)
}
"""
    check_text(text, np.array([1, -5, 1 << 20], np.int64))
