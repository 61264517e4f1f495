"""What is computed of a reduction's result is rounded where something else is computed with it.

Input: any inlined module, after ``auto_cast`` and ``clean_casts``. Output: elementwise ops of a 16-bit float type on
what a reduction gives, rounded, and on constants compute in FP32, and their results are rounded. Engines compute so in
any case, and a cast of a few elements takes as long as an op on many. Only for ``--auto-cast all`` with mixed-precision
accumulation: values have fewer roundings, and where the program itself is in 16 bits, each op rounds as it does in XLA.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, insert_before, ops_of, replace, users, viewed
from neuronx_cc.ir.types import NARROW
from neuronx_cc.passes.accumulate_f32 import record
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.precision.decisions import lowers_all

REASON = "rounded once after a reduction"
Wide = dict[hlo.SSAValue, hlo.SSAValue]
"""Values of rows in 16 bits -> the FP32 numbers that they are rounded from."""


@only_for(hlo.ReduceOp)
def run(module: HloModule, context: PassContext) -> None:
    options = context.options
    if not (options.mixed_precision_accumulation and lowers_all(options)):
        return
    for computation in module.computations():
        wide: Wide = {}
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.ReduceOp) and len(op.operands) == 2 and op.shape.dtype == "f32":
                wide |= {cast.results[0]: op.results[0] for cast in users(op.results[0]) if _narrows(cast)}
            elif wide and isinstance(op, hlo.ElementwiseOp) and op.shape.dtype in NARROW and len(op.results) == 1:
                _widen(op, wide, context)


def _narrows(op: hlo.Operation) -> bool:
    return isinstance(op, hlo.ConvertOp) and op.shape.dtype in NARROW and hlo.shape_of(op.operand).dtype == "f32"


def _widen(op: hlo.ElementwiseOp, wide: Wide, context: PassContext) -> None:
    """Compute ``op`` in FP32 where it reads values of rows alone, and round what it makes."""
    if isinstance(op, hlo.ConvertOp):
        return
    sources = [viewed(each) for each in op.operands]
    rows = [each for each in sources if each in wide]
    if not rows or any(hlo.shape_of(each).dtype != op.shape.dtype for each in op.operands):
        return
    if hlo.shape_of(rows[0]).size < op.shape.size:
        return  # a whole array
    if all(each in wide or _is_constant(each) for each in sources):
        exact = _in_f32(op, [_exactly(op, each, wide) for each in op.operands], context)
        rounded = _convert(op, exact, op.shape.dtype)
        wide[rounded] = exact
        replace(op, rounded)


def _is_constant(value: hlo.SSAValue) -> bool:
    """Whether ``value`` is a constant, perhaps a cast one."""
    op = value.owner
    return isinstance(op.operand.owner if isinstance(op, hlo.ConvertOp) else op, hlo.ConstantOp)


def _exactly(op: hlo.HloOp, value: hlo.SSAValue, wide: Wide) -> hlo.SSAValue:
    """``value``, a view of a value of rows or of a constant, in FP32, ahead of ``op``: before it was rounded."""
    if value in wide:
        return wide[value]
    view = value.owner
    if _is_constant(value):
        whole = view.operand if isinstance(view, hlo.ConvertOp) else value
        return whole if hlo.shape_of(whole).dtype == "f32" else _convert(op, whole, "f32")
    assert isinstance(view, hlo.ViewOp), "a view of a source"
    assert op.parent is not None, "in a computation"
    made = copy_op(view, (_exactly(op, view.operands[0], wide),), hlo.array_type("f32", view.shape.dims))
    op.parent.insert_op_before(made, op)
    return made.results[0]


def _convert(op: hlo.HloOp, value: hlo.SSAValue, dtype: str) -> hlo.SSAValue:
    return insert_before(op, hlo.ConvertOp, (value,), hlo.array_type(dtype, hlo.shape_of(value).dims), op.loc)


def _in_f32(op: hlo.HloOp, operands: list[hlo.SSAValue], context: PassContext) -> hlo.SSAValue:
    made = insert_before(op, type(op), operands, hlo.array_type("f32", op.shape.dims), op.loc, op.properties)
    context.precision.append(record(op.loc, op.opcode, "result", op.shape.dtype, "f32", REASON))
    return made
