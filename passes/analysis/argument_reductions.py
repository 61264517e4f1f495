"""Recognises the reductions of (values, indices) pairs that find the largest or smallest element and its place.

A body made only of comparisons, logic and selects depends on its four scalars through their order alone. So it is run
on one case of every order of two values (NaN included) and of two indices, and compared with what argmax and argmin
give: frameworks spell these bodies in many ways.
"""

from collections.abc import Callable
from itertools import product
from math import isnan, nan

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.types import INTEGERS

Pair = tuple[float, float]

_BINARY: dict[type, Callable[[float, float], float]] = {
    hlo.AndOp: lambda a, b: bool(a) and bool(b),
    hlo.OrOp: lambda a, b: bool(a) or bool(b),
    hlo.XorOp: lambda a, b: bool(a) != bool(b),
    hlo.MaximumOp: lambda a, b: nan if isnan(a) or isnan(b) else max(a, b),
    hlo.MinimumOp: lambda a, b: nan if isnan(a) or isnan(b) else min(a, b),
}

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}


def argument_kind(op: hlo.ReduceOp, body: hlo.ComputationOp) -> str:
    """``argmax``, ``argmin``, ``argmax_no_nan``, ``argmin_no_nan`` (see ``ReduceOp.kind``), or empty."""
    if len(op.operands) != 4 or hlo.shape_of(op.operands[1]).dtype not in INTEGERS or not _is_order_only(body):
        return ""
    is_float = hlo.shape_of(op.operands[0]).dtype not in INTEGERS
    for name, wins in (("argmax", lambda a, b: a > b), ("argmin", lambda a, b: a < b)):
        if not _agrees(body, (-1.0, 0.0, 1.0), wins):
            continue
        return name if not is_float or _agrees(body, (-1.0, 0.0, 1.0, nan), wins) else f"{name}_no_nan"
    return ""


def _is_order_only(body: hlo.ComputationOp) -> bool:
    kinds = (*_BINARY, hlo.NotOp, hlo.CompareOp, hlo.SelectOp, hlo.TupleOp)
    for op in ops_of(body.block):
        if not isinstance(op, kinds):
            return False
        if isinstance(op, hlo.CompareOp) and op.properties.get("comparison_type") == hlo.StrAttr("TOTALORDER"):
            return False
        if isinstance(op, hlo.AndOp | hlo.OrOp | hlo.XorOp | hlo.NotOp) and op.shape.dtype != "pred":
            return False
    return isinstance(body.root.type, hlo.TupleType)


def _agrees(body: hlo.ComputationOp, values: tuple[float, ...], wins: Callable[[float, float], bool]) -> bool:
    """Whether ``body`` keeps the winner; equal values keep the lower index, or always the first operand's."""
    by_index = by_place = True
    for first, second in product(values, repeat=2):
        for i, j in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0)):
            value, index = _run(body, (first, i, second, j))
            if isnan(first) or isnan(second):
                # the first NaN of the two wins; two NaNs are not ordered by value
                expected = (first, i) if isnan(first) else (second, j)
            elif wins(first, second):
                expected = (first, i)
            elif wins(second, first):
                expected = (second, j)
            else:
                by_index &= index == min(i, j)
                by_place &= index == i
                expected = (first, index)
            if index != expected[1] or not (value == expected[0] or (isnan(value) and isnan(expected[0]))):
                return False
    return by_index or by_place


def _run(body: hlo.ComputationOp, arguments: tuple[float, ...]) -> Pair:
    values: dict[hlo.SSAValue, float] = dict(zip(body.block.args, arguments, strict=True))
    for op in ops_of(body.block):
        operands = [values[operand] for operand in op.operands]
        if isinstance(op, hlo.TupleOp):
            return operands[0], operands[1]
        if isinstance(op, hlo.CompareOp):
            result: float = _COMPARISONS[op.direction.data](*operands)
        elif isinstance(op, hlo.SelectOp):
            result = operands[1] if operands[0] else operands[2]
        elif isinstance(op, hlo.NotOp):
            result = not operands[0]
        else:
            result = _BINARY[type(op)](*operands)
        values[op.results[0]] = result
    raise ValueError("the body has no tuple root")
