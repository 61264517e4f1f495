"""Keeps NumPy's BLAS at one thread while the simulator runs.

Tiles are small: a second thread gains little when the machine is idle, and when it is not, BLAS threads that spin cost
several times the work. A thread count that the user sets (``OPENBLAS_NUM_THREADS``) is left alone, as is any BLAS other
than the OpenBLAS that NumPy's wheels bring.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


@cache
def _library() -> tuple[Any, Any] | None:
    """The functions that read and set the number of threads."""
    if "OPENBLAS_NUM_THREADS" in os.environ:
        return None
    for path in sorted((Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for prefix, suffix in (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", "")):
            names = [f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set")]
            if all(hasattr(library, name) for name in names):
                return getattr(library, names[0]), getattr(library, names[1])
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS calls inside use one thread."""
    functions = _library()
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
