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


class Port(Protocol):
    """A device's connection to the others."""

    def meet(self, kind: str, groups: int, source: Array) -> Meeting:
        """Contribute ``source`` to the group of ``Program.groups[groups]`` and wait for all members.

        Raises RunError ERUN915 when some of them will never come.
        """


class Host(Protocol):
    """The process that runs the program."""

    def call(self, number: int, results: Array, operands: Array) -> None:
        """Carry out ``Program.host_calls[number]`` on pieces of HBM, u8[...] each.

        Raises RunError ERUN918 when the function is not there, ERUN919 with what it raised.
        """
