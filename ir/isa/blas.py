"""Products of f32 matrices for TensorE: OpenBLAS as NumPy's wheels bring it, in a private single-threaded instance.

NumPy's own entry point has three drawbacks here. It cannot add a product to an array without a temporary. Its threads
spin, which on a busy machine costs several times the work of a small tile. And its choice of kernels by processor
misses AVX-512 on some, which costs 40 %. So the library is loaded once more, from an anonymous file, with its two
environment variables set; NumPy's instance is left alone. Where that does not work NumPy computes the products.
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
_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}


def _path() -> Path:
    """The library that NumPy's wheel brings. Raises OSError without one."""
    found = sorted((Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas64*"))
    if not found:
        raise OSError("NumPy was not built with the OpenBLAS of its wheels")
    return found[0]


def _load() -> Any:
    """The private instance. Raises OSError or AttributeError where there is none."""
    path = _path()
    settings = {"OPENBLAS_NUM_THREADS": "1"}
    if "OPENBLAS_CORETYPE" not in os.environ and _has_avx512():
        settings["OPENBLAS_CORETYPE"] = "SkylakeX"
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    descriptor = os.memfd_create("openblas")
    try:
        with path.open("rb") as file:
            while os.sendfile(descriptor, file.fileno(), None, 1 << 24):
                pass
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _has_avx512() -> bool:
    with open("/proc/cpuinfo") as file:
        flags = next((line for line in file if line.startswith("flags")), "")
    return set(flags.split()) >= _AVX512


@cache
def _sgemm() -> Any:
    """``cblas_sgemm`` with 64-bit integers, or None."""
    try:
        library = _load()
        function = getattr(library, "scipy_cblas_sgemm64_", None) or library.cblas_sgemm64_
    except (OSError, AttributeError):
        return None
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


@cache
def _threads() -> tuple[Any, Any] | None:
    """How NumPy's own instance reads and sets its number of threads."""
    try:
        library = ctypes.CDLL(str(_path()))
        return library.scipy_openblas_get_num_threads64_, library.scipy_openblas_set_num_threads64_
    except (OSError, AttributeError):
        return None


@contextmanager
def one_thread() -> Iterator[None]:
    """NumPy's products inside use one thread, unless the user set ``OPENBLAS_NUM_THREADS``."""
    functions = None if "OPENBLAS_NUM_THREADS" in os.environ else _threads()
    if functions is None:
        yield
        return
    read, write = functions
    before = read()
    write(1)
    try:
        yield
    finally:
        write(before)
