"""Finds and loads the native core, a shared library with a C interface that ``setup.py`` builds where a compiler is.

The environment variable ``NEURONX_CC_SIMULATOR`` says what computes values: ``native``, ``numpy``, or ``auto`` (the
core where it is). ``NEURONX_CC_THREADS`` is the number of threads that work on one instruction. Neither changes what
is computed but in the last bits of sums and transcendental functions.
"""

import ctypes
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.elements import STORAGE, Array
from neuronx_cc.runtime.native.encode import SMALL_FLOATS

ABI = 12
"""Must be the number in core.cpp."""
PATH = Path(__file__).with_name("libcore.so")
REMEDY = "install a C++17 compiler (Debian, Ubuntu: apt install g++) and reinstall (in a checkout: make setup)"
SIMULATOR, THREADS = "NEURONX_CC_SIMULATOR", "NEURONX_CC_THREADS"
SIMULATORS = ("auto", "native", "numpy")
DONE, TIME, FOREIGN = -1, -2, -3
"""What ``core_run`` returns at the end of some code, when the time is over and it wants to go on, and for code of
another program. Any other: the record with this number is to be carried out by Python, before it goes on."""

TAKEN, REPEATED, CHOSEN = 0, 1, 2
"""Kinds of entries of a course, numbered as in course.h: a path, and what a ``while`` and a ``branch`` did."""


@cache
def load() -> ctypes.CDLL | None:
    """The library; None where it was not built or, with a warning, where other sources than these made it."""
    library = open_library(PATH)
    if library is None and PATH.exists():
        message = (
            f"{PATH.name}, the simulator's native core, was built from other sources: NumPy computes values; {REMEDY}"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return library


def open_library(path: Path) -> ctypes.CDLL | None:
    """The library in a file; None where there is none of this interface."""
    try:
        library = ctypes.CDLL(str(path))
        if library.core_abi() != ABI:
            return None
    except (OSError, AttributeError):
        return None
    pointer, word = ctypes.c_void_p, ctypes.c_int64
    signatures = {
        "core_level": (ctypes.c_char_p, ctypes.c_char_p),
        "core_threads": (None, ctypes.c_int),
        "core_small_float": (None, ctypes.c_int, pointer, pointer, pointer),
        "core_new": (pointer, ctypes.c_char_p, word, pointer, word, ctypes.c_int),
        "core_free": (None, pointer),
        "core_code": (pointer, pointer, pointer, word),
        "core_code_free": (None, pointer),
        "core_start": (word, pointer, word, pointer, pointer, pointer, pointer, word),
        "core_run": (word, pointer, pointer, word),
        "core_course": (word, pointer, pointer, word),
        "core_weights": (None, pointer, pointer, pointer),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    _small_floats(library)
    library.core_threads(threads())
    return library


def _small_floats(library: ctypes.CDLL) -> None:
    """Gives the core the tables of the 8-bit floats: their values, and the codes of f32 by its upper half, for a lower
    half of zeros and any other one. No rounding boundary lies between those others."""
    for number, dtype in enumerate(SMALL_FLOATS):
        storage = STORAGE[dtype]
        upper = np.arange(65536, dtype=np.uint32) << np.uint32(16)
        with np.errstate(all="ignore"):
            read = np.arange(256, dtype=np.uint8).view(storage).astype(np.float32)
            codes = [(upper | np.uint32(low)).view(np.float32).astype(storage).view(np.uint8) for low in (0, 1)]
        tables: list[Array] = [read, *codes]
        library.core_small_float(number, *(table.ctypes.data for table in tables))


def threads() -> int:
    """Threads for one instruction: ``NEURONX_CC_THREADS``, or as many as there are processors, at most 4."""
    wanted = os.environ.get(THREADS, "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    if wanted:
        raise RunError("ERUN917", f"{THREADS}={wanted} is no number of threads", f"unset it or say {THREADS}=1")
    return min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def level(name: str = "") -> str | None:
    """The processor level whose kernels run (``base``, ``avx2``, ``avx512``), or None without the core.

    With a ``name``: the same name, or None where this processor or this build cannot run it.
    """
    library = load()
    found = None if library is None else library.core_level(name.encode())
    return None if found is None else str(found.decode())


_preferred: list[str | None] = [None]


def prefer(simulator: str | None) -> None:
    """Choose for this process, before the environment does; None leaves it to that."""
    _preferred[0] = simulator


@contextmanager
def preferring(simulator: str) -> Iterator[None]:
    """``prefer``, for what is done inside."""
    before = _preferred[0]
    prefer(simulator)
    try:
        yield
    finally:
        prefer(before)


def wanted() -> str:
    """``native``, ``numpy`` or ``auto``: what the process or its environment asks for. Raises RunError ERUN917."""
    name = _preferred[0] or os.environ.get(SIMULATOR, "") or "auto"
    if name not in SIMULATORS:
        raise RunError("ERUN917", f"{SIMULATOR}={name} is none of {', '.join(SIMULATORS)}", f"unset {SIMULATOR}")
    return name


def chosen(seed: int | None = None) -> str:
    """``native`` or ``numpy``: what computes values; stochastic rounding (``seed``) is NumPy's.

    Raises RunError when that is not to be had.
    """
    asked = wanted()
    if asked == "native":
        required()
    return "numpy" if asked == "numpy" or seed is not None or load() is None else "native"


def description() -> str:
    """One sentence part about what computes values and why."""
    try:
        name = chosen()
    except RunError as error:
        return error.message
    if name == "native":
        return f"native core ({level()} kernels, {threads()} threads)"
    return "NumPy" if load() is not None else f"NumPy (no native core: {REMEDY})"


def required() -> ctypes.CDLL:
    """The library. Raises RunError where there is none."""
    library = load()
    if library is None:
        raise RunError("ERUN917", "the native core of the simulator was not built", REMEDY)
    return library
