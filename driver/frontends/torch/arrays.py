"""Torch's tensors and types as NumPy's, without a copy where both lay them out alike."""

from typing import Any

import jax
import ml_dtypes
import numpy as np
import torch

from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.types import NUMPY_DTYPE

DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
}
_TORCH = {dtype: each for each, dtype in DTYPES.items()}
_BITS = {1: torch.uint8, 2: torch.int16}
"""Types of the same size for those that one of the two libraries has not."""


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Raises CompileError ESPP004 for types that NumPy has not, such as torch's quantised ones."""
    if dtype not in DTYPES:
        raise CompileError("ESPP004", f"element type {dtype} is not supported")
    return DTYPES[dtype]


def shape_of(tensor: torch.Tensor) -> jax.ShapeDtypeStruct:
    """Shape and type of a tensor whose sizes are numbers."""
    sizes = tuple(int(size) for size in tensor.shape)
    return jax.ShapeDtypeStruct(sizes, numpy_dtype(tensor.dtype))  # type: ignore[no-untyped-call, unused-ignore]


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The values of a dense tensor on any device."""
    given = tensor.detach().cpu().resolve_conj().resolve_neg()
    wanted = numpy_dtype(given.dtype)
    if given.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        given = given.contiguous().view(_BITS[given.element_size()])
        return np.asarray(given.numpy()).view(wanted)
    return np.asarray(given.numpy())


def to_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor of the same values, which owns them."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    if not array.flags.writeable:
        array = array.copy()
    dtype = _TORCH[array.dtype]
    if dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        bits = array.view(np.int16 if array.itemsize == 2 else np.uint8)
        return torch.from_numpy(bits).view(dtype)
    return torch.from_numpy(array)


def torch_dtype(name: str) -> torch.dtype:
    """Torch's type for an HLO element type."""
    return _TORCH[np.dtype(NUMPY_DTYPE[name])]
