"""What comes of a tuning: the chosen types, the Pareto front, and which errors do not add up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from neuronx_cc.driver.tuning.assignments import Assignment
from neuronx_cc.ir import hlo
from neuronx_cc.passes.precision.policy import Policy, entries_of


@dataclass(frozen=True, slots=True)
class Group:
    """Contractions that rules cannot tell apart: mostly one."""

    ops: tuple[hlo.HloOp, ...]
    imported: bool
    """Whether the module had it when it was imported: it is named then, what the passes have made by its path."""

    @property
    def key(self) -> str:
        loc = self.ops[0].loc
        return loc.path if self.imported or not loc.op_name else loc.op_name

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
        return f"{self.ops[0].opcode} {self.ops[0].loc.path}{several}"


@dataclass(frozen=True, slots=True)
class Point:
    """One assignment."""

    types: Assignment
    error: float
    microseconds: float
    nbytes: float
    """Of HBM."""
    cost: float
    """What is to be small: one of both."""
    predicted: float | None = None
    """Root of the squared errors of its parts, where these are known, else its error by the reference semantics."""
    measured: bool = True
    """By a trial; else its error is that by the reference semantics, its time that of the clock."""


@dataclass(frozen=True, slots=True)
class Together:
    """Ops whose squared errors do not add up: a smallest set of them that was found."""

    groups: tuple[int, ...]
    types: Assignment
    error: float
    """With all of them cast."""
    predicted: float
    """Root of the sum of squares of their errors by themselves."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was chosen, and from what."""

    groups: tuple[Group, ...]
    chosen: Point
    fp32: Point
    points: tuple[Point, ...]
    """The Pareto front, most accurate first; what was chosen is measured."""
    policy: Policy
    together: Together | None
    """Ops whose errors do not add up, of that point of the front whose error was predicted worst."""
    trials: int
    """Compilations and runs of the whole module made this time."""
    timed: int
    """Compilations whose time alone was asked."""
    evaluated: int
    """Choices of casts that were evaluated by the reference semantics, of single contractions mostly."""
    resumed: int
    """Measurements that a history had."""
    complete: bool
    """False when trials or time ran out before all was measured."""
    objective: str
    impossible: tuple[str, ...] = ()
    """Formats of weights that no op can have, since none is a constant."""

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "op": str(group),
                "source": group.ops[0].loc.traced,
                "op_name": group.ops[0].loc.op_name,
                "type": dtype,
            }
            for group, dtype in zip(self.groups, self.chosen.types, strict=True)
        ]
        names = ("error", "microseconds", "nbytes", "predicted", "measured")
        points = [{**{name: getattr(p, name) for name in names}, "types": list(p.types)} for p in self.points]
        return {
            "error": self.chosen.error,
            "microseconds": self.chosen.microseconds,
            "nbytes": self.chosen.nbytes,
            "fp32_microseconds": self.fp32.microseconds,
            "fp32_nbytes": self.fp32.nbytes,
            "groups": rows,
            "front": points,
            "not_additive": self._not_additive(),
            "policy": entries_of(self.policy),
            "trials": self.trials,
            "timed": self.timed,
            "evaluated": self.evaluated,
            "resumed": self.resumed,
            "complete": self.complete,
            "impossible": list(self.impossible),
        }

    def __str__(self) -> str:
        chosen, sizes = self.chosen, self.objective == "memory"
        fp32 = _size(self.fp32, sizes)
        lines = [f"chosen: {_size(chosen, sizes)} with an error of {chosen.error:.1e}; all in FP32: {fp32}"]
        rows = self._rows()
        width = max((len(title) for _, title, _ in rows), default=0)
        lines += [f"  {dtype:<9} {title:<{width}}  {place}".rstrip() for dtype, title, place in rows]
        lines.append("Pareto front:")
        lines.append(f"  {'error':>8}  {'predicted':>9}  {'us':>9}" + (f"  {'MB':>9}" if sizes else ""))
        for point in self.points:
            mark = "  <" if point == chosen else ""
            predicted = "" if point.predicted is None else f"{point.predicted:.1e}"
            size = f"  {point.nbytes / 1e6:9.2f}" if sizes else ""
            error = f"{point.error:.1e}" if point.measured else ""
            lines.append(f"  {error:>8}  {predicted:>9}  {point.microseconds:9.1f}{size}{mark}")
        if self.together is not None:
            found = self.together
            lines.append(f"errors do not add up: {found.error:.1e} together, {found.predicted:.1e} by squares, of")
            lines += [f"  {dtype:<9} {title:<{width}}  {place}".rstrip() for dtype, title, place in self._unlike(found)]
        lines += [
            f"{each} was not tried: no weights are constants (--constants makes them so)" for each in self.impossible
        ]
        told = "1 trial" if self.trials == 1 else f"{self.trials} trials"
        told += f", {self.timed} more programs timed" if self.timed else ""
        told += f", {self.evaluated} casts evaluated" if self.evaluated else ""
        told += f", {self.resumed} measurements of earlier ones" if self.resumed else ""
        lines.append(told if self.complete else f"{told}; stopped before all was measured")
        return "\n".join(lines) + "\n"

    @property
    def fp32_us(self) -> float:
        """The time of all in FP32."""
        return self.fp32.microseconds

    def _not_additive(self) -> dict[str, Any] | None:
        found = self.together
        if found is None:
            return None
        ops = [{"op": title, "type": dtype, "source": place} for dtype, title, place in self._unlike(found)]
        return {"error": found.error, "predicted": found.predicted, "ops": ops}

    def _unlike(self, found: Together) -> list[tuple[str, str, str]]:
        return _rows((self.groups[number], found.types[number]) for number in found.groups)

    def _rows(self) -> list[tuple[str, str, str]]:
        return _rows(zip(self.groups, self.chosen.types, strict=True))


def _size(point: Point, sizes: bool) -> str:
    return f"{point.nbytes / 1e6:.2f} MB, {point.microseconds:.1f} us" if sizes else f"{point.microseconds:.1f} us"


def _rows(typed: Iterable[tuple[Group, str]]) -> list[tuple[str, str, str]]:
    """Type, op, place; like ops of one type together."""
    alike: dict[tuple[Any, ...], list[Group]] = {}
    for group, dtype in typed:
        alike.setdefault((dtype, *group.likeness), []).append(group)
    rows = []
    for (dtype, *_), groups in alike.items():
        count = sum(len(group.ops) for group in groups)
        loc = groups[0].ops[0].loc
        several = f" and {count - 1} like it" if count > 1 else ""
        rows.append((dtype, f"{groups[0].ops[0].opcode} {loc.path}{several}", loc.traced or loc.op_name))
    return rows


def pareto(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats in cost and error, most accurate first; of equal ones the first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.cost, p.microseconds, p.error)):
        if not best or point.error < best[-1].error:
            best.append(point)
    return best[::-1]
