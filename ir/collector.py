"""Python's cycle collector, held off while modules and programs are built, checked and timed.

They are large graphs, alive as a whole: collecting walks all of them again and again, finds nothing, and would take a
quarter of the time of a compilation. Afterwards they count as old, so that the next young collection does not walk them
either. What is garbage among them waits for a collection of everything, at the latest after ``PATIENCE`` objects.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 4_000_000
"""Objects, some 100 bytes each, that may be made in pauses between two collections of everything."""

_made = 0


@contextmanager
def paused() -> Iterator[None]:
    """No collections inside; as a decorator, none during a call. Nests."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            _retire()
            gc.enable()


def _retire() -> None:
    """Let all objects of this moment be old ones."""
    global _made
    _made += gc.get_count()[0]
    if _made > PATIENCE:
        gc.collect()
    elif not gc.get_freeze_count():  # objects that the user froze would thaw
        gc.freeze()
        gc.unfreeze()


def _collected(phase: str, info: dict[str, int]) -> None:
    global _made
    if phase == "stop" and info["generation"] == 2:
        _made = 0


gc.callbacks.append(_collected)
