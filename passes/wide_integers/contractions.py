"""Contractions of 64-bit integers: sums of digits of the operands, each exact in FP32, put together in two words."""

from __future__ import annotations

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.passes.exact_integer_dots import Digits, bits_of_terms, ways_of
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.wide_integers import arithmetic
from neuronx_cc.passes.wide_integers.arithmetic import Pair
from neuronx_cc.passes.wide_integers.words import Words

KEPT = 64


def contraction(s: Words, b: Build, op: hlo.HloOp) -> Pair:
    """``sum(x y)`` as the sum of ``sum(x_i y_j) 2^(place i + place j)`` over all digits, modulo 2^64."""
    assert isinstance(op, hlo.DotOp | hlo.ConvolutionOp)
    if 0 in (op.shape.size, hlo.shape_of(op.lhs).size, hlo.shape_of(op.rhs).size):
        zero = b.number(0, "u32", op.shape.dims)
        return zero, zero
    dtypes = [_dtype(s, x) for x in (op.lhs, op.rhs)]
    ways = ways_of(dtypes[0], dtypes[1], KEPT, bits_of_terms(op))
    if ways is None:
        raise CompileError("EVRF035", f"{op.opcode} of 64-bit integers has too many terms", "contract in parts", op.loc)
    lhs, rhs = (_digits(s, b, x, way) for x, way in zip((op.lhs, op.rhs), ways, strict=True))
    type_ = hlo.array_type("s32", op.shape.dims)
    sums: dict[int, Value] = {}
    for i, left in enumerate(lhs):
        for j, right in enumerate(rhs):
            place = i * ways[0].width + j * ways[1].width
            if place < KEPT:
                part = b.typed(type(op), (left, right), type_, **op.properties)
                sums[place] = b.add(sums[place], part) if place in sums else part
    total: Pair | None = None
    for place, part in sums.items():
        shifted = _shifted(b, arithmetic.extended(b, part), place)
        total = shifted if total is None else arithmetic.add(b, total, shifted)
    assert total is not None
    return total


def _dtype(s: Words, value: Value) -> str:
    """The type that holds the values of an operand."""
    dtype = hlo.shape_of(value).dtype
    if dtype not in ("s64", "u64"):
        return dtype
    return dtype if s.is_whole(value) else f"{dtype[0]}32"


def _digits(s: Words, b: Build, value: Value, way: Digits) -> list[Value]:
    """The digits of ``value``, lowest first, as 8-bit integers, the highest one signed where the type is."""
    dtype = hlo.shape_of(value).dtype
    signed = dtype.startswith("s")
    if way.count == 1:
        return [s.low(b, value)]
    if dtype in ("s64", "u64"):
        pair = s.pair(b, value)
    else:
        pair = arithmetic.extended(b, b.convert(value, "s32" if signed else "u32"))
    found = []
    for index in range(way.count):
        low = arithmetic.shift_right(b, pair, b.number_like(index * way.width, pair[0]), signed)[0]
        last = index == way.count - 1
        if not last:
            low = b.each(hlo.AndOp, low, b.number_like((1 << way.width) - 1, low))
        found.append(b.convert(low, "s8" if signed and last else "u8"))
    return found


def _shifted(b: Build, pair: Pair, place: int) -> Pair:
    return arithmetic.shift_left(b, pair, b.number_like(place, pair[0])) if place else pair
