"""The BLAS under NumPy: one thread while the simulator runs, and products that accumulate in place.

Tiles are small: a second thread gains little when the machine is idle, and when it is not, BLAS threads that spin cost
several times the work. A thread count that the user sets (``OPENBLAS_NUM_THREADS``) is left alone. NumPy cannot add a
product to an array without a temporary, so ``accumulate`` calls the library that NumPy's wheels bring (OpenBLAS)
directly, and falls back to NumPy under any other.
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
def _library() -> tuple[Any, str, str] | None:
    """The library, and the prefix and suffix of its functions' names."""
    for path in sorted((Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for prefix, suffix in (("scipy_", "64_"), ("", "64_")):
            names = ("openblas_get_num_threads", "openblas_set_num_threads", "cblas_sgemm")
            if all(hasattr(library, prefix + name + suffix) for name in names):
                return library, prefix, suffix
    return None


@cache
def _sgemm() -> Any:
    """``cblas_sgemm`` with 64-bit integers, or None."""
    found = _library()
    if found is None:
        return None
    library, prefix, suffix = found
    function = getattr(library, f"{prefix}cblas_sgemm{suffix}")
    size, pointer, real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
    function.restype = None
    function.argtypes = [ctypes.c_int] * 3 + [size] * 3 + [real, pointer, size, pointer, size, real, pointer, size]
    return function


def accumulate(left: Array, right: Array, out: Array) -> None:
    """``out += left.T @ right`` for f32 matrices whose rows are dense."""
    function = _sgemm()
    (depth, rows), columns = left.shape, right.shape[1]
    if function is None or any(x.strides[0] % 4 or (x.strides[1] != 4 and x.shape[1] > 1) for x in (left, right, out)):
        np.add(out, np.matmul(left.T, right), out=out)
        return
    a, b, c = (x.__array_interface__["data"][0] for x in (left, right, out))
    pitches = [max(x.strides[0] // 4, x.shape[1]) for x in (left, right, out)]
    function(
        *(_ROW_MAJOR, _TRANSPOSED, _PLAIN, rows, columns, depth, 1.0),
        *(a, pitches[0], b, pitches[1], 1.0, c, pitches[2]),
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS calls inside use one thread."""
    found = _library()
    if found is None or "OPENBLAS_NUM_THREADS" in os.environ:
        yield
        return
    library, prefix, suffix = found
    read, write = (getattr(library, f"{prefix}openblas_{verb}_num_threads{suffix}") for verb in ("get", "set"))
    before = read()
    write(1)
    try:
        yield
    finally:
        write(before)
