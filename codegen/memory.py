"""Memory arenas: first fit behind a moving cursor, so that freed bytes are reused as late as possible.

Reuse is what serialises engines, hence the cursor. An allocation remembers the earlier owners of its
bytes; synchronisation waits for their accesses.
"""

from bisect import insort

from neuronx_cc.codegen.sync import Alloc
from neuronx_cc.ir.isa.program import Space


class Arena:
    """One memory: SBUF and PSUM in bytes per partition, HBM in bytes."""

    def __init__(self, space: Space, capacity: int, alignment: int) -> None:
        self.space = space
        self.capacity = capacity
        self.alignment = alignment
        self.live: list[Alloc] = []
        self._ghosts: list[Alloc] = []
        self._cursor = 0
        self.peak = 0

    @property
    def used(self) -> int:
        return sum(alloc.hi - alloc.lo for alloc in self.live)

    def largest_gap(self) -> int:
        return max((hi - lo for lo, hi in self._gaps()), default=0)

    def make_room(self, nbytes: int) -> None:
        """Move the cursor so that allocations of ``nbytes`` in all find one gap, if any gap is that large."""
        for lo, hi in self._gaps():
            if lo <= self._cursor < hi and hi - self._cursor >= nbytes:
                return
        fitting = [(lo, hi) for lo, hi in self._gaps() if hi - lo >= nbytes]
        lo, _ = min(fitting, default=max(self._gaps(), key=lambda gap: gap[1] - gap[0], default=(0, 0)))
        self._cursor = lo

    def _gaps(self) -> list[tuple[int, int]]:
        gaps = []
        at = 0
        for alloc in self.live:
            if alloc.lo > at:
                gaps.append((at, alloc.lo))
            at = max(at, alloc.hi)
        if at < self.capacity:
            gaps.append((at, self.capacity))
        return gaps

    def allocate(self, nbytes: int, name: str = "", from_top: bool = False) -> Alloc | None:
        """``nbytes`` contiguous bytes, or None. ``from_top`` ignores the cursor and packs at the high end."""
        nbytes = max(self.alignment, -(-nbytes // self.alignment) * self.alignment)
        gaps = self._gaps()
        if from_top:
            fitting = [hi - nbytes for lo, hi in gaps if hi - lo >= nbytes]
            return self._take(max(fitting), nbytes, name) if fitting else None
        for low, high in ((self._cursor, self.capacity), (0, self.capacity)):
            for lo, hi in gaps:
                start = max(lo, low)
                if min(hi, high) - start >= nbytes:
                    self._cursor = (start + nbytes) % self.capacity
                    return self._take(start, nbytes, name)
        return None

    def _take(self, lo: int, nbytes: int, name: str) -> Alloc:
        alloc = Alloc(self.space, lo, lo + nbytes, name)
        kept = []
        for ghost in self._ghosts:
            if ghost.lo < alloc.hi and alloc.lo < ghost.hi:
                alloc.inherit(ghost)
                if ghost.lo >= alloc.lo and ghost.hi <= alloc.hi:
                    continue
            kept.append(ghost)
        self._ghosts = kept
        insort(self.live, alloc, key=lambda alloc: alloc.lo)
        self.peak = max(self.peak, alloc.hi)
        return alloc

    def forget(self) -> None:
        """A barrier: all accesses so far, also of freed bytes, are complete."""
        for alloc in self.live:
            alloc.forget()
        self._ghosts = []

    def free(self, alloc: Alloc) -> None:
        """Give the bytes back; later owners of them wait for the accesses made here (or before, if none were)."""
        self.live.remove(alloc)
        if alloc.hazards():
            self._ghosts.append(alloc)
