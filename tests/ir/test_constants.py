"""The pool of constants: equal arrays once, whatever NumPy hands over."""

import numpy as np
import pytest

from neuronx_cc.ir.constants import ConstantPool


@pytest.mark.parametrize("value", [np.float32(1.5), np.ones((), np.float32), np.full((1, 1), 1.5, np.float32)[0, 0]])
def test_numbers(value: np.ndarray) -> None:
    """A NumPy scalar is an array without dims."""
    pool = ConstantPool()
    kept = pool[pool.add(value, "f32")]
    assert kept.shape == ()
    assert kept == value
    assert not kept.flags.writeable


def test_equal_arrays_are_one() -> None:
    pool = ConstantPool()
    assert pool.add(np.arange(6, dtype=np.int32), "s32") == pool.add(np.arange(6, dtype=np.int32), "s32")
    assert pool.add(np.zeros((3, 2), np.int32), "s32") != pool.add(np.zeros((2, 3), np.int32), "s32")
