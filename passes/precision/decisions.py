"""What types the operands and the result of an op get: by its own attributes, by the auto-cast mode, by the policy.

A policy's rules count most, since they name the op. Then an explicit ``algorithm`` of a dot, which decides alone
(``dot_bf16_bf16_f32``, ``dot_tf32_tf32_f32`` and ``dot_f16_f16_f32`` name the operand type; the others,
``dot_f32_f32_f32`` and the ``_x3`` kinds, keep FP32); then ``operand_precision`` ``high`` or ``highest`` on either
operand, which ask for more than one pass in a 16-bit type; then the mode.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from neuronx_cc.ir import hlo
from neuronx_cc.passes.manager import CAST_DTYPES, PassOptions
from neuronx_cc.passes.precision.policy import TYPES, Rule

Contraction = hlo.DotOp | hlo.ConvolutionOp

ALGORITHMS = {
    "dot_bf16_bf16_f32": "bf16",
    "dot_bf16_bf16_bf16": "bf16",
    "dot_f16_f16_f32": "f16",
    "dot_f16_f16_f16": "f16",
    "dot_tf32_tf32_f32": "tf32",
}
"""Explicit dot algorithms that name a narrower operand type."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A type, and why."""

    dtype: str
    """Element type, or ``tf32``; ``f32``: nothing is cast."""
    reason: str
    ruled: bool = False
    """Whether a policy says so."""


def of_operands(op: Contraction, options: PassOptions) -> Decision:
    """Type that the FP32 operands of a contraction are rounded to."""
    asked = _asked(op, options)
    if asked.dtype == "tf32" and isinstance(op, hlo.ConvolutionOp) and _features(op) == 1:
        return Decision("f32", f"{asked.reason}; sums over single features are none of TensorE's", asked.ruled)
    return asked


def _features(op: hlo.ConvolutionOp) -> int:
    """Those that each output sums over, at each position."""
    return hlo.shape_of(op.rhs).dims[op.dims.data.rhs_input_feature]


def _asked(op: Contraction, options: PassOptions) -> Decision:
    if (choice := options.policy.choice(op, "operands")) is not None:
        return Decision(TYPES[choice[0]], choice[1], True)
    algorithm = op.algorithm.data if op.algorithm is not None else ""
    if algorithm and algorithm != "unset":
        return Decision(ALGORITHMS.get(algorithm, "f32"), f"algorithm={algorithm}")
    precision: Iterable[str] = op.operand_precision.data if op.operand_precision is not None else ()
    if "highest" in precision or "high" in precision:
        return Decision("f32", f"operand_precision={{{','.join(precision)}}}")
    if options.auto_cast == "none":
        return Decision("f32", "--auto-cast none")
    return Decision(CAST_DTYPES[options.auto_cast_type], f"--auto-cast {options.auto_cast}")


def of_result(op: hlo.HloOp, options: PassOptions) -> Decision:
    """Type of what ``op`` computes, if it may be any float."""
    if (choice := options.policy.choice(op, "result")) is not None:
        return Decision(TYPES[choice[0]], choice[1], True)
    if lowers_all(options):
        return Decision(CAST_DTYPES[options.auto_cast_type], "--auto-cast all")
    return Decision("f32", f"--auto-cast {options.auto_cast}")


def sums_in_f32(op: hlo.HloOp, options: PassOptions) -> bool:
    """Whether a reduction adds in FP32 although its result is narrower."""
    if (choice := options.policy.choice(op, "accumulate")) is not None:
        return choice[0] == "fp32"
    return options.mixed_precision_accumulation


def is_f32(value: hlo.SSAValue) -> bool:
    """Whether ``value`` is an array of FP32."""
    return isinstance(value.type, hlo.ArrayType) and value.type.data.dtype == "f32"


TAKERS: dict[str, tuple[str, Callable[[hlo.HloOp], bool]]] = {
    "operands": (
        "contractions of FP32",
        lambda op: isinstance(op, Contraction) and any(map(is_f32, op.operands)),
    ),
    "result": ("ops with FP32 results", lambda op: is_f32(op.results[0])),
    "accumulate": ("reductions", lambda op: isinstance(op, hlo.ReduceOp)),
}
"""Setting -> what it is for, and whether an op is such a one."""


def idle(rule: Rule, ops: Sequence[hlo.HloOp]) -> str:
    """What a rule's settings are for, if none of ``ops`` that it matches is such a one; else nothing.

    What is asked to stay in FP32 may be anything; formats of weights are the pass ``quantize_weights``'s.
    """
    asked = [setting for setting in TAKERS if getattr(rule, setting) not in ("", "fp32")]
    matched = [op for op in ops if rule.matches(op)]
    if not asked or rule.weights or not matched or any(TAKERS[each][1](op) for each in asked for op in matched):
        return ""
    return ", ".join(f"{setting} is for {TAKERS[setting][0]}" for setting in asked)


def results_change(options: PassOptions) -> bool:
    """Whether any result may get another type."""
    return lowers_all(options) or options.policy.sets("result")


def lowers_all(options: PassOptions) -> bool:
    """Whether all FP32 ops compute in the cast type: tf32 is one of products alone, for others FP32 is as fast."""
    return options.auto_cast == "all" and options.auto_cast_type != "tf32"
