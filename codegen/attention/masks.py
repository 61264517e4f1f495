"""Masks that are comparisons of row and column numbers, found in the HLO: made on chip, not loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.formation.graph import is_view, squeeze
from neuronx_cc.ir import hlo

ALU = {"EQ": "is_equal", "NE": "not_equal", "GE": "is_ge", "GT": "is_gt", "LE": "is_le", "LT": "is_lt"}
OPPOSITE = {"EQ": "NE", "NE": "EQ", "GE": "LT", "LT": "GE", "GT": "LE", "LE": "GT"}


@dataclass(frozen=True, slots=True)
class Band:
    """Scores are kept where ``row * rows + column * columns + offset`` stands in ``direction`` to 0."""

    rows: int
    columns: int
    offset: int
    direction: str

    def inverted(self) -> Band:
        """Where this one does not keep scores."""
        return Band(self.rows, self.columns, self.offset, OPPOSITE[self.direction])

    def last_column(self, row: int) -> int | None:
        """The last column that is kept in ``row``, where columns are kept up to one; else None."""
        if abs(self.columns) != 1:
            return None
        falling = {"GE": 0, "GT": -1}.get(self.direction) if self.columns < 0 else None
        rising = {"LE": 0, "LT": -1}.get(self.direction) if self.columns > 0 else None
        if falling is not None:
            return self.rows * row + self.offset + falling
        return None if rising is None else -(self.rows * row + self.offset) + rising

    def kept(self, row: int) -> tuple[float, float] | None:
        """(first, last) column that is kept in ``row``, infinite where there is no end; None where they lie apart."""
        if (last := self.last_column(row)) is not None:
            return -inf, last
        if (last := self.inverted().last_column(row)) is not None:
            return last + 1, inf
        return None

    def keeps_all(self, first: int, last: int, begin: int, end: int) -> bool:
        """Whether columns ``begin`` to before ``end`` are kept in all rows ``first`` to ``last``."""
        kept = [self.kept(row) for row in (first, last)]
        return all(each is not None and each[0] <= begin and end - 1 <= each[1] for each in kept)


def bands_of(
    mask: hlo.SSAValue,
    marks: View,
    rows: Atom,
    columns: Atom,
    splat: Callable[[hlo.SSAValue], float | None],
    together: type[hlo.HloOp],
) -> tuple[Band, ...]:
    """``mask``, whose dims lie on the scores as ``marks`` says, if it compares numbers of rows and columns, or is
    several such ``together``; else none.

    ``rows`` and ``columns``: these dims of the scores in ``marks``. A part of one, or another dim with the stride of a
    single row, counts something else.
    """
    axes: dict[tuple[Atom, ...], str] = {(rows,): "row", (columns,): "column"}
    return _bands(mask, tuple(axes.get(atoms, "") for atoms in marks.dims), splat, together)


def _bands(
    mask: hlo.SSAValue,
    names: tuple[str, ...],
    splat: Callable[[hlo.SSAValue], float | None],
    together: type[hlo.HloOp],
) -> tuple[Band, ...]:
    while isinstance(mask, hlo.OpResult) and isinstance(mask.op, hlo.BroadcastOp | hlo.ReshapeOp):
        inner = _below(mask.op, names)
        if inner is None:
            return ()
        names, mask = inner, mask.op.operand
    op = mask.owner
    if isinstance(op, together):
        first, second = (_bands(operand, names, splat, together) for operand in op.operands)
        return (*first, *second) if first and second else ()
    if not isinstance(op, hlo.CompareOp) or hlo.shape_of(op.operands[0]).dtype != "s32":
        return ()
    lhs, rhs = (_count(operand, names, splat) for operand in op.operands)
    if lhs is None or rhs is None:
        return ()
    row, column, offset = (a - b for a, b in zip(lhs, rhs, strict=True))
    return (Band(row, column, offset, op.direction.data),)


def _below(op: hlo.BroadcastOp | hlo.ReshapeOp, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The names of the dims of the operand of ``op``; None where a reshape does more than to add and drop ones."""
    if isinstance(op, hlo.BroadcastOp):
        return tuple(names[axis] for axis in op.dimensions.data)
    dims = hlo.shape_of(op.operand).dims
    kept = [name for name, size in zip(names, op.shape.dims, strict=True) if size != 1]
    if squeeze(dims) != squeeze(op.shape.dims):
        return None
    return tuple("" if size == 1 else kept.pop(0) for size in dims)


def _count(
    value: hlo.SSAValue, names: tuple[str, ...], splat: Callable[[hlo.SSAValue], float | None]
) -> tuple[int, int, int] | None:
    """(rows, columns, offset) of what counts along dims ``names``; None for all else."""
    constant = splat(value)
    if constant is not None:
        return 0, 0, int(constant)
    op = value.owner
    if isinstance(op, hlo.BroadcastOp | hlo.ReshapeOp):
        inner = _below(op, names)
        return None if inner is None else _count(op.operand, inner, splat)
    if isinstance(op, hlo.AddOp | hlo.SubtractOp):
        lhs, rhs = (_count(operand, names, splat) for operand in op.operands)
        if lhs is None or rhs is None:
            return None
        sign = 1 if isinstance(op, hlo.AddOp) else -1
        return lhs[0] + sign * rhs[0], lhs[1] + sign * rhs[1], lhs[2] + sign * rhs[2]
    if isinstance(op, hlo.IotaOp):
        name = names[op.iota_dimension.data]
        return None if not name else (int(name == "row"), int(name == "column"), 0)
    return None


def dead_with(taken: set[hlo.Operation]) -> set[hlo.Operation]:
    """What only ``taken`` ops and each other use, of the comparisons and counts that these read."""
    dead: set[hlo.Operation] = set()
    left = [operand for op in taken for operand in op.operands]
    while left:
        value = left.pop()
        op = value.owner
        if not isinstance(op, hlo.Operation):
            continue
        joins = isinstance(op, hlo.AndOp | hlo.OrOp) and op.shape.dtype == "pred"
        if not joins and not isinstance(op, hlo.CompareOp | hlo.IotaOp) and not is_view(op):
            continue
        if op not in dead and all(use.operation in taken or use.operation in dead for use in value.uses):
            dead.add(op)
            left += op.operands
    return dead
