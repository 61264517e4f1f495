"""Which op lost the accuracy: errors of a compiled module against its FP32 semantics, and where they come from.

Input: the module as it comes to the pass ``auto_cast``, which means what the imported one does, the casts that are
about to be made, and inputs. The module is evaluated twice side by side, uncast and cast. Each op *adds* the difference
between its cast and its uncast result on the cast operands, and *inherits* the difference that its operands make. What
a cast does to the outputs is found by evaluating with that cast alone: such errors of single casts add up in quadrature
(measured on transformers: 2 % off), so the largest are those to take back first. Where evaluating with every single one
would take too long, casts of like ops are tried together.

An op that inherits many times the relative error of its operands cancels: it is named besides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from neuronx_cc.driver.check import Progress, difference, largest_difference, outputs_of
from neuronx_cc.ir import hlo, reference
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.isa.blas import one_thread
from neuronx_cc.passes.precision.rounding import Cast, RoundingEvaluator

Array = np.ndarray[Any, np.dtype[Any]]
Values = dict[hlo.SSAValue, Any]

SECONDS = 120.0
"""Time that trying casts one by one may take."""
LEAST_TRIALS = 8
CANCELS = 8.0
"""Times the relative error of its operands that an op inherits which is named."""
LEAST_ERROR = 1e-8
"""Relative errors below this are those of arrays that hold huge values, masks of attention for one."""
SUMS = (hlo.AddOp, hlo.SubtractOp, hlo.ReduceOp, hlo.ContractionOp)
"""Ops that may cancel."""


@dataclass(frozen=True, slots=True)
class OpError:
    """Errors of one op that is cast, or of several like ones; all are relative 2-norms."""

    ops: tuple[hlo.HloOp, ...]
    cast: Cast
    added: float
    """By the cast itself; of several ops the largest."""
    inherited: float | None
    """With its operands; None inside loops and branches."""
    impact: float
    """On the worst output, of these casts alone."""

    @property
    def first(self) -> hlo.HloOp:
        return self.ops[0]


@dataclass(frozen=True, slots=True)
class Cancellation:
    """An op whose result is relatively much less accurate than its operands."""

    op: hlo.HloOp
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Where errors come from, worst first."""

    expected: tuple[Array, ...]
    """Outputs of the uncast module, FP32."""
    predicted: float
    """Largest error of an output by all casts together, evaluated."""
    ops: tuple[OpError, ...]
    cancellations: tuple[Cancellation, ...]


def analyse(
    module: HloModule,
    casts: Mapping[hlo.HloOp, Cast],
    inputs: Sequence[Array],
    progress: Progress = lambda what, done, of: None,
) -> Accuracy:
    """Errors by op. ``inputs`` holds an array for each parameter; results have no tuples, as the passes leave them."""
    if not casts:
        steps, seen = sum(1 for _ in module.entry.block.ops), count(1)
        expected = reference.evaluate(module, inputs, lambda op, value: progress("op in FP32", next(seen), steps))
        return Accuracy(tuple(expected), 0.0, (), ())
    with one_thread():
        started = time.monotonic()
        walk = _Walk(module, casts, inputs, progress)
        seconds = time.monotonic() - started
        groups = _groups(casts, max(LEAST_TRIALS, int(SECONDS / max(seconds / 3, 1e-3))))
        rows = []
        for number, ops in enumerate(groups, 1):
            rows.append(walk.row(ops))
            progress("single cast", number, len(groups))
    rows.sort(key=lambda row: -row.impact)
    return Accuracy(tuple(walk.expected()), walk.total(), tuple(rows), tuple(walk.cancellations()))


class Uncast:
    """All values of the entry computation, uncast: what single casts change is evaluated from there on."""

    def __init__(self, module: HloModule, inputs: Sequence[Array], progress: Progress) -> None:
        self._module = module
        self.ops = [op for op in module.entry.block.ops if isinstance(op, hlo.HloOp)]
        self._inside = set(self.ops)
        self.plain = RoundingEvaluator(module, {})
        self.values: Values = dict(zip(module.entry.block.args, inputs, strict=True))
        for number, op in enumerate(self.ops, 1):
            self.values[op.results[0]] = self.plain.apply(op, [self.values[operand] for operand in op.operands])
            progress("op in FP32", number, len(self.ops))
        kept = frozenset(outputs_of(module))
        last = {operand: op for op in self.ops for operand in op.operands if operand not in kept}
        self._read_last: dict[hlo.HloOp, list[hlo.SSAValue]] = {}
        for operand, op in last.items():
            self._read_last.setdefault(op, []).append(operand)

    def drop(self, values: Values, op: hlo.HloOp) -> None:
        """Forget what no op after ``op`` reads, unless it is an output: such values are many times the model."""
        for value in self._read_last.get(op, ()):
            values.pop(value, None)

    def outputs(self, values: Values) -> list[Array]:
        """The arrays that the entry computation results in."""
        return [values[part] for part in outputs_of(self._module)]

    @property
    def expected(self) -> list[Array]:
        """Outputs without casts."""
        return self.outputs(self.values)

    def with_casts(self, casts: Mapping[hlo.HloOp, Cast]) -> list[Array]:
        """Outputs with ``casts`` alone; only ops that they reach are evaluated."""
        chosen = RoundingEvaluator(self._module, casts)
        values: Values = {}
        called = any(op not in self._inside for op in casts)
        for op in self.ops:
            reached = op in casts or any(operand in values for operand in op.operands)
            if reached or (called and isinstance(op, hlo.RegionOp)):
                values[op.results[0]] = chosen.apply(op, [values.get(o, self.values[o]) for o in op.operands])
            self.drop(values, op)
        return self.outputs({**self.values, **values})

    def error(self, casts: Mapping[hlo.HloOp, Cast]) -> float:
        """Largest relative 2-norm of the difference that ``casts`` make to an output."""
        return largest_difference(self.with_casts(casts), self.expected)


class _Walk:
    """Uncast and cast values of the entry computation, and what each op adds and inherits."""

    def __init__(
        self, module: HloModule, casts: Mapping[hlo.HloOp, Cast], inputs: Sequence[Array], progress: Progress
    ) -> None:
        self._casts = casts
        self._uncast = Uncast(module, inputs, progress)
        self._ops = self._uncast.ops
        self.exact = self._uncast.values
        cast = _Watching(module, casts)
        self.cast: Values = dict(zip(module.entry.block.args, inputs, strict=True))
        self.added, self.inherited = cast.added, dict[hlo.HloOp, float]()
        self._before: dict[hlo.HloOp, float] = {}
        """Of sums: the largest error among their operands."""
        for number, op in enumerate(self._ops, 1):
            result = op.results[0]
            operands = [self.cast[operand] for operand in op.operands]
            if all(self.cast[operand] is self.exact[operand] for operand in op.operands):
                inherited = self.exact[result]
            else:
                inherited = self._uncast.plain.apply(op, operands)
            self.inherited[op] = _distance(inherited, self.exact[result])
            if isinstance(op, SUMS):
                self._before[op] = max((_distance(self.cast[o], self.exact[o]) for o in op.operands), default=0.0)
            self.cast[result] = cast.apply_after(op, operands, inherited)
            self._uncast.drop(self.cast, op)
            progress("op with casts", number, len(self._ops))

    def expected(self) -> list[Array]:
        return self._uncast.expected

    def total(self) -> float:
        return largest_difference(self._uncast.outputs(self.cast), self.expected())

    def row(self, ops: tuple[hlo.HloOp, ...]) -> OpError:
        """Evaluates with the casts of ``ops`` alone."""
        inherited = [self.inherited[op] for op in ops if op in self.inherited]
        return OpError(
            ops,
            self._casts[ops[0]],
            max(self.added.get(op, 0.0) for op in ops),
            max(inherited) if inherited else None,
            self._uncast.error({op: self._casts[op] for op in ops}),
        )

    def cancellations(self) -> Iterable[Cancellation]:
        """Worst first."""
        found = []
        for op, before in self._before.items():
            after = self.inherited[op]
            if before > LEAST_ERROR and after > CANCELS * before:
                found.append(Cancellation(op, before, after))
        return sorted(found, key=lambda each: -each.after / each.before)


class _Watching(RoundingEvaluator):
    """With all casts; measures what each op adds, inside loops and branches too."""

    def __init__(self, module: HloModule, casts: Mapping[hlo.HloOp, Cast]) -> None:
        super().__init__(module, casts)
        self.added: dict[hlo.HloOp, float] = {}
        self._uncast = RoundingEvaluator(module, {})

    def apply(self, op: hlo.HloOp, operands: Sequence[Any]) -> Any:
        value = super().apply(op, operands)
        if op in self._casts:
            self._note(op, value, self._uncast.apply(op, operands))
        return value

    def apply_after(self, op: hlo.HloOp, operands: Sequence[Any], uncast: Any) -> Any:
        """The value of ``op``, whose uncast value is known; the same array where nothing is cast."""
        if op not in self._casts:
            return super().apply(op, operands) if isinstance(op, hlo.RegionOp) else uncast
        value = super().apply(op, operands)
        self._note(op, value, uncast)
        return value

    def _note(self, op: hlo.HloOp, value: Any, uncast: Any) -> None:
        self.added[op] = max(self.added.get(op, 0.0), _distance(value, uncast))


def _distance(found: Any, expected: Any) -> float:
    """Relative 2-norm of the difference, the worst of a tuple; 0 for what is not a float."""
    if found is expected or expected is None:
        return 0.0
    if isinstance(expected, tuple):
        return max((_distance(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)
    return difference(found, expected) if np.asarray(expected).dtype.kind in "fc" else 0.0


def _groups(casts: Mapping[hlo.HloOp, Cast], most: int) -> list[tuple[hlo.HloOp, ...]]:
    """At most ``most`` groups of like ops where any of the ways to group gives so few; single ops if they are."""
    groups: list[tuple[hlo.HloOp, ...]] = []
    for key in _KEYS:
        by_key: dict[Any, list[hlo.HloOp]] = {}
        for op, cast in casts.items():
            by_key.setdefault((key(op), str(cast)), []).append(op)
        groups = [tuple(ops) for ops in by_key.values()]
        if len(groups) <= most:
            break
    return groups


_KEYS: tuple[Callable[[hlo.HloOp], Any], ...] = (
    id,
    lambda op: (op.loc.numberless, op.opcode, op.loc.place, str(op.results[0].type)),
    lambda op: (op.opcode, op.loc.place or op.loc.numberless),
    lambda op: op.opcode,
)
"""What ops have in common that are tried together: nothing, all but the layer's number, the source line, the opcode."""
