"""Values of 16 bits between the contractions of a chain, computed and kept in FP32 until they are contracted.

Engines compute in FP32 whatever they read, so that fewer roundings take no instruction, and several ops may be one.
"""

from __future__ import annotations

from neuronx_cc.codegen.chains.pattern import Chain, made_by
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.maps.elementwise import ACTIVATION, ARITHMETIC
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.hlo.editing import replace as replace_op
from neuronx_cc.ir.hlo.editing import retype
from neuronx_cc.passes.expansions.build import Build

Value = hlo.SSAValue
NARROW = "bf16"
"""A type of which no FP32 number that is computed with is out of range."""
WIDENING = frozenset([*ARITHMETIC, *ACTIVATION, "divide", "negate", "convert", "select", "reduce"])
"""Ops that are the same, but for roundings, on wider numbers."""


def widened(context: Context, chain: Chain) -> Chain:
    """``chain``, whose ops nothing else reads, without roundings between its contractions."""
    all_ops = (*chain.sources, *chain.inner)
    narrow = [op for op in all_ops if op.shape.dtype == NARROW and not isinstance(op, hlo.ConvertOp)]
    inside = [op for op in chain.inner if any(hlo.shape_of(x).dtype == NARROW for x in (*op.operands, op.results[0]))]
    if not narrow or chain.stored or any(op.opcode not in WIDENING for op in inside):
        return chain
    own: set[Value] = {op.results[0] for op in (*chain.sources, *chain.inner)}
    for dot in chain.sources:
        _retype(dot.result)
    casts: dict[hlo.HloOp, list[hlo.HloOp]] = {}
    for op in inside:
        build = Build.before(context.module, op)
        before, op.operands = list(op.operands), [_wide(context, build, chain, x, own) for x in op.operands]
        made_here = (x.owner for x, old in zip(op.operands, before, strict=True) if x is not old)
        casts[op] = [each for each in made_here if isinstance(each, hlo.ConvertOp)]
        _retype(op.results[0])
    inner = list[hlo.HloOp]()
    for op in chain.inner:
        inner += casts.get(op, ())
        if isinstance(op, hlo.ConvertOp) and hlo.shape_of(op.operand).dtype == op.shape.dtype == "f32":
            replace_op(op, op.operand)
        else:
            inner.append(op)
    made: dict[Value, Value] = {}
    for sink in chain.sinks:
        value = sink.value
        if hlo.shape_of(value).dtype == NARROW:
            continue
        maker = value.owner
        assert isinstance(maker, hlo.HloOp), "of the chain"
        if value not in made:
            after = maker.next_op
            assert after is not None, "its reader follows"
            made[value] = Build(context.module, after, maker.loc).convert(value, NARROW)
            inner.insert(inner.index(maker) + 1, made[value].owner)  # type: ignore[arg-type]
        build, operands = Build.before(context.module, sink.op), list(sink.op.operands)
        operands[sink.weights] = build.reshape(made[value], hlo.shape_of(operands[sink.weights]).dims)
        sink.op.operands = operands
    return replace(chain, inner=tuple(inner))


def _retype(value: Value) -> None:
    shape = hlo.shape_of(value)
    if shape.dtype == NARROW:
        retype(value, hlo.array_type("f32", shape.dims))


def _wide(context: Context, build: Build, chain: Chain, value: Value, own: set[Value]) -> Value:
    """``value`` in FP32: what the chain makes is so, with its views; others are cast."""
    shape, splat = hlo.shape_of(value), context.splat(value)
    if shape.dtype != NARROW:
        if made_by(value, chain.dims) in own:
            _retype_views(value, own)
        return value
    if splat is not None:
        return build.number(splat, "f32", shape.dims)
    if made_by(value, chain.dims) not in own:
        return build.convert(value, "f32")
    _retype_views(value, own)
    return value


def _retype_views(value: Value, own: set[Value]) -> None:
    while value not in own:
        _retype(value)
        op = value.owner
        assert isinstance(op, hlo.HloOp), "a view"
        value = op.operands[0]
