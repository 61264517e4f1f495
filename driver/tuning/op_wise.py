"""Strategies that go op by op until the error is tolerated, as mixed-precision tuners of frameworks do; times are not
asked. They are here to compare with, under the names that Intel Neural Compressor has for them.

``basic``, for each type:

1. All contractions have it.
2. Those of one opcode are in FP32, for each opcode in turn.
3. One contraction is in FP32, each in turn, the last one of the module first.
4. They go back to FP32 one after the other, those first that made the error smallest in step 3.

The first assignment that is tolerated ends the search for its type; of the types' results the fastest is taken.

``mse``: all have the type, and go back one after the other, those first whose cast alone is worst.
``mse_v2``: the same, but each time the one goes back that helps most then; at the end those that help least get the
type again while that is tolerated. What helps is told by the reference semantics.
``conservative``: all are in FP32, and one opcode after the other gets the type, if that is tolerated and no slower.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence

from neuronx_cc.driver.tuning.assignments import Assignment
from neuronx_cc.driver.tuning.results import Point
from neuronx_cc.driver.tuning.tuner import KEPT, Tuner


def without(types: Assignment, kept: Container[int]) -> Assignment:
    """``types`` with FP32 for some groups."""
    return tuple(KEPT if number in kept else dtype for number, dtype in enumerate(types))


def first_tolerated(
    opcodes: Sequence[str], judged: Callable[[frozenset[int]], float | None], tolerance: float
) -> frozenset[int] | None:
    """The contractions, of these opcodes, that are in FP32 in the first assignment that is tolerated.

    ``judged``: what is lost while some are; None where nothing more may be tried, which ends the search without one.
    """
    everything = frozenset(range(len(opcodes)))
    alike = [frozenset(n for n in everything if opcodes[n] == opcode) for opcode in dict.fromkeys(opcodes)]
    losses: dict[int, float] = {}

    def tried() -> Iterator[frozenset[int]]:
        yield from (frozenset[int](), *(same for same in alike if same != everything))
        yield from (frozenset([number]) for number in reversed(range(len(opcodes))))
        order = sorted(losses, key=lambda number: losses[number])
        yield from (frozenset(order[:count]) for count in range(2, len(order)))

    for kept in tried():
        lost = judged(kept)
        if lost is None or lost <= tolerance:
            return kept if lost is not None else None
        if len(kept) == 1:
            losses[min(kept)] = lost
    return None


class OpWise(Tuner):
    """Each contraction by itself."""

    def _search(self) -> Point:
        found = [self._fp32()]
        for dtype in self._types if self.groups else ():
            types = self._first_tolerated(dtype)
            if types is not None:
                found += self._measured([types], bounded=False)
        return min(found, key=lambda point: (point.cost, point.error))

    def _first_tolerated(self, dtype: str) -> Assignment | None:
        """None where only FP32 is, or trials or time ran out."""

        def judged(kept: frozenset[int]) -> float | None:
            return self._judged(without(self._uniform(dtype), kept))

        opcodes = [group.ops[0].opcode for group in self.groups]
        kept = first_tolerated(opcodes, judged, self._goal.tolerance)
        return None if kept is None else without(self._uniform(dtype), kept)

    def _judged(self, types: Assignment) -> float | None:
        """The loss of the user's metric, or the error; None where nothing more may be tried."""
        if self._goal.loss is not None:
            return self._lost(types) if self._has_time() else None
        found = self._measured([types])
        return found[0].error if found else None


class BySensitivity(OpWise):
    """``mse``."""

    def _first_tolerated(self, dtype: str) -> Assignment | None:
        types, numbers = self._uniform(dtype), range(len(self.groups))
        alone = [self._cast(without(types, {*numbers} - {number})) for number in numbers]
        order = sorted(numbers, key=lambda number: -alone[number])
        for count in numbers:
            lost = self._judged(tried := without(types, order[:count]))
            if lost is None or lost <= self._goal.tolerance:
                return tried if lost is not None else None
        return None


class Rescored(OpWise):
    """``mse_v2``."""

    def _first_tolerated(self, dtype: str) -> Assignment | None:
        types, kept = self._uniform(dtype), list[int]()
        left = [number for number, each in enumerate(types) if each != KEPT]
        while (lost := self._judged(without(types, kept))) is None or lost > self._goal.tolerance:
            if lost is None or not left:
                return None
            best = min(left, key=lambda number: self._cast(without(types, [*kept, number])))
            left.remove(best)
            kept.append(best)
        for number in reversed(kept):
            lost = self._judged(without(types, fewer := [each for each in kept if each != number]))
            if lost is None or lost > self._goal.tolerance:
                break
            kept = fewer
        return without(types, kept)


class Conservative(OpWise):
    """``conservative``."""

    def _first_tolerated(self, dtype: str) -> Assignment | None:
        types = self._uniform(KEPT)
        for opcode in dict.fromkeys(group.ops[0].opcode for group in self.groups):
            among = zip(self.groups, types, self._uniform(dtype), strict=True)
            tried = tuple(new if group.ops[0].opcode == opcode else old for group, old, new in among)
            lost = self._judged(tried)
            if lost is None:
                return None
            if lost <= self._goal.tolerance and self._is_no_slower(tried, types):
                types = tried
        return types

    def _is_no_slower(self, types: Assignment, other: Assignment) -> bool:
        costs = self._timed_cost(types), self._timed_cost(other)
        return None not in costs and costs[0] <= costs[1]  # type: ignore[operator]
