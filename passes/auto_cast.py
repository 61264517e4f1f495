"""Casts FP32 work to other types, after the rules of the vendor's ``--auto-cast`` option and those of a policy.

* ``none``: nothing, but a dot's own ``algorithm=`` is honoured.
* ``matmult``: FP32 operands of dot and convolution are cast; the result stays FP32, as partial sums do.
* ``all``: besides, every FP32 intermediate becomes the cast type (``precision.lowering``).

A policy chooses op by op (``precision.policy``, ``precision.decisions``). Program inputs and outputs keep their types,
and values that are not FP32 are never touched.

bf16, fp16 and fp8 operands are after ``convert``. tf32 has no type of its own, and TensorE rounds to it what it reads:
the contraction carries ``algorithm=dot_tf32_tf32_f32``.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.accumulate_f32 import record
from neuronx_cc.passes.analysis.calls import called_names
from neuronx_cc.passes.manager import PassContext
from neuronx_cc.passes.precision.casts import Casts
from neuronx_cc.passes.precision.decisions import Contraction, idle, of_operands, results_change
from neuronx_cc.passes.precision.lowering import Lowering


def run(module: HloModule, context: PassContext) -> None:
    for rule in context.options.policy.unused(module):
        context.warn("EARG911", f"{rule.described()} changes nothing: none of its ops is left when types are chosen")
    rules = context.options.policy.rules
    ops = [op for computation in code_computations(module) for op in ops_of(computation.block)] if rules else []
    for rule in rules:
        if reason := idle(rule, ops):
            context.warn("EARG911", f"{rule.described()} changes nothing: {reason}, and it matches none")
    results = results_change(context.options)
    if results:
        _record_parameters(module, context)
    for computation in code_computations(module):
        casts = Casts(module)
        for op in ops_of(computation.block):
            if isinstance(op, Contraction):
                _cast_operands(op, casts, context)
        if results:
            Lowering(module, context, casts).run(computation)


def code_computations(module: HloModule) -> list[hlo.ComputationOp]:
    """The entry and the bodies of while and conditional: all but combiners."""
    code = {module.entry.computation_name}
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.RegionOp):
                code.update(called_names(op))
    return [computation for computation in module.computations() if computation.computation_name in code]


def _cast_operands(op: Contraction, casts: Casts, context: PassContext) -> None:
    target = of_operands(op, context.options)
    operands = list(op.operands)
    for index, operand in enumerate(operands):
        dtype = hlo.shape_of(operand).dtype
        if dtype != "f32":
            context.precision.append(record(op.loc, op.opcode, f"operand {index}", dtype, dtype, "not FP32"))
            continue
        context.precision.append(record(op.loc, op.opcode, f"operand {index}", dtype, target.dtype, target.reason))
        if target.dtype not in ("f32", "tf32"):
            operands[index] = casts.rounded(op, operand, target.dtype)
    op.operands = operands
    if target.dtype == "tf32":
        op.properties["algorithm"] = hlo.StrAttr("dot_tf32_tf32_f32")


def _record_parameters(module: HloModule, context: PassContext) -> None:
    entry = module.entry
    for index, argument in enumerate(entry.block.args):
        if isinstance(argument.type, hlo.ArrayType) and argument.type.data.dtype == "f32":
            row = record(entry.parameter_loc(index), "parameter", "result", "f32", "f32", "program input")
            context.precision.append(row)
