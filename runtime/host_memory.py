"""The host's memory behind the simulated one: how much there is, and who keeps pages of it between runs.

A simulated device has more memory than many a host. Pages cost nothing until they are written; before a run writes
many, ``require`` makes sure that the host has them, for the system kills who takes more.
"""

from __future__ import annotations

import gc
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from neuronx_cc.ir.errors import RunError

Array = np.ndarray[Any, np.dtype[Any]]

LARGE_BYTES = 1 << 20
"""Memories below this size are neither checked nor emptied."""
KEPT_BYTES = 1 << 30
"""Pages that programs keep between runs, all together: writing a page that is there is faster than getting one."""
SPARE_PART = 32
"""One part in so many of the host's memory is left to everything else."""

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Linux's value, which older Pythons do not name: pages count when they are written."""
_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_bytes() -> int | None:
    """What may still be written without swapping or exceeding the process group's limit; None where it is not told."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    known = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
    if "MemAvailable" not in known:
        return None
    free = known["MemAvailable"]
    for limit, usage in _LIMITS:
        try:
            free = min(free, int(Path(limit).read_text()) - int(Path(usage).read_text()))
        except (OSError, ValueError):
            continue
    return free - known["MemTotal"] // SPARE_PART


def require(nbytes: int, what: Callable[[], str]) -> None:
    """Make sure that ``nbytes`` more can be written. Raises RunError EMEM901, which says ``what`` needs them."""
    if nbytes < LARGE_BYTES:
        return
    free = available_bytes()
    if free is not None and nbytes > free:
        KEPT.clear()
        gc.collect()
        free = available_bytes()
    if free is not None and nbytes > free:
        raise RunError(
            "EMEM901",
            f"{what()} needs {nbytes / 2**30:.2f} GiB of the host's memory, {max(0, free) / 2**30:.2f} GiB are left",
            "use a larger machine, fewer devices or a smaller batch",
        )


def pages(nbytes: int) -> Array:
    """``nbytes`` of undefined content, of which only those that are written take memory of the host."""
    if nbytes < LARGE_BYTES:
        return np.empty(nbytes, np.uint8)
    block = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, np.uint8)


def forget(array: Array, ranges: Sequence[tuple[int, int]]) -> None:
    """Give the pages inside the byte ``ranges`` of ``pages`` back to the host; their content is undefined then."""
    base = array.base
    block = base.obj if isinstance(base, memoryview) else base
    if isinstance(block, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        for lo, hi in ranges:
            start, end = -(-lo // mmap.PAGESIZE) * mmap.PAGESIZE, hi // mmap.PAGESIZE * mmap.PAGESIZE
            if start < end:
                block.madvise(mmap.MADV_DONTNEED, start, end - start)


class Spares:
    """Pages of memories of one size that nobody uses any more, for the next one: where the host is itself a guest, a
    fresh page can take as long as a small program's run."""

    def __init__(self, most: int) -> None:
        # changed by single calls alone, without a lock: arrays may end at any moment, also inside `take`
        self._blocks: deque[Array] = deque(maxlen=most)

    def take(self, nbytes: int) -> Array:
        """``nbytes`` of undefined content, which come back when no view of them is left. All calls ask for as many."""
        try:
            block = self._blocks.pop()
        except IndexError:
            block = pages(nbytes)
        assert block.nbytes == nbytes
        lent = np.frombuffer(block.data, np.uint8)  # views of it keep it, and not the block itself
        weakref.finalize(lent, self._blocks.append, block).atexit = False
        return lent


class Scratch(Protocol):
    """A memory that runs write."""

    scratch_bytes: int

    def empty(self) -> None:
        """Give its pages back to the host."""


class Kept:
    """Idle memories with pages of the host, the least recently used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: weakref.WeakKeyDictionary[Scratch, None] = weakref.WeakKeyDictionary()

    def __contains__(self, memory: Scratch) -> bool:
        with self._lock:
            return memory in self._idle

    def take(self, memory: Scratch) -> bool:
        """A run is about to write ``memory``; whether its pages are still there."""
        with self._lock:
            known = memory in self._idle
            self._idle.pop(memory, None)
            return known

    def put(self, memory: Scratch) -> None:
        """The run is over; the oldest memories lose their pages if all together have too many."""
        if memory.scratch_bytes < LARGE_BYTES:
            return
        with self._lock:
            self._idle[memory] = None
            self._shrink(KEPT_BYTES)

    def clear(self) -> None:
        """Empty all idle memories."""
        with self._lock:
            self._shrink(0)

    def _shrink(self, limit: int) -> None:
        idle = list(self._idle)
        total = sum(memory.scratch_bytes for memory in idle)
        for memory in idle:
            if total <= limit:
                break
            memory.empty()
            del self._idle[memory]
            total -= memory.scratch_bytes


KEPT = Kept()
os.register_at_fork(after_in_child=KEPT.__init__)  # type: ignore[misc]
