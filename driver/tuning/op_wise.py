"""Strategy ``basic``: ops go back to FP32, one after the other, until the error is tolerated; times are not asked.

It is what mixed-precision tuners of frameworks do, here to compare with. For each type:

1. All contractions have it.
2. Those of one opcode are in FP32, for each opcode in turn.
3. One contraction is in FP32, each in turn, the last one of the module first.
4. They go back to FP32 one after the other, those first that made the error smallest in step 3.

The first assignment that is tolerated ends the search for its type; of the types' results the fastest is taken.
"""

from __future__ import annotations

import math
from dataclasses import replace

from neuronx_cc.driver.tuning.assignments import Assignment
from neuronx_cc.driver.tuning.tuner import KEPT, Group, Point, Tuner, contractions_of, group_of
from neuronx_cc.ir import hlo


class OpWise(Tuner):
    """Each contraction by itself."""

    def _grouped(self, module: hlo.HloModule, imported: frozenset[str]) -> list[Group]:
        """By names that the module was imported with; what the passes have made, by its path: rules tell no more."""
        groups: dict[tuple[str, str], list[hlo.HloOp]] = {}
        for op in contractions_of(module):
            loc = op.loc
            key = loc.name if loc.name in imported or not loc.op_name else loc.op_name
            groups.setdefault((op.opcode, key), []).append(op)
        return [group_of(ops, imported) for ops in groups.values()]

    def _search(self) -> tuple[list[Point], Point]:
        found = [Point(self._fp32, 0.0, self._microseconds(self._fp32))]
        for number, dtype in enumerate(self._types if self.groups else (), 1):
            types = self._first_tolerated(dtype)
            if types is not None:
                error = self._simulated_error(types) if self._goal.loss is None else self._error(types)
                found.append(Point(types, error, self._microseconds(types)))
            self._progress("type", number, len(self._types))
        chosen = min(found, key=lambda point: (point.microseconds, point.error))
        if chosen.types == self._fp32 and self._goal.loss is None:
            chosen = replace(chosen, error=self._simulated_error(chosen.types))
        return found, chosen

    def _first_tolerated(self, dtype: str) -> Assignment | None:
        """None where only FP32 is, or trials or time ran out."""
        everything = frozenset(range(len(self.groups)))
        by_opcode: dict[str, set[int]] = {}
        for number, group in enumerate(self.groups):
            by_opcode.setdefault(group.ops[0].opcode, set()).add(number)
        for kept in (frozenset[int](), *(frozenset(same) for same in by_opcode.values() if same != everything)):
            if not self._has_time():
                return None
            if self._lost(self._without(dtype, kept)) <= self._goal.tolerance:
                return self._without(dtype, kept)
        lost: dict[int, float] = {}
        for number in reversed(range(len(self.groups))):
            if not self._has_time():
                return None
            lost[number] = self._lost(types := self._without(dtype, frozenset([number])))
            if lost[number] <= self._goal.tolerance:
                return types
        return self._accumulated(dtype, sorted(lost, key=lambda number: lost[number]))

    def _accumulated(self, dtype: str, order: list[int]) -> Assignment | None:
        for count in range(2, len(order)):
            types = self._without(dtype, frozenset(order[:count]))
            if not self._has_time():
                return None
            if self._lost(types) <= self._goal.tolerance:
                return types
        return None

    def _without(self, dtype: str, kept: frozenset[int]) -> Assignment:
        return tuple(KEPT if number in kept else dtype for number in range(len(self.groups)))

    def _lost(self, types: Assignment) -> float:
        """What is judged: the loss of the user's metric, or the error, confirmed in the simulator where tolerated."""
        if self._goal.loss is not None:
            return self._goal.loss(self._program(types))
        error = self._error(types)
        if error <= self._goal.tolerance:
            error = max(error, self._simulated_error(types))
        return math.inf if math.isnan(error) else error
