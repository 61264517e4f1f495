"""The elementwise ops on scores, and which scores have no weight after them, whatever the program is given.

What masks by row and column number leave out need not be computed where that is proved: what stands for a masked score
is far below some score of its row. In rows that masks leave nothing of but finite numbers, all columns have weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from neuronx_cc.codegen.attention.masks import Band
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.ir import hlo
from neuronx_cc.passes.analysis.spans import UNKNOWN, Span

NEGLIGIBLE = -1e30
"""What stands for a masked score has no weight from here on, beside any other score."""
ORDINARY = 1e29
"""What is added to scores lowers none to that if it is no larger."""
BOUNDING = (hlo.TanhOp, hlo.LogisticOp, hlo.AbsOp, hlo.NegateOp, hlo.ConvertOp)
"""Ops that make no ordinary number as low as what stands for a masked one."""


@dataclass(frozen=True, slots=True)
class Step:
    """An elementwise op on the scores."""

    op: hlo.HloOp
    main: int
    """Its operand that comes from the scores."""
    marks: View
    """Where its elements lie in the scores."""
    band: Band | None
    """Where it keeps its operand, if it sets all else to ``masked``."""
    masked: float = 0.0
    span: Span = UNKNOWN
    """Between which numbers its other operand lies; of a select, what stands for scores."""

    def may_mask(self) -> bool:
        """Whether it may make a score as low as what stands for a masked one."""
        least, most = self.span
        match self.op:
            case hlo.AddOp() | hlo.SelectOp():
                return least < -ORDINARY
            case hlo.SubtractOp():
                return most > ORDINARY if self.main == 0 else least < -ORDINARY
            case hlo.MultiplyOp() | hlo.MaximumOp():
                return False
            case hlo.DivideOp():
                return self.main == 1 or least <= 0 <= most
        return not isinstance(self.op, BOUNDING)

    def masked_after(self, masked: float) -> float:
        """What at most becomes of a score that is ``masked``; infinite where nothing is known."""
        least, most = self.span
        match self.op:
            case hlo.ConvertOp():
                return masked
            case hlo.SelectOp():
                return max(masked, self.masked if self.band is not None else most)
            case hlo.AddOp():
                return masked if masked == -inf else masked + most
            case hlo.SubtractOp() if self.main == 0:
                return masked if masked == -inf else masked - least
            case hlo.MultiplyOp() if least > 0 >= masked:
                return masked * least
            case hlo.DivideOp() if self.main == 0 and most < inf and least > 0 >= masked:
                return masked / most
        return inf


def leaves_of(step: Step) -> list[hlo.SSAValue]:
    """Operands that do not come from the scores and are read."""
    main = step.op.operands[step.main]
    return [] if step.band is not None else [x for x in step.op.operands if x is not main]


def with_weight(steps: Sequence[Step], first: int, last: int, columns: int) -> int:
    """How many of the first ``columns`` may have weight in rows ``first`` to ``last``."""
    found = columns
    for at, step in enumerate(steps):
        if step.band is None:
            continue
        ends = [step.band.last_column(row) for row in (first, last)]
        if any(end is None or end < 0 for end in ends) or step.masked > NEGLIGIBLE:
            continue
        masked = step.masked
        for each in steps[at + 1 :]:
            masked = each.masked_after(masked)
        if masked == -inf or (masked <= NEGLIGIBLE and keeps_some(steps, first, last, columns)):
            found = min(found, 1 + max(end for end in ends if end is not None))
    return found


def first_with_weight(steps: Sequence[Step], first: int, last: int) -> int:
    """The first column that some row from ``first`` to ``last`` keeps, where what masks leave out weighs nothing."""
    begins = [0]
    for step in steps:
        kept = [step.band.kept(row) if step.band is not None else None for row in (first, last)]
        begins.append(int(min((max(0, each[0]) if each is not None else 0) for each in kept)))
    return max(begins)


def masks_weigh_nothing(steps: Sequence[Step], rows: int, columns: int, step: int) -> bool:
    """Whether what masks leave out has no weight in any row, ``step`` of which are a block."""
    bands = [each for each in steps if each.band is not None]
    return all(
        each.masked == -inf
        or (each.masked <= NEGLIGIBLE and keeps_some(steps, first, min(first + step, rows) - 1, columns))
        for first in range(0, rows if bands else 0, step)
        for each in bands
    )


def keeps_some(steps: Sequence[Step], first: int, last: int, columns: int) -> bool:
    """Whether a score of every row is no lower than the program's products are."""
    bands = [step.band for step in steps if step.band is not None]
    if any(step.band is None and step.may_mask() for step in steps):
        return False
    for row in (first, last):  # how many columns all keep is concave over rows
        kept = [band.kept(row) for band in bands]
        if any(each is None for each in kept):
            return False
        low = max((each[0] for each in kept if each), default=0)
        high = min((each[1] for each in kept if each), default=inf)
        if max(low, 0) > min(high, columns - 1):
            return False
    return True
