"""Between which numbers the elements of a float array lie, whatever the program is given, where that shows."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isnan

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.passes.analysis.intervals import is_integer, type_range

Span = tuple[float, float]
UNKNOWN: Span = (-inf, inf)
DEPTH = 16
"""Ops that are looked through."""


def _corners(function: Callable[[float, float], float], a: Span, b: Span) -> Span:
    found = [function(x, y) for x in a for y in b]
    return UNKNOWN if any(map(isnan, found)) else (min(found), max(found))


BINARY: dict[type, Callable[[Span, Span], Span]] = {
    hlo.AddOp: lambda a, b: (a[0] + b[0], a[1] + b[1]),
    hlo.SubtractOp: lambda a, b: (a[0] - b[1], a[1] - b[0]),
    hlo.MultiplyOp: lambda a, b: _corners(lambda x, y: x * y, a, b),
    hlo.DivideOp: lambda a, b: UNKNOWN if b[0] <= 0 <= b[1] else _corners(lambda x, y: x / y, a, b),
    hlo.MaximumOp: lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    hlo.MinimumOp: lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
}
UNARY: dict[type, Callable[[Span], Span]] = {
    hlo.NegateOp: lambda a: (-a[1], -a[0]),
    hlo.AbsOp: lambda a: (0 if a[0] <= 0 <= a[1] else min(map(abs, a)), max(map(abs, a))),
}
FIXED: dict[type, Span] = {
    hlo.TanhOp: (-1, 1),
    hlo.LogisticOp: (0, 1),
    hlo.SineOp: (-1, 1),
    hlo.CosineOp: (-1, 1),
    hlo.SignOp: (-1, 1),
}


def span_of(value: hlo.SSAValue, module: HloModule) -> Span:
    """(least, greatest) element of ``value``, floats or integers; infinite where nothing is known."""
    return _Spans(module).of(value, DEPTH)


class _Spans:
    """Of what one value is made of."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.known: dict[hlo.SSAValue, Span] = {}

    def of(self, value: hlo.SSAValue, depth: int) -> Span:
        if value not in self.known:
            self.known[value] = self._limited(value, self._of(value, depth) if depth else UNKNOWN)
        return self.known[value]

    @staticmethod
    def _limited(value: hlo.SSAValue, span: Span) -> Span:
        """Integers are as their type is, where they might wrap."""
        limits = type_range(hlo.shape_of(value).dtype) if is_integer(value) else UNKNOWN
        # a NaN lies between nothing
        return span if limits[0] <= span[0] and span[1] <= limits[1] else limits

    def _of(self, value: hlo.SSAValue, depth: int) -> Span:
        op = defining_op(value)
        if not isinstance(op, hlo.HloOp) or hlo.shape_of(value).dtype.startswith("c"):
            return UNKNOWN
        match op:
            case hlo.ConstantOp():
                array = self.module.constants[op.value.data]
                wide = array.astype(np.float32) if array.dtype.kind == "V" else array
                return (float(wide.min()), float(wide.max())) if array.size else UNKNOWN
            case hlo.IotaOp():
                return 0, op.shape.dims[op.iota_dimension.data] - 1
            case hlo.CompareOp():
                return 0, 1
            case hlo.SelectOp():
                return _union([self.of(operand, depth - 1) for operand in op.operands[1:]])
            case hlo.MovementOp():
                return _union([self.of(operand, depth - 1) for operand in op.operands[: op.PLACES]])
            case hlo.ConvertOp():
                return self.of(op.operand, depth - 1)
        if type(op) in FIXED:
            return FIXED[type(op)]
        if type(op) not in BINARY and type(op) not in UNARY:
            return UNKNOWN
        spans = [self.of(operand, depth - 1) for operand in op.operands]
        return BINARY[type(op)](*spans) if len(spans) == 2 else UNARY[type(op)](*spans)


def _union(spans: list[Span]) -> Span:
    return min(low for low, _ in spans), max(high for _, high in spans)
