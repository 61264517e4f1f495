"""Where random programs take their choices from: hypothesis, which shrinks them, or a seed, which is faster."""

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Choices(Protocol):
    def choose(self, options: Sequence[T]) -> T: ...

    def integer(self, low: int, high: int) -> int:
        """Both included."""

    def coin(self) -> bool: ...

    def order(self, size: int) -> list[int]:
        """A permutation."""


class Drawn:
    """Of a hypothesis test."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def choose(self, options: Sequence[T]) -> T:
        if not options:
            raise LookupError("nothing to choose from")
        return self._draw(st.sampled_from(options))

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def coin(self) -> bool:
        return self._draw(st.booleans())

    def order(self, size: int) -> list[int]:
        return self._draw(st.permutations(range(size)))


class Seeded:
    """Of a seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def choose(self, options: Sequence[T]) -> T:
        if not options:
            raise LookupError("nothing to choose from")
        return self._random.choice(options)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def coin(self) -> bool:
        return self._random.random() < 0.5

    def order(self, size: int) -> list[int]:
        return self._random.sample(range(size), size)
