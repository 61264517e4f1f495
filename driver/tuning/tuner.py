"""Types for contractions: as fast as possible at an error of the outputs that is tolerated.

1. The module is evaluated in FP32, and once with each group of like contractions cast to each type: its error alone.
   Types whose casts make an output infinite or NaN are dropped.
2. Each group in each type is compiled by itself, and the clock asked: the time it saves.
3. Under a dozen bounds of error between none and all, the fastest assignment by these sums is found exactly.
4. Each is evaluated whole and compiled: its true error and true time. What is neither faster nor more accurate falls
   out; the rest is the Pareto front.
5. The fastest of the front that the simulator confirms is taken. While an error is too large after all, the group that
   adds most of it for the time that it saves goes back to FP32.

With an evaluator instead of a tolerance, the front is bisected with the user's metric on simulated outputs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuronx_cc import runtime
from neuronx_cc.driver.accuracy import Array, Uncast
from neuronx_cc.driver.check import Progress, largest_difference
from neuronx_cc.driver.tuning.assignments import Assignment, fastest, front
from neuronx_cc.driver.tuning.history import History
from neuronx_cc.ir import hlo
from neuronx_cc.passes.precision.lowering import is_f32
from neuronx_cc.passes.precision.policy import TYPES, Policy, Rule, entries_of, make_rule
from neuronx_cc.passes.precision.quantization import weight_of
from neuronx_cc.passes.precision.rounding import Cast

FRONT = 12
"""Bounds of error between no casts and all, under which the fastest assignment is looked for."""
KEPT = "fp32"
STORED = {"int8": ("bf16", "int8")}
"""Candidates with weights in 8 bits: what the operands are rounded to beside, and the format of the weights."""

Compiled = Callable[[Policy], runtime.Executable]
Runs = Callable[[Sequence[Array]], list[Array]]
"""A program."""


@dataclass(frozen=True, slots=True)
class Group:
    """Contractions that get one type: those of one shape and opcode at one place, layers' numbers aside."""

    ops: tuple[hlo.HloOp, ...]
    imported: tuple[str, ...]
    """Names of those that the module had when it was imported."""

    def rule(self, dtype: str) -> Rule:
        """Matches these ops alone, by name; what the passes have made is matched by its path."""
        first = self.ops[0]
        names = "|".join(re.escape(name) for name in sorted({op.loc.name for op in self.ops}))
        by_name = {"name": f"^({names})$"}
        by_path = {"op_name": "^(" + "|".join(sorted({re.escape(op.loc.op_name) for op in self.ops})) + ")$"}
        chosen = by_name if self.imported or not first.loc.op_name else by_path
        operands, weights = STORED.get(dtype, (dtype, ""))
        return make_rule(f"{self} in {dtype}", opcode=first.opcode, operands=operands, weights=weights, **chosen)

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
    """Root of the squared errors of its casts alone, where these were measured."""


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
    """Evaluations and compilations made this time."""
    evaluations: int
    """Those of them that asked how good a program's values are."""
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
            "evaluations": self.evaluations,
            "resumed": self.resumed,
            "complete": self.complete,
        }

    def __str__(self) -> str:
        chosen = self.chosen
        lines = [
            f"chosen: {chosen.microseconds:.1f} us with an error of {chosen.error:.1e}; "
            f"all in FP32: {self.fp32_us:.1f} us"
        ]
        width = max((len(str(group)) for group in self.groups), default=0)
        for group, dtype in zip(self.groups, chosen.types, strict=True):
            first = group.ops[0]
            lines.append(f"  {dtype:<9} {group!s:<{width}}  {first.loc.place or first.loc.op_name}".rstrip())
        lines.append("Pareto front:")
        lines.append(f"  {'error':>8}  {'predicted':>9}  {'us':>9}")
        for point in self.points:
            mark = "  <" if point == chosen else ""
            predicted = "" if point.predicted is None else f"{point.predicted:.1e}"
            lines.append(f"  {point.error:8.1e}  {predicted:>9}  {point.microseconds:9.1f}{mark}")
        told = f"{self.trials} trials, {self.evaluations} of them of values" + (
            f", {self.resumed} measurements of earlier ones" if self.resumed else ""
        )
        lines.append(told if self.complete else f"{told}; stopped before all was measured")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Goal:
    """What is tolerated: an error of the outputs, or a loss of the user's metric."""

    tolerance: float = 0.01
    loss: Callable[[Runs], float] | None = None
    """What a program, which takes inputs and gives outputs, loses of the user's metric; judged in place of errors."""
    max_trials: int = 1000
    timeout: float = 0.0
    """Seconds after which nothing more is tried; 0: none."""


class Tuner:
    """Measures by need, through a history; ``_search`` is the strategy."""

    def __init__(
        self,
        module: hlo.HloModule,
        imported: frozenset[str],
        inputs: Sequence[Array],
        compiled: Compiled,
        history: History,
        types: Sequence[str],
        goal: Goal,
        progress: Progress,
    ) -> None:
        self._inputs, self._compiled, self._history, self._goal = inputs, compiled, history, goal
        self._progress, self._module = progress, module
        self._uncast = Uncast(module, inputs, progress)
        self.groups = self._grouped(module, imported)
        self._types = tuple(each for each in types if any(self._is_possible(group, each) for group in self.groups))
        self._started = time.monotonic()
        self._trials = self._evaluations = 0
        self._complete = True

    def tune(self) -> Tuning:
        points, chosen = self._search()
        return Tuning(
            tuple(self.groups), chosen, self._microseconds(self._fp32), tuple(pareto([*points, chosen])),
            self.policy(chosen.types), self._trials, self._evaluations, self._history.resumed, self._complete,
        )  # fmt: skip

    def _grouped(self, module: hlo.HloModule, imported: frozenset[str]) -> list[Group]:
        """What gets a type of its own, in order."""
        return groups_of(module, imported)

    def _search(self) -> tuple[list[Point], Point]:
        """The Pareto front as far as it was measured, and what is taken of it."""
        errors, times = self._singles()
        wanted = list(front(errors, times, FRONT)) if self.groups else []
        if self._goal.loss is None and self.groups:
            wanted.append(fastest(errors, times, self._goal.tolerance))
        wanted.append(self._fp32)
        points = []
        for number, types in enumerate(dict.fromkeys(wanted), 1):
            if types == self._fp32 or self._has_time():
                points.append(self._point(types, errors))
            self._progress("point of the front", number, len(wanted))
        best = pareto(points)
        return best, self._by_metric(best) if self._goal.loss is not None else self._by_error(best, errors, times)

    @property
    def _fp32(self) -> Assignment:
        return (KEPT,) * len(self.groups)

    def policy(self, types: Assignment) -> Policy:
        """Rules that give each group its type, and FP32 to contractions that are in none."""
        opcodes = sorted({group.ops[0].opcode for group in self.groups if group.imported})
        rules = [make_rule(f"{opcode} in FP32", opcode=opcode, operands=KEPT) for opcode in opcodes]
        rules += [group.rule(dtype) for group, dtype in zip(self.groups, types, strict=True) if dtype != KEPT]
        return Policy(tuple(rules))

    def _is_possible(self, group: Group, dtype: str) -> bool:
        """Weights have another format where all of a group's are constants."""
        return dtype not in STORED or all(weight_of(self._module, op) is not None for op in group.ops)

    def _cast(self, op: hlo.HloOp, dtype: str) -> Cast:
        operands, weights = STORED.get(dtype, (dtype, ""))
        wide = tuple(number for number, value in enumerate(op.operands) if is_f32(value))
        return Cast(TYPES[operands], "f32", wide).with_weights(self._module, op, weights)

    def _has_time(self) -> bool:
        """Asked where there is more to measure."""
        late = self._goal.timeout and time.monotonic() - self._started > self._goal.timeout
        enough = self._trials < self._goal.max_trials and not late
        self._complete = self._complete and enough
        return enough

    def _singles(self) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        """Error and additional time of each group in each type, all others in FP32."""
        errors: list[dict[str, float]] = []
        times: list[dict[str, float]] = []
        plain = self._fp32
        base = self._microseconds(plain)
        for number, _ in enumerate(self.groups):
            errors.append({KEPT: 0.0})
            times.append({KEPT: 0.0})
            for dtype in self._types:
                types = (*plain[:number], dtype, *plain[number + 1 :])
                if not self._is_possible(self.groups[number], dtype) or not self._has_time():
                    continue
                error = self._error(types)
                if np.isfinite(error):
                    errors[-1][dtype] = error
                    times[-1][dtype] = self._microseconds(types) - base
            self._progress("group", number + 1, len(self.groups))
        return errors, times

    def _point(self, types: Assignment, errors: list[dict[str, float]]) -> Point:
        squares = [row.get(dtype, np.inf) ** 2 for row, dtype in zip(errors, types, strict=True)]
        return Point(types, self._error(types), self._microseconds(types), float(np.sqrt(sum(squares))))

    def _error(self, types: Assignment) -> float:
        def measure() -> float:
            self._trials += 1
            self._evaluations += 1
            casts = {
                op: self._cast(op, dtype)
                for group, dtype in zip(self.groups, types, strict=True)
                for op in group.ops
                if dtype != KEPT
            }
            return self._uncast.error(casts) if casts else 0.0

        return self._history.measured(f"error {' '.join(types)}", measure)

    def _microseconds(self, types: Assignment) -> float:
        def measure() -> float:
            self._trials += 1
            return float(self._compiled(self.policy(types)).run([], timing_only=True).report.time_ns) / 1e3

        return self._history.measured(f"time {' '.join(types)}", measure)

    def _program(self, types: Assignment) -> Runs:
        """To be judged by its values."""
        self._trials += 1
        self._evaluations += 1
        executable = self._compiled(self.policy(types))
        return lambda inputs: list(executable.run(inputs).outputs)

    def _simulated_error(self, types: Assignment) -> float:
        expected = self._uncast.expected
        key = f"simulated {' '.join(types)}"
        return self._history.measured(key, lambda: largest_difference(self._program(types)(self._inputs), expected))

    def _by_error(self, points: list[Point], errors: list[dict[str, float]], times: list[dict[str, float]]) -> Point:
        """The fastest whose error the simulator confirms; single groups go back to FP32 while it is too large."""
        tolerance = self._goal.tolerance
        fitting = [point for point in points if point.error <= tolerance]
        point = fitting[-1] if fitting else points[0]
        while True:
            error = self._simulated_error(point.types)
            point = replace(point, error=error)
            cast = [number for number, dtype in enumerate(point.types) if dtype != KEPT]
            if error <= tolerance or not cast:
                return point

            def worth(number: int, types: Assignment = point.types) -> float:
                return errors[number][types[number]] ** 2 / max(-times[number][types[number]], 1e-3)

            back = max(cast, key=worth)
            point = self._point((*point.types[:back], KEPT, *point.types[back + 1 :]), errors)

    def _by_metric(self, points: list[Point]) -> Point:
        """The fastest that the metric accepts, by bisection from the most accurate, which must be accepted, on."""
        loss = self._goal.loss
        assert loss is not None
        low, high = 0, len(points) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if loss(self._program(points[middle].types)) <= self._goal.tolerance:
                low = middle
            else:
                high = middle - 1
        return points[low]


def contractions_of(module: hlo.HloModule) -> list[hlo.HloOp]:
    """Contractions of FP32 operands, in order."""
    from neuronx_cc.ir.hlo.editing import ops_of
    from neuronx_cc.passes.auto_cast import code_computations

    return [
        op
        for computation in code_computations(module)
        for op in ops_of(computation.block)
        if isinstance(op, hlo.DotOp | hlo.ConvolutionOp) and any(map(is_f32, op.operands))
    ]


def groups_of(module: hlo.HloModule, imported: frozenset[str]) -> list[Group]:
    """Contractions of FP32 operands, like ones together, in order."""
    groups: dict[Any, list[hlo.HloOp]] = {}
    for op in contractions_of(module):
        shapes = tuple(str(hlo.shape_of(value)) for value in (*op.operands, *op.results))
        key: tuple[Any, ...] = (op.opcode, shapes, op.loc.numberless, op.loc.place)
        if not op.loc.op_name and not op.loc.source_file:
            key = (op.loc.name, *key)  # nothing says that they are alike
        groups.setdefault(key, []).append(op)
    return [group_of(ops, imported) for ops in groups.values()]


def group_of(ops: Sequence[hlo.HloOp], imported: frozenset[str]) -> Group:
    """``ops`` get one type."""
    return Group(tuple(ops), tuple(op.loc.name for op in ops if op.loc.name in imported))


def pareto(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats in time and error, most accurate first; of equal ones the first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.microseconds, p.error)):
        if not best or point.error < best[-1].error:
            best.append(point)
    return best[::-1]
