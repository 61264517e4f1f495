"""The constant pool: literal arrays live here, outside the IR, keyed by content.

Attributes only hold the digest, so hashing, cloning and printing IR never touch the data.
"""

import hashlib
from collections.abc import Collection
from typing import Any

import numpy as np

from neuronx_cc.ir.types import NUMPY_DTYPE


def is_splat(array: np.ndarray[Any, Any]) -> bool:
    """Whether ``array`` is one element repeated by strides of zero (more than one element, none of them copied)."""
    return array.size > 1 and all(
        stride == 0 or dim == 1 for stride, dim in zip(array.strides, array.shape, strict=True)
    )


class ConstantPool:
    """Arrays by digest of element type, dims and bytes. Stored arrays are read-only and C-contiguous."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}

    def copy(self) -> "ConstantPool":
        """The same arrays in a pool of its own: what is added to or dropped from one leaves the other alone."""
        other = ConstantPool()
        other._arrays = dict(self._arrays)
        return other

    def add(self, array: np.ndarray[Any, Any], dtype: str) -> str:
        """Store ``array`` (of NumPy type ``NUMPY_DTYPE[dtype]``) and return its digest.

        Splats need not be materialised: a zero-stride view is hashed by its single element and kept as a view.
        """
        if array.dtype != NUMPY_DTYPE[dtype]:
            raise TypeError(f"constant of {array.dtype} offered as {dtype}")
        splat = is_splat(array)
        # processors have instructions for SHA-256: over twice as fast as BLAKE2 there
        digest = hashlib.sha256(f"{dtype}{array.shape}{splat}".encode())
        if splat:
            digest.update(array[(0,) * array.ndim].tobytes())
        else:
            # ascontiguousarray makes rank 1 of rank 0
            array = array if array.flags.c_contiguous else np.ascontiguousarray(array)
            digest.update(array.reshape(-1).view(np.uint8).data)
        key = digest.hexdigest()[:32]
        if key not in self._arrays:
            kept = np.asarray(array).view()  # of a NumPy scalar, too
            kept.flags.writeable = False
            self._arrays[key] = kept
        return key

    def __getitem__(self, digest: str) -> np.ndarray[Any, Any]:
        return self._arrays[digest]

    def __contains__(self, digest: str) -> bool:
        return digest in self._arrays

    def keep(self, digests: Collection[str]) -> None:
        """Drop all arrays but those of ``digests``."""
        for key in self._arrays.keys() - set(digests):
            del self._arrays[key]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())
