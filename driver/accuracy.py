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
from typing import Any

import numpy as np

from neuronx_cc.driver.check import Progress, evaluated, largest_difference, outputs_of
from neuronx_cc.driver.pairs import Cancellation, Overflow, Pair, Pairs, worst_cancellations, worst_overflows
from neuronx_cc.driver.side_by_side import joined, side_by_side
from neuronx_cc.ir import hlo
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
    inputs: Sequence[Sequence[Array]],
    progress: Progress = lambda what, done, of: None,
) -> Accuracy:
    """Errors by op. ``inputs`` holds an array for each parameter, for each device; results have no tuples, as the
    passes leave them. Outputs of several devices are ``joined``."""

    def said(device: int) -> Progress:
        return progress if device == 0 else lambda what, done, of: None

    if not casts:
        return Accuracy(tuple(evaluated(module, inputs, progress)), 0.0, (), ())
    with one_thread():
        started = time.monotonic()
        walks = side_by_side(module, lambda device: _Walk(module, casts, inputs[device], said(device)))
        seconds = time.monotonic() - started
        groups = _groups(casts, max(LEAST_TRIALS, int(SECONDS / max(seconds / 3, 1e-3))))
        expected = joined([walk.expected() for walk in walks])
        rows = []
        for number, ops in enumerate(groups, 1):
            chosen = {op: casts[op] for op in ops}
            found = joined(side_by_side(module, lambda device, chosen=chosen: walks[device].with_casts(chosen)))  # type: ignore[misc]
            rows.append(_row(walks, ops, casts[ops[0]], largest_difference(found, expected)))
            progress("single cast", number, len(groups))
    rows.sort(key=lambda row: -row.impact)
    cancellations = worst_cancellations([each for walk in walks for each in walk.pairs.cancellations()])
    overflows = worst_overflows([each for walk in walks for each in walk.pairs.overflows.values()])
    total = largest_difference(joined([walk.cast_outputs() for walk in walks]), expected)
    return Accuracy(tuple(expected), total, tuple(rows), cancellations, overflows)


def _row(walks: Sequence[_Walk], ops: tuple[hlo.HloOp, ...], cast: Cast, impact: float) -> OpError:
    """Of the devices, and of several ops, the largest errors."""
    inherited = [walk.pairs.inherited[op] for walk in walks for op in ops if op in walk.pairs.inherited]
    added = max(walk.pairs.added.get(op, 0.0) for walk in walks for op in ops)
    return OpError(ops, cast, added, max(inherited) if inherited else None, impact)


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


class _Walk:
    """The entry computation uncast and cast, and what each op adds and inherits."""

    def __init__(
        self, module: HloModule, casts: Mapping[hlo.HloOp, Cast], inputs: Sequence[Array], progress: Progress
    ) -> None:
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

    def cast_outputs(self) -> list[Array]:
        return self._uncast.outputs(self._cast)

    def with_casts(self, casts: Mapping[hlo.HloOp, Cast]) -> list[Array]:
        return self._uncast.with_casts(casts)


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
