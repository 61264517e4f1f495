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

from neuronx_cc.codegen.emission.frames import Access, Place, Rows
from neuronx_cc.codegen.emission.history import History
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.types import itemsize

REMEMBERED = 4096
"""Questions about rows whose answers are kept: tiles of equal form ask the same again and again."""


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
    unheard: dict[Stream, tuple[int, list[Hazard]]] = field(default_factory=dict)
    """Stream -> of ``inherited``, what it has not waited for, and the ``Synchroniser.epoch`` in which this is so."""
    _left: list[Hazard] | None = None
    """What it leaves, once it is freed."""

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
        if self._left is None or not self.freed:
            self._left = self._hazards()
        return self._left

    def _hazards(self) -> list[Hazard]:
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
        if not part:
            part.update(counts)
            continue
        for place, count in counts.items():
            if count > part.get(place, 0):
                part[place] = count


class Hull(NamedTuple):
    """What an operand touches, relative to its offset."""

    low: int
    high: int
    rows: Rows


@lru_cache(maxsize=REMEMBERED)
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
    steps = sorted([(stride, count) for count, stride in dims if count > 1], reverse=True)
    if not steps or steps[-1][0] < 0:
        return Hull(low, high, ())
    rows, left = [], high
    for at, (pitch, count) in enumerate(steps):
        left -= (count - 1) * pitch
        if left > pitch or (at + 1 < len(steps) and steps[at + 1][0] == pitch):
            break  # a row would reach into the next one
        rows.append((pitch, left))
    return Hull(low, high, tuple(rows))


def interleaved(a: Access, b: Access, shift: int, moving: Sequence[int]) -> bool:
    """Whether rows never meet, with ``a`` moved by ``shift`` bytes and either by ``moving`` strides."""
    if not a.rows and not b.rows:
        return False
    if moving:
        pitch = max(a.pitch, b.pitch)
        if any([stride % pitch for stride in moving]):
            return False
    return not _meet(a.rows, a.hi - a.lo, b.rows, b.hi - b.lo, b.lo - a.lo - shift, bool(moving))


@lru_cache(maxsize=REMEMBERED)
def _meet(a: Rows, a_span: int, b: Rows, b_span: int, distance: int, endless: bool = False) -> bool:
    """Whether bytes of rows in ``b_span`` may be those of rows in ``a_span``, which begins ``distance`` bytes before.

    ``endless``: or begins so far before it by the outermost distance of rows any number of times.
    """
    if not endless and not -b_span < distance < a_span:
        return False
    for pitch in sorted({rows[0][0] for rows in (a, b) if rows}):
        inner_a, inner_b = _row(a, a_span, pitch), _row(b, b_span, pitch)
        if inner_a is not None and inner_b is not None:
            distance %= pitch
            return _meet(*inner_a, *inner_b, distance) or _meet(*inner_a, *inner_b, distance - pitch)
    return True


def _row(rows: Rows, span: int, pitch: int) -> tuple[Rows, int] | None:
    """The rows and the span of one row of those at a distance of ``pitch``, or at a multiple, or of all that is no more
    than one. None where rows reach further.
    """
    if rows and rows[0][0] % pitch == 0 and rows[0][1] <= pitch:
        return rows[1:], rows[0][1]
    return (rows, span) if span <= pitch else None


@lru_cache(maxsize=REMEMBERED)
def _within(new: Rows, new_span: int, old: Rows, old_span: int, start: int) -> bool:
    """Whether what meets the rows in ``old_span``, ``start`` bytes after those in ``new_span``, meets these as well."""
    if start < 0 or start + old_span > new_span:
        return False
    if not new:
        return True
    inner = _row(old, old_span, new[0][0])
    return inner is not None and _within(new[1:], new[0][1], *inner, start % new[0][0])


def remember(alloc: Alloc, new: Access) -> None:
    """Remember ``new``; forget accesses that anything conflicting with them now finds through it."""
    accesses = alloc.accesses
    if new.covers and accesses:
        lo, hi, coefs, loops, rows = new.lo, new.hi, new.coefs, new.place[1], new.rows
        write, stream, (first, last) = new.write, new.stream, new.partitions
        replaced = [
            old
            for old in accesses.replaceable(new)
            if old.lo >= lo
            and old.hi <= hi
            and (write or (old.stream is stream and not old.write))
            and old.coefs == coefs
            and old.partitions[0] >= first
            and old.partitions[1] <= last
            and old.place[1] == loops
            and (not rows or _within(rows, hi - lo, old.rows, old.hi - old.lo, old.lo - lo))
        ]
        for old in replaced:
            accesses.discard(old)
    accesses.add(new)
