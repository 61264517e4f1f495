"""Strategy ``error-model``: two types at a time, told apart where it pays.

1. All contractions in each type, the most accurate first: the accurate and the fast ends of what there is. A type is
   not tried that another one outdoes, or whose error, told from the other's, leaves it room for next to nothing.
2. For a tolerance the fastest of these that meets it is the *base*; faster ones that do not are *targets*. Where
   nothing is faster, that is the result.
3. The ops are parted: one half in the target, the rest as in the base, gives the half's error and gain, and by
   difference, as squared errors add up, those of the other half. The part that would gain most, yet does not fit the
   tolerance, is halved again.
4. Which parts fit is solved exactly and measured whole. Where the sum of squares was wrong, the bound is moved by as
   much, and it is solved again.
5. Of the fastest cast assignment the smallest contractions go back to FP32, like ones together, as long as that is
   faster: there a cast may cost more than it saves.

So ops whose types make no difference are never looked at one by one. With a user's metric the same is done for
tolerances between the last uniform assignment that it accepts and the first that it does not, and the front is
bisected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from neuronx_cc.driver.tuning.assignments import Assignment, fastest
from neuronx_cc.driver.tuning.tuner import KEPT, Point, Tuner, pareto

PARTINGS = 4, 14
"""Times that parts of one base and target are halved for one tolerance: for few ops and for many."""
PER_PARTING = 10
"""Ops for which they are halved once more."""
CHECKS = 5
"""Solutions that are measured for one tolerance."""
LEAST_GAIN = 2e-3
"""Share of the time below which a gain is not worth a trial."""
FULL = 0.9
"""Share of the tolerance that leaves no room worth a trial."""
DIFFERENCE = 0.8
"""Share of a part's squared error up to which that of its rest is told by difference."""
FORMATS = {"fp16": (2, 10), "tf32": (4, 10), "bf16": (2, 7), "fp8_e4m3": (1, 3)}
"""Type -> bytes, bits of the mantissa. Types of as many bytes take the same time, and those of fewer bits are less
accurate, by as much, as long as nothing overflows."""
ROOM = 0.03
"""Share of its squared error that a type must have room for under the tolerance, else it is not tried."""
BETWEEN = 4
"""Tolerances that are tried between two uniform assignments for a user's metric."""


@dataclass(frozen=True, slots=True)
class Part:
    """Ops that are in the base's type or in the target's together."""

    ops: tuple[int, ...]
    square: float
    """Squared error that the target adds to the base's; infinite where a result is not finite."""
    gain: float
    """Microseconds that the target saves."""


@dataclass(slots=True)
class Mix:
    """What is known about one base and one target."""

    base: Point
    target: Point
    parts: list[Part] = field(default_factory=list)


class Mixing(Tuner):
    """See the module."""

    def _search(self) -> Point:
        fp32 = self._fp32()
        if not self.groups:
            return fp32
        # neighbours in this order are alike, whatever their layers
        alike = list(dict.fromkeys(group.likeness for group in self.groups))
        self._order = tuple(sorted(range(len(self.groups)), key=lambda n: alike.index(self.groups[n].likeness)))
        self._mixes: dict[tuple[Assignment, Assignment], Mix] = {}
        self._ends = [fp32, *self._promising()]
        if self._goal.loss is not None:
            return self._by_metric()
        self._reach(self._goal.tolerance)
        self._swap(self._goal.tolerance)
        chosen = self._fastest(self._goal.tolerance)
        for tolerance in self._between(self._ends, self._goal.front):
            self._reach(tolerance)
        return chosen

    def _promising(self) -> list[Point]:
        """Those types for all contractions that are worth a trial."""
        found: dict[str, Point] = {}
        for dtype in sorted(self._types, key=_preference):
            if not any(self._outdone(dtype, other, point) for other, point in found.items()):
                found.update((dtype, point) for point in self._measured([self._uniform(dtype)]))
        return list(found.values())

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
        """Put like ops of the fastest cast assignment in FP32, the smallest first, as long as that is faster."""
        kept = self._uniform(KEPT)
        cast = [point for point in self._points.values() if point.error <= tolerance and point.types != kept]
        point = min(cast, key=lambda point: (point.microseconds, point.error), default=self._fp32())
        alike: dict[tuple[str, ...], list[int]] = {}
        for number in self._order:
            alike.setdefault(self.groups[number].likeness, []).append(number)
        for ops in sorted(alike.values(), key=lambda ops: self.groups[ops[0]].work):
            types = tuple(KEPT if number in ops else dtype for number, dtype in enumerate(point.types))
            if types == point.types:
                continue
            found = self._measured([types])
            if not found or found[0].microseconds >= point.microseconds or found[0].error > tolerance:
                break
            point = found[0]

    def _fastest(self, tolerance: float) -> Point:
        """Of what was measured; FP32 where nothing is tolerated."""
        fitting = [point for point in self._points.values() if point.error <= tolerance]
        return min(fitting, key=lambda point: (point.microseconds, point.error), default=self._fp32())

    @staticmethod
    def _between(points: Sequence[Point], count: int) -> list[float]:
        """Errors between those of ``points``, evenly by their logarithms."""
        errors = [point.error for point in points if 0 < point.error < math.inf]
        return [float(e) for e in np.geomspace(min(errors), max(errors), count + 2)[1:-1]] if len(errors) > 1 else []

    def _by_metric(self) -> Point:
        """The fastest that the metric accepts, by bisection of the front from its most accurate point on."""
        front = pareto(self._ends)
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
        """Look for the fastest assignment at ``tolerance``, from every uniform one that would be faster."""
        if all(point.error > tolerance for point in self._ends):
            return
        base = min((p for p in self._ends if p.error <= tolerance), key=lambda p: (p.microseconds, p.error))

        def promise(target: Point) -> float:
            return (base.microseconds - target.microseconds) * min(1.0, (tolerance / target.error) ** 2)

        least = (1 - LEAST_GAIN) * base.microseconds
        targets = [point for point in self._ends if point.error > tolerance and point.microseconds < least]
        for target in sorted(targets, key=promise, reverse=True):
            # what could still be gained on what another target has led to
            if target.microseconds < (1 - LEAST_GAIN) * self._fastest(tolerance).microseconds:
                self._mix(base, target, tolerance)

    def _mix(self, base: Point, target: Point, tolerance: float) -> None:
        start = Mix(base, target, [Part(self._order, target.error**2, base.microseconds - target.microseconds)])
        mix = self._mixes.setdefault((base.types, target.types), start)
        bound, partings, checks, seen = tolerance, 0, 0, set[Assignment]()
        while True:
            chosen = self._solved(mix, bound)
            worth = LEAST_GAIN * base.microseconds
            left = [part for part in mix.parts if part not in chosen and len(part.ops) > 1 and part.gain > worth]
            if left and partings < np.clip(len(self.groups) // PER_PARTING, *PARTINGS):
                partings += 1
                if not self._parted(mix, max(left, key=lambda part: part.gain)):
                    return
                continue
            types = self._assigned(mix, chosen)
            if types in seen or checks >= CHECKS or not (found := self._measured([types])):
                return
            seen.add(types)
            checks += 1
            point = found[0]
            if types not in (base.types, target.types):
                self._points[types] = replace(point, predicted=self._predicted(mix, chosen))
            if FULL * tolerance <= point.error <= tolerance:
                return
            # at most by half, for a single op may be what was estimated wrongly
            bound *= min(max((1 + FULL) / 2 * tolerance / max(point.error, 1e-30), 0.5), 2.0)

    def _share(self, mix: Mix, part: Part) -> float:
        """That of the base's squared error which is due to ``part``: as the target's, if that is finite."""
        whole = sum(each.square for each in mix.parts)
        return part.square / whole if 0 < whole < math.inf else len(part.ops) / len(self._order)

    def _solved(self, mix: Mix, bound: float) -> list[Part]:
        """The parts that are in the target's type in the fastest assignment."""
        own = mix.base.error**2
        errors = [
            {"base": math.sqrt(self._share(mix, part) * own), "target": math.sqrt(part.square)} for part in mix.parts
        ]
        times = [{"base": 0.0, "target": -part.gain} for part in mix.parts]
        if own > bound**2:
            return []
        return [part for part, name in zip(mix.parts, fastest(errors, times, bound), strict=True) if name == "target"]

    def _predicted(self, mix: Mix, chosen: Sequence[Part]) -> float:
        rest = sum(self._share(mix, part) for part in mix.parts if part not in chosen)
        return math.sqrt(sum(part.square for part in chosen) + rest * mix.base.error**2)

    def _assigned(self, mix: Mix, chosen: Sequence[Part]) -> Assignment:
        cast = set(chain.from_iterable(part.ops for part in chosen))
        types = zip(mix.base.types, mix.target.types, strict=True)
        return tuple(fast if number in cast else slow for number, (slow, fast) in enumerate(types))

    def _parted(self, mix: Mix, part: Part) -> bool:
        """Replace ``part`` by two halves that are measured; False where no trial is left for it."""
        middle = self._middle(part.ops)
        first, second = part.ops[:middle], part.ops[middle:]
        one = self._alone(mix, first)
        if one is None:
            return False
        if one.square <= DIFFERENCE * part.square < math.inf:
            other: Part | None = Part(second, part.square - one.square, part.gain - one.gain)
        else:
            other = self._alone(mix, second)
        if other is None:
            return False
        place = mix.parts.index(part)
        mix.parts[place : place + 1] = [one, other]
        return True

    def _middle(self, ops: Sequence[int]) -> int:
        """Where like ops end, nearest to the middle; the middle where all are alike."""
        ends = [n for n in range(1, len(ops)) if self.groups[ops[n]].likeness != self.groups[ops[n - 1]].likeness]
        return min(ends, key=lambda n: abs(2 * n - len(ops)), default=len(ops) // 2)

    def _alone(self, mix: Mix, ops: tuple[int, ...]) -> Part | None:
        """``ops`` in the target's type, all others in the base's."""
        found = self._measured([self._assigned(mix, [Part(ops, 0.0, 0.0)])])
        if not found:
            return None
        square = found[0].error ** 2 - mix.base.error**2 * (1 - len(ops) / len(self._order))
        return Part(ops, max(square, 1e-18), mix.base.microseconds - found[0].microseconds)


def _preference(dtype: str) -> tuple[int, int]:
    """Smallest for the most accurate type, of several the one of fewest bytes."""
    nbytes, bits = FORMATS.get(dtype, (0, 0))
    return -bits, nbytes
