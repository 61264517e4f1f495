"""Element types and shapes, shared by every level.

Shapes are plain Python values; ``ArrayType`` and ``TupleType`` wrap them as interned xDSL types.
Element types are named as HLO text spells them.
"""

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from neuronx_cc.ir.small_types import COMPUTED

NUMPY_DTYPE: dict[str, np.dtype[Any]] = {
    "pred": np.dtype(np.bool_),
    "s2": np.dtype(ml_dtypes.int2),
    "u2": np.dtype(ml_dtypes.uint2),
    "s4": np.dtype(ml_dtypes.int4),
    "u4": np.dtype(ml_dtypes.uint4),
    "s8": np.dtype(np.int8),
    "s16": np.dtype(np.int16),
    "s32": np.dtype(np.int32),
    "s64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "f8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e4m3b11fnuz": np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    "f8e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "f8e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "f8e3m4": np.dtype(ml_dtypes.float8_e3m4),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
    # tf32 is f32 storage whose low 13 mantissa bits are zero; it exists only inside the compiler.
    "tf32": np.dtype(np.float32),
}
"""HLO element type -> NumPy storage type."""

FLOATS = frozenset(
    [
        "f16",
        "bf16",
        "f32",
        "f64",
        "tf32",
        "f8e4m3",
        "f8e4m3fn",
        "f8e4m3b11fnuz",
        "f8e4m3fnuz",
        "f8e5m2",
        "f8e5m2fnuz",
        "f8e3m4",
    ]
)
WIDE_FLOATS = frozenset(["f32", "bf16", "f16"])
"""Of 16 and 32 bits: all engines compute with them."""
NARROW = ("bf16", "f16")
"""Of 16 bits, the one with more exponents first: TensorE multiplies them exactly, engines compute with them in FP32."""
SIGNED = frozenset(["s2", "s4", "s8", "s16", "s32", "s64"])
UNSIGNED = frozenset(["u2", "u4", "u8", "u16", "u32", "u64"])
INTEGERS = SIGNED | UNSIGNED
COMPLEX = frozenset(["c64", "c128"])


_ITEMSIZE = {name: dtype.itemsize for name, dtype in NUMPY_DTYPE.items()}


def itemsize(dtype: str) -> int:
    """Bytes of one stored element of ``dtype``."""
    return _ITEMSIZE[dtype]


WORDS = frozenset(dtype for dtype in INTEGERS if itemsize(dtype) <= 4)
"""Integers that Vector and Scalar write, rounded to the nearest (hardware sheet 5.2)."""


def largest_number(dtype: str) -> float:
    """The largest finite number of a float type."""
    return float(ml_dtypes.finfo(NUMPY_DTYPE[dtype]).max)  # type: ignore[no-untyped-call]


def bits(dtype: str) -> int:
    """Bits of one element as HLO counts them: 2 or 4 for the small integers, which are stored in a byte each."""
    return int(dtype[1:]) if COMPUTED.get(dtype) in ("s8", "u8") else 8 * itemsize(dtype)


@dataclass(frozen=True, slots=True)
class Shape:
    """Element type and static dimensions of an array, row-major."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.dims)

    @property
    def nbytes(self) -> int:
        return self.size * itemsize(self.dtype)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return NUMPY_DTYPE[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@cache
def shape(dtype: str, dims: tuple[int, ...]) -> Shape:
    """Interned ``Shape``."""
    return Shape(dtype, dims)
