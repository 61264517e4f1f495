"""What is emitted step by step: operands of heads, and what is made of blocks of their rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from neuronx_cc.codegen.chains.pattern import Sink
from neuronx_cc.codegen.emission.builder import Affine, Block


@dataclass(slots=True, eq=False)
class Group:
    """Heads that are loaded and stored together where their rows lie beside each other in HBM."""

    at: tuple[Affine, ...]
    """The first."""
    size: int
    tiles: dict[object, Block] = field(default_factory=dict)
    """Rows of all: array -> its tile [partition, neighbour, head, term]."""
    done: Counter[Sink] = field(default_factory=Counter)
    """Heads of which it has the result."""


@dataclass(slots=True)
class Head:
    """What is there of a head that is under way."""

    number: int
    at: tuple[Affine, ...]
    group: Group
    place: int
    """In the group."""
    there: float | None = None
    """When its operands are, in nanoseconds, if that is known."""
    tiles: dict[object, Block] = field(default_factory=dict)
    """Operands: (value, layout) -> its tile."""
    made: dict[Sink, Block] = field(default_factory=dict)
    """What is made for each last contraction: results in SBUF, or sums in PSUM."""
    done: Counter[Sink] = field(default_factory=Counter)
    """Blocks of rows of which it has that."""
    seen: defaultdict[Sink, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Chunks of columns of which it has sums over rows."""


@dataclass(slots=True, eq=False)
class Task:
    """What is emitted step by step: the operands of a head, or what is made of a block of its rows."""

    head: Head
    block: int
    left: int
    """Contractions that are still to be made of it."""
    ready: float
    """When what has been emitted is done, in nanoseconds."""
    steps: Iterator[bool] = field(init=False)
    emitted: int = 0
    fills: list[object] = field(default_factory=list)
    """Banks of PSUM that are free once the step is done."""
    is_done: bool = False
