"""The BLAS under NumPy: products that accumulate in place, and one thread for small tiles.

NumPy cannot add a product to an array without a temporary, so ``multiply`` calls the OpenBLAS that NumPy's wheels bring
directly, and falls back to NumPy where there is none. A second thread gains little on small tiles when the machine is
idle, and when it is not, threads that spin cost several times the work.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112


@cache
def _function(name: str) -> Any:
    """A function of NumPy's OpenBLAS (with 64-bit integers), or None."""
    for path in sorted((Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas64*")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        found = getattr(library, f"scipy_{name}64_", None) or getattr(library, f"{name}64_", None)
        if found is not None:
            return found
    return None


@cache
def _sgemm() -> Any:
    function = _function("cblas_sgemm")
    if function is not None:
        size, pointer, real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
        function.restype = None
        function.argtypes = [ctypes.c_int] * 3 + [size] * 3 + [real, pointer, size, pointer, size, real, pointer, size]
    return function


def multiply(left: Array, right: Array, out: Array, accumulate: bool) -> None:
    """``out = left.T @ right``, or ``out +=``; f32 matrices whose rows are dense, possibly far apart."""
    function = _sgemm()
    if function is None:
        product = np.matmul(left.T, right)
        np.copyto(out, out + product if accumulate else product)
        return
    depth, rows = left.shape
    columns = right.shape[1]
    function(
        *(_ROW_MAJOR, _TRANSPOSED, _PLAIN, rows, columns, depth, 1.0),
        *(left.__array_interface__["data"][0], left.strides[0] // 4 if depth > 1 else rows),
        *(right.__array_interface__["data"][0], right.strides[0] // 4 if depth > 1 else columns),
        *(float(accumulate), out.__array_interface__["data"][0], out.strides[0] // 4 if rows > 1 else columns),
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Products inside use one thread, unless the user set ``OPENBLAS_NUM_THREADS``."""
    read, write = _function("openblas_get_num_threads"), _function("openblas_set_num_threads")
    if read is None or write is None or "OPENBLAS_NUM_THREADS" in os.environ:
        yield
        return
    before = read()
    write(1)
    try:
        yield
    finally:
        write(before)
