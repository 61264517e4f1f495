"""The schedule of a contraction: of the candidates the one that takes least by estimate, or the first good one."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    _chosen: dict[Problem, Schedule | None] = field(default_factory=dict)

    def choose(self, problem: Problem) -> Schedule | None:
        """The schedule for ``problem``; None where nothing fits."""
        if problem not in self._chosen:
            self._chosen[problem] = choose(problem, self.timing, self.level)
        return self._chosen[problem]


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
