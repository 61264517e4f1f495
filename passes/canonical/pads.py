"""Rules of ``canonicalize`` for sums of arrays that zeros surround: pieces side by side instead.

The gradient of slices of an array, of layers that take their weights from a stack or of the parts of a split one, is a
sum of pads, each of which has one piece where the others have zeros. What is added to zeros is itself, so these pieces
are concatenated, with zeros between them only where no piece lies. Exact: of the pads and whatever else is added, no
element meets more than two numbers but zero, and -0, which a sum with zeros makes +0, is made so where it can occur.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import insert_before, insert_splat, viewed
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.analysis.values import is_float, splat_number
from neuronx_cc.passes.canonical.rule import Rule, Scope, over, result_op

Value = hlo.SSAValue

MOST_ADDENDS = 1024
"""Of one sum; trees of more are left as they are."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a pad surrounds with zeros along one axis: elements [start, end)."""

    value: Value
    axis: int
    start: int
    end: int


@dataclass(slots=True)
class _Row:
    """Pieces along one axis that do not overlap."""

    pieces: list[Piece] = field(default_factory=list)

    def takes(self, piece: Piece) -> bool:
        return all(
            other.axis == piece.axis and (other.end <= piece.start or piece.end <= other.start) for other in self.pieces
        )


@over(hlo.PadOp)
def sum_of_pads(op: hlo.AddOp, scope: Scope) -> Value | None:
    """A whole tree of additions whose addends are pads, and at most one other array where these are one row."""
    if op.shape.dtype == "pred" or op.shape.dtype not in NUMPY_DTYPE or _is_addend(op):
        return None
    addends = _addends(op)
    rows: list[_Row] = []
    others: list[Value] = []
    for addend in addends:
        piece = _piece(addend, scope)
        if piece is None:
            others.append(addend)
            continue
        row = next((row for row in rows if row.takes(piece)), None)
        if row is None:
            rows.append(row := _Row())
        row.pieces.append(piece)
    if len(rows) + len(others) > 2 or len(rows) + len(others) >= len(addends):
        return None
    sums = [*others, *(_joined(op, row, scope) for row in rows)]
    if len(sums) == 1:
        return sums[0]
    return insert_before(op, hlo.AddOp, sums, op.results[0].type, op.loc)


def _is_addend(op: hlo.AddOp) -> bool:
    """Whether another addition takes ``op``, and nothing else does."""
    uses = list(op.result.uses)
    return len(uses) == 1 and isinstance(uses[0].operation, hlo.AddOp)


def _addends(op: hlo.AddOp) -> Sequence[Value]:
    """The leaves of the tree of additions of ``op`` that nothing else reads, in order; too large a tree is no tree."""
    found: list[Value] = []
    pending = list(reversed(op.operands))
    while pending:
        value = pending.pop()
        inner = result_op(value)
        if isinstance(inner, hlo.AddOp) and value.has_one_use():
            pending += reversed(inner.operands)
        else:
            found.append(value)
        if len(found) > MOST_ADDENDS:
            return op.operands
    return found


def _piece(value: Value, scope: Scope) -> Piece | None:
    """What a pad by zeros at the ends of one axis surrounds; it is read here only."""
    pad = result_op(value)
    if not isinstance(pad, hlo.PadOp) or not value.has_one_use() or splat_number(pad.rhs, scope.module) != 0:
        return None
    padded = [axis for axis, dim in enumerate(pad.padding.data) if dim.low or dim.high or dim.interior]
    if len(padded) != 1:
        return None
    axis = padded[0]
    dim, size = pad.padding.data[axis], hlo.shape_of(pad.lhs).dims[axis]
    if dim.interior or min(dim.low, dim.high) < 0 or not size:
        return None
    return Piece(pad.lhs, axis, dim.low, dim.low + size)


def _joined(op: hlo.AddOp, row: _Row, scope: Scope) -> Value:
    """The pieces of ``row``, and zeros where there is none."""
    axis, dims, dtype = row.pieces[0].axis, op.shape.dims, op.shape.dtype
    zero = np.zeros((), NUMPY_DTYPE[dtype])
    joined: list[Value] = []
    at = 0

    def zeros(size: int) -> Value:
        return insert_splat(scope.module, op, zero, dtype, (*dims[:axis], size, *dims[axis + 1 :]), op.loc)

    for piece in sorted(row.pieces, key=lambda piece: piece.start):
        if at < piece.start:
            joined.append(zeros(piece.start - at))
        value = piece.value
        if is_float(dtype) and not _is_sum(value):
            value = insert_before(op, hlo.AddOp, (value, zeros(piece.end - piece.start)), value.type, op.loc)
        joined.append(value)
        at = piece.end
    if at < dims[axis]:
        joined.append(zeros(dims[axis] - at))
    if len(joined) == 1:
        return joined[0]
    attribute = {"dimension": hlo.IntAttr(axis)}
    return insert_before(op, hlo.ConcatenateOp, joined, op.results[0].type, op.loc, attribute)


def _is_sum(value: Value) -> bool:
    """Whether ``value`` is summed up from +0, and so never -0."""
    return isinstance(viewed(value).owner, hlo.ContractionOp)


RULES: dict[type, tuple[Rule, ...]] = {hlo.AddOp: (sum_of_pads,)}
