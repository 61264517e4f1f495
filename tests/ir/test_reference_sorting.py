"""Sorting by one key takes the order of NumPy; it is that of the merge with the comparator itself."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.reference import evaluator, indexing

TEXT = """
HloModule sorts

before {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = DTYPE[] parameter(2)
  d = DTYPE[] parameter(3)
  ROOT first = pred[] compare(SIDES), direction=DIRECTION
}

ENTRY main {
  x = f32[3,N] parameter(0)
  y = DTYPE[3,N] parameter(1)
  ROOT both = (f32[3,N], DTYPE[3,N]) sort(x, y), dimensions={1}, to_apply=before
}
"""
TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "s32": np.int32, "u8": np.uint8, "pred": np.bool_}
FORMS = [*itertools.product(TYPES, ["c, d", "d, c"], ["LT", "GT"])]


@pytest.mark.parametrize(("dtype", "sides", "direction"), FORMS)
def test_orders_by_one_key(dtype: str, sides: str, direction: str) -> None:
    generator = np.random.default_rng(0)
    for size in (0, 1, 2, 127, 128, 129):
        text = TEXT.replace("DTYPE", dtype).replace("SIDES", sides).replace("DIRECTION", direction)
        module = parse_text(text.replace("N]", f"{size}]"))
        calls = evaluator(module)
        key = generator.integers(0, 5, (3, size)).astype(TYPES[dtype])
        if dtype in ("f32", "bf16"):
            key = np.where(generator.random((3, size)) < 0.2, key.dtype.type(-0.0), key - key.dtype.type(2))
        arrays = [np.zeros((3, size), np.float32), key]
        found = indexing._key_order(calls.computation("before"), arrays)
        assert found is not None
        np.testing.assert_array_equal(found, indexing._merge_order(calls, "before", arrays))


@pytest.mark.parametrize(
    ("sides", "direction", "key"),
    [("a, d", "LT", 0.0), ("c, d", "LE", 0.0), ("c, c", "LT", 0.0), ("c, d", "LT", np.nan)],
)
def test_other_comparators_are_called(sides: str, direction: str, key: float) -> None:
    text = TEXT.replace("DTYPE", "f32").replace("SIDES", sides).replace("DIRECTION", direction).replace("N]", "5]")
    module = parse_text(text)
    arrays = [np.zeros((3, 5), np.float32), np.full((3, 5), key, np.float32)]
    assert indexing._key_order(evaluator(module).computation("before"), arrays) is None
