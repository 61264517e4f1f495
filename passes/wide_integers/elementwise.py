"""Elementwise ops, contractions and bit casts of 64-bit integers, on their words: one rule an op."""

from __future__ import annotations

from collections.abc import Callable

from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE, SIGNED
from neuronx_cc.passes.analysis.intervals import NARROW
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.wide_integers import arithmetic, contractions, conversions
from neuronx_cc.passes.wide_integers.arithmetic import Pair
from neuronx_cc.passes.wide_integers.words import Words

Rule = Callable[[Words, Build, hlo.HloOp], Pair | Value]


def needs_words(s: Words, op: hlo.HloOp) -> bool:
    """Whether ``op`` gives something else on operands of 32 bits than on those of 64, although all values fit."""
    if isinstance(op, hlo.PopcntOp | hlo.CountLeadingZerosOp | hlo.MulhiOp | hlo.BitcastConvertOp):
        return True
    if isinstance(op, hlo.MaximumOp | hlo.MinimumOp | hlo.ClampOp):
        return True  # for the sake of bounds that do not fit
    if isinstance(op, hlo.ShiftRightLogicalOp):
        return s.ranges.of(op.lhs)[0] < 0
    return isinstance(op, hlo.ShiftRightArithmeticOp) and op.shape.dtype not in SIGNED


def _is_signed(op: hlo.HloOp) -> bool:
    return hlo.shape_of(op.operands[0]).dtype in SIGNED


def _pairs(s: Words, b: Build, op: hlo.HloOp) -> tuple[Pair, Pair]:
    """Of a binary op."""
    lhs, rhs = op.operands
    return s.pair(b, lhs), s.pair(b, rhs)


def _fitting(s: Words, b: Build, op: hlo.HloOp) -> list[Value] | None:
    """The operands in 32 bits, where all but constants have no more; None otherwise."""
    if any(s.is_whole(x) and splat_number(x, s.module) is None for x in op.operands):
        return None
    return [s.saturated(b, x) for x in op.operands]


def _multiply(s: Words, b: Build, op: hlo.HloOp) -> Pair | Value:
    if any(s.is_whole(x) for x in op.operands):
        return arithmetic.multiply(b, *_pairs(s, b, op))
    return arithmetic.multiply_words(b, *(s.low(b, x) for x in op.operands))


def _extreme(s: Words, b: Build, op: hlo.HloOp) -> Pair | Value:
    """The larger or smaller: bounds beyond 32 bits are their ends, where the result has no more."""
    if not s.is_whole(op.results[0]):
        fitting = _fitting(s, b, op)
        if fitting is not None:
            return b.each(type(op), *fitting)
    choose = arithmetic.maximum if isinstance(op, hlo.MaximumOp) else arithmetic.minimum
    x, y = _pairs(s, b, op)
    return choose(b, x, y, _is_signed(op))


def _clamp(s: Words, b: Build, op: hlo.HloOp) -> Pair | Value:
    assert isinstance(op, hlo.ClampOp)
    low, value, high = op.operands
    dims = op.shape.dims
    if not s.is_whole(op.results[0]):
        fitting = _fitting(s, b, op)
        if fitting is not None:
            return b.typed(hlo.ClampOp, fitting, fitting[1].type)
    least, most = (
        tuple(b.broadcast(part, dims) if hlo.shape_of(part).dims != dims else part for part in s.pair(b, bound))
        for bound in (low, high)
    )
    signed = _is_signed(op)
    bounded = arithmetic.maximum(b, s.pair(b, value), (least[0], least[1]), signed)
    return arithmetic.minimum(b, bounded, (most[0], most[1]), signed)


def _shift(s: Words, b: Build, op: hlo.HloOp) -> Pair:
    x, y = op.operands
    number = splat_number(y, s.module)
    count = b.number(min(int(number) % (1 << 64), 64), "u32", op.shape.dims) if number is not None else None
    if count is None:
        count = arithmetic.amount(b, s.pair(b, y))
    if isinstance(op, hlo.ShiftLeftOp):
        return arithmetic.shift_left(b, s.pair(b, x), count)
    return arithmetic.shift_right(b, s.pair(b, x), count, isinstance(op, hlo.ShiftRightArithmeticOp))


def _compare(s: Words, b: Build, op: hlo.HloOp) -> Value:
    assert isinstance(op, hlo.CompareOp)
    x, y = op.operands
    direction = op.direction.data
    if _is_signed(op) and direction in ("LT", "GE") and splat_number(y, s.module) == 0:
        negative = arithmetic.is_negative(b, s.pair(b, x))
        return negative if direction == "LT" else b.each(hlo.NotOp, negative)
    return arithmetic.compare(b, s.pair(b, x), s.pair(b, y), direction, _is_signed(op))


def _convert(s: Words, b: Build, op: hlo.HloOp) -> Pair | Value:
    source, target = hlo.shape_of(op.operands[0]).dtype, op.shape.dtype
    operand = op.operands[0]
    if source in NARROW:
        pair = s.pair(b, operand)
        if target in NARROW:
            return pair
        if target == "pred":
            return b.each(hlo.NotOp, arithmetic.is_zero(b, b.each(hlo.OrOp, *pair)))
        if target in FLOATS:
            return b.convert(conversions.to_f32(b, pair, source in SIGNED), target)
        return b.convert(arithmetic.cast(b, pair[0], "s32") if target in SIGNED else pair[0], target)
    if source in FLOATS:
        return conversions.from_f32(b, b.convert(operand, "f32"), target in SIGNED)
    return arithmetic.extended(b, b.convert(operand, "s32" if source in SIGNED else "u32"))


def _bitcast(s: Words, b: Build, op: hlo.HloOp) -> Pair | Value:
    """From or to two words in a last dim, of u32 or, each of them cast further, of narrower types."""
    source, target = hlo.shape_of(op.operands[0]), op.shape
    if source.dtype in NARROW:
        pair = s.pair(b, op.operands[0])
        if target.dtype in NARROW:
            return pair
        words = b.concatenate([b.reshape(part, (*source.dims, 1)) for part in pair], source.rank)
        if NUMPY_DTYPE[target.dtype].itemsize == 4:
            return arithmetic.cast(b, words, target.dtype)
        narrower = (*source.dims, 2, target.dims[-1] // 2)
        return b.reshape(b.op(hlo.BitcastConvertOp, (words,), target.dtype, narrower), target.dims)
    dims = (*target.dims, 2)
    if NUMPY_DTYPE[source.dtype].itemsize == 4:
        words = arithmetic.cast(b, op.operands[0], "u32")
    else:
        parts = b.reshape(op.operands[0], (*dims, source.dims[-1] // 2))
        words = b.op(hlo.BitcastConvertOp, (parts,), "u32", dims)
    low, high = (b.reshape(b.slice(words, target.rank, place, place + 1), target.dims) for place in (0, 1))
    return low, high


RULES: dict[type, Rule] = {
    hlo.AbsOp: lambda s, b, op: arithmetic.magnitude(b, s.pair(b, op.operands[0])),
    hlo.AddOp: lambda s, b, op: arithmetic.add(b, *_pairs(s, b, op)),
    hlo.AndOp: lambda s, b, op: arithmetic.apart(b, hlo.AndOp, *_pairs(s, b, op)),
    hlo.BitcastConvertOp: _bitcast,
    hlo.ClampOp: _clamp,
    hlo.CompareOp: _compare,
    hlo.ConvertOp: _convert,
    hlo.ConvolutionOp: contractions.contraction,
    hlo.CountLeadingZerosOp: lambda s, b, op: arithmetic.extended(
        b, arithmetic.leading_zeros(b, s.pair(b, op.operands[0]))
    ),
    hlo.DivideOp: lambda s, b, op: arithmetic.divide(b, *_pairs(s, b, op), _is_signed(op))[0],
    hlo.DotOp: contractions.contraction,
    hlo.MaximumOp: _extreme,
    hlo.MinimumOp: _extreme,
    hlo.MulhiOp: lambda s, b, op: arithmetic.multiply_high(b, *_pairs(s, b, op), _is_signed(op)),
    hlo.MultiplyOp: _multiply,
    hlo.NegateOp: lambda s, b, op: arithmetic.negate(b, s.pair(b, op.operands[0])),
    hlo.NotOp: lambda s, b, op: arithmetic.apart(b, hlo.NotOp, s.pair(b, op.operands[0])),
    hlo.OrOp: lambda s, b, op: arithmetic.apart(b, hlo.OrOp, *_pairs(s, b, op)),
    hlo.PopcntOp: lambda s, b, op: arithmetic.population_count(b, s.pair(b, op.operands[0])),
    hlo.PowerOp: lambda s, b, op: arithmetic.power(b, *_pairs(s, b, op), _is_signed(op)),
    hlo.RemainderOp: lambda s, b, op: arithmetic.divide(b, *_pairs(s, b, op), _is_signed(op))[1],
    hlo.ShiftLeftOp: _shift,
    hlo.ShiftRightArithmeticOp: _shift,
    hlo.ShiftRightLogicalOp: _shift,
    hlo.SignOp: lambda s, b, op: arithmetic.sign(b, s.pair(b, op.operands[0]), _is_signed(op)),
    hlo.SubtractOp: lambda s, b, op: arithmetic.subtract(b, *_pairs(s, b, op)),
    hlo.XorOp: lambda s, b, op: arithmetic.apart(b, hlo.XorOp, *_pairs(s, b, op)),
}
