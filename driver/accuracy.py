"""Which op lost the accuracy: errors of a compiled module against its FP32 semantics, and where they come from.

Input: the module as it comes to the pass ``auto_cast``, which means what the imported one does, the casts that are
about to be made, and inputs. The module is evaluated twice side by side, uncast and cast. Each op *adds* the difference
between its cast and its uncast result on the cast operands, and *inherits* the difference that its operands make. What
a cast does to the outputs is found by evaluating with that cast alone: such errors of single casts add up in quadrature
(measured on transformers: 2 % off), so the largest are those to take back first. Where evaluating with every single one
would take too long, casts of like ops are tried together.

An op that inherits many times the relative error of its operands cancels: it is named first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from neuronx_cc.driver.check import Progress, largest_difference, outputs_of
from neuronx_cc.driver.pairs import Cancellation, Overflow, Pair, Pairs
from neuronx_cc.ir import hlo, reference
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.isa.blas import one_thread
from neuronx_cc.passes.precision.rounding import Cast, RoundingEvaluator

Array = np.ndarray[Any, np.dtype[Any]]
Values = dict[hlo.SSAValue, Any]

SECONDS = 120.0
"""Time that trying casts one by one may take."""
LEAST_TRIALS = 8


@dataclass(frozen=True, slots=True)
class OpError:
    """Errors of one op that is cast, or of several like ones; all are relative 2-norms."""

    ops: tuple[hlo.HloOp, ...]
    cast: Cast
    added: float
    """By the cast itself; of several ops the largest."""
    inherited: float | None
    """With its operands; None where both programs never came to it: in branches, and loops that they leave apart."""
    impact: float
    """On the worst output, of these casts alone."""

    @property
    def first(self) -> hlo.HloOp:
        return self.ops[0]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Where errors come from, worst first."""

    expected: tuple[Array, ...]
    """Outputs of the uncast module, FP32."""
    predicted: float
    """Largest error of an output by all casts together, evaluated."""
    ops: tuple[OpError, ...]
    cancellations: tuple[Cancellation, ...]
    overflows: tuple[Overflow, ...] = ()
    """In the order in which they are come to."""


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
    cancellations, overflows = tuple(walk.pairs.cancellations()), tuple(walk.pairs.overflows.values())
    return Accuracy(tuple(walk.expected()), walk.total(), tuple(rows), cancellations, overflows)


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
    """The entry computation uncast and cast, and what each op adds and inherits."""

    def __init__(
        self, module: HloModule, casts: Mapping[hlo.HloOp, Cast], inputs: Sequence[Array], progress: Progress
    ) -> None:
        self._casts = casts
        self._uncast = Uncast(module, inputs, progress)
        self.pairs = Pairs(module, casts, self._uncast.plain)
        exact, ops = self._uncast.values, self._uncast.ops
        self._cast: Values = dict(zip(module.entry.block.args, inputs, strict=True))
        for number, op in enumerate(ops, 1):
            result = op.results[0]
            operands = [Pair(self._cast[operand], exact[operand]) for operand in op.operands]
            if isinstance(op, hlo.RegionOp):
                self._cast[result] = self.pairs.apply(op, operands).cast
            else:
                self._cast[result] = self.pairs.apply_known(op, operands, exact[result]).cast
            self._uncast.drop(self._cast, op)
            progress("op with casts", number, len(ops))

    def expected(self) -> list[Array]:
        return self._uncast.expected

    def total(self) -> float:
        return largest_difference(self._uncast.outputs(self._cast), self.expected())

    def row(self, ops: tuple[hlo.HloOp, ...]) -> OpError:
        """Evaluates with the casts of ``ops`` alone."""
        inherited = [self.pairs.inherited[op] for op in ops if op in self.pairs.inherited]
        return OpError(
            ops,
            self._casts[ops[0]],
            max(self.pairs.added.get(op, 0.0) for op in ops),
            max(inherited) if inherited else None,
            self._uncast.error({op: self._casts[op] for op in ops}),
        )


def _groups(casts: Mapping[hlo.HloOp, Cast], most: int) -> list[tuple[hlo.HloOp, ...]]:
    """At most ``most`` groups of like ops where any of the ways to group gives so few; the finest of these."""
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
    lambda op: (op.loc.path, op.loc.op_name, op.opcode, str(op.results[0].type)) if op.loc.name else op,
    lambda op: (op.loc.numberless, op.opcode, op.loc.place, str(op.results[0].type)),
    lambda op: (op.opcode, op.loc.place or op.loc.numberless),
    lambda op: op.opcode,
)
"""What ops have in common that are tried together: all that rules tell them apart by (as iterations of a loop that was
unrolled), all but the layer's number, the source line, the opcode."""
