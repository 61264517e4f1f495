"""Python's cycle collector, held off while modules and programs are built.

They are large graphs, alive as a whole: collecting walks all of them again and again, finds nothing, and would take a
quarter of the time of a compilation.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collections inside; as a decorator, none during a call. Nests."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
