"""What strategies of tuning share: the ops that get types, and trials through a history.

Each contraction of FP32 operands may get a type of its own. A *trial* is the whole module compiled and run under one
assignment of types, which gives its error and its simulated time at once; a strategy chooses which are made.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from neuronx_cc.driver.check import Progress
from neuronx_cc.driver.tuning.assignments import Assignment
from neuronx_cc.driver.tuning.bench import Array, Bench, Measure, Trial
from neuronx_cc.driver.tuning.history import History
from neuronx_cc.driver.tuning.results import Group, Point, Together, Tuning, pareto
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import kinds_in, ops_of
from neuronx_cc.passes.auto_cast import code_computations
from neuronx_cc.passes.precision.decisions import is_f32
from neuronx_cc.passes.precision.policy import Policy, Rule, make_rule
from neuronx_cc.passes.precision.quantization import weight_of

KEPT = "fp32"
STORED = {"int8": ("bf16", "int8")}
"""Candidates with weights in 8 bits: what the operands are rounded to beside, and the format of the weights."""

Runs = Callable[[Sequence[Array]], list[Array]]
"""A program."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is tolerated: an error of the outputs, or a loss of the user's metric."""

    tolerance: float = 0.01
    loss: Callable[[Runs], float] | None = None
    """What a program, which takes inputs and gives outputs, loses of the user's metric; judged in place of errors."""
    max_trials: int = 1000
    timeout: float = 0.0
    """Seconds after which nothing more is tried; 0: none."""
    front: int = 0
    """Tolerances besides for which the fastest assignment is looked for."""
    objective: str = "time"
    """What is to be small: ``time`` or ``memory``."""


class Tuner:
    """Measures by need, through a history; ``_search`` is the strategy."""

    def __init__(
        self,
        bench: Bench,
        measure: Measure,
        history: History,
        types: Sequence[str],
        goal: Goal,
        progress: Progress,
    ) -> None:
        self._bench, self._measure, self._history, self._goal = bench, measure, history, goal
        self._progress = progress
        self.groups = groups_of(*bench.model.before_casts())
        self._types = tuple(dtype for dtype in types if self._uniform(dtype) != self._uniform(KEPT))
        self._impossible = tuple(dtype for dtype in types if dtype in STORED and dtype not in self._types)
        self._started = time.monotonic()
        self._trials = self._timed = self._evaluated = 0
        self._complete = True
        self._points: dict[Assignment, Point] = {}
        """What was measured."""

    def tune(self) -> Tuning:
        found = self._search()
        known = (found, *self._points.values(), *self._unmeasured())
        chosen, *points = (replace(point, predicted=self._predicted(point.types)) for point in known)
        front = pareto([*points, chosen])
        together = self._together(front)
        return Tuning(
            tuple(self.groups), chosen, self._fp32(), tuple(front), self.policy(chosen.types), together,
            self._trials, self._timed, self._evaluated, self._history.resumed, self._complete, self._goal.objective,
            self._impossible if self.groups else (),
        )  # fmt: skip

    def _search(self) -> Point:
        """What is taken of ``_points``, which it fills."""
        raise NotImplementedError

    def _unmeasured(self) -> Iterable[Point]:
        """Points that may be on the front, of which no trial was made."""
        return ()

    def _predicted(self, types: Assignment) -> float | None:
        """The error of an assignment from those of single casts, where all of these are known."""
        return None

    def _together(self, front: Sequence[Point]) -> Together | None:
        """Ops whose errors do not add up as was predicted for a point of ``front``."""
        return None

    def _uniform(self, dtype: str) -> Assignment:
        """``dtype`` wherever it is possible: weights have another format where all of a group's are constants."""
        if dtype not in STORED:
            return (dtype,) * len(self.groups)
        module, _ = self._bench.model.before_casts()
        return tuple(KEPT if any(weight_of(module, op) is None for op in group.ops) else dtype for group in self.groups)

    def _fp32(self) -> Point:
        """Measured whatever the bounds are."""
        return self._measured([self._uniform(KEPT)], bounded=False)[0]

    def policy(self, types: Assignment) -> Policy:
        """Rules that give each group its type, and FP32 to contractions that are in none."""
        named: dict[tuple[bool, str, str], list[str]] = {}
        for group, dtype in zip(self.groups, types, strict=True):
            if dtype != KEPT:
                named.setdefault((group.imported, group.ops[0].opcode, dtype), []).append(re.escape(group.key))
        opcodes = sorted({group.ops[0].opcode for group in self.groups if group.imported})
        rules = [make_rule(f"{opcode} in FP32", opcode=opcode, operands=KEPT) for opcode in opcodes]
        # names count more than paths, which may be those of named ops too
        for (imported, opcode, dtype), keys in sorted(named.items()):
            pattern = "^(" + "|".join(sorted(set(keys))) + ")$"
            rules.append(_rule(f"{opcode} in {dtype}", imported, opcode, dtype, pattern))
        return Policy(tuple(rules))

    def _has_time(self, reserved: int = 0) -> bool:
        """Asked where there is more to measure; ``reserved``: trials that are still to be made after it."""
        late = self._goal.timeout and time.monotonic() - self._started > self._goal.timeout
        enough = self._trials + self._timed + reserved < self._goal.max_trials and not late
        self._complete = self._complete and enough
        return enough

    def _measured(self, wanted: Iterable[Assignment], bounded: bool = True) -> list[Point]:
        """Those that are known or may still be tried, in order; trials of one call are made side by side."""
        todo: dict[Policy, Assignment] = {}
        wanted = list(dict.fromkeys(wanted))
        for types in wanted:
            known = self._history.get(f"trial {' '.join(types)}")
            if known is not None and len(known) == 3:
                self._keep(types, Trial(*known))
            elif types not in self._points and (not bounded or self._has_time()):
                self._trials += 1
                todo[self.policy(types)] = types
        for policy, trial in self._measure(list(todo)) if todo else ():
            self._history.add(f"trial {' '.join(todo[policy])}", (trial.error, trial.microseconds, trial.nbytes))
            self._keep(todo[policy], trial)
            self._progress("trial", self._trials, self._goal.max_trials)
        return [self._points[types] for types in wanted if types in self._points]

    def _keep(self, types: Assignment, trial: Trial) -> None:
        cost = self._cost(trial.microseconds, trial.nbytes)
        self._points.setdefault(types, Point(types, trial.error, trial.microseconds, trial.nbytes, cost))

    def _cost(self, microseconds: float, nbytes: float) -> float:
        return nbytes if self._goal.objective == "memory" else microseconds

    def _timed_cost(self, types: Assignment) -> float | None:
        """That of the program, without its values; None where nothing more may be tried."""
        known = self._times(types)
        return None if known is None else self._cost(*known)

    def _times(self, types: Assignment) -> tuple[float, float] | None:
        """Microseconds and bytes of the program; None where nothing more may be tried."""
        key = f"timed {' '.join(types)}"
        if types in self._points:
            return self._points[types].microseconds, self._points[types].nbytes
        known = self._history.get(key)
        if known is None or len(known) != 2:
            if not self._has_time(reserved=1):
                return None
            self._timed += 1
            known = self._bench.timed(self.policy(types))
            self._history.add(key, known)
            self._progress("trial", self._trials + self._timed, self._goal.max_trials)
        return known[0] * self._taken, known[1]

    @cached_property
    def _taken(self) -> float:
        """Times the clock's time, which knows no values, that the program takes in FP32: how often loops go round, and
        which branches are taken, values decide."""
        module, _ = self._bench.model.before_casts()
        fp32 = self._uniform(KEPT)
        if kinds_in(module).isdisjoint((hlo.WhileOp, hlo.ConditionalOp)) or fp32 not in self._points:
            return 1.0
        told = self._history.measured(f"clock {' '.join(fp32)}", lambda: self._bench.timed(self.policy(fp32))[0])
        return self._points[fp32].microseconds / told

    def _cast(self, types: Assignment) -> float:
        """The error of an assignment by the reference semantics, the same in every program that has these casts."""

        def evaluated() -> float:
            self._evaluated += 1
            return self._bench.evaluated(self.policy(types))

        return self._history.measured(f"cast {' '.join(types)}", evaluated)

    def _lost(self, types: Assignment) -> float:
        """Of the user's metric."""
        assert self._goal.loss is not None
        self._trials += 1
        executable = self._bench.executable(self.policy(types))
        return self._goal.loss(lambda inputs: list(executable.run(inputs).outputs))


def _rule(title: str, imported: bool, opcode: str, dtype: str, pattern: str) -> Rule:
    operands, weights = STORED.get(dtype, (dtype, ""))
    named = {"name" if imported else "op_name": pattern}
    return make_rule(title, opcode=opcode, operands=operands, weights=weights, **named)


def groups_of(module: hlo.HloModule, imported: frozenset[str]) -> list[Group]:
    """Contractions of FP32 operands, in order: by the names that the module was imported with, else by their path."""
    groups: dict[tuple[str, str, bool], list[hlo.HloOp]] = {}
    for computation in code_computations(module):
        for op in ops_of(computation.block):
            if isinstance(op, hlo.DotOp | hlo.ConvolutionOp) and any(map(is_f32, op.operands)):
                named = op.loc.name in imported or not op.loc.op_name
                key = op.loc.path if named else op.loc.op_name
                groups.setdefault((op.opcode, key, named), []).append(op)
    return [Group(tuple(ops), named) for (_, _, named), ops in groups.items()]
