"""Reads comparators: which functions of an element a sort compares, in which order, upwards or downwards.

A comparator of n operands has the parameters (left 0, right 0, left 1, right 1, ...). Known are comparisons of one
function of the left elements with the same function of the right ones, and lexicographic chains of such:
``k < k' or (k == k' and rest)``, ``select(k == k', rest, k < k')``.
"""

from dataclasses import dataclass

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.passes.analysis.values import constant_of
from neuronx_cc.passes.expansions.bodies import is_elementwise


@dataclass(frozen=True, slots=True)
class Key:
    """``value``: a value of the comparator that depends on the left (or only on the right) parameters."""

    value: hlo.SSAValue
    upwards: bool
    total_order: bool
    """Floats by IEEE total order; otherwise -0 equals 0."""
    canonical: bool = False
    """In total order, but zeros are equal, and NaNs are equal to the positive one (JAX's order)."""


def keys_of(body: hlo.ComputationOp, module: HloModule) -> list[Key] | None:
    """The keys that ``body`` compares, the first one first; None when it is no such comparator."""
    found = _chain(body.root) if is_elementwise(body) else None
    return [_simpler(key, module) for key in found] if found else found


def _simpler(key: Key, module: HloModule) -> Key:
    """``select(x != x, nan, select(x == 0, 0, x))`` in total order is ``x`` in canonical order."""
    value, seen = key.value, set()
    while isinstance(op := defining_op(value), hlo.SelectOp):
        test, constant, value = defining_op(op.operands[0]), constant_of(op.operands[1], module), op.operands[2]
        if not isinstance(test, hlo.CompareOp) or constant is None or constant.dtype.kind in "biuc":
            return key
        number = float(constant)
        if test.direction.data == "NE" and test.lhs is test.rhs and number != number:
            seen.add(("nan", test.lhs))
        elif test.direction.data == "EQ" and number == 0 and test.rhs is op.operands[1]:
            seen.add(("zero", test.lhs))
        else:
            return key
    if key.total_order and seen == {("nan", value), ("zero", value)} and isinstance(value, hlo.BlockArgument):
        return Key(value, key.upwards, True, True)
    return key


def _chain(value: hlo.SSAValue) -> list[Key] | None:
    op = defining_op(value)
    if isinstance(op, hlo.CompareOp):
        key = _ordering(op)
        return [key] if key else None
    if isinstance(op, hlo.OrOp):
        return _either(op.lhs, op.rhs) or _either(op.rhs, op.lhs)
    if isinstance(op, hlo.SelectOp):
        predicate, on_true, on_false = op.operands
        test = defining_op(predicate)
        if isinstance(test, hlo.CompareOp) and test.direction.data in ("EQ", "NE"):
            rest, first = (on_true, on_false) if test.direction.data == "EQ" else (on_false, on_true)
            return _joined(first, test, rest)
    return None


def _either(first: hlo.SSAValue, both: hlo.SSAValue) -> list[Key] | None:
    """``first or (equal and rest)``."""
    op = defining_op(both)
    if not isinstance(op, hlo.AndOp):
        return None
    for equal, rest in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        test = defining_op(equal)
        if isinstance(test, hlo.CompareOp) and test.direction.data == "EQ":
            found = _joined(first, test, rest)
            if found:
                return found
    return None


def _joined(first: hlo.SSAValue, equal: hlo.CompareOp, rest: hlo.SSAValue) -> list[Key] | None:
    op = defining_op(first)
    key = _ordering(op) if isinstance(op, hlo.CompareOp) and op.direction.data in ("LT", "GT") else None
    if key is None or not _agree(equal.lhs, equal.rhs, True):
        return None
    if not any(_agree(side, key.value, False) for side in (equal.lhs, equal.rhs)):
        return None
    following = _chain(rest)
    return [key, *following] if following else None


def _ordering(op: hlo.CompareOp) -> Key | None:
    direction = op.direction.data
    if direction not in ("LT", "LE", "GT", "GE") or not _agree(op.lhs, op.rhs, True):
        return None
    sides = _sides(op.lhs)
    if len(sides) != 1:
        return None
    upwards = (direction in ("LT", "LE")) == (0 in sides)
    return Key(op.lhs, upwards, op.comparison_type.data == "TOTALORDER")


def _sides(value: hlo.SSAValue) -> set[int]:
    """0 for left parameters that ``value`` depends on, 1 for right ones."""
    if isinstance(value, hlo.BlockArgument):
        return {value.index % 2}
    op = defining_op(value)
    assert op is not None
    return {side for operand in op.operands for side in _sides(operand)}


def _agree(value: hlo.SSAValue, other: hlo.SSAValue, mirrored: bool) -> bool:
    """Whether both are the same function of the parameters, or ``mirrored``: of those of the other side."""
    if isinstance(value, hlo.BlockArgument) or isinstance(other, hlo.BlockArgument):
        if not (isinstance(value, hlo.BlockArgument) and isinstance(other, hlo.BlockArgument)):
            return False
        return value.index == other.index ^ int(mirrored)
    op, second = defining_op(value), defining_op(other)
    if op is second and not op.operands:  # type: ignore[union-attr]
        return True
    assert op is not None
    assert second is not None
    if type(op) is not type(second) or op.properties != second.properties or value.type != other.type:
        return False
    return all(_agree(a, b, mirrored) for a, b in zip(op.operands, second.operands, strict=True))
