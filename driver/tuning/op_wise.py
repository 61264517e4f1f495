"""Strategy ``basic``: ops go back to FP32, one after the other, until the error is tolerated; times are not asked.

It is what mixed-precision tuners of frameworks do, here to compare with. For each type:

1. All contractions have it.
2. Those of one opcode are in FP32, for each opcode in turn.
3. One contraction is in FP32, each in turn, the last one of the module first.
4. They go back to FP32 one after the other, those first that made the error smallest in step 3.

The first assignment that is tolerated ends the search for its type; of the types' results the fastest is taken.
"""

from __future__ import annotations

from neuronx_cc.driver.tuning.assignments import Assignment
from neuronx_cc.driver.tuning.results import Point
from neuronx_cc.driver.tuning.tuner import KEPT, Tuner


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
        everything = frozenset(range(len(self.groups)))
        by_opcode: dict[str, set[int]] = {}
        for number, group in enumerate(self.groups):
            by_opcode.setdefault(group.ops[0].opcode, set()).add(number)
        for kept in (frozenset[int](), *(frozenset(same) for same in by_opcode.values() if same != everything)):
            lost = self._judged(types := self._without(dtype, kept))
            if lost is None or lost <= self._goal.tolerance:
                return types if lost is not None else None
        losses: dict[int, float] = {}
        for number in reversed(range(len(self.groups))):
            lost = self._judged(types := self._without(dtype, frozenset([number])))
            if lost is None or lost <= self._goal.tolerance:
                return types if lost is not None else None
            losses[number] = lost
        order = sorted(losses, key=lambda number: losses[number])
        for count in range(2, len(order)):
            lost = self._judged(types := self._without(dtype, frozenset(order[:count])))
            if lost is None or lost <= self._goal.tolerance:
                return types if lost is not None else None
        return None

    def _without(self, dtype: str, kept: frozenset[int]) -> Assignment:
        return tuple(KEPT if number in kept else dtype for number in range(len(self.groups)))

    def _judged(self, types: Assignment) -> float | None:
        """The loss of the user's metric, or the error; None where nothing more may be tried."""
        if self._goal.loss is not None:
            return self._lost(types) if self._has_time() else None
        found = self._measured([types])
        return found[0].error if found else None
