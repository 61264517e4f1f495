"""Recognises the reductions of (values, indices) pairs that find the largest or smallest element and its place.

A body made only of comparisons, logic and selects depends on its four scalars through their order alone. So it is run
on one case of every order of two values (NaN included) and of two indices, and compared with what argmax and argmin
give: frameworks spell these bodies in many ways. What is reduced counts as well: the place of the winner is the least
index only where indices count the places from 0, and where the initial pair loses to every element, or is as good as
the first one.
"""

from collections.abc import Callable
from itertools import product
from math import isnan, nan

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of
from neuronx_cc.ir.types import INTEGERS, NUMPY_DTYPE
from neuronx_cc.passes.analysis.rows import kept_dims
from neuronx_cc.passes.analysis.values import highest, is_float, lowest, splat_number

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


def argument_kind(op: hlo.ReduceOp, module: HloModule) -> str:
    """``argmax``, ``argmin``, ``argmax_no_nan``, ``argmin_no_nan`` (see ``ReduceOp.kind``), or empty."""
    body = module.computation(op.to_apply.data[0])
    if len(op.operands) != 4 or len(op.dimensions.data) != 1 or not _is_order_only(body):
        return ""
    if splat_number(op.operands[3], module) != 0 or not _counts(op.operands[1], op.dimensions.data[0], module):
        return ""
    floats = is_float(hlo.shape_of(op.operands[0]).dtype)
    start = splat_number(op.operands[2], module)
    for name, wins, worst in (("argmax", lambda a, b: a > b, lowest), ("argmin", lambda a, b: a < b, highest)):
        if start is None or start != worst(hlo.shape_of(op.operands[0]).dtype):
            continue
        if not _agrees(body, (-1.0, 0.0, 1.0), wins):
            continue
        return name if not floats or _agrees(body, (-1.0, 0.0, 1.0, nan), wins) else f"{name}_no_nan"
    return ""


def _counts(value: hlo.SSAValue, axis: int, module: HloModule) -> bool:
    """Whether the integers ``value`` are 0, 1, 2, ... along ``axis``, which has elements."""
    op, shape = defining_op(value), hlo.shape_of(value)
    if shape.dtype not in INTEGERS or not 0 < shape.dims[axis] <= int(np.iinfo(NUMPY_DTYPE[shape.dtype]).max) + 1:
        return False
    match op:
        case hlo.IotaOp():
            return op.iota_dimension.data == axis
        case hlo.BroadcastOp() if axis in op.dimensions.data:
            return _counts(op.operand, op.dimensions.data.index(axis), module)
        case hlo.ReshapeOp():  # of one row, which JAX counts along without the dim that it adds
            return any(_counts(op.operand, source, module) for _, source in kept_dims(op).get(axis, ()))
        case hlo.ConvertOp():
            return _counts(op.operand, axis, module)
        case hlo.ConstantOp():
            array = np.moveaxis(module.constants[op.value.data], axis, -1)
            return bool((array == np.arange(shape.dims[axis])).all())
    return False


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
