"""How large the tiles are in which data passes through SBUF: small ones come soon, large ones cost less each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from neuronx_cc.ir.isa.timing import Stage, Timing

WORTH = 1.02
"""How much less time larger tiles must take: smaller ones leave room."""


def tile_columns(
    timing: Timing, columns: int, most: int, buffers: int, stages: Callable[[int], Sequence[Stage]]
) -> int:
    """Elements a partition, ``most`` at most, of the tiles that ``columns`` of them take least time in.

    ``stages(n)``: what a tile of ``n`` goes through, with so many ``buffers`` between them.
    """
    found = [max(1, min(most, columns))]
    while found[-1] > 1:
        found.append(-(-found[-1] // 2))
    best, least = 1, float("inf")
    for size in reversed(found):
        time = timing.pipeline(stages(size), ceil(columns / size), buffers)
        if time * WORTH < least:
            best, least = size, time
    return best
