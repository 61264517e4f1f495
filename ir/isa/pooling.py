"""The GpSimd program of the gradient of pooling: selects an element of every window and scatters a source there.

Tiles are [partitions, up to four free dims]. ``x`` is the selected operand, ``source`` has one element for each window,
``y`` is the part of the result that the partitions own. Every partition has its own bounds, since partitions at the
edges of an array see padding: s32 ``(x low, x high, window low, window high, y start)`` for each free dim, in elements
of the tile.
"""

from itertools import product

import numpy as np

from neuronx_cc.ir.isa.elements import Array, State, reader, writer
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.ir.isa.semantics import ARITHMETIC, COMPARE, Kernel
from neuronx_cc.ir.types import FLOATS

BOUNDS = 5
KEEPS = frozenset(["is_ge", "is_gt", "is_le", "is_lt"])
COMBINES = frozenset(["add", "multiply", "max", "min"])


def windows_of(i: Instr) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Window sizes and strides of the free dims; dims without constants have windows of one element."""
    free = len(i.ins[0].dims) - 1
    pairs = [int(x) for x in i.imm[1:]] + [1] * (2 * free - len(i.imm) + 1)
    return tuple(pairs[::2]), tuple(pairs[1::2])


def select_scatter(i: Instr, state: State) -> Kernel:
    """Row-major in each window: an element is kept while ``kept op next`` holds. Sums are rounded once."""
    sizes, strides = windows_of(i)
    keep, combine = COMPARE[i.alu[0]], ARITHMETIC[i.alu[1]]
    counts, extents = i.ins[1].counts[1:], i.ins[0].counts[1:]
    is_float = i.ins[0].dtype in FLOATS
    read, read_source = reader(i.ins[0].dtype), reader(i.ins[1].dtype)
    write, start = writer(i.outs[0].dtype, state), i.imm[0]
    lowest = "lowest" in i.flags
    taps = list(product(*(range(size) for size in sizes)))

    def run(y: Array, x: Array, source: Array, bounds: Array) -> None:
        values, given = (read(x), read_source(source)) if is_float else (x, source)
        limits = bounds.reshape(len(x), len(extents), BOUNDS)
        place = np.full(given.shape, -1, np.int16)
        best = np.zeros(given.shape, values.dtype)
        for number, tap in enumerate(taps):
            cuts = [slice(t, t + (n - 1) * s + 1, s) for t, n, s in zip(tap, counts, strides, strict=True)]
            value = values[(slice(None), *cuts)]
            exists = _exists(limits, tap, counts, strides, not lowest)
            if lowest:
                value = np.where(_exists(limits, tap, counts, strides, True), value, np.float32(-np.inf))
            with np.errstate(invalid="ignore"):
                takes = ~keep(best, value) | (place < 0)
            takes &= exists
            np.copyto(best, value, where=takes)
            np.copyto(place, np.int16(number), where=takes)
        total = np.full(y.shape, start, given.dtype)
        for number, tap in reversed(list(enumerate(taps))):
            mine, theirs = [slice(None)], [slice(None)]
            for t, n, s, own, first in zip(tap, counts, strides, y.shape[1:], limits[0, :, 4].tolist(), strict=True):
                low = max(0, -(-(first - t) // s))
                high = min(n - 1, (first + own - 1 - t) // s)
                at = low * s + t - first
                mine.append(slice(at, at + max(0, high - low) * s + 1, s) if high >= low else slice(0, 0))
                theirs.append(slice(low, high + 1) if high >= low else slice(0, 0))
            part, chosen = total[tuple(mine)], place[tuple(theirs)] == number
            with np.errstate(over="ignore", invalid="ignore"):
                combine(part, given[tuple(theirs)], out=part, where=chosen)
        if is_float:
            write(y, total)
        else:
            y[...] = total

    return run


def _exists(
    limits: Array, tap: tuple[int, ...], counts: tuple[int, ...], strides: tuple[int, ...], inputs: bool
) -> Array:
    """Which windows exist, and with ``inputs`` their elements at ``tap``: [partitions, windows...], 1 for all of a
    dim.
    """
    rank = len(counts)
    result = np.ones((len(limits), *(1,) * rank), np.bool_)
    for dim, (t, n, s) in enumerate(zip(tap, counts, strides, strict=True)):
        window = np.arange(n)[None, :]
        low, high, first, last = (limits[:, dim, k, None] for k in range(4))
        inside = (window >= first) & (window < last)
        if inputs:
            inside &= (window * s + t >= low) & (window * s + t < high)
        result = result & inside.reshape(len(limits), *(n if k == dim else 1 for k in range(rank)))
    return result
