"""ONNX element types and their NumPy types, and the limit on sizes."""

import threading
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from neuronx_cc.driver.frontends.onnx.table import refusal

DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.uint8),
    3: np.dtype(np.int8),
    4: np.dtype(np.uint16),
    5: np.dtype(np.int16),
    6: np.dtype(np.int32),
    7: np.dtype(np.int64),
    9: np.dtype(np.bool_),
    10: np.dtype(np.float16),
    11: np.dtype(np.float64),
    12: np.dtype(np.uint32),
    13: np.dtype(np.uint64),
    14: np.dtype(np.complex64),
    15: np.dtype(np.complex128),
    16: np.dtype(ml_dtypes.bfloat16),
    17: np.dtype(ml_dtypes.float8_e4m3fn),
    18: np.dtype(ml_dtypes.float8_e4m3fnuz),
    19: np.dtype(ml_dtypes.float8_e5m2),
    20: np.dtype(ml_dtypes.float8_e5m2fnuz),
    21: np.dtype(ml_dtypes.uint4),
    22: np.dtype(ml_dtypes.int4),
    23: np.dtype(ml_dtypes.float4_e2m1fn),
    24: np.dtype(ml_dtypes.float8_e8m0fnu),
    25: np.dtype(ml_dtypes.uint2),
    26: np.dtype(ml_dtypes.int2),
}
"""TensorProto.DataType -> element type; strings (8) have none."""
CODES = {dtype: code for code, dtype in DTYPES.items()}
MAX_ELEMENTS = 1 << 36
"""No array of more elements is imported: it would fit no device."""
MAX_TABLE = 1 << 27
"""Elements of an array that is made at compile time because an operator is written so."""
FOLD_ELEMENTS = 1 << 22
"""Larger results are not computed at compile time here; the compiler's passes fold what is worth it."""


def dtype_of(code: int, what: str) -> np.dtype[Any]:
    """The element type of a TensorProto.DataType. Raises CompileError ESPP004 for strings and unknown numbers."""
    if code in DTYPES:
        return DTYPES[code]
    name = "string" if code == 8 else f"number {code}"
    raise refusal(f"{what} has elements of type {name}, which no device computes with", code="ESPP004")


def is_float(dtype: Any) -> bool:
    """Whether elements are real floats, the narrow ones among them."""
    return bool(np.dtype(dtype).kind == "f" or np.dtype(dtype).name.startswith(("bfloat", "float")))


def is_integer(dtype: Any) -> bool:
    """Whether elements are integers, the narrow ones among them."""
    return bool(np.dtype(dtype).kind in "iu" or np.dtype(dtype).name.startswith(("int", "uint")))


def limits(dtype: Any) -> tuple[Any, Any]:
    """Least and largest finite element of a type."""
    info: Any = (ml_dtypes.iinfo if is_integer(dtype) else ml_dtypes.finfo)(dtype)
    return info.min, info.max


def checked(dims: Any) -> tuple[int, ...]:
    """``dims`` as a shape. Raises CompileError for negative dimensions and arrays that fit no device."""
    sizes = tuple(int(dim) for dim in dims)
    if any(size < 0 for size in sizes):
        raise refusal(f"expected dimensions of 0 or more, found {list(sizes)}", code="EVRF064")
    if prod(sizes) > MAX_ELEMENTS:
        raise refusal(f"an array of dimensions {list(sizes)} fits no device", code="EOOM001")
    if folding.depth and prod(sizes) > FOLD_ELEMENTS:
        raise folding.TooLarge
    return sizes


def tabled(dims: Any) -> tuple[int, ...]:
    """``dims`` of a table that is made at compile time. Raises CompileError EOOM001 for a large one."""
    sizes = checked(dims)
    if prod(sizes) > MAX_TABLE:
        raise refusal(
            f"it needs a table of dimensions {list(sizes)}, {MAX_TABLE} elements are the most", code="EOOM001"
        )
    return sizes


class Folding(threading.local):
    """A context in which arrays are computed at compile time; ``checked`` leaves it when one would be large."""

    class TooLarge(Exception):
        """What would be computed here is large; let the compiler do it."""

    def __init__(self) -> None:
        self.depth = 0
        self.device: Any = None
        """Where JAX computes; its default device when None."""

    def __enter__(self) -> "Folding":
        self.depth += 1
        return self

    def __exit__(self, *exception: object) -> None:
        self.depth -= 1


folding = Folding()
