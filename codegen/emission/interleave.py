"""In which order the instructions of independent tiles are emitted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from neuronx_cc.codegen.emission.builder import Builder
from neuronx_cc.ir.isa.program import Instr, Space, Stream
from neuronx_cc.ir.isa.timing import Timing, duration_ns, latency_ns

AHEAD = 1
"""Tiles whose operands are loaded before they start."""
COMPUTING = frozenset([Stream.TENSOR, Stream.VECTOR, Stream.SCALAR, Stream.GPSIMD])
"""Engines; queues of DMA take what is ready, and are not waited for in an order."""

SHARING = frozenset([Stream.VECTOR, Stream.SCALAR])
"""Engines that are not at PSUM at the same time."""
Port = dict[Stream, float]
"""Until when each of these is, in nanoseconds."""


@dataclass(slots=True)
class _Tile:
    """One that is being emitted."""

    steps: Iterator[None]
    ready: float
    """When what has been emitted of it is done, in nanoseconds."""
    emitted: int = 0
    """Steps."""


def interleave(builder: Builder, tiles: Sequence[Iterator[None]], steps: int, under_way: int) -> None:
    """Emit ``tiles`` of so many ``steps`` each, after one that loads what they read, up to ``under_way`` at once.

    Engines take their instructions in order, so that one has work while another is busy with another tile. Next comes
    a step of the tile that can go on first, if every step waits for the one before it and each engine for its
    instructions. Tiles start apart, so that they do not all want the same engine.
    """
    waiting, loading, going = deque(tiles), deque(tiles), list[_Tile]()
    free: dict[Stream, float] = {}
    now, apart = 0.0, ceil(steps / under_way)
    for _ in range(min(AHEAD, len(tiles))):
        next(loading.popleft())
    while waiting or going:
        if waiting and (not going or (going[-1].emitted >= apart and len(going) < under_way)):
            going.append(_Tile(waiting.popleft(), now))
            if loading:
                next(loading.popleft())
        tile = min(going, key=lambda each: each.ready)
        start, now = len(builder.program.records), tile.ready
        tile.emitted += 1
        if not _emits(tile.steps):
            going.remove(tile)
            continue
        for record in builder.program.records[start:]:
            if isinstance(record, Instr) and record.stream in COMPUTING:
                tile.ready = done(builder.timing, record, free, tile.ready)


def _emits(steps: Iterator[None]) -> bool:
    """Emit the next step; False if there is none."""
    return next(steps, steps) is not steps


def done(timing: Timing, instr: Instr, free: dict[Stream, float], ready: float, port: Port | None = None) -> float:
    """When the result of ``instr``, whose operands are ``ready``, is there; its engine is busy until it is ``free``,
    and so is the ``port`` of PSUM, if that is looked at.
    """
    begin = max(free.get(instr.stream, 0.0), ready)
    if instr.stream not in SHARING or all(x.space is not Space.PSUM for x in (*instr.outs, *instr.ins)):
        port = None
    if port is not None:
        begin = max([begin, *(until for stream, until in port.items() if stream is not instr.stream)])
    end = begin + duration_ns(instr, timing.machine)
    free[instr.stream] = end
    if port is not None:
        port[instr.stream] = end
    return end + latency_ns(instr, timing.machine)
