"""Time of the processor that a test allows for something."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(seconds: float, what: str = "") -> Iterator[None]:
    """What follows takes this thread at most ``seconds`` of processor time; ``what`` it is, an error says.

    Neither other threads count, which libraries leave running, nor the garbage collector, whose walk takes as long as
    the objects of all tests before are many: both are seconds in a process that has run thousands of tests.
    """
    collects = gc.isenabled()
    gc.disable()
    started = time.thread_time()
    try:
        yield
        taken = time.thread_time() - started
    finally:
        if collects:
            gc.enable()
    assert taken < seconds, f"{what} {taken:.2f} s, where {seconds} s are allowed"
