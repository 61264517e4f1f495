"""What strategies of tuning share: the ops that get types, trials through a history, and what comes of it.

Each contraction of FP32 operands may get a type of its own. A *trial* is the whole module compiled and run under one
assignment of types, which gives its error and its simulated time at once; a strategy chooses which are made.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from neuronx_cc.driver.check import Progress
from neuronx_cc.driver.tuning.assignments import Assignment
from neuronx_cc.driver.tuning.bench import Array, Bench, Measure, Trial
from neuronx_cc.driver.tuning.history import History
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.auto_cast import code_computations
from neuronx_cc.passes.precision.lowering import is_f32
from neuronx_cc.passes.precision.policy import Policy, Rule, entries_of, make_rule
from neuronx_cc.passes.precision.quantization import weight_of

KEPT = "fp32"
STORED = {"int8": ("bf16", "int8")}
"""Candidates with weights in 8 bits: what the operands are rounded to beside, and the format of the weights."""

Runs = Callable[[Sequence[Array]], list[Array]]
"""A program."""


@dataclass(frozen=True, slots=True)
class Group:
    """Contractions that rules cannot tell apart: mostly one."""

    ops: tuple[hlo.HloOp, ...]
    imported: bool
    """Whether the module had it when it was imported: it is named then, what the passes have made by its path."""

    @property
    def key(self) -> str:
        loc = self.ops[0].loc
        return loc.name if self.imported or not loc.op_name else loc.op_name

    @property
    def likeness(self) -> tuple[str, ...]:
        """What like ops of other layers have in common."""
        first = self.ops[0]
        shapes = [str(hlo.shape_of(value)) for value in (*first.operands, *first.results)]
        return (first.opcode, *shapes, first.loc.numberless, first.loc.place)

    @property
    def work(self) -> float:
        """About the multiplications of one of the ops: the root of what its arrays' sizes multiply to."""
        first = self.ops[0]
        return math.prod(float(hlo.shape_of(value).size) for value in (*first.operands, *first.results)) ** 0.5

    def __str__(self) -> str:
        several = f" and {len(self.ops) - 1} like it" if len(self.ops) > 1 else ""
        return f"{self.ops[0].opcode} {self.ops[0].loc.name}{several}"


@dataclass(frozen=True, slots=True)
class Point:
    """One assignment: measured, not estimated."""

    types: Assignment
    error: float
    microseconds: float
    predicted: float | None = None
    """Root of the squared errors of its parts, where these were measured."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was chosen, and from what."""

    groups: tuple[Group, ...]
    chosen: Point
    fp32_us: float
    points: tuple[Point, ...]
    """The Pareto front, most accurate first."""
    policy: Policy
    trials: int
    """Compilations and runs of the whole module made this time."""
    evaluated: int
    """Casts of single contractions that were evaluated by the reference semantics."""
    resumed: int
    """Measurements that a history had."""
    complete: bool
    """False when trials or time ran out before all was measured."""

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "op": str(group),
                "source": group.ops[0].loc.place,
                "op_name": group.ops[0].loc.op_name,
                "type": dtype,
            }
            for group, dtype in zip(self.groups, self.chosen.types, strict=True)
        ]
        points = [
            {"error": p.error, "microseconds": p.microseconds, "predicted": p.predicted, "types": list(p.types)}
            for p in self.points
        ]
        return {
            "error": self.chosen.error,
            "microseconds": self.chosen.microseconds,
            "fp32_microseconds": self.fp32_us,
            "groups": rows,
            "front": points,
            "policy": entries_of(self.policy),
            "trials": self.trials,
            "evaluated": self.evaluated,
            "resumed": self.resumed,
            "complete": self.complete,
        }

    def __str__(self) -> str:
        chosen = self.chosen
        lines = [
            f"chosen: {chosen.microseconds:.1f} us with an error of {chosen.error:.1e}; "
            f"all in FP32: {self.fp32_us:.1f} us"
        ]
        rows = self._rows()
        width = max((len(title) for _, title, _ in rows), default=0)
        lines += [f"  {dtype:<9} {title:<{width}}  {place}".rstrip() for dtype, title, place in rows]
        lines.append("Pareto front:")
        lines.append(f"  {'error':>8}  {'predicted':>9}  {'us':>9}")
        for point in self.points:
            mark = "  <" if point == chosen else ""
            predicted = "" if point.predicted is None else f"{point.predicted:.1e}"
            lines.append(f"  {point.error:8.1e}  {predicted:>9}  {point.microseconds:9.1f}{mark}")
        told = f"{self.trials} trials"
        told += f", {self.evaluated} casts evaluated" if self.evaluated else ""
        told += f", {self.resumed} measurements of earlier ones" if self.resumed else ""
        lines.append(told if self.complete else f"{told}; stopped before all was measured")
        return "\n".join(lines) + "\n"

    def _rows(self) -> list[tuple[str, str, str]]:
        """Type, op, place; like ops of one type together."""
        alike: dict[tuple[Any, ...], list[Group]] = {}
        for group, dtype in zip(self.groups, self.chosen.types, strict=True):
            alike.setdefault((dtype, *group.likeness), []).append(group)
        rows = []
        for (dtype, *_), groups in alike.items():
            count = sum(len(group.ops) for group in groups)
            loc = groups[0].ops[0].loc
            several = f" and {count - 1} like it" if count > 1 else ""
            rows.append((dtype, f"{groups[0].ops[0].opcode} {loc.name}{several}", loc.place or loc.op_name))
        return rows


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
        self._started = time.monotonic()
        self._trials = self._evaluated = 0
        self._complete = True
        self._points: dict[Assignment, Point] = {}

    def tune(self) -> Tuning:
        chosen = self._search()
        return Tuning(
            tuple(self.groups), chosen, self._fp32().microseconds, tuple(pareto([*self._points.values(), chosen])),
            self.policy(chosen.types), self._trials, self._evaluated, self._history.resumed, self._complete,
        )  # fmt: skip

    def _search(self) -> Point:
        """What is taken of ``_points``, which it fills."""
        raise NotImplementedError

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

    def _has_time(self) -> bool:
        """Asked where there is more to measure."""
        late = self._goal.timeout and time.monotonic() - self._started > self._goal.timeout
        enough = self._trials < self._goal.max_trials and not late
        self._complete = self._complete and enough
        return enough

    def _measured(self, wanted: Iterable[Assignment], bounded: bool = True) -> list[Point]:
        """Those that are known or may still be tried, in order; trials of one call are made side by side."""
        todo: dict[Policy, Assignment] = {}
        wanted = list(dict.fromkeys(wanted))
        for types in wanted:
            known = self._history.get(f"trial {' '.join(types)}")
            if known is not None:
                self._keep(types, Trial(*known))
            elif types not in self._points and (not bounded or self._has_time()):
                self._trials += 1
                todo[self.policy(types)] = types
        for policy, trial in self._measure(list(todo)) if todo else ():
            self._history.add(f"trial {' '.join(todo[policy])}", (trial.error, trial.microseconds))
            self._keep(todo[policy], trial)
            self._progress("trial", self._trials, self._goal.max_trials)
        return [self._points[types] for types in wanted if types in self._points]

    def _keep(self, types: Assignment, trial: Trial) -> None:
        self._points.setdefault(types, Point(types, trial.error, trial.microseconds))

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
                key = op.loc.name if named else op.loc.op_name
                groups.setdefault((op.opcode, key, named), []).append(op)
    return [Group(tuple(ops), named) for (_, _, named), ops in groups.items()]


def pareto(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats in time and error, most accurate first; of equal ones the first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.microseconds, p.error)):
        if not best or point.error < best[-1].error:
            best.append(point)
    return best[::-1]
