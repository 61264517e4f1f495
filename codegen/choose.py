"""The schedule of a kernel: of its candidates the one that takes least by estimate, or the first good one."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Any, NamedTuple, TypeVar, overload

from neuronx_cc.codegen.convolutions import candidates as of_convolutions
from neuronx_cc.codegen.convolutions import estimate as convolution_times
from neuronx_cc.codegen.convolutions import gradient_candidates as of_gradients
from neuronx_cc.codegen.convolutions import gradient_problem as gradients
from neuronx_cc.codegen.convolutions import patches
from neuronx_cc.codegen.convolutions import patches_estimate as patch_times
from neuronx_cc.codegen.convolutions import problem as convolutions
from neuronx_cc.codegen.convolutions.gradient_schedule import Schedule as Contracted
from neuronx_cc.codegen.convolutions.schedule import Schedule as Convolving
from neuronx_cc.codegen.dots import candidates as of_dots
from neuronx_cc.codegen.dots import estimate as dot_times
from neuronx_cc.codegen.dots import problem as dots
from neuronx_cc.codegen.dots.schedule import Schedule as Contracting
from neuronx_cc.codegen.epilogues.work import Epilogue
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.timing import Timing

Problem = dots.Problem | convolutions.Problem | gradients.Problem | patches.Problem
Schedule = Contracting | Convolving | Contracted | patches.Schedule
Posed = TypeVar("Posed", dots.Problem, convolutions.Problem, gradients.Problem, patches.Problem)


class Family(NamedTuple):
    """How problems of one kind are planned: all pure functions."""

    candidates: Callable[[Any, Timing], Iterator[Any]]
    estimate: Callable[[Any, Any, Timing], float]
    bound: Callable[[Any, Timing], float]


FAMILIES: dict[type[Problem], Family] = {
    dots.Problem: Family(of_dots.candidates, dot_times.estimate, dot_times.bound),
    convolutions.Problem: Family(of_convolutions.candidates, convolution_times.estimate, convolution_times.bound),
    gradients.Problem: Family(of_gradients.candidates, of_gradients.estimate, of_gradients.bound),
    patches.Problem: Family(patches.candidates, patch_times.estimate, patch_times.bound),
}

DOUBT = 0.8
"""Part of a time by estimate below which one is less without doubt."""
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
    """How many kernels pose each problem."""
    copies: dict[Any, tuple[tuple[tuple[int, dots.Home | tuple[int, ...]], ...], float]] = field(default_factory=dict)
    """Problems of a contraction as its operands lie -> operands that are copied first, and to where; nanoseconds."""
    stated: dict[Any, tuple[dots.Problem, ...]] = field(default_factory=dict)
    """How the arrays of a contraction lie, and what is done with its sums -> its problems (``dots.statement``)."""
    epilogues: dict[Any, Epilogue] = field(default_factory=dict)
    """A chain as it is spelled, and the tiles that it has -> its instructions (``epilogues.chain``)."""
    options: dict[Any, Any] = field(default_factory=dict)
    """A contraction and a chain, as their arrays lie -> what becomes of both in one kernel (``epilogues.choose``)."""
    attentions: dict[Any, float] = field(default_factory=dict)
    """An attention, and the room whatever stays on chip -> its time as one kernel (``attention.choose``)."""
    _chosen: dict[Problem, Schedule | None] = field(default_factory=dict)
    _by_room: dict[Problem, list[tuple[int, Schedule | None]]] = field(default_factory=dict)
    """A problem but for its room -> what was chosen for which rooms, in their order."""
    _times: dict[Problem, float] = field(default_factory=dict)

    @overload
    def choose(self, problem: dots.Problem) -> Contracting | None: ...

    @overload
    def choose(self, problem: convolutions.Problem) -> Convolving | None: ...

    @overload
    def choose(self, problem: gradients.Problem) -> Contracted | None: ...

    @overload
    def choose(self, problem: patches.Problem) -> patches.Schedule | None: ...

    def choose(self, problem: Problem) -> Schedule | None:
        """The schedule for ``problem``; None where nothing fits."""
        self.uses[problem] += 1
        chosen: Schedule | None = self._planned(problem)
        return chosen

    def easiest(self, problems: Sequence[Posed]) -> Posed:
        """Of several statements of one problem, that which takes least by estimate, with what shows of it in programs;
        of equal ones the first.
        """
        return problems[0] if len(problems) == 1 else min(problems, key=self._time_shown)

    def _time_shown(self, problem: Problem) -> float:
        chosen = self._planned(problem)
        if chosen is None or not isinstance(problem, dots.Problem):
            return self.time(problem)
        return self.time(problem) + dot_times.exposed(problem, chosen, self.timing)

    def time(self, problem: Problem) -> float:
        """Nanoseconds that ``problem`` takes by estimate; inf where nothing fits."""
        if (known := self._times.get(problem)) is None:
            chosen = self._planned(problem)
            known = inf if chosen is None else FAMILIES[type(problem)].estimate(problem, chosen, self.timing)
            self._times[problem] = known
        return known

    def _planned(self, problem: Problem) -> Any:
        if problem not in self._chosen:
            number = self.given.get(name_of(problem)) if self.given else None
            offered = FAMILIES[type(problem)].candidates(problem, self.timing)
            wanted = None if number is None else next(islice(offered, number, None), None)
            self._chosen[problem] = wanted or self._whatever_room(problem)
        return self._chosen[problem]

    def _whatever_room(self, problem: Problem) -> Schedule | None:
        """The choice for ``problem``. Between two rooms of one choice it is that one, so that kernels that find more or
        less room do not plan anew: the third of a problem's rooms asks for those around it.
        """
        known, room = self._by_room.setdefault(replace(problem, room=0), []), problem.room
        if len(known) > 1 and room > 0:
            for edge in self._around(room):
                self._plan(known, problem, edge)
        at = bisect_left(known, room, key=_room)
        if 0 < at < len(known) and known[at - 1][1] == known[at][1]:
            return known[at][1]
        return self._plan(known, problem, room)

    def _around(self, room: int) -> tuple[int, int]:
        """Of all of SBUF, half, a quarter, ... the first that is less than ``room``, and the one before it."""
        halvings = max(1, self.timing.sizes.sbuf_bytes // room).bit_length()
        return self.timing.sizes.sbuf_bytes >> halvings, self.timing.sizes.sbuf_bytes >> halvings - 1

    def _plan(self, known: list[tuple[int, Schedule | None]], problem: Problem, room: int) -> Schedule | None:
        """The choice for ``problem`` with ``room``, as it is noted in ``known``."""
        at = bisect_left(known, room, key=_room)
        if at == len(known) or known[at][0] != room:
            known.insert(at, (room, choose(replace(problem, room=room), self.timing, self.level)))
        return known[at][1]

    def by_weight(self) -> list[Problem]:
        """The problems, those first in which a program spends most of its time by estimate."""
        weights = {
            problem: uses * FAMILIES[type(problem)].estimate(problem, chosen, self.timing)
            for problem, uses in self.uses.items()
            if (chosen := self._chosen[problem]) is not None
        }
        return sorted(weights, key=lambda problem: (-weights[problem], name_of(problem)))


def _room(planned: tuple[int, Schedule | None]) -> int:
    return planned[0]


def name_of(problem: Problem) -> str:
    """A short name that equal problems share, in every process."""
    return hashlib.sha256(repr(problem).encode()).hexdigest()[:16]


def shortlist(problem: Problem, timing: Timing, count: int) -> list[int]:
    """Numbers of the ``count`` candidates that are best by estimate, the best one first."""
    family = FAMILIES[type(problem)]
    times = [family.estimate(problem, schedule, timing) for schedule in family.candidates(problem, timing)]
    return sorted(range(len(times)), key=lambda number: (times[number], number))[:count]


@overload
def choose(problem: dots.Problem, timing: Timing, level: int = 2) -> Contracting | None: ...


@overload
def choose(problem: convolutions.Problem, timing: Timing, level: int = 2) -> Convolving | None: ...


@overload
def choose(problem: gradients.Problem, timing: Timing, level: int = 2) -> Contracted | None: ...


@overload
def choose(problem: patches.Problem, timing: Timing, level: int = 2) -> patches.Schedule | None: ...


@overload
def choose(problem: Problem, timing: Timing, level: int = 2) -> Schedule | None: ...


def choose(problem: Problem, timing: Timing, level: int = 2) -> Schedule | None:
    """The first good candidate (level 1), else the best by estimate; None where nothing fits.

    tf32 takes the schedule of FP32, with which it is never slower, unless another one is faster beyond doubt.
    """
    best = _best(problem, timing, level)
    if best is None or isinstance(problem, gradients.Problem) or not problem.flags:
        return best
    exact = _best(replace(problem, flags=()), timing, level)
    if exact is None or exact == best:
        return best
    estimate = FAMILIES[type(problem)].estimate
    return best if estimate(problem, best, timing) < DOUBT * estimate(problem, exact, timing) else exact


def _best(problem: Problem, timing: Timing, level: int) -> Schedule | None:
    family = FAMILIES[type(problem)]
    good = GOOD * family.bound(problem, timing) if level == 1 else 0.0
    best, least = None, 0.0
    for schedule in family.candidates(problem, timing):
        time = family.estimate(problem, schedule, timing)
        if best is None or time < least:
            best, least = schedule, time
        if time <= good:
            break
    return best
