"""Errors of a compiled program by op: ``run --check`` and ``neuronx_cc.compare``.

Input: a module as imported, the options it is compiled with, inputs, and the outputs that the simulator gave. Output: a
``Comparison``, which prints as a table. The FP32 semantics compared with are those of the module as it comes to the
casts: expanded and simplified, in NumPy. What it costs to keep an op in FP32 is found by compiling the module with that
rule and asking the clock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from neuronx_cc.driver import accuracy
from neuronx_cc.driver.check import SPREADING, Progress, difference
from neuronx_cc.driver.pairs import Overflow
from neuronx_cc.driver.policy_file import kept
from neuronx_cc.driver.recompile import Model
from neuronx_cc.driver.side_by_side import joined
from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import largest_number
from neuronx_cc.passes.precision.policy import Policy, make_rule
from neuronx_cc.passes.precision.rounding import Array, casts_of

PRICED = 3
"""Rows whose cost in FP32 is measured, from the worst on."""
PRINTED = 10
APART = 2.0
"""Times that the error of all casts differs from the sum of the squares of single ones which is remarked on."""


@dataclass(frozen=True, slots=True)
class Row:
    """Errors of one op that is cast, or of several like ones; all are relative 2-norms."""

    name: str
    opcode: str
    shape: str
    op_name: str
    source: str
    """``file:line`` of the user's program, or empty; ``file:line from file:line`` in a function of several calls."""
    count: int
    """Ops that were tried together."""
    cast: str
    impact: float
    """Error of the worst output, of this cast alone."""
    added: float
    """Error of the op's own result by the cast."""
    inherited: float | None
    """Error of its result that came with its operands; None where the programs with casts and without never met at it:
    in a branch, or a loop that one of them leaves earlier."""
    fp32_us: float | None
    """Microseconds that the program takes longer, or less where negative, when this stays in FP32."""
    keep: str
    """What ``--keep-fp32`` takes to keep it."""

    @property
    def exact(self) -> bool:
        """Whether the result has the same bits as without the cast, so that no error of it can be seen."""
        return self.added == 0


@dataclass(frozen=True, slots=True)
class Cancelling:
    """An op whose result is relatively much less accurate than its operands."""

    name: str
    opcode: str
    op_name: str
    source: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Overflowing:
    """An op whose cast makes infinities of finite numbers."""

    name: str
    opcode: str
    op_name: str
    source: str
    type: str
    largest: float
    """Magnitude of those numbers."""
    limit: float
    """The largest number of the type."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far outputs are from FP32 semantics, and by which ops."""

    error: float
    """Largest relative 2-norm of the difference of a simulated output from the FP32 semantics."""
    outputs: tuple[float, ...]
    """The same of each output."""
    predicted: float
    """That of the casts alone, by evaluation."""
    rows: tuple[Row, ...]
    """Worst first."""
    cancellations: tuple[Cancelling, ...]
    overflows: tuple[Overflowing, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "error": self.error,
            "outputs": list(self.outputs),
            "predicted": self.predicted,
            "ops": [{**asdict(row), "exact": row.exact} for row in self.rows],
            "cancellations": [asdict(each) for each in self.cancellations],
            "overflows": [asdict(each) for each in self.overflows],
        }

    def __str__(self) -> str:
        lines = [f"accuracy: outputs differ from FP32 semantics by {self.error:.1e}"]
        lines[0] += f", {self.predicted:.1e} of it by casts" if self.rows else "; nothing is cast"
        if self.error == math.inf > self.predicted:
            lines.append(f"other numbers are not finite: {SPREADING}")
        if not self.rows:
            return "\n".join(lines) + "\n"
        for far in self.overflows[:3]:
            said = f"numbers up to {far.largest:.1e} become infinities, {far.type} has {far.limit:g} at most"
            lines.append(f"{_place(far)} overflows: {said}")
        for each in self.cancellations[:3]:
            lines.append(f"{_place(each)} cancels: error {each.before:.1e} before, {each.after:.1e} after")
        header = ("alone", "adds", "inherits", "FP32 costs", "op", "cast", "source")
        cells = [header, *(_cells(row) for row in self.rows[:PRINTED])]
        widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
        for row in cells:
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if len(self.rows) > PRINTED:
            lines.append(f"... {len(self.rows) - PRINTED} more, each {self.rows[PRINTED].impact:.1e} at most")
        squares = math.sqrt(sum(row.impact**2 for row in self.rows))
        if squares < math.inf and not squares / APART <= self.predicted <= squares * APART:
            lines.append(f"errors do not add up: {self.predicted:.1e} together, {squares:.1e} by squares")
        unseen = [row for row in self.rows if row.exact]
        if unseen:
            first = f"{unseen[0].opcode} {unseen[0].name}"
            among = f"{first} and {len(unseen) - 1} more" if unseen[1:] else first
            lines.append(f"exact: the cast changes no bit of the result on these inputs ({among})")
        if self.rows[0].impact:
            lines.append(f"to keep the first in FP32: --keep-fp32 '{self.rows[0].keep}'")
        return "\n".join(lines) + "\n"


def _place(each: Cancelling | Overflowing) -> str:
    return f"{each.opcode} {' at '.join(part for part in (each.name, each.source) if part)}"


def _cells(row: Row) -> tuple[str, ...]:
    several = f" and {row.count - 1} like it" if row.count > 1 else ""
    return (
        f"{row.impact:.1e}",
        "exact" if row.exact else f"{row.added:.1e}",
        "not met" if row.inherited is None else f"{row.inherited:.1e}",
        "" if row.fp32_us is None else f"{row.fp32_us:+.1f} us",
        f"{row.opcode} {row.name}{several}",
        row.cast,
        row.source or row.op_name,
    )


def compare_module(
    model: Model, inputs: Sequence[Sequence[Array]], outputs: Sequence[Sequence[Array]], progress: Progress
) -> Comparison:
    """``inputs`` and ``outputs`` are those of each device; ``outputs`` are the simulator's."""
    module, imported = model.before_casts()
    found = accuracy.analyse(module, casts_of(module, model.options), inputs, progress)
    errors = tuple(difference(a, b) for a, b in zip(joined(outputs), found.expected, strict=True))

    def microseconds(kept: tuple[hlo.HloOp, ...]) -> float:
        return model.microseconds(Policy((*model.options.policy.rules, *map(_exactly, kept))))

    base = microseconds(()) if found.ops else 0.0
    cast = [op for each in found.ops for op in each.ops]
    rows = []
    for number, each in enumerate(found.ops):
        price = microseconds(each.ops) - base if number < PRICED else None
        rows.append(_row(each, price, _keeps(each.ops, cast, imported)))
        progress("cost in FP32", min(number + 1, PRICED), PRICED)
    cancelling = tuple(
        Cancelling(each.op.loc.path, each.op.opcode, each.op.loc.op_name, each.op.loc.traced, each.before, each.after)
        for each in found.cancellations
    )
    overflowing = tuple(_overflowing(each) for each in found.overflows)
    return Comparison(max(errors, default=0.0), errors, found.predicted, tuple(rows), cancelling, overflowing)


def _overflowing(each: Overflow) -> Overflowing:
    loc, limit = each.op.loc, largest_number(each.dtype)
    return Overflowing(loc.path, each.op.opcode, loc.op_name, loc.traced, each.dtype, each.largest, limit)


def _exactly(op: hlo.HloOp) -> Any:
    values = {"name": f"^{re.escape(op.loc.path)}$", "opcode": op.opcode, "operands": "fp32", "result": "fp32"}
    return make_rule(f"{op.loc.name} in FP32", **values)


def _keeps(ops: Sequence[hlo.HloOp], cast: Sequence[hlo.HloOp], imported: frozenset[str]) -> str:
    """What ``--keep-fp32`` takes to match all of ``ops`` and the fewest others: path, source line, or names."""
    loc = ops[0].loc
    words = [re.escape(loc.op_name), re.sub(r"\d+", r"\\d+", re.escape(loc.op_name))] if loc.op_name else []
    words += [place for place in loc.places if place]
    if all(op.loc.name in imported for op in ops) or not words:
        words.append(f"^({'|'.join(re.escape(op.loc.path) for op in ops)})$")
    fitting = [word for word in words if all(map(kept(word).matches, ops))]
    return min(fitting, key=lambda word: sum(map(kept(word).matches, cast)), default=words[-1])


def _row(each: accuracy.OpError, fp32_us: float | None, keep: str) -> Row:
    op = each.first
    loc = op.loc
    return Row(
        loc.path,
        op.opcode,
        str(op.shape) if isinstance(op.results[0].type, hlo.ArrayType) else "",
        loc.op_name,
        loc.traced,
        len(each.ops),
        str(each.cast),
        each.impact,
        each.added,
        each.inherited,
        fp32_us,
        keep,
    )
