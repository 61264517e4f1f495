"""Rewrites ``scaled-dot`` as a plain dot.

Input: any module. Output: no scaled dot. It multiplies each operand by its scales first, one for each block of equally
many elements. Source: XLA's operation semantics (ScaledDot).
"""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.ScaledDotOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.ScaledDotOp):
                replace(op, _scaled(Build.before(module, op), op))


def _scaled(b: Build, op: hlo.ScaledDotOp) -> Value:
    lhs, rhs, lhs_scale, rhs_scale = op.args
    scaled = [_with_scale(b, op, value, scale) for value, scale in ((lhs, lhs_scale), (rhs, rhs_scale))]
    return b.convert(_wide_dot(b, op, scaled), op.shape.dtype)


def _wide_dot(b: Build, op: hlo.ScaledDotOp, operands: Sequence[Value]) -> Value:
    return b.typed(hlo.DotOp, operands, hlo.array_type("f32", op.shape.dims), dims=op.dims)


def _with_scale(b: Build, op: hlo.HloOp, value: Value, scale: Value) -> Value:
    """``value`` in FP32, times ``scale`` repeated over blocks; a scalar scale counts everywhere."""
    dims, blocks = hlo.shape_of(value).dims, hlo.shape_of(scale).dims
    value, scale = b.convert(value, "f32"), b.convert(scale, "f32")
    if not blocks:
        return b.mul(value, b.broadcast(scale, dims))
    whole = len(blocks) == len(dims) and not any(
        size % parts if parts else size for size, parts in zip(dims, blocks, strict=True)
    )
    if not whole:
        raise CompileError("EVRF001", "scaled-dot: the scales do not divide the operand into blocks", loc=op.loc)
    pairs = [part for size, parts in zip(dims, blocks, strict=True) for part in (parts, size // max(1, parts))]
    repeated = b.broadcast(scale, pairs, range(0, 2 * len(blocks), 2))
    return b.mul(value, b.reshape(repeated, dims))
