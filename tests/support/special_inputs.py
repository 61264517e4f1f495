"""Inputs for a module with every special value, and comparison bit by bit."""

from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.passes.dissolve_tuples import leaves

Array = np.ndarray[Any, Any]

SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, -2.5)


def special_inputs(module: hlo.HloModule, seed: int = 7) -> list[Array]:
    """One array per parameter leaf: half special values, half ordinary ones."""
    random = np.random.default_rng(seed)
    made: list[Array] = []
    for type_ in (leaf for argument in module.entry.block.args for _, leaf in leaves(argument.type)):
        assert isinstance(type_, hlo.ArrayType)
        dims, dtype = type_.data.dims, type_.data.numpy_dtype
        if type_.data.dtype == "pred":
            made.append(np.asarray(random.random(dims) < 0.5))
        elif dtype.kind in "iu":
            info = np.iinfo(dtype)
            ends = np.array([0, 1, 2, 3, info.max, info.min, info.max // 2, 5], dtype)
            made.append(np.asarray(random.choice(ends, dims)))
        else:
            ordinary = random.standard_normal(dims) * 4
            mixed = np.where(random.random(dims) < 0.5, random.choice(SPECIAL, dims), ordinary)
            made.append(np.asarray(mixed.astype(dtype)))
    return made


def assert_same_bits(before: list[Array], after: list[Array]) -> None:
    """Equal types, values and signs of zeros; any NaN equals any NaN."""
    assert len(before) == len(after)
    for want, got in zip(before, after, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind == "c":
            want, got = (array.reshape(-1).view(array.real.dtype) for array in (want, got))
        same = got == want
        if want.dtype.kind in "fV":
            wide_want, wide_got = want.astype(np.float64), got.astype(np.float64)
            same = (wide_got == wide_want) & (np.signbit(wide_got) == np.signbit(wide_want))
            same |= np.isnan(wide_want) & np.isnan(wide_got)
        assert np.all(same), (want, got)
