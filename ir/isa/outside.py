"""What a program meets outside of its core: the other devices, and the process that runs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Meeting:
    """What one device learns when all members of its group have arrived."""

    parts: Sequence[Array]
    """A copy of each member's source, in the order of the group."""
    place: int
    """This device's place in the group; -1 when it belongs to none."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the devices of a group must agree on when they meet, whatever programs they run."""

    kind: str
    """One of ``collectives.KINDS``."""
    reduction: str
    dtype: str
    dims: tuple[int, ...]
    """Of each device's source."""
    groups: tuple[tuple[int, ...], ...] = ()
    """The device's group in its order, or the pairs of a permute, once they are known."""

    def __str__(self) -> str:
        words = " ".join(filter(None, [self.kind, self.reduction]))
        groups = ", ".join("{" + ",".join(map(str, group)) + "}" for group in self.groups)
        return f"{words} of {self.dtype}[{','.join(map(str, self.dims))}] over {groups}"


class Port(Protocol):
    """A device's connection to the others."""

    def meet(self, exchange: Exchange, groups: int, source: Array) -> Meeting:
        """Contribute ``source`` to the group of ``Program.groups[groups]`` and wait for all members.

        Raises RunError ERUN915 when some of them will never come, ERUN922 when they come for something else.
        """


class Host(Protocol):
    """The process that runs the program."""

    def call(self, number: int, results: Array, operands: Array) -> None:
        """Carry out ``Program.host_calls[number]`` on pieces of HBM, u8[...] each.

        Raises RunError ERUN918 when the function is not there, ERUN919 with what it raised.
        """
