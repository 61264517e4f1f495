"""Finds and loads the native core, a shared library with a C interface that ``setup.py`` builds where a compiler is.

Nothing here imports anything of the package, so asking whether the core is there is cheap.
"""

import ctypes
from functools import cache
from pathlib import Path

ABI = 1
"""Must be the number in core.cpp."""
PATH = Path(__file__).with_name("libcore.so")
REMEDY = "install a C++17 compiler (Debian, Ubuntu: apt install g++) and reinstall (in a checkout: make setup)"


@cache
def load() -> ctypes.CDLL | None:
    """The library; None where it was not built, or was built from other sources than these."""
    try:
        library = ctypes.CDLL(str(PATH))
        if library.core_abi() != ABI:
            return None
    except (OSError, AttributeError):
        return None
    library.core_level.argtypes, library.core_level.restype = [ctypes.c_char_p], ctypes.c_char_p
    return library


def level(name: str = "") -> str | None:
    """The processor level whose kernels run (``base``, ``avx2``, ``avx512``), or None without the core.

    With a ``name``: the same name, or None where this processor or this build cannot run it.
    """
    library = load()
    found = None if library is None else library.core_level(name.encode())
    return None if found is None else str(found.decode())
