"""Values of the reference semantics, and the two conversions every op shares: widen before, round once after.

Arrays are NumPy arrays of ``Shape.numpy_dtype``; tuples are Python tuples; tokens are ``None``.
"""

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE

Array: TypeAlias = np.ndarray[Any, Any]
Value: TypeAlias = Any
"""An ``Array``, a tuple of values, or None (a token)."""

_WIDER: dict[np.dtype[Any], np.dtype[Any]] = {
    **{NUMPY_DTYPE[name]: np.dtype(np.float32) for name in FLOATS if NUMPY_DTYPE[name].itemsize < 4},
    np.dtype(ml_dtypes.int4): np.dtype(np.int8),
    np.dtype(ml_dtypes.uint4): np.dtype(np.uint8),
}
"""Storage type -> type in which its arithmetic is done: small floats in f32, as XLA's CPU back end does."""

_FLOAT_TYPES = frozenset(NUMPY_DTYPE[name] for name in FLOATS)


def is_float(array: Array) -> bool:
    """Whether the element type is a real floating-point type (small ml_dtypes types included)."""
    return array.dtype in _FLOAT_TYPES


def widen(array: Array) -> Array:
    """The same values in the type in which arithmetic is done."""
    wider = _WIDER.get(array.dtype)
    return array if wider is None else array.astype(wider)


def narrow(result: Any, dtype: str) -> Array:
    """``result`` rounded once to HLO element type ``dtype``; integers wrap."""
    return np.asarray(result).astype(NUMPY_DTYPE[dtype], copy=False)
