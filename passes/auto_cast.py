"""Casts FP32 work to the auto-cast type, after the rules of the vendor's ``--auto-cast`` option.

* ``none``: nothing, but a dot's own ``algorithm=`` is honoured.
* ``matmult``: FP32 operands of dot and convolution are cast; the result stays FP32, as partial sums do.
* ``all``: besides, every FP32 intermediate becomes the cast type (``cast_all``).

Program inputs and outputs keep their types, and values that are not FP32 are never touched. A dot with
``operand_precision`` ``high`` or ``highest`` on either operand is exempt from the mode: both ask for more than one pass
in a 16-bit type. An explicit ``algorithm`` decides alone: ``dot_bf16_bf16_f32``, ``dot_tf32_tf32_f32`` and
``dot_f16_f16_f32`` name the operand type; the others (``dot_f32_f32_f32``, the ``_x3`` kinds) keep FP32.

bf16, fp16 and fp8 operands are behind ``convert``. tf32 has no type of its own: the operand is behind
``reduce-precision(8, 10)`` and the dot carries ``algorithm=dot_tf32_tf32_f32``.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import insert_before, ops_of
from neuronx_cc.passes.accumulate_f32 import record
from neuronx_cc.passes.analysis.calls import called_names
from neuronx_cc.passes.manager import CAST_DTYPES, PassContext

Contraction = hlo.DotOp | hlo.ConvolutionOp

ALGORITHMS = {
    "dot_bf16_bf16_f32": "bf16",
    "dot_bf16_bf16_bf16": "bf16",
    "dot_f16_f16_f32": "f16",
    "dot_f16_f16_f16": "f16",
    "dot_tf32_tf32_f32": "tf32",
}
"""Explicit dot algorithms that name a narrower operand type."""

TF32_BITS = {"exponent_bits": hlo.IntAttr(8), "mantissa_bits": hlo.IntAttr(10)}


def run(module: HloModule, context: PassContext) -> None:
    options = context.options
    for computation in code_computations(module):
        casts = Casts()
        for op in ops_of(computation.block):
            if isinstance(op, Contraction):
                _cast_contraction(op, casts, context)
    if options.auto_cast == "all":
        from neuronx_cc.passes.cast_all import cast_all

        cast_all(module, context, CAST_DTYPES[options.auto_cast_type])


def code_computations(module: HloModule) -> list[hlo.ComputationOp]:
    """The entry and the bodies of while and conditional: all but combiners."""
    code = {module.entry.computation_name}
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.WhileOp | hlo.ConditionalOp):
                code.update(called_names(op))
    return [computation for computation in module.computations() if computation.computation_name in code]


class Casts:
    """Rounded forms of values, made once above the first op that needs one."""

    def __init__(self) -> None:
        self._made: dict[tuple[hlo.SSAValue, str], hlo.SSAValue] = {}

    def rounded(self, anchor: hlo.HloOp, value: hlo.SSAValue, dtype: str) -> hlo.SSAValue:
        """``value`` (f32) in ``dtype``: converted, or for tf32 rounded in place."""
        found = self._made.get((value, dtype))
        if found is None:
            loc = hlo.loc_of(value)
            if dtype == "tf32":
                found = insert_before(anchor, hlo.ReducePrecisionOp, (value,), value.type, loc, TF32_BITS)
            else:
                type_ = hlo.array_type(dtype, hlo.shape_of(value).dims)
                found = insert_before(anchor, hlo.ConvertOp, (value,), type_, loc)
            self._made[value, dtype] = found
        return found


def decision(op: Contraction, context: PassContext) -> tuple[str, str]:
    """Type to cast the operands of ``op`` to (``f32``: leave them) and the reason."""
    algorithm = op.algorithm.data if isinstance(op, hlo.DotOp) and op.algorithm is not None else ""
    if algorithm and algorithm != "unset":
        return ALGORITHMS.get(algorithm, "f32"), f"algorithm={algorithm}"
    precision = op.operand_precision.data if op.operand_precision is not None else ()
    if "highest" in precision or "high" in precision:
        return "f32", f"operand_precision={{{','.join(precision)}}}"
    if context.options.auto_cast == "none":
        return "f32", "--auto-cast none"
    return CAST_DTYPES[context.options.auto_cast_type], f"--auto-cast {context.options.auto_cast}"


def _cast_contraction(op: Contraction, casts: Casts, context: PassContext) -> None:
    target, reason = decision(op, context)
    operands = list(op.operands)
    for index, operand in enumerate(operands):
        dtype = hlo.shape_of(operand).dtype
        if dtype != "f32":
            context.precision.append(record(op.loc, op.opcode, f"operand {index}", dtype, dtype, "not FP32"))
            continue
        context.precision.append(record(op.loc, op.opcode, f"operand {index}", dtype, target, reason))
        if target != "f32":
            operands[index] = casts.rounded(op, operand, target)
    op.operands = operands
    if target == "tf32" and isinstance(op, hlo.DotOp):
        op.properties["algorithm"] = hlo.StrAttr("dot_tf32_tf32_f32")
