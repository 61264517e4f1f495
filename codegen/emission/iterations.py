"""Iterations of loops around kernels: a loop, where they can overlap, or a region with a barrier after each.

Iterations overlap as those of a kernel's loop do: an instruction waits for what it touches in the iterations before,
and for nothing else. What that takes is known when the body is there; until then it is both, for its own waits are the
same. A region around the loop has everything before it, and everything in it, complete at a barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from neuronx_cc.codegen.emission.builder import Builder
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import End, Instr, Loop, Record, Stream, While


@contextmanager
def iterations(builder: Builder, count: int, register: int, may_overlap: Callable[[], bool]) -> Iterator[None]:
    """What is emitted inside is repeated ``count`` times, counted by ``register``.

    Iterations overlap where memory and the waits of an instruction allow it, unless one has a region inside, or
    something whose order others see. ``may_overlap`` is asked at the end.
    """
    records, sync, tiles, needs = builder.program.records, builder.sync, builder.program.tiles, builder.program.needs
    with builder.region(While(register, count)):
        frame = sync.open_loop(count, register, iterations=True)
        start, first_tile, first_need, first = len(records), len(tiles), len(needs), len(sync.pending)
        yield
        body = records[start:]
        once = _free_register(builder, body) if all(map(_is_plain, body)) and may_overlap() else None
        if sync.close_iterations(first, once is not None) and once is not None:
            records[start - 1 : start] = While(once, 1), Loop(count, register, (), frozenset(frame.finished))
            records.append(End())
            needs[first_need:] = [replace(need, first=need.first + 1, end=need.end + 1) for need in needs[first_need:]]
        else:
            # of a region inside, loops are counted from its own start
            tiles[first_tile:] = [(regions, loops - (regions == sync.regions)) for regions, loops in tiles[first_tile:]]


def _free_register(builder: Builder, body: Sequence[Record]) -> int | None:
    """A register that is free, and none of those that ``body`` counts in."""
    used = {number for loop in body if isinstance(loop, Loop) for number in _registers(loop)}
    tried: list[int] = []
    while builder.registers_left and (not tried or tried[-1] in used):
        tried.append(builder.new_register())
    for register in reversed(tried):
        builder.release_register(register)
    return tried[-1] if tried and tried[-1] not in used else None


def _registers(loop: Loop) -> Iterator[int]:
    yield loop.register
    yield from (phase for phase, _ in loop.phases)


def _is_plain(record: Record) -> bool:
    """Whether iterations with this record may overlap: no barrier, no exchange, no number that a sequencer loads."""
    if isinstance(record, Instr):
        return record.stream is not Stream.COLLECTIVE and record.op != "reg_load"
    return isinstance(record, Loop | End)
