"""Calls of functions of the host process from inside a program: what ``host_call`` instructions carry.

The operands of a call lie one after the other in one piece of HBM, and so do its results. On hardware a sequencer
would notify the host and wait until it answers; the vendor publishes no such channel, so the time that the
host takes is not modelled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from neuronx_cc.ir.errors import NO_LOC, Loc
from neuronx_cc.ir.isa.elements import STORAGE, Array

HOST_CALL = "neuron_host_call"
"""The custom-call target that becomes a ``host_call``."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A dense array at byte ``offset`` of a piece."""

    dtype: str
    dims: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return prod(self.dims) * STORAGE[self.dtype].itemsize

    def of(self, piece: Array) -> Array:
        """The array in ``piece``, u8[...]."""
        return piece[self.offset : self.offset + self.nbytes].view(STORAGE[self.dtype]).reshape(self.dims)


@dataclass(frozen=True, slots=True)
class HostCall:
    """One call in a program (``Program.host_calls``)."""

    function: int
    """Number of the function, which means something only in the process that compiled the program."""
    partition: int
    """The only partition that calls it, in whose place the others get zeros; -1: each does."""
    operands: tuple[Slot, ...]
    results: tuple[Slot, ...]
    loc: Loc = NO_LOC


def slots(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[tuple[Slot, ...], int]:
    """Slots of these (element type, dims) in a piece without gaps, and its bytes.

    Wide elements come first, so that each array is aligned.
    """
    found: dict[int, Slot] = {}
    at = 0
    for number in sorted(range(len(shapes)), key=lambda number: -STORAGE[shapes[number][0]].itemsize):
        found[number] = Slot(*shapes[number], at)
        at += found[number].nbytes
    return tuple(found[number] for number in range(len(shapes))), at
