"""Memory arenas: first fit after a moving cursor, so that freed bytes are reused as late as possible.

Reuse is what serialises engines, hence the cursor. In HBM a gap of about the size is taken first, and what is small
leaves large gaps alone, so that a program takes little more than what it holds at a time. An allocation remembers the
earlier owners of its bytes; synchronisation waits for their accesses.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from operator import attrgetter, itemgetter

from neuronx_cc.codegen.emission.accesses import Alloc, Hazard
from neuronx_cc.codegen.emission.history import History
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.program import Space

SLACK = 1.25
"""Times what is placed there, a gap in HBM that is taken as the next one, not as the smallest."""
LARGE = 8
"""Times an array that is small, a gap in HBM that is kept for others, or what is used."""
ROOM_BITS = 7
"""Of the room that plans know: a step is at most one part in 64."""

_lo_of = attrgetter("lo")
_hi_of_piece = itemgetter(1)


@dataclass(frozen=True, slots=True)
class Known:
    """Accesses to what an arena holds, and to what is free in it."""

    accesses: dict[Alloc, tuple[History, list[Hazard]]]
    ghosts: list[tuple[int, int, Alloc]]
    cursor: int


class Arena:
    """One memory: SBUF and PSUM in bytes per partition, HBM in bytes."""

    def __init__(self, space: Space, capacity: int, alignment: int) -> None:
        self.space = space
        self.capacity = capacity
        self.alignment = alignment
        self.live: list[Alloc] = []
        """By address."""
        self.used = 0
        self._gaps: list[tuple[int, int]] = [(0, capacity)]
        """Free bytes, by address."""
        self._ghosts: list[tuple[int, int, Alloc]] = []
        """Pieces [lo, hi) of what is free and was accessed, by address, with the last owner of each."""
        self._cursor = 0
        self.peak = 0

    def largest_gap(self) -> int:
        return max((hi - lo for lo, hi in self._gaps), default=0)

    def planned_room(self) -> int:
        """The largest gap, as plans know it: in steps, so that kernels find the plans of equal ones that had a little
        more or less.
        """
        gap = self.largest_gap()
        step = 1 << max(0, gap.bit_length() - ROOM_BITS)
        return gap // step * step

    def make_room(self, nbytes: int) -> None:
        """Move the cursor so that allocations of ``nbytes`` in all find one gap, if any gap is that large."""
        for lo, hi in self._gaps:
            if lo <= self._cursor < hi and hi - self._cursor >= nbytes:
                return
        fitting = [(lo, hi) for lo, hi in self._gaps if hi - lo >= nbytes]
        lo, _ = min(fitting, default=max(self._gaps, key=lambda gap: gap[1] - gap[0], default=(0, 0)))
        self._cursor = lo

    def reserve(self, nbytes: int, name: str) -> Alloc:
        """``nbytes`` at the high end, for as long as the program runs. Raises EXSP001 where there is no room."""
        alloc = self.allocate(nbytes, name, from_top=True)
        if alloc is None:
            raise self.full(nbytes, name)
        return alloc

    def full(self, nbytes: int, name: str) -> CompileError:
        """What is raised where nothing less than ``nbytes`` will do: less stays on chip then, if anything does."""
        return CompileError(
            "EXSP001",
            f"{self.space.name} is full: {nbytes} bytes a partition wanted for {name}, "
            f"{self.used} of {self.capacity} in use, largest gap {self.largest_gap()}",
            "shorter rows, a smaller batch, or a machine with more memory",
        )

    def allocate(self, nbytes: int, name: str = "", from_top: bool = False, unused: bool = False) -> Alloc | None:
        """``nbytes`` contiguous bytes, or None. ``from_top`` ignores the cursor and packs at the high end; ``unused``
        bytes have had no owner, so that what is there when the program starts is still there.
        """
        nbytes = max(self.alignment, -(-nbytes // self.alignment) * self.alignment)
        if unused:
            return self._take(self.peak, nbytes, name) if self.peak + nbytes <= self.capacity else None
        if from_top:
            fitting = [hi - nbytes for lo, hi in self._gaps if hi - lo >= nbytes]
            return self._take(max(fitting), nbytes, name) if fitting else None
        start = self._snug(nbytes) if self.space is Space.HBM else self._next(nbytes)
        if start is None:
            return None
        self._cursor = (start + nbytes) % self.capacity
        return self._take(start, nbytes, name)

    def _next(self, nbytes: int) -> int | None:
        """The first place after the cursor."""
        for low in (self._cursor, 0):
            for lo, hi in self._gaps[bisect_right(self._gaps, low, key=_hi_of_piece) :]:
                start = max(lo, low)
                if hi - start >= nbytes:
                    return start
        return None

    def _snug(self, nbytes: int) -> int | None:
        """Of gaps between what is used, the next after the cursor that is little larger, else the smallest.

        What is small beside all of them lies after what has been used: a gap serves something large once more.
        """
        fitting = [(lo, hi) for lo, hi in self._gaps if hi - lo >= nbytes]
        if not fitting:
            return None
        between = [(lo, hi) for lo, hi in fitting if hi <= self.peak]
        snug = [lo for lo, hi in between if hi - lo <= SLACK * nbytes]
        if snug:
            return min(snug, key=lambda lo: (lo < self._cursor, lo))
        lo, hi = min(between, key=lambda gap: (gap[1] - gap[0], gap[0]), default=fitting[-1])
        small = nbytes * LARGE < min(hi - lo, self.peak)
        return fitting[-1][0] if small else lo

    def _take(self, lo: int, nbytes: int, name: str) -> Alloc:
        hi = lo + nbytes
        alloc = Alloc(self.space, lo, hi, name)
        at = bisect_right(self._gaps, lo, key=_hi_of_piece)
        self._gaps[at : at + 1] = _without(self._gaps[at], lo, hi)
        first = last = bisect_right(self._ghosts, lo, key=_hi_of_piece)
        kept: list[tuple[int, int, Alloc]] = []
        while last < len(self._ghosts) and self._ghosts[last][0] < hi:
            low, high, former = self._ghosts[last]
            alloc.inherit(former)
            kept += [(*piece, former) for piece in _without((low, high), lo, hi)]
            last += 1
        self._ghosts[first:last] = kept
        insort(self.live, alloc, key=_lo_of)
        self.used += nbytes
        self.peak = max(self.peak, hi)
        return alloc

    def forget(self) -> None:
        """A barrier: all accesses so far, also of freed bytes, are complete."""
        for alloc in self.live:
            alloc.forget()
        self._ghosts = []

    def known(self) -> Known:
        """What ``forget`` forgets."""
        accesses = {alloc: (alloc.accesses, alloc.inherited) for alloc in self.live}
        return Known(accesses, self._ghosts, self._cursor)

    def recall(self, known: Known) -> None:
        """Know that again, and nothing that was done since. What was allocated since is free again, or constant."""
        self._ghosts, self._cursor = known.ghosts, known.cursor
        for alloc in self.live:
            if alloc in known.accesses:
                alloc.accesses, alloc.inherited = known.accesses[alloc]
            else:
                alloc.forget()

    def free(self, alloc: Alloc) -> None:
        """Give the bytes back; later owners of them wait for the accesses made here (or before, if none were)."""
        alloc.freed = True
        del self.live[bisect_left(self.live, alloc.lo, key=_lo_of)]
        self.used -= alloc.hi - alloc.lo
        at = bisect_left(self._gaps, alloc.lo, key=_hi_of_piece)
        lo, hi, end = alloc.lo, alloc.hi, at
        if end < len(self._gaps) and self._gaps[end][1] == lo:
            lo, end = self._gaps[end][0], end + 1
        if end < len(self._gaps) and self._gaps[end][0] == hi:
            hi, end = self._gaps[end][1], end + 1
        self._gaps[at:end] = [(lo, hi)]
        if alloc.accesses or alloc.inherited:
            self._ghosts.insert(bisect_right(self._ghosts, alloc.lo, key=_hi_of_piece), (alloc.lo, alloc.hi, alloc))


def _without(piece: tuple[int, int], lo: int, hi: int) -> list[tuple[int, int]]:
    """What is left of ``piece`` beside [lo, hi)."""
    low, high = piece
    return [(start, end) for start, end in ((low, min(lo, high)), (max(hi, low), high)) if start < end]
