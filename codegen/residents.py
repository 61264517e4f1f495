"""How much of SBUF values may keep while other kernels run: residents, and operands that are staged for loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from neuronx_cc.codegen.dots.problem import Staged
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.memory import Arena
from neuronx_cc.ir import hlo
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.passes.analysis.stored import RESIDENT_VALUE_SHARE

RESIDENT_SHARE = (5, 11)
"""Of a partition of SBUF: what resident values may fill together; the rest is for tiles."""
KEPT_SHARE = (8, 11)
"""The same for resident values and what is staged for loops."""
PARTS = ((1, 1), (1, 2), (1, 4), (0, 1))
"""Of these shares, what is tried one after the other, until tiles have room beside what is kept."""


class Residents:
    """Bytes a partition that are kept, and those that may be."""

    def __init__(self, sbuf: Arena, sizes: Sizes, part: tuple[int, int] = PARTS[0]) -> None:
        self.staged: dict[tuple[hlo.DotOp, int], Staged] = {}
        """(contraction, number of its operand) -> the operand, staged ahead of the loops around."""
        self.together, self.kept, self._each = (
            sizes.sbuf_share(share) * part[0] // part[1] for share in (RESIDENT_SHARE, KEPT_SHARE, RESIDENT_VALUE_SHARE)
        )
        """What values may fill; values and staged operands; one value."""
        self._sbuf, self._limit = sbuf, self.kept
        self._values = self._operands = 0

    @property
    def left(self) -> int:
        """Bytes a partition that more values may fill."""
        return min(self.together, self._limit - self._operands) - self._values

    def may_stay(self, nbytes: int, beside: int = 0, whole: bool = False) -> bool:
        """Whether a value of ``nbytes`` a partition may stay on chip, with ``beside`` bytes of others that will.

        ``whole``: these are the operands and the result of one contraction, which has few tiles besides.
        """
        left = self._limit - self._operands - self._values if whole else self.left
        return nbytes <= min(self._each, left - beside)

    def place(self, nbytes: int, name: str, whole: bool = False) -> Alloc | None:
        """SBUF for a value of ``nbytes`` a partition, or None when it would crowd the tiles out."""
        alloc = self._sbuf.allocate(nbytes, name, from_top=True) if self.may_stay(nbytes, 0, whole) else None
        self._values += 0 if alloc is None else alloc.hi - alloc.lo
        return alloc

    def free(self, alloc: Alloc) -> None:
        """Give back what ``place`` gave."""
        self._values -= alloc.hi - alloc.lo
        self._sbuf.free(alloc)

    @contextmanager
    def at_most(self, limit: int) -> Iterator[None]:
        """Let values and staged operands fill at most ``limit`` bytes a partition together."""
        outside, self._limit = self._limit, limit
        yield
        self._limit = outside

    def place_staged(self, nbytes: int, name: str, most: int) -> Alloc | None:
        """SBUF for an operand that loops read again and again, or None where all that is kept would pass ``most``."""
        if self._values + self._operands + nbytes > most:
            return None
        alloc = self._sbuf.allocate(nbytes, name, from_top=True)
        self._operands += 0 if alloc is None else alloc.hi - alloc.lo
        return alloc

    def free_staged(self, alloc: Alloc) -> None:
        """Give back what ``place_staged`` gave."""
        self._operands -= alloc.hi - alloc.lo
        self._sbuf.free(alloc)
