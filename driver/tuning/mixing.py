"""Strategy ``error-model``: errors of single contractions by evaluation, times of whole programs by the clock.

Trials are few: FP32 is one, and what is chosen is verified by another. All else is *told*: its error by the reference
semantics, without compiling, its time by the clock, without values.

1. All contractions in each type, the most accurate first: the accurate and the fast ends of what there is. A type is
   not told that another one outdoes, or whose error, told from the other's, leaves it room for next to nothing.
2. Where a type would be faster but is not tolerated, the error of each contraction in it alone is found by the
   reference semantics, without compiling. Squared errors add up; what a type saves for like contractions the clock
   says, of the fastest type that is not tolerated; what others save is dealt out, half of it evenly and half by their
   work. The fastest assignment under the tolerance is solved exactly, and
   told. Where the sum of squares was wrong, the bound is moved by as much, and it is solved again.
3. What strategy ``basic`` would come to in each type is found from the same errors, and told.
4. Of the fastest assignments contractions of one opcode, and like ones, go back to FP32, or get another type that is
   tolerated everywhere, the smallest first, where that is faster, by the clock alone: there a cast may cost more than
   it saves.
5. Where the errors of a type did not add up, so that step 2 is no guide, a small set of ops that must not have it is
   found by delta debugging, on the reference semantics; that assignment is told too.
6. The fastest of these is measured; where the program is less accurate than was told, the next one. Ends that may be on
   the front are measured where that is asked for, or leaves trials at a fifth of what going op by op takes.

With a user's metric the same is done for tolerances between the last uniform assignment that it accepts and the first
that it does not, and the front is bisected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from neuronx_cc.driver.tuning.assignments import Assignment, fastest
from neuronx_cc.driver.tuning.delta import smallest
from neuronx_cc.driver.tuning.op_wise import first_tolerated, without
from neuronx_cc.driver.tuning.results import Point, Together, pareto
from neuronx_cc.driver.tuning.tuner import KEPT, Tuner

SWAPS, PER_SWAP = 8, 10
"""Programs that are timed to see whether like ops are faster in another type: so many, and one for so many ops."""
CHECKS = 4
"""Solutions that are measured for one tolerance."""
LEAST_GAIN = 2e-3
"""Share of the time below which a gain is not worth a trial."""
NEAR = 0.05
"""Share of the tolerance by which a prediction may be above it for the assignment to be evaluated."""
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
SHARE, OP_BY_OP = 5, 5
"""Times the trials of going op by op, which takes about so many more than there are contractions."""
BETWEEN = 4
"""Tolerances that are tried between two uniform assignments for a user's metric."""


class Mixing(Tuner):
    """See the module."""

    def _search(self) -> Point:
        fp32 = self._fp32()
        self._told: dict[Assignment, Point] = {}
        if not self.groups:
            return fp32
        self._ends = {KEPT: fp32}
        self._ends |= self._promising()
        if self._goal.loss is not None:
            return self._by_metric()
        self._reach(self._goal.tolerance)
        self._without_few(self._goal.tolerance)
        self._swap(self._goal.tolerance)
        chosen = self._verified(self._goal.tolerance)
        for tolerance in self._between(list(self._ends.values()), self._goal.front):
            self._reach(tolerance)
            self._verified(tolerance)
        for end in pareto([*self._told.values(), *self._points.values()]):
            if self._goal.front or len(self._points) < (len(self.groups) + OP_BY_OP) // SHARE:
                self._measured([end.types] if end in self._ends.values() else [])
        return chosen

    def _unmeasured(self) -> list[Point]:
        known = (point for key, point in self._told.items() if key not in self._points)
        return [point for point in known if point.error < math.inf]

    def _known_points(self) -> list[Point]:
        """What was measured, and what was told of others."""
        return [*self._points.values(), *self._unmeasured()]

    def _tell(self, types: Assignment) -> Point | None:
        """The error of an assignment by the reference semantics and its time by the clock; None where nothing more may
        be tried."""
        if types in self._points or types in self._told:
            return self._points.get(types) or self._told[types]
        times = self._times(types)
        if times is None:
            return None
        error = math.hypot(self._cast(types), self._ends[KEPT].error) if times[0] < math.inf else math.inf
        self._told[types] = Point(types, error, *times, self._cost(*times), measured=False)
        return self._told[types]

    def _verified(self, tolerance: float) -> Point:
        """The fastest at ``tolerance``, measured."""
        first = True
        while (best := self._fastest(tolerance)).types not in self._points:
            # what was found so far is verified also where there is no more time
            if not self._measured([best.types], bounded=not first):
                del self._told[best.types]
            first = False
        return best

    def _promising(self) -> dict[str, Point]:
        """Those types for all contractions that are worth it."""
        found: dict[str, Point] = {}
        for dtype in sorted(self._types, key=_preference):
            if not any(self._outdone(dtype, other, point) for other, point in found.items()):
                point = self._tell(self._uniform(dtype))
                found |= {} if point is None else {dtype: point}
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
        """Give ops of one opcode, then like ones, of the fastest assignments FP32, and each other type that is
        tolerated everywhere, the smallest ops first, where that is faster by the clock; what comes of it is told."""
        opcodes: dict[str, list[int]] = {}
        for number, group in enumerate(self.groups):
            opcodes.setdefault(group.ops[0].opcode, []).append(number)
        ordered = sorted(self._alike(), key=lambda ops: self.groups[ops[0]].work)
        ordered = [*(opcodes.values() if len(opcodes) > 1 else ()), *ordered]
        ends = [end for end in self._ends.values() if end.error <= tolerance]
        left = max(SWAPS, len(self.groups) // PER_SWAP)
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
                self._tell(best)

    def _reach(self, tolerance: float) -> None:
        """Look for the fastest assignment at ``tolerance``, where a type that is not tolerated would be faster."""
        if self._ends[KEPT].error > tolerance or not self._may_gain(tolerance):
            return
        for types in (*self._solutions(tolerance), *self._op_by_op(tolerance)):
            self._tell(types)

    def _solutions(self, tolerance: float) -> Iterator[Assignment]:
        """The fastest by estimate, with a bound of error that moves by what the sum of squares was wrong."""
        floor, bound, seen = self._ends[KEPT].error, tolerance, set[Assignment]()
        for _ in range(CHECKS):
            types = self._solved(tolerance, max(bound**2 - floor**2, 0.0) ** 0.5)
            if types in seen:
                return
            seen.add(types)
            error = self._cast(types)
            if error <= tolerance:
                yield types
            if FULL * tolerance <= error <= tolerance:
                return
            # at most by half, for a single op may be what was estimated wrongly
            bound *= min(max((1 + FULL) / 2 * tolerance / max(error, 1e-30), 0.5), 2.0)

    def _op_by_op(self, tolerance: float) -> Iterator[Assignment]:
        """What going op by op would find in each type that is not tolerated."""
        opcodes, floor = [group.ops[0].opcode for group in self.groups], self._ends[KEPT].error
        rows = [self._errors(number) for number in range(len(self.groups))]
        for dtype in self._types:
            squares = [_told(row, dtype) ** 2 for row in rows]
            if not all(map(math.isfinite, squares)) or (dtype in self._ends and self._ends[dtype].error <= tolerance):
                continue

            def predicted(kept: frozenset[int], squares: list[float] = squares) -> float:
                return math.sqrt(floor**2 + sum(each for number, each in enumerate(squares) if number not in kept))

            kept = first_tolerated(opcodes, predicted, tolerance * (1 + NEAR))
            for more in sorted(range(len(squares)), key=lambda number: -squares[number])[: CHECKS if kept else 0]:
                types = without(self._uniform(dtype), kept or ())
                if self._cast(types) <= tolerance:
                    yield types
                    break
                kept = (kept or frozenset()) | {more}

    def _may_gain(self, tolerance: float) -> bool:
        """Whether a type that is not tolerated would be faster for some contractions."""
        far = self._far(tolerance)
        if far is None:
            return False
        least = self._ends[KEPT].cost + sum(min(gain, 0.0) for gain in self._gains(far))
        return min(far.cost, least) < (1 - LEAST_GAIN) * self._fastest(tolerance).cost

    def _far(self, tolerance: float) -> Point | None:
        """The fastest uniform assignment that is not tolerated."""
        far = (end for end in self._ends.values() if end.error > tolerance)
        return min(far, key=lambda end: end.cost, default=None)

    def _alike(self) -> list[list[int]]:
        """Like contractions."""
        alike: dict[tuple[str, ...], list[int]] = {}
        for number, group in enumerate(self.groups):
            alike.setdefault(group.likeness, []).append(number)
        return list(alike.values())

    def _gains(self, end: Point) -> list[float]:
        """What the type of ``end`` adds to the cost, contraction by contraction: of like ones as the clock says, those
        of most work, and of others their share of what is left, half of it evenly and half by their work."""
        gains: dict[int, float] = {}
        for ops in sorted(self._alike(), key=lambda ops: -sum(self.groups[n].work for n in ops))[:SWAPS]:
            cost = self._timed_cost(without(end.types, ops))
            gains |= {} if cost is None else {number: (end.cost - cost) / len(ops) for number in ops}
        left = [number for number in range(len(self.groups)) if number not in gains]
        whole = sum(self.groups[number].work for number in left)
        rest = (end.cost - self._ends[KEPT].cost - sum(gains.values())) / 2
        gains |= {number: rest * (self.groups[number].work / whole + 1 / len(left)) for number in left}
        return [gains[number] for number in range(len(self.groups))]

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
            self._tell(without(kept))

    def _fastest(self, tolerance: float) -> Point:
        """Of what is known; FP32 where nothing is tolerated."""
        fitting = [point for point in self._known_points() if point.error <= tolerance]
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
        inner = [point for point in pareto(self._known_points()) if point.error >= front[last].error]
        chosen = inner[self._accepted(inner)]
        return self._measured([chosen.types], bounded=False)[0]

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

    def _solved(self, tolerance: float, bound: float) -> Assignment:
        """The assignment of least cost whose casts are off by ``bound`` at most, both by estimate."""
        errors = [self._errors(number) for number in range(len(self.groups))]
        fp32, whole, far = self._ends[KEPT].cost, sum(group.work for group in self.groups), self._far(tolerance)
        shares = [(group.work / whole + 1 / len(self.groups)) / 2 for group in self.groups]
        costs = [{dtype: (end.cost - fp32) * share for dtype, end in self._ends.items()} for share in shares]
        for dtype in (dtype for dtype, end in self._ends.items() if end == far):
            for row, gain in zip(costs, self._gains(self._ends[dtype]), strict=True):
                row[dtype] = gain
        chosen = fastest(errors, costs, bound)
        return tuple(self._ends[dtype].types[number] for number, dtype in enumerate(chosen))

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
        if set(types) <= {KEPT}:
            return None
        if None in parts:
            together = self._history.get(f"cast {' '.join(types)}")
            return None if together is None else math.hypot(together[0], self._ends[KEPT].error)
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


def _told(errors: Mapping[str, float], dtype: str) -> float:
    """The error of a cast to ``dtype``, perhaps from that to another type; infinite where it cannot be told."""
    if dtype in errors or dtype not in FORMATS:
        return errors.get(dtype, math.inf)
    bits = {other: FORMATS[other][1] for other in errors if other in FORMATS}
    return min((errors[other] * 2.0 ** (each - FORMATS[dtype][1]) for other, each in bits.items()), default=math.inf)


def _adds(predicted: float, error: float) -> bool:
    return abs(predicted - error) <= ADDS * error


def _preference(dtype: str) -> tuple[int, int]:
    """Smallest for the most accurate type, of several the one of fewest bytes."""
    nbytes, bits = FORMATS.get(dtype, (0, 0))
    return -bits, nbytes
