"""What elementwise ops make of 16-bit sums of products is rounded where it leaves them, not after every op.

Input: canonical hlo. Output: a contraction, or convolution, of a 16-bit float type whose result only elementwise ops of
that type read gives FP32, as its sums are; these ops compute in FP32, and their results are cast back where anything
else reads them. So sums leave PSUM through the ops that follow, unrounded: a scale, a bias and an activation are one
instruction. Does nothing when mixed-precision accumulation is off. Values have fewer roundings, as XLA allows itself
between ops of a fusion (``xla_allow_excess_precision``).
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, erase, insert_before, ops_of, replace, users
from neuronx_cc.passes.accumulate_f32 import record
from neuronx_cc.passes.manager import PassContext, only_for

NARROW = ("bf16", "f16")
REASON = "rounded once after a contraction"


@only_for(hlo.DotOp, hlo.ConvolutionOp)
def run(module: HloModule, context: PassContext) -> None:
    if not context.options.mixed_precision_accumulation:
        return
    for computation in module.computations():
        sums = [op for op in ops_of(computation.block) if _is_narrow_sum(op)]
        if sums:
            _widen(computation, *_followers(sums), context)


def _is_narrow_sum(op: hlo.Operation) -> bool:
    return isinstance(op, hlo.DotOp | hlo.ConvolutionOp) and op.shape.dtype in NARROW and op.shape.size > 0


def _may_follow(op: hlo.Operation, value: hlo.SSAValue) -> bool:
    """Whether ``op`` computes with ``value`` alike in FP32."""
    if not isinstance(op, hlo.ElementwiseOp) or isinstance(op, hlo.ConvertOp | hlo.BitcastConvertOp):
        return False
    shape = hlo.shape_of(value)
    return op.shape.dims == shape.dims and op.shape.dtype in (shape.dtype, "pred")


def _followers(sums: list[hlo.HloOp]) -> tuple[set[hlo.Operation], set[hlo.SSAValue]]:
    """The ops that read what is not rounded: sums, or what such ops make of them; and these values, which nothing else
    reads.
    """
    found: set[hlo.Operation] = set()
    inner: set[hlo.SSAValue] = set()
    after = list(sums)
    while after:
        value = after.pop().results[0]
        for user in users(value):
            if user not in found and isinstance(user, hlo.HloOp) and _may_follow(user, value):
                found.add(user)
                after.append(user)
    while True:
        values = (op.results[0] for op in (*sums, *found))
        inner = {value for value in values if value.uses and found.issuperset(users(value))}
        left = {op for op in found if not inner.isdisjoint(op.operands)}
        if left == found:
            return found, inner
        found = left


def _widen(
    computation: hlo.ComputationOp, found: set[hlo.Operation], inner: set[hlo.SSAValue], context: PassContext
) -> None:
    wide: dict[hlo.SSAValue, hlo.SSAValue] = {}
    dead = []
    for op in list(ops_of(computation.block)):
        result = op.results[0]
        if op not in found and result not in inner:
            continue
        dtype = op.shape.dtype
        operands = [_in_f32(op, value, wide) for value in op.operands] if op in found else list(op.operands)
        made = copy_op(op, operands, hlo.array_type("f32" if dtype in NARROW else dtype, op.shape.dims))
        block = op.parent
        assert block is not None
        block.insert_op_before(made, op)
        if result in inner:
            wide[result] = made.results[0]
            dead.append(op)
        else:
            kept = made.results[0]
            replace(op, kept if dtype == "pred" else insert_before(op, hlo.ConvertOp, (kept,), result.type, op.loc))
        if dtype in NARROW:
            context.precision.append(record(op.loc, op.opcode, "result", dtype, "f32", REASON))
    for op in reversed(dead):
        erase(op)


def _in_f32(op: hlo.HloOp, value: hlo.SSAValue, wide: dict[hlo.SSAValue, hlo.SSAValue]) -> hlo.SSAValue:
    shape = hlo.shape_of(value)
    if value not in wide and shape.dtype in NARROW:
        return insert_before(op, hlo.ConvertOp, (value,), hlo.array_type("f32", shape.dims), op.loc)
    return wide.get(value, value)
