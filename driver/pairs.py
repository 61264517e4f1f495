"""A module with casts and without, side by side, in loops and branches too: what each op adds and inherits.

Values are pairs. An op is evaluated on the exact operands, on those with casts, and on these with its own cast, which
tells what its cast adds from what came with its operands. Loops go on together, and branches are taken together, as
long as both programs decide alike; from where they part, each is evaluated alone and nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronx_cc.driver.check import difference
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.reference import CALLING, REFERENCE, Evaluator
from neuronx_cc.ir.reference.evaluator import as_tuple
from neuronx_cc.passes.precision.rounding import Cast, RoundingEvaluator

CANCELS = 8.0
"""Times the relative error of its operands that an op inherits which is named."""
LEAST_ERROR = 1e-8
"""Relative errors below this are those of arrays that hold huge values, masks of attention for one."""
SUMS = (hlo.AddOp, hlo.SubtractOp, hlo.ReduceOp, hlo.ContractionOp)
"""Ops that may cancel."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What an op results in with casts and without; the same object where no cast reaches it."""

    cast: Any
    exact: Any


@dataclass(frozen=True, slots=True)
class Cancellation:
    """An op whose result is relatively much less accurate than its operands."""

    op: hlo.HloOp
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Overflow:
    """An op whose cast makes infinities of finite numbers."""

    op: hlo.HloOp
    dtype: str
    largest: float
    """Magnitude of those numbers."""


class Pairs(Evaluator):
    """Evaluates pairs, and keeps the largest errors of each op, over all iterations."""

    def __init__(self, module: HloModule, casts: Mapping[hlo.HloOp, Cast], plain: RoundingEvaluator) -> None:
        """``plain`` evaluates without casts."""
        super().__init__(module, REFERENCE, CALLING)
        self._casts, self._plain, self._rounding = casts, plain, RoundingEvaluator(module, casts)
        self.added: dict[hlo.HloOp, float] = {}
        self.inherited: dict[hlo.HloOp, float] = {}
        self._cancelling: dict[hlo.HloOp, Cancellation] = {}
        self.overflows: dict[hlo.HloOp, Overflow] = {}
        """In the order in which they are come to."""

    def apply(self, op: hlo.HloOp, operands: Sequence[Any]) -> Pair:
        """``operands`` are pairs."""
        if isinstance(op, hlo.WhileOp):
            return self._loop(op, operands[0])
        if isinstance(op, hlo.ConditionalOp):
            return self._branch(op, operands)
        return self.apply_known(op, operands, self._plain.apply(op, [each.exact for each in operands]))

    def apply_known(self, op: hlo.HloOp, operands: Sequence[Pair], exact: Any) -> Pair:
        """The same where it is known what ``op``, no loop or branch, results in without casts."""
        reached = any(each.cast is not each.exact for each in operands)
        taken = [each.cast for each in operands]
        uncast = self._plain.apply(op, taken) if reached else exact
        value = self._rounding.apply(op, taken) if op in self._casts else uncast
        if op in self._casts:
            self._note(self.added, op, value, uncast)
            dtype, largest = self._rounding.beyond(op, taken, uncast)
            if dtype and (op not in self.overflows or largest > self.overflows[op].largest):
                self.overflows[op] = Overflow(op, dtype, largest)
        if op in self._casts or (reached and isinstance(op, SUMS)):
            after = self._note(self.inherited, op, uncast, exact)
            if isinstance(op, SUMS):
                self._judge(op, max((distance(each.cast, each.exact) for each in operands), default=0.0), after)
        return Pair(value, exact)

    def cancellations(self) -> list[Cancellation]:
        """Of each op the worst."""
        return list(self._cancelling.values())

    def _judge(self, op: hlo.HloOp, before: float, after: float) -> None:
        if before <= LEAST_ERROR or after <= CANCELS * before:
            return
        known = self._cancelling.get(op)
        if known is None or after / before > known.after / known.before:
            self._cancelling[op] = Cancellation(op, before, after)

    @staticmethod
    def _note(errors: dict[hlo.HloOp, float], op: hlo.HloOp, found: Any, expected: Any) -> float:
        error = distance(found, expected)
        errors[op] = max(errors.get(op, 0.0), error)
        return error

    def _alone(self, op: hlo.HloOp, operands: Sequence[Pair]) -> Pair:
        """Each program by itself."""
        cast = self._rounding.apply(op, [each.cast for each in operands])
        return Pair(cast, self._plain.apply(op, [each.exact for each in operands]))

    def _loop(self, op: hlo.WhileOp, state: Pair) -> Pair:
        condition, body = op.condition.data[0], op.body.data[0]
        while True:
            goes_on = self._call(condition, state)
            cast, exact = (bool(as_tuple(each)[0]) for each in (goes_on.cast, goes_on.exact))
            if cast != exact:
                return self._alone(op, [state])
            if not exact:
                return state
            state = self._call(body, state)

    def _branch(self, op: hlo.ConditionalOp, operands: Sequence[Pair]) -> Pair:
        selector = operands[0]
        if not np.array_equal(selector.cast, selector.exact):
            return self._alone(op, operands)
        taken: Pair = CALLING[op.opcode](self, op, selector.exact, *operands[1:])
        return taken

    def _call(self, name: str, *arguments: Pair) -> Pair:
        result: Pair = self.call(name, *arguments)
        return result


def worst_cancellations(found: Iterable[Cancellation]) -> tuple[Cancellation, ...]:
    """Of each op the worst one, worst first."""
    worst: dict[hlo.HloOp, Cancellation] = {}
    for each in sorted(found, key=lambda each: -each.after / each.before):
        worst.setdefault(each.op, each)
    return tuple(worst.values())


def worst_overflows(found: Iterable[Overflow]) -> tuple[Overflow, ...]:
    """Of each op the one of the largest number, in the order in which they are come to."""
    worst: dict[hlo.HloOp, Overflow] = {}
    for each in found:
        if each.op not in worst or each.largest > worst[each.op].largest:
            worst[each.op] = each
    return tuple(worst.values())


def distance(found: Any, expected: Any) -> float:
    """Relative 2-norm of the difference, the worst of a tuple; 0 for what is not a float."""
    if found is expected or expected is None:
        return 0.0
    if isinstance(expected, tuple):
        return max((distance(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)
    return difference(found, expected) if np.asarray(expected).dtype.kind in "fc" else 0.0
