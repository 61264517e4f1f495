"""Strategy ``error-model``: errors of single contractions by evaluation, times of whole programs by the clock.

1. All contractions in each type, the most accurate first: the accurate and the fast ends of what there is. A type is
   not tried that another one outdoes, or whose error, told from the other's, leaves it room for next to nothing.
2. Where a type would be faster but is not tolerated, the error of each contraction in it alone is found by the
   reference semantics, without compiling. Squared errors add up; what a type saves is dealt out to the contractions,
   half of it evenly and half by their work. The fastest assignment under the tolerance is solved exactly, and
   measured. Where the sum of squares was wrong, the bound is moved by as much, and it is solved again.
3. Of the fastest assignments like contractions go back to FP32, or get another type that is tolerated everywhere, the
   smallest first, where that is faster, by the clock alone: there a cast may cost more than it saves.
4. Where the errors of a type did not add up, so that step 2 is no guide, a small set of ops that must not have it is
   found by delta debugging, on the reference semantics; that assignment is measured too.

With a user's metric the same is done for tolerances between the last uniform assignment that it accepts and the first
that it does not, and the front is bisected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from neuronx_cc.driver.tuning.assignments import Assignment, fastest
from neuronx_cc.driver.tuning.delta import smallest
from neuronx_cc.driver.tuning.results import Point, Together, pareto
from neuronx_cc.driver.tuning.tuner import KEPT, Tuner

PER_SWAP = 10
"""Ops for which like ones get another type once, to see whether that is faster."""
CHECKS = 4
"""Solutions that are measured for one tolerance."""
LEAST_GAIN = 2e-3
"""Share of the time below which a gain is not worth a trial."""
FULL = 0.9
"""Share of the tolerance that leaves no room worth a trial."""
FORMATS = {"fp16": (2, 10), "tf32": (4, 10), "bf16": (2, 7), "fp8_e4m3": (1, 3)}
"""Type -> bytes, bits of the mantissa. Types of as many bytes take the same time, and those of fewer bits are less
accurate, by as much, as long as nothing overflows."""
ROOM = 0.03
"""Share of its squared error that a type must have room for under the tolerance, else it is not tried."""
ADDS = 0.2
"""Relative difference of a predicted and a true error up to which errors are said to add up."""
MOST = 48
"""Evaluations by which a set of ops is looked for."""
BETWEEN = 4
"""Tolerances that are tried between two uniform assignments for a user's metric."""


class Mixing(Tuner):
    """See the module."""

    def _search(self) -> Point:
        fp32 = self._fp32()
        if not self.groups:
            return fp32
        self._ends = {KEPT: fp32} | self._promising()
        if self._goal.loss is not None:
            return self._by_metric()
        self._reach(self._goal.tolerance)
        self._without_few(self._goal.tolerance)
        self._swap(self._goal.tolerance)
        chosen = self._fastest(self._goal.tolerance)
        for tolerance in self._between(list(self._ends.values()), self._goal.front):
            self._reach(tolerance)
        return chosen

    def _promising(self) -> dict[str, Point]:
        """Those types for all contractions that are worth a trial."""
        found: dict[str, Point] = {}
        for dtype in sorted(self._types, key=_preference):
            if not any(self._outdone(dtype, other, point) for other, point in found.items()):
                found.update((dtype, point) for point in self._measured([self._uniform(dtype)]))
        return found

    def _outdone(self, dtype: str, other: str, point: Point) -> bool:
        """Whether nothing is to be expected of ``dtype`` after ``point``, all in ``other``."""
        if not {dtype, other} <= FORMATS.keys() or point.error == math.inf:
            return False
        (nbytes, bits), (other_bytes, other_bits) = FORMATS[dtype], FORMATS[other]
        if bits >= other_bits:
            return False
        predicted = point.error * 2.0 ** (other_bits - bits)
        judged = self._goal.loss is None and not self._goal.front
        return nbytes == other_bytes or (judged and self._goal.tolerance**2 < ROOM * predicted**2)

    def _swap(self, tolerance: float) -> None:
        """Give like ops of the fastest assignments FP32, then each other type that is tolerated everywhere, the
        smallest ops first, where that is faster by the clock; what comes of it is measured where it is worth that."""
        alike: dict[tuple[str, ...], list[int]] = {}
        for number, group in enumerate(self.groups):
            alike.setdefault(group.likeness, []).append(number)
        ordered = sorted(alike.values(), key=lambda ops: self.groups[ops[0]].work)
        ends = [end for end in self._ends.values() if end.error <= tolerance]
        left = len(self.groups) // PER_SWAP
        for start in sorted({self._fastest(tolerance), *ends}, key=lambda point: (point.cost, point.error)):
            best, cost = start.types, start.cost
            # FP32 is no faster than what takes no casts
            others = [end for end in ends if end != start and not set(end.types) | set(start.types) <= {KEPT, "tf32"}]
            for other, ops in product(others, ordered):
                types = tuple(other.types[n] if n in ops else dtype for n, dtype in enumerate(best))
                if left and types not in self._points:
                    left -= 1
                    found = self._timed_cost(types)
                    if found is not None and found < cost:
                        best, cost = types, found
            if cost < (1 - LEAST_GAIN) * self._fastest(tolerance).cost:
                self._measured([best])

    def _without_few(self, tolerance: float) -> None:
        """Give a type whose errors do not add up to all but few ops, which keep what is the fastest so far."""
        for end in sorted(self._ends.values(), key=lambda point: point.cost):
            base, predicted = self._fastest(tolerance), self._predicted(end.types)
            slow = end.cost >= (1 - LEAST_GAIN) * base.cost
            if slow or end.error <= tolerance or predicted is None or _adds(predicted, end.error):
                continue
            pairs = list(zip(end.types, base.types, strict=True))

            def without(kept: Sequence[int], pairs: list[tuple[str, str]] = pairs) -> Assignment:
                return tuple(old if number in kept else new for number, (new, old) in enumerate(pairs))

            unlike = [number for number, (new, old) in enumerate(pairs) if new != old]
            kept = smallest(unlike, lambda kept, made=without: self._cast(made(kept)) <= tolerance, MOST)  # type: ignore[misc]
            self._measured([without(kept)])

    def _fastest(self, tolerance: float) -> Point:
        """Of what was measured; FP32 where nothing is tolerated."""
        fitting = [point for point in self._points.values() if point.error <= tolerance]
        return min(fitting, key=lambda point: (point.cost, point.error), default=self._ends[KEPT])

    @staticmethod
    def _between(points: Sequence[Point], count: int) -> list[float]:
        """Errors between those of ``points``, evenly by their logarithms."""
        errors = [point.error for point in points if 0 < point.error < math.inf]
        return [float(e) for e in np.geomspace(min(errors), max(errors), count + 2)[1:-1]] if len(errors) > 1 else []

    def _by_metric(self) -> Point:
        """The fastest that the metric accepts, by bisection of the front from its most accurate point on."""
        front = pareto(list(self._ends.values()))
        last = self._accepted(front)
        if last + 1 < len(front):
            for tolerance in self._between(front[last : last + 2], BETWEEN):
                self._reach(tolerance)
        inner = [point for point in pareto(list(self._points.values())) if point.error >= front[last].error]
        return inner[self._accepted(inner)]

    def _accepted(self, points: Sequence[Point]) -> int:
        """The number of the last that is, when the first one is and the metric falls."""
        low, high = 0, len(points) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._lost(points[middle].types) <= self._goal.tolerance:
                low = middle
            else:
                high = middle - 1
        return low

    def _reach(self, tolerance: float) -> None:
        """Look for the fastest assignment at ``tolerance``, where a type that is not tolerated would be faster."""
        floor, bound, seen = self._ends[KEPT].error, tolerance, set[Assignment]()
        for _ in range(CHECKS):
            best = (1 - LEAST_GAIN) * self._fastest(tolerance).cost
            if floor > tolerance or all(p.error <= tolerance or p.cost >= best for p in self._ends.values()):
                return
            types, cost = self._solved(max(bound**2 - floor**2, 0.0) ** 0.5)
            if types in seen or cost >= best or not (found := self._measured([types])):
                return
            seen.add(types)
            point = found[0]
            if FULL * tolerance <= point.error <= tolerance:
                return
            # at most by half, for a single op may be what was estimated wrongly
            bound *= min(max((1 + FULL) / 2 * tolerance / max(point.error, 1e-30), 0.5), 2.0)

    def _solved(self, bound: float) -> tuple[Assignment, float]:
        """The assignment of least cost whose casts are off by ``bound`` at most, and that cost, both by estimate."""
        errors = [self._errors(number) for number in range(len(self.groups))]
        fp32, whole = self._ends[KEPT].cost, sum(group.work for group in self.groups)
        shares = [(group.work / whole + 1 / len(self.groups)) / 2 for group in self.groups]
        costs = [{dtype: (end.cost - fp32) * share for dtype, end in self._ends.items()} for share in shares]
        chosen = fastest(errors, costs, bound)
        types = tuple(self._ends[dtype].types[number] for number, dtype in enumerate(chosen))
        return types, fp32 + sum(row[dtype] for row, dtype in zip(costs, chosen, strict=True))

    def _errors(self, number: int) -> dict[str, float]:
        """Of one group in each type; types of as many bits are equally accurate, as long as nothing overflows."""
        errors: dict[str, float] = {}
        by_bits: dict[int, float] = {}
        for dtype in self._ends:
            _, bits = FORMATS.get(dtype, (0, 0))
            known = by_bits.get(bits, math.inf) if bits else math.inf
            errors[dtype] = by_bits[bits] = known if known < math.inf else self._alone(number, dtype)
        return errors

    def _alone(self, number: int, dtype: str) -> float:
        """The error of one group in ``dtype``, all others in FP32, by the reference semantics."""
        if self._ends[dtype].types[number] == KEPT:
            return 0.0
        types = self._only([number], [dtype] * len(self.groups))
        self._progress("single cast", number + 1, len(self.groups))
        return self._cast(types)

    def _cast(self, types: Assignment) -> float:
        """The error of an assignment by the reference semantics, the same in every program that has these casts."""

        def evaluated() -> float:
            self._evaluated += 1
            return self._bench.evaluated(self.policy(types))

        return self._history.measured(f"cast {' '.join(types)}", evaluated)

    def _known(self, number: int, dtype: str) -> float | None:
        """The error of one group in ``dtype``, all others in FP32, or in a type of as many bits, if it was asked."""
        if dtype == KEPT:
            return 0.0
        _, bits = FORMATS.get(dtype, (0, 0))
        for other in (dtype, *(name for name, row in FORMATS.items() if row[1] == bits)):
            known = self._history.get(f"cast {' '.join(self._only([number], [other] * len(self.groups)))}")
            if known is not None and (other == dtype or known[0] < math.inf):
                return known[0]
        return None

    def _only(self, numbers: Sequence[int], types: Sequence[str]) -> Assignment:
        """``types`` of some groups, FP32 of the others."""
        return tuple(dtype if number in numbers else KEPT for number, dtype in enumerate(types))

    def _predicted(self, types: Assignment) -> float | None:
        parts = [self._known(number, dtype) for number, dtype in enumerate(types)]
        if set(types) <= {KEPT} or None in parts:
            return None
        squares = sum(part**2 for part in (*parts, self._ends[KEPT].error) if part is not None)
        return math.sqrt(squares) if squares < math.inf else None

    def _together(self, front: Sequence[Point]) -> Together | None:
        told = [(p.predicted, p) for p in front if p.predicted and 0 < p.error < math.inf]
        off = [(abs(math.log(predicted / p.error)), p.types) for predicted, p in told if not _adds(predicted, p.error)]
        if not off:
            return None
        types = max(off)[1]

        def differs(numbers: Sequence[int]) -> bool:
            some = self._only(numbers, types)
            return not _adds(self._predicted(some) or 0.0, self._cast(some))

        cast = [number for number, dtype in enumerate(types) if dtype != KEPT]
        if not differs(cast):  # they do by evaluation: the program rounds at other places
            return None
        found = tuple(smallest(cast, differs, MOST))
        some = self._only(found, types)
        return Together(found, types, self._cast(some), self._predicted(some) or 0.0)


def _adds(predicted: float, error: float) -> bool:
    return abs(predicted - error) <= ADDS * error


def _preference(dtype: str) -> tuple[int, int]:
    """Smallest for the most accurate type, of several the one of fewest bytes."""
    nbytes, bits = FORMATS.get(dtype, (0, 0))
    return -bits, nbytes
