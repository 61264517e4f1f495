"""Computes functions that Scalar's tables lack with those that they have.

Input: hlo after the last simplification, which would undo some of it. Output: ``exponential-minus-one`` and
``log-plus-one`` of arrays large enough are ``RULES`` of ``exponential``, ``tanh`` and ``log``, computed in FP32; a
GpSimd program takes several times as long. They are exact near zero, where the plain formulas cancel, and within 2.5
and 1.5 units in the last place elsewhere (``benchmarks/accuracy.py``). ``log1p(-0)`` is 0, not -0. The logarithm of
``1 + exp(x)`` stays, with an exponential of its own: Scalar has a function for both together.
"""

from collections.abc import Callable
from math import ceil

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, has_one_use, ops_of, replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

STEPS = 6
"""Instructions of the longest rule, which wait for each other where tiles are small."""


def _exponential_minus_one(b: Build, x: Value) -> Value:
    """``tanh(x / 2) (exp(x) + 1)``: both factors are accurate relative to their value, that of 0 included."""
    half = b.each(hlo.TanhOp, b.mul(x, b.number_like(0.5, x)))
    return b.mul(half, b.add(b.each(hlo.ExponentialOp, x), b.number_like(1, x)))


def _log_plus_one(b: Build, x: Value) -> Value:
    """``log(1 + x)`` and what rounding ``1 + x`` has lost of ``x``: nothing that shows where ``x`` is above 1."""
    one = b.number_like(1, x)
    near = b.each(hlo.MinimumOp, x, one)
    kept = b.add(b.add(near, one), b.number_like(-1, x))
    return b.add(b.each(hlo.LogOp, b.add(x, one)), b.sub(near, kept))


RULES: dict[type, Callable[[Build, Value], Value]] = {
    hlo.ExponentialMinusOneOp: _exponential_minus_one,
    hlo.LogPlusOneOp: _log_plus_one,
}


@only_for(*RULES)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            rule = RULES.get(type(op))
            if rule is None or op.shape.dtype not in FLOATS:
                continue
            operand, b = op.operands[0], Build.before(module, op)
            power = defining_op(operand)
            if isinstance(op, hlo.LogPlusOneOp) and isinstance(power, hlo.ExponentialOp):
                if not has_one_use(operand):
                    replace(op, b.each(hlo.LogPlusOneOp, b.each(hlo.ExponentialOp, power.operand)))
            elif _pays(op, context.timing):
                replace(op, b.convert(rule(b, b.convert(operand, "f32")), op.shape.dtype))


def _pays(op: hlo.HloOp, timing: Timing) -> bool:
    """Whether ``STEPS`` instructions, each of which waits for the one before, end ahead of a GpSimd program."""
    each = ceil(op.shape.size / timing.sizes.partitions)
    program = timing.engine("program_unary", Stream.GPSIMD, each, alu=(op.opcode,)).bound
    step = timing.engine("tensor_scalar", Stream.VECTOR, each, alu=("add",)).bound + timing.latency(Stream.VECTOR)
    return STEPS * step < program
