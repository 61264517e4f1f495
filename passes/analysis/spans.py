"""Between which numbers the elements of an array lie, whatever the program is given, where that shows near by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil, floor, inf, isnan
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.analysis import intervals

Span = tuple[float, float]
UNKNOWN: Span = (-inf, inf)
DEPTH = 16
"""Ops that are looked through."""

RULES: Mapping[str, Callable[..., Any]] = {
    opcode: intervals.ELEMENTWISE[opcode]
    for opcode in hlo.opcodes(hlo.AddOp, hlo.SubtractOp, hlo.MultiplyOp, hlo.ExtremeOp, hlo.AbsOp, hlo.NegateOp)
}
"""Those of integers that hold for floats as well."""


def span_of(value: hlo.SSAValue, module: HloModule) -> Span:
    """(least, greatest) element of ``value``, floats or integers; infinite where nothing is known."""
    found: Span = _Spans(module).of(DEPTH, value)
    return found


class _Spans:
    """Of what one value is made of."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.known: dict[hlo.SSAValue, Any] = {}

    def of(self, depth: int, value: hlo.SSAValue) -> Any:
        if value not in self.known:
            self.known[value] = self._of(depth, value)
        return self.known[value]

    def _of(self, depth: int, value: hlo.SSAValue) -> Any:
        shape, op = hlo.shape_of(value), defining_op(value)
        integers = intervals.is_integer(value)
        limits = intervals.type_range(shape.dtype) if integers else UNKNOWN
        if not depth or not shape.size or not isinstance(op, hlo.HloOp) or shape.dtype.startswith("c"):
            return limits
        of = partial(self.of, depth - 1)
        found = intervals.bounds(of, op, self.module) if integers else _rounded(self._floats(of, op), shape.dtype)
        # integers are as their type is, where they might wrap; a NaN lies between nothing
        return found if found and limits[0] <= found[0] and found[1] <= limits[1] else limits

    def _floats(self, of: Callable[[hlo.SSAValue], Span], op: hlo.HloOp) -> Span | None:
        match op:
            case hlo.ConstantOp():
                array = self.module.constants[op.value.data]
                wide = array.astype(np.float32) if array.dtype.kind == "V" else array
                return float(wide.min()), float(wide.max())
            case hlo.IotaOp():
                return 0, op.shape.dims[op.iota_dimension.data] - 1
            case hlo.TanhOp() | hlo.SineOp() | hlo.CosineOp() | hlo.SignOp():
                return -1, 1
            case hlo.LogisticOp():
                return 0, 1
            case hlo.ConvertOp():
                return of(op.operand)
            case hlo.RoundingOp():
                low, high = of(op.operand)
                return (low if low == -inf else floor(low)), (high if high == inf else ceil(high))
            case hlo.ClampOp():
                below, (low, high), above = map(of, op.operands)
                return min(max(low, below[0]), above[0]), min(max(high, below[1]), above[1])
            case hlo.SelectOp():
                return _union([of(branch) for branch in op.operands[1:]])
            case hlo.MovementOp():
                return _union([of(operand) for operand in op.operands[: op.PLACES]])
            case hlo.DivideOp():
                low, high = of(op.rhs)
                return None if low <= 0 <= high else RULES["multiply"](of(op.lhs), (1 / high, 1 / low), op.shape.dtype)
        if op.opcode not in RULES:
            return None
        found: Span = RULES[op.opcode](*map(of, op.operands), op.shape.dtype)
        return None if any(map(isnan, found)) else found


def _rounded(span: Span | None, dtype: str) -> Span | None:
    """Where elements of the float type ``dtype`` lie: what is between two numbers rounds to between these, rounded."""
    if span is None or dtype not in NUMPY_DTYPE:
        return None
    with np.errstate(over="ignore"):
        low, high = np.array(span).astype(NUMPY_DTYPE[dtype]).astype(float)
    return None if isnan(low) or isnan(high) else (float(low), float(high))


def _union(spans: list[Span]) -> Span:
    return min(low for low, _ in spans), max(high for _, high in spans)
