"""Pieces of memory, and what instructions touch of them.

What ``sync`` keeps: an allocation knows the accesses since it was last fully overwritten, each a byte hull that is
affine in the registers of the open loops, with the position of its instruction among those of its stream. Where they
are many, they are found by the bytes that they touch (``history``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from neuronx_cc.codegen.emission.frames import Access, Place
from neuronx_cc.codegen.emission.history import History
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.types import itemsize


@dataclass(slots=True, eq=False)
class Alloc:
    """A piece of memory with one lifetime. ``lo``/``hi`` are bytes in the partition, or HBM addresses."""

    space: Space
    lo: int
    hi: int
    name: str = ""
    parts: int = 1
    """Equal parts, the buffers of a ring, that later owners of the bytes tell apart."""
    accesses: History = field(init=False)
    inherited: list[Hazard] = field(default_factory=list)
    """Last counts of the earlier owners of these bytes: accesses here wait for them."""
    owner: int = -1
    """Its number in ``Program.owners``, once an instruction has touched it."""
    freed: bool = False

    def __post_init__(self) -> None:
        self.accesses = History(self.hi - self.lo)

    def forget(self) -> None:
        """A barrier: everything that was done to these bytes is complete."""
        self.accesses, self.inherited = History(self.hi - self.lo), []

    def inherit(self, former: Alloc) -> None:
        """Take over the hazards of an earlier owner of some of these bytes."""
        for hazard in former.hazards():
            lo, hi = max(hazard.lo, self.lo), min(hazard.hi, self.hi)
            if lo < hi:
                self.inherited.append(Hazard(lo, hi, hazard.counts))

    def hazards(self) -> list[Hazard]:
        """What a later owner of the bytes has to wait for: the last access of each stream to each part."""
        if self.parts == 1 and not self.inherited:
            return [Hazard(self.lo, self.hi, self.accesses.last())] if self.accesses else []
        size = (self.hi - self.lo) // self.parts
        found: list[dict[Place, int]] = [{} for _ in range(self.parts)]
        for hazard in self.inherited:
            _raise(found[(hazard.lo - self.lo) // size : (hazard.hi - self.lo - 1) // size + 1], hazard.counts)
        if self.parts == 1:
            _raise(found, self.accesses.last())
        else:
            for access in self.accesses:
                lo, hi = (0, self.hi - self.lo) if access.coefs else (access.lo, access.hi)
                _raise(found[lo // size : (hi - 1) // size + 1], {access.place: access.count})
        starts = range(self.lo, self.hi, size)
        return [Hazard(lo, lo + size, counts) for lo, counts in zip(starts, found, strict=True) if counts]


class Hazard(NamedTuple):
    """Accesses of an earlier owner of the bytes [lo, hi)."""

    lo: int
    hi: int
    counts: Mapping[Place, int]


def _raise(parts: Sequence[dict[Place, int]], counts: Mapping[Place, int]) -> None:
    """Have each of ``parts`` know the higher of two counts of a place."""
    for part in parts:
        for place, count in counts.items():
            part[place] = max(count, part.get(place, 0))


@dataclass(slots=True, frozen=True)
class Hull:
    """What an operand touches, relative to its offset."""

    low: int
    high: int
    pitch: int
    run: int
    """``Access`` explains both; (0, 0) where a row would reach into the next one."""


@lru_cache(maxsize=4096)
def hull(space: Space, dtype: str, dims: tuple[tuple[int, int], ...]) -> Hull:
    """Byte range [low, high) and rows that an operand of these dims touches, registers at 0."""
    if space is not Space.HBM:
        dims = dims[1:]
    low, high = 0, itemsize(dtype)
    for count, stride in dims:
        if stride >= 0:
            high += (count - 1) * stride
        else:
            low += (count - 1) * stride
    strides = [(stride, count) for count, stride in dims if count > 1]
    if not strides or min(strides)[0] < 0:
        return Hull(low, high, 0, 0)
    pitch = max(strides)[0]
    run = itemsize(dtype) + sum((count - 1) * stride for stride, count in strides if stride != pitch)
    apart = run <= pitch and [stride for stride, _ in strides].count(pitch) == 1
    return Hull(low, high, pitch, run) if apart else Hull(low, high, 0, 0)


def interleaved(a: Access, b: Access, shift: int, moving: Sequence[int]) -> bool:
    """Whether rows of equal pitch never meet, with ``a`` moved by ``shift`` bytes and either by ``moving`` strides."""
    if not a.pitch or a.pitch != b.pitch or any(stride % a.pitch for stride in moving):
        return False
    distance = (b.lo - a.lo - shift) % a.pitch
    return distance >= a.run and distance + b.run <= a.pitch


def _in_gaps(old: Access, new: Access) -> bool:
    """Whether ``old`` may touch what lies between the rows of ``new``, where others do not meet ``new``."""
    return old.pitch != new.pitch or (old.lo - new.lo) % new.pitch + old.run > new.run


NO_ROTATIONS: frozenset[tuple[int, int]] = frozenset()


def remember(alloc: Alloc, new: Access) -> None:
    """Remember ``new``; forget accesses that anything conflicting with them now finds through it."""
    accesses = alloc.accesses
    if new.covers:
        lo, hi, (first, last) = new.lo, new.hi, new.partitions
        replaced = [
            old
            for old in accesses.replaceable(new)
            if old.lo >= lo
            and old.hi <= hi
            and old.partitions[0] >= first
            and old.partitions[1] <= last
            and (new.write or (old.stream is new.stream and not old.write))
            and old.coefs == new.coefs
            and old.place[1] == new.place[1]
            and not (new.pitch and _in_gaps(old, new))
        ]
        for old in replaced:
            accesses.discard(old)
    accesses.add(new)
