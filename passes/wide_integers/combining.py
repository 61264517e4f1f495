"""Ops that combine elements of 64-bit integers: reductions, windows, scatters, sorts, and collectives.

Sums are sums of digits that no 32-bit sum overflows, put together in the end; extremes are those of the high words, and
then of the low words beside them; what treats bits alike is done for each word. Every other computation takes and gives
two words for each element, in an op of more operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import replace
from neuronx_cc.ir.types import SIGNED
from neuronx_cc.passes.analysis.argument_reductions import argument_kind
from neuronx_cc.passes.analysis.intervals import NARROW
from neuronx_cc.passes.analysis.ranges import COMBINING
from neuronx_cc.passes.analysis.values import computation_kind, highest, lowest
from neuronx_cc.passes.expand_argument_reductions import EXTREMES as ARGUMENTS
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.wide_integers import arithmetic
from neuronx_cc.passes.wide_integers.arithmetic import Pair
from neuronx_cc.passes.wide_integers.words import Words, flat_types

BITWISE = hlo.opcodes(hlo.BitwiseOp)
EXTREMES = ("maximum", "minimum")
SECOND = "second"
"""Kind of the combiner of a scatter that replaces what is there."""
DIGITS = (16, 11, 8, 6, 4, 3, 2, 1)
"""Bits of the digits of sums, the widest first that sums do not overflow."""


def rewrite(s: Words, b: Build, op: hlo.HloOp) -> None:
    kind, simple = _kind(s, op), _count(op) == 1
    if isinstance(op, hlo.SelectAndScatterOp):
        s.becomes(b, op, b.typed(type(op), [s.low(b, x) for x in op.operands], _narrow(op), **op.properties))
    elif simple and kind and _is_wide(op.operands[0]):
        s.becomes(b, op, _by_kind(s, b, op, kind))
    elif isinstance(op, hlo.ReducingOp):
        raise CompileError(
            "EVRF001",
            f"{op.opcode} of 64-bit integers by a computation of its own is not supported",
            "combine by sum, minimum, maximum, and, or",
            op.loc,
        )
    elif isinstance(op, hlo.ReduceOp) and _is_argument_of_whole(s, op):
        _argument(s, b, op)
    else:
        _by_computation(s, b, op)


def whole_elements(s: Words, op: hlo.HloOp) -> list[bool]:
    """Which elements of the results ``op``'s computation takes and gives as two words."""
    if isinstance(op, hlo.SelectAndScatterOp) or not isinstance(op, COMBINING):
        return [False]
    body = s.module.computation(cast(Any, op).to_apply.data[0])
    step = 2 if isinstance(op, hlo.SortOp) else 1
    if body.computation_name in s.widths:
        return s.widths[body.computation_name]
    found = [_is_wide(arg) and s.is_whole(arg) for arg in body.block.args[: _count(op) * step : step]]
    s.widths[body.computation_name] = found
    return found


def _is_wide(value: Value) -> bool:
    return isinstance(value.type, hlo.ArrayType) and value.type.data.dtype in NARROW


def _count(op: hlo.HloOp) -> int:
    """Results."""
    return len(op.operands) if isinstance(op, hlo.SortOp | hlo.ReducingOp) else len(op.operands) // 2


def _narrow(op: hlo.HloOp) -> hlo.Attribute:
    return hlo.array_type(NARROW[op.shape.dtype], op.shape.dims)


def _kind(s: Words, op: hlo.HloOp) -> str:
    if isinstance(op, hlo.SortOp):
        return ""
    if isinstance(op, hlo.ReduceOp) and len(op.operands) == 4:
        return s.pairs[op]
    return s.kinds.get(cast(Any, op).to_apply.data[0], "")


def _operands(op: hlo.HloOp) -> list[Value]:
    """The elements, with the initial ones or updates; without a scatter's places."""
    return [op.operands[0], op.operands[2]] if isinstance(op, hlo.ScatterOp) else list(op.operands)


def _again(s: Words, b: Build, op: hlo.HloOp, kind: str, taken: Sequence[Value], dtype: str) -> Value:
    """``op`` on arrays of 32-bit integers, by the operator ``kind``."""
    name = _second(b, dtype) if kind == SECOND else b.combiner(hlo.OPCODES[kind], dtype)
    operands = list(taken)
    if isinstance(op, hlo.ScatterOp):
        operands.insert(1, s.saturated(b, op.operands[1]))
    type_ = hlo.array_type(dtype, op.shape.dims)
    return b.typed(type(op), operands, type_, **{**op.properties, "to_apply": hlo.StrsAttr((name,))})


def _second(b: Build, dtype: str) -> str:
    """Name of a computation of two scalars that returns the second."""
    name = f"second.{dtype}.scalar"
    if not any(computation.computation_name == name for computation in b.module.computations()):
        computation, _ = b.computation(name, [hlo.array_type(dtype, ())] * 2, shared=True)
        assert computation.block.last_op is not None
        computation.block.last_op.operands = [computation.block.args[1]]
    return name


# one operand, one operator


def _by_kind(s: Words, b: Build, op: hlo.HloOp, kind: str) -> Pair | Value:
    dtype = op.shape.dtype
    values = _operands(op)
    if not s.is_whole(op.results[0]):
        if kind not in EXTREMES:  # the low words of the result come from low words
            return _again(s, b, op, kind, [s.low(b, x) for x in values], NARROW[dtype])
        if not s.is_whole(values[0]):
            return _again(s, b, op, kind, [s.saturated(b, x) for x in values], NARROW[dtype])
    pairs = [s.pair(b, x) for x in values]
    if kind in (*BITWISE, SECOND):
        low, high = (_again(s, b, op, kind, [pair[half] for pair in pairs], "u32") for half in (0, 1))
        return low, high
    if kind == "add":
        return _sum(b, pairs, _terms(s, op), lambda parts: _again(s, b, op, kind, parts, "u32"))
    if kind in EXTREMES and isinstance(op, hlo.ReduceOp):
        return _extreme(b, op, kind, pairs[0], pairs[1], dtype in SIGNED)
    if kind in EXTREMES and isinstance(op, hlo.AllReduceOp):
        return _extreme_of_devices(s, b, op, kind, pairs[0])
    if isinstance(op, hlo.ReducingOp):
        raise CompileError(
            "EVRF001",
            f"{op.opcode} of 64-bit integers by {kind} is not supported",
            "gather the arrays and reduce them on each device",
            op.loc,
        )
    return _pairwise(s, b, op, pairs, kind)


def _terms(s: Words, op: hlo.HloOp) -> int:
    """Elements in a sum, at most, the initial one included."""
    dims = hlo.shape_of(op.operands[0]).dims
    if isinstance(op, hlo.ReduceOp):
        return prod(dims[axis] for axis in op.dimensions.data) + 1
    if isinstance(op, hlo.ReduceWindowOp):
        return prod(min(dim.size, size) for dim, size in zip(op.window.data, dims, strict=True)) + 1
    if isinstance(op, hlo.ScatterOp):
        return hlo.shape_of(op.operands[2]).size + 1
    return s.devices


def _sum(b: Build, pairs: Sequence[Pair], terms: int, total: Callable[[list[Value]], Value]) -> Pair:
    """``total`` of 64-bit ``pairs``, which adds up ``terms`` integers of 32 bits at most, modulo 2^32."""
    size = next(size for size in DIGITS if terms * ((1 << size) - 1) < 1 << 32)
    high = total([pair[1] for pair in pairs])
    result = b.number_like(0, high), high
    for place in range(0, 32, size):
        part = total([_digit(b, pair[0], place, size) for pair in pairs])
        if place:
            by = b.number_like(place, part)
            back = b.number_like(32 - place, part)
            shifted = b.each(hlo.ShiftLeftOp, part, by), b.each(hlo.ShiftRightLogicalOp, part, back)
        else:
            shifted = part, b.number_like(0, part)
        result = arithmetic.add(b, result, shifted)
    return result


def _digit(b: Build, value: Value, place: int, size: int) -> Value:
    if place:
        value = b.each(hlo.ShiftRightLogicalOp, value, b.number_like(place, value))
    return b.each(hlo.AndOp, value, b.number_like((1 << size) - 1, value)) if place + size < 32 else value


def _fold(b: Build, kind: str, value: Value, start: Value, axes: Sequence[int]) -> Value:
    shape = hlo.shape_of(value)
    dims = [size for axis, size in enumerate(shape.dims) if axis not in axes]
    names = hlo.StrsAttr((b.combiner(hlo.OPCODES[kind], shape.dtype),))
    return b.op(hlo.ReduceOp, (value, start), shape.dtype, dims, dimensions=hlo.IntsAttr(tuple(axes)), to_apply=names)


def _neutral(b: Build, kind: str, like: Value) -> Value:
    dtype = hlo.shape_of(like).dtype
    bound = lowest(dtype) if kind == "maximum" else highest(dtype)
    assert bound is not None
    return b.number_like(bound, like)


def _extreme(b: Build, op: hlo.ReduceOp, kind: str, value: Pair, start: Pair, signed: bool) -> Pair:
    """Of the high words, and then of the low words beside the one found."""
    axes = op.dimensions.data
    high, first = (arithmetic.cast(b, pair[1], "s32" if signed else "u32") for pair in (value, start))
    best = _fold(b, kind, high, first, axes)
    dims = hlo.shape_of(high).dims
    spread = b.broadcast(best, dims, [axis for axis in range(len(dims)) if axis not in axes])
    low = b.select(b.compare(high, spread, "EQ"), value[0], _neutral(b, kind, value[0]))
    nothing = _neutral(b, kind, start[0])
    low = _fold(b, kind, low, nothing, axes)
    # the initial value takes part in its own right: it may have the same high word
    first, initial = (b.broadcast(part, hlo.shape_of(best).dims) for part in (first, start[0]))
    with_start = b.each(hlo.OPCODES[kind], low, initial)
    return b.select(b.compare(best, first, "EQ"), with_start, low), arithmetic.cast(b, best, "u32")


def _extreme_of_devices(s: Words, b: Build, op: hlo.AllReduceOp, kind: str, value: Pair) -> Pair:
    dtype = "s32" if op.shape.dtype in SIGNED else "u32"
    high = arithmetic.cast(b, value[1], dtype)
    best = _again(s, b, op, kind, [high], dtype)
    low = b.select(b.compare(high, best, "EQ"), value[0], _neutral(b, kind, value[0]))
    return _again(s, b, op, kind, [low], "u32"), arithmetic.cast(b, best, "u32")


def _pairwise(s: Words, b: Build, op: hlo.HloOp, pairs: Sequence[Pair], kind: str) -> Pair:
    """By a computation of two words for each element."""
    signed = op.shape.dtype in SIGNED
    name = f"{kind}.{op.shape.dtype}.words"
    if not any(computation.computation_name == name for computation in b.module.computations()):
        computation, inner = b.computation(name, [hlo.array_type("u32", ())] * 4, shared=True)
        low, high, other_low, other_high = computation.block.args
        rules: dict[str, Callable[..., Pair]] = {"maximum": arithmetic.maximum, "minimum": arithmetic.minimum}
        if kind in EXTREMES:
            result = rules[kind](inner, (low, high), (other_low, other_high), signed)
        else:
            result = arithmetic.multiply(inner, (low, high), (other_low, other_high))
        types = hlo.tuple_type(tuple(part.type for part in result))
        computation.block.last_op.operands = [inner.typed(hlo.TupleOp, result, types)]  # type: ignore[union-attr]
    operands = [word for pair in pairs for word in pair]
    if isinstance(op, hlo.ScatterOp):
        operands.insert(2, s.saturated(b, op.operands[1]))
    type_ = hlo.array_type("u32", op.shape.dims)
    properties = {**op.properties, "to_apply": hlo.StrsAttr((name,))}
    together = b.typed(type(op), operands, hlo.tuple_type((type_, type_)), **properties)
    return b.element(together, 0), b.element(together, 1)


# pairs of values and places


def _is_argument_of_whole(s: Words, op: hlo.ReduceOp) -> bool:
    return _kind(s, op) in ARGUMENTS and any(_is_wide(x) and s.is_whole(x) for x in op.operands[:2])


def _argument(s: Words, b: Build, op: hlo.ReduceOp) -> None:
    """The extreme, and the least of the places where it is."""
    values, places, start, _ = op.operands
    kind = "maximum" if _kind(s, op) == "argmax" else "minimum"
    dims, axes = hlo.shape_of(values).dims, op.dimensions.data
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    found: list[Pair | Value] = []
    if _is_wide(values):
        pair, signed = s.pair(b, values), hlo.shape_of(values).dtype in SIGNED
        best = _extreme(b, op, kind, pair, s.pair(b, start), signed)
        low, high = (b.broadcast(word, dims, kept) for word in best)
        here = arithmetic.equal(b, pair, (low, high))
        found.append(best)
    else:
        values = s.low(b, values)
        single = _fold(b, kind, values, s.saturated(b, start), axes)
        here = b.compare(values, b.broadcast(single, dims, kept), "EQ")
        nans = b.compare(values, values, "NE")
        here = arithmetic.either(b, here, nans)
        found.append(single)
    if _is_wide(places) and s.is_whole(places):
        signed = hlo.shape_of(places).dtype in SIGNED
        last = (1 << 63) - 1 if signed else (1 << 64) - 1
        place = s.pair(b, places)
        place = arithmetic.select(b, here, place, arithmetic.number_like(b, last, place))
        scalar = b.number(0, "u32")
        found.append(_extreme(b, op, "minimum", place, arithmetic.number_like(b, last, (scalar, scalar)), signed))
    else:
        index = s.low(b, places)
        index = b.select(here, index, _neutral(b, "minimum", index))
        found.append(_fold(b, "minimum", index, _neutral(b, "minimum", b.number(0, hlo.shape_of(index).dtype)), axes))
    _elements_become(s, b, op, found)


def _elements_become(s: Words, b: Build, op: hlo.HloOp, found: Sequence[Pair | Value]) -> None:
    """What the elements of ``op``'s result are."""
    s.dead.append(op)
    for use in list(op.results[0].uses):
        user = use.operation
        assert isinstance(user, hlo.GetTupleElementOp), "tuples are dissolved before"
        made = found[user.index.data]
        if isinstance(made, tuple) or _is_wide(user.result):
            s.becomes(b, user, made)
            s.done.add(user)
        else:
            replace(user, made)
            s.done.add(user)


# any computation


def _by_computation(s: Words, b: Build, op: hlo.HloOp) -> None:
    whole = whole_elements(s, op)
    count = len(whole)
    if isinstance(op, hlo.ScatterOp):
        before, after = op.operands[:count], op.operands[count + 1 :]
        operands = [
            *s.flattened(b, before, whole),
            s.saturated(b, op.operands[count]),
            *s.flattened(b, after, whole),
        ]
    elif isinstance(op, hlo.SortOp):
        operands = s.flattened(b, op.operands, whole)
    else:
        operands = s.flattened(b, op.operands[:count], whole)
        starts = zip(op.operands[count:], whole, strict=True)
        # the start of an argmax is the least of all 64-bit integers
        operands += [word for x, two in starts for word in (s.pair(b, x) if two else [s.saturated(b, x)])]
    results = op.results[0].type
    types = results.data if isinstance(results, hlo.TupleType) else (results,)
    flat = flat_types(types, whole)
    together = b.typed(type(op), operands, hlo.tuple_type(flat) if len(flat) > 1 else flat[0], **op.properties)
    found: list[Pair | Value] = []
    at = 0
    for two in whole:
        parts = [b.element(together, at + place) if len(flat) > 1 else together for place in range(1 + two)]
        found.append((parts[0], parts[1]) if two else parts[0])
        at += 1 + two
    if isinstance(results, hlo.TupleType):
        _elements_become(s, b, op, found)
    elif _is_wide(op.results[0]):
        s.becomes(b, op, found[0])
    else:
        replace(op, cast(Value, found[0]))


def kind_of(op: hlo.HloOp, module: HloModule) -> str:
    """What ``op``'s computation does: an operator, ``second``, ``argmax``, ``argmin``; else empty."""
    if isinstance(op, hlo.ReduceOp) and len(op.operands) == 4:
        return argument_kind(op, module)
    body = module.computation(cast(Any, op).to_apply.data[0])
    args = body.block.args
    if isinstance(op, hlo.ScatterOp) and len(args) == 2 and body.root is args[1]:
        return SECOND
    return computation_kind(body)
