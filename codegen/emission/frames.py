"""The loops around the instructions that are being emitted, and what an instruction touches of a piece of memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from neuronx_cc.ir.isa.program import Stream

Place = tuple[Stream, tuple["Frame", ...], tuple[tuple[int, int], ...]]
"""A stream, the open loops that its counts are relative to, outermost first, and (register, instructions an iteration)
of the loop that keeps step with one before it."""


class Steps(NamedTuple):
    """How an access of a closed outermost loop moved: its hull in the first iteration, and bytes an iteration."""

    lo: int
    hi: int
    step: int
    trips: int
    first: int
    """Its position in the first iteration."""
    each: int
    """Instructions of its stream in one iteration."""


Rows = tuple[tuple[int, int], ...]
"""Of rows at equal distance: that distance, and the bytes from the start to the end of one; then the same of the rows
that one is made of."""


@dataclass(slots=True, eq=False)
class Frame:
    """A loop that is being emitted (or the program itself, with ``count`` 1 and no register)."""

    count: int = 1
    register: int = -1
    iterations: bool = False
    """Whether it goes around kernels: what is emitted in it is straight-line code, and outermost loops are in it."""
    phases: dict[int, int] = field(default_factory=dict)
    """Modulus -> phase register."""
    reusable: set[int] = field(default_factory=set)
    """Registers of loops that closed before this one opened, and that nothing has taken since."""
    places: dict[Stream, Place] = field(default_factory=dict)
    """Of the instructions right in it."""
    finished: dict[Stream, int] = field(default_factory=dict)
    """Instructions of each stream in one iteration, so far."""
    learned: list[tuple[dict[Place, int], Place, int, int]] = field(default_factory=list)
    """What was waited for in here: the counts of the waiting stream, the place, its count before, and the order."""


@dataclass(slots=True, eq=False)
class Access:
    """One instruction's access to an allocation: a byte hull, affine in the open loops' registers."""

    stream: Stream
    write: bool
    lo: int
    hi: int
    partitions: tuple[int, int]
    coefs: tuple[tuple[int, int], ...]
    count: int
    """Position: instructions of the stream finished when this one is, in the current iterations."""
    place: Place
    order: int
    """Place of its instruction among all in order of emission."""
    rows: Rows = ()
    """Of an access made of equal rows at equal distance; () for other forms."""
    rotations: frozenset[tuple[int, int]] = frozenset()
    """(loop identity, stride) of the rotating buffers it went through, closed loops included."""
    covers: bool = True
    """False for run-time addresses: it may touch only a part of its hull, so it replaces no earlier access."""
    number: int = -1
    """Its place in the allocation's history."""
    steps: Steps | None = None
    """Of the iterations that it stands for."""

    @property
    def pitch(self) -> int:
        """Bytes from one of the outermost rows to the next; 0 for none."""
        return self.rows[0][0] if self.rows else 0

    @property
    def run(self) -> int:
        """Bytes from the start to the end of one of them."""
        return self.rows[0][1] if self.rows else 0

    @property
    def loops(self) -> tuple[Frame, ...]:
        """Open loops around it, outermost first."""
        return self.place[1]
