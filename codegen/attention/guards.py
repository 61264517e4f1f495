"""What keeps rows without a score but minus infinity from being NaN: their greatest score and their sum are replaced.

The greatest score of such a row is made finite, so that its exponentials are 0, and they are divided by another number
than their sum. Of all other rows the greatest exponential is 1, and the sum at least that: no guard changes those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite

from neuronx_cc.codegen.formation.graph import base
from neuronx_cc.ir import hlo

Holds = Callable[[hlo.SSAValue, hlo.SSAValue], bool | None]
"""What a predicate is where a value stays; None if it is about something else."""
LOWEST = -3.3e38
"""No score but minus infinity is lower, but for some that are as good as that."""
NEGLIGIBLE = 2.0**-26
"""Nothing changes where this, or less, is added to a sum."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A value, and the ops that replace it where a row has no score."""

    value: hlo.SSAValue
    ops: tuple[hlo.HloOp, ...]


@dataclass(frozen=True, slots=True)
class Guards:
    """Recognises them; ``splat`` is the single value that a constant holds everywhere, or None."""

    splat: Callable[[hlo.SSAValue], float | None]

    def floored(self, most: hlo.SSAValue) -> Guard | None:
        """``most`` as a greatest score that is some finite number where it was minus infinity."""
        match most.owner:
            case hlo.MaximumOp() as op:
                return self._beside(op, lambda floor: -inf < floor <= LOWEST)
            case hlo.SelectOp() as op:
                return self._selected(op, isfinite, self._is_finite)
        return None

    def positive(self, total: hlo.SSAValue) -> Guard | None:
        """``total`` as a sum that is some positive number where it was 0."""
        match total.owner:
            case hlo.MaximumOp() as op:
                return self._beside(op, lambda least: 0 < least <= 1)
            case hlo.AddOp() as op if op.shape.dtype == "f32":
                return self._beside(op, lambda more: 0 < more <= NEGLIGIBLE)
            case hlo.SelectOp() as op:
                return self._selected(op, lambda instead: instead > 0, self._is_positive)
        return None

    def _beside(self, op: hlo.HloOp, fits: Callable[[float], bool]) -> Guard | None:
        for index, operand in enumerate(op.operands):
            number = self.splat(operand)
            if number is not None:
                return Guard(op.operands[1 - index], (op,)) if fits(number) else None
        return None

    def _selected(self, op: hlo.SelectOp, fits: Callable[[float], bool], holds: Holds) -> Guard | None:
        """A select between a value and a number that ``fits``; ``holds`` says what the predicate is where it stays."""
        predicate = base(op.operands[0])
        for index in (1, 2):
            number, value = self.splat(op.operands[3 - index]), op.operands[index]
            if number is not None and fits(number) and holds(predicate, value) is (index == 1):
                assert isinstance(predicate.owner, hlo.HloOp)
                return Guard(value, (op, predicate.owner))
        return None

    def _is_finite(self, predicate: hlo.SSAValue, most: hlo.SSAValue) -> bool | None:
        """What ``predicate`` is of all ``most`` but minus infinity, and perhaps others that are not finite."""
        op = predicate.owner
        if isinstance(op, hlo.IsFiniteOp):
            return True if base(op.operands[0]) is base(most) else None
        return self._compared(op, most, {"NE": True, "GT": True, "EQ": False}, -inf)

    def _is_positive(self, predicate: hlo.SSAValue, total: hlo.SSAValue) -> bool | None:
        """What ``predicate`` is of all ``total`` but 0."""
        return self._compared(predicate.owner, total, {"NE": True, "GT": True, "EQ": False, "LE": False}, 0.0)

    def _compared(self, op: object, value: hlo.SSAValue, verdicts: dict[str, bool], number: float) -> bool | None:
        if not isinstance(op, hlo.CompareOp) or base(op.operands[0]) is not base(value):
            return None
        return verdicts.get(op.direction.data) if self.splat(op.operands[1]) == number else None
