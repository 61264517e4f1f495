"""What the race check has to find, by explicit graphs and bytes: slow, and nothing like the check itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from neuronx_cc.ir.isa import limits
from neuronx_cc.ir.isa.program import DMA_STREAMS, End, Instr, Loop, Record, Ref, Space, Stream, Wait
from neuronx_cc.ir.types import itemsize
from neuronx_cc.runtime.race_sites import operands

Array = np.ndarray[Any, Any]

PITCH = {Space.SBUF: limits.SBUF_PARTITION_BYTES, Space.PSUM: limits.PSUM_PARTITION_BYTES}


@lru_cache(4096)
def bytes_of(ref: Ref) -> Array:
    """Numbers of the bytes that a register-free operand touches, ascending; rows of partitions follow each other."""
    dims = ref.dims if ref.space is Space.HBM else ref.dims[1:]
    starts = np.zeros(1, np.int64) + ref.offset
    for count, stride in (*dims, (itemsize(ref.dtype), 1)):
        starts = (starts[:, None] + np.arange(count) * stride).reshape(-1)
    parts = range(1) if ref.space is Space.HBM else range(ref.partition, ref.partition + ref.dims[0][0])
    rows = np.array(parts, np.int64) * PITCH.get(ref.space, 0)
    return np.unique(rows[:, None] + starts)


@lru_cache(1 << 16)
def meet(one: Ref, other: Ref) -> bool:
    """Whether two operands share a byte."""
    return one.space is other.space and bool(np.intersect1d(bytes_of(one), bytes_of(other), True).size)


@dataclass
class _Memory:
    """Which bytes are written."""

    written: dict[Space, Array] = field(default_factory=dict)

    def flags(self, ref: Ref) -> tuple[Array, Array]:
        size = PITCH.get(ref.space, 0) * limits.PARTITIONS or 1 << 24
        return self.written.setdefault(ref.space, np.zeros(size, bool)), bytes_of(ref)


def verdict(instrs: Sequence[Instr], defined: Sequence[Ref]) -> tuple[str, int]:
    """Code of the first error and the instruction that meets it, or "" and the number of instructions.

    The graph has two events for each instruction, its start (0) and its completion (1).
    """
    positions: dict[Stream, list[int]] = {}
    before: list[set[tuple[int, int]]] = []  # events certain to have happened when instruction i starts
    memory = _Memory()
    for ref in defined:
        flags, touched = memory.flags(ref)
        flags[touched] = True
    for i, instr in enumerate(instrs):
        done = positions.setdefault(instr.stream, [])
        happened: set[tuple[int, int]] = set()
        if done:
            happened |= before[done[-1]] | {(done[-1], 0)}
        for wait in instr.waits:
            awaited = positions.get(wait.stream, [])
            if wait.count > len(awaited):
                return "ERUN913", i
            for each in awaited[: max(wait.count, 0)]:
                happened |= before[each] | {(each, 0), (each, 1)}
        reads, writes = operands(instr)
        for ref in reads:
            flags, touched = memory.flags(ref)
            if not flags[touched].all():
                return "ERUN912", i
        for j, other in enumerate(instrs[:i]):
            if (j, 1) in happened or (other.stream is instr.stream and instr.stream not in DMA_STREAMS):
                continue
            earlier_reads, earlier_writes = operands(other)
            pairs = [(mine, theirs) for mine in writes for theirs in (*earlier_reads, *earlier_writes)]
            pairs += [(mine, theirs) for mine in reads for theirs in earlier_writes]
            if any(meet(mine, theirs) for mine, theirs in pairs):
                return "ERUN911", i
        for ref in writes:
            flags, touched = memory.flags(ref)
            flags[touched] = True
        done.append(i)
        before.append(happened)
    return "", len(instrs)


def unrolled(records: Sequence[Record]) -> list[Instr]:
    """The dynamic instructions of a program without regions and ``reg_load``."""
    values: dict[int, int] = {}
    begun: dict[int, int] = {}
    result: list[Instr] = []

    def affine(base: int, coefs: tuple[tuple[int, int], ...]) -> int:
        return base + sum(coef * values[register] for register, coef in coefs)

    def fixed(refs: tuple[Ref, ...]) -> tuple[Ref, ...]:
        return tuple(replace(ref, offset=affine(ref.offset, ref.coefs), coefs=()) for ref in refs)

    def run(first: int) -> int:
        """Run from a record to the end of its block; returns the row of that end."""
        row = first
        while row < len(records):
            record = records[row]
            if isinstance(record, End):
                return row
            if isinstance(record, Instr):
                waits = tuple(Wait(wait.stream, affine(wait.count, wait.coefs)) for wait in record.waits)
                result.append(replace(record, outs=fixed(record.outs), ins=fixed(record.ins), waits=waits))
            elif isinstance(record, Loop):
                start = row
                for trip in range(record.count):
                    values[record.register] = trip
                    for register, modulus in record.phases:
                        values[register] = begun.get(start, 0) % modulus
                    begun[start] = begun.get(start, 0) + 1
                    row = run(start + 1)
            else:
                raise ValueError(f"record {row} is a region")
            row += 1
        return row

    run(0)
    return result
