"""The schedule of a contraction: of the candidates the one that takes least by estimate, or the first good one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from neuronx_cc.codegen.dots.candidates import candidates
from neuronx_cc.codegen.dots.estimate import bound, estimate
from neuronx_cc.codegen.dots.problem import Problem
from neuronx_cc.codegen.dots.schedule import Schedule
from neuronx_cc.ir.isa.timing import Timing

GOOD = 1.25
"""A schedule is good if it takes at most so many times as long as the least work of TensorE and the DMA."""


@dataclass(slots=True)
class Planner:
    """Chooses schedules for one machine; equal problems are planned once."""

    timing: Timing
    level: int = 2
    """1: the first good candidate; 2: the best by estimate."""
    given: Mapping[str, int] = field(default_factory=dict)
    """Name of a problem -> the number of its candidate that is taken whatever the estimate says."""
    uses: Counter[Problem] = field(default_factory=Counter)
    """How many contractions pose each problem."""
    _chosen: dict[Problem, Schedule | None] = field(default_factory=dict)

    def choose(self, problem: Problem) -> Schedule | None:
        """The schedule for ``problem``; None where nothing fits."""
        self.uses[problem] += 1
        if problem not in self._chosen:
            number = self.given.get(name_of(problem)) if self.given else None
            wanted = None if number is None else next(islice(candidates(problem, self.timing), number, None), None)
            self._chosen[problem] = wanted or choose(problem, self.timing, self.level)
        return self._chosen[problem]

    def by_weight(self) -> list[Problem]:
        """The problems, those first in which a program spends most of its time by estimate."""
        weights = {
            problem: uses * estimate(problem, chosen, self.timing)
            for problem, uses in self.uses.items()
            if (chosen := self._chosen[problem]) is not None
        }
        return sorted(weights, key=lambda problem: (-weights[problem], name_of(problem)))


def name_of(problem: Problem) -> str:
    """A short name that equal problems share, in every process."""
    return hashlib.sha256(repr(problem).encode()).hexdigest()[:16]


def shortlist(problem: Problem, timing: Timing, count: int) -> list[int]:
    """Numbers of the ``count`` candidates that are best by estimate, the best one first."""
    times = [estimate(problem, schedule, timing) for schedule in candidates(problem, timing)]
    return sorted(range(len(times)), key=lambda number: (times[number], number))[:count]


def choose(problem: Problem, timing: Timing, level: int = 2) -> Schedule | None:
    """The first good candidate (level 1), else the best by estimate; None where nothing fits."""
    good = GOOD * bound(problem, timing) if level == 1 else 0.0
    best, least = None, 0.0
    for schedule in candidates(problem, timing):
        time = estimate(problem, schedule, timing)
        if best is None or time < least:
            best, least = schedule, time
        if time <= good:
            break
    return best
