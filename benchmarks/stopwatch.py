"""Wall times of calls, for the benchmarks."""

import time
from collections.abc import Callable
from typing import Any


def best(call: Callable[[], Any], repeats: int = 3) -> float:
    """Seconds of the fastest of a few calls."""
    return min(once(call)[0] for _ in range(repeats))


def once(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call, and what it returned."""
    started = time.perf_counter()
    value = call()
    return time.perf_counter() - started, value
