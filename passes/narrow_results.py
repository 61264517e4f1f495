"""Contractions, windows, and extremes of rows, give the 16-bit type that all that reads them casts them to.

Input: any inlined module, after ``clean_casts``. Output: a dot or a convolution whose FP32 result is cast to one 16-bit
float type wherever it is read gives that type: its sums are rounded once, as the cast rounded them. The greatest, or
least, of what was widened, and is cast back, is found among what there was before, and so are folds of windows of such,
whose kernels add up in FP32. So programs that ``auto_cast`` made
have the forms of those that were written in 16 bits.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, insert_before, ops_of, replace, retype, users
from neuronx_cc.ir.types import NARROW
from neuronx_cc.passes.analysis.values import combiner_kind, is_extreme
from neuronx_cc.passes.expansions.combiners import combiner_in
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.ConvertOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.DotOp | hlo.ConvolutionOp) and op.shape.dtype == "f32":
                _narrow(op)
            elif is_extreme(op, module) or (isinstance(op, hlo.ReduceWindowOp) and len(op.operands) == 2):
                _fold_before(op, module)


def _narrow(op: hlo.HloOp) -> None:
    readers = users(op.results[0])
    dtypes = {reader.shape.dtype for reader in readers if isinstance(reader, hlo.ConvertOp)}
    if len(dtypes) != 1 or not dtypes <= set(NARROW) or not all(isinstance(each, hlo.ConvertOp) for each in readers):
        return
    retype(op.results[0], hlo.array_type(dtypes.pop(), op.shape.dims))
    for reader in readers:
        replace(reader, op.results[0])


def _fold_before(op: hlo.ReduceOp | hlo.ReduceWindowOp, module: HloModule) -> None:
    cast, start = (defining_op(operand) for operand in op.operands)
    if not isinstance(cast, hlo.ConvertOp) or op.shape.dtype != "f32" or not isinstance(start, hlo.ConstantOp):
        return
    dtype, readers = hlo.shape_of(cast.operand).dtype, users(op.results[0])
    back = [each for each in readers if isinstance(each, hlo.ConvertOp) and each.shape.dtype == dtype]
    if dtype not in NARROW or len(back) < len(readers) or not (back and combiner_kind(op, module)):
        return
    initial = insert_before(op, hlo.ConvertOp, (op.operands[1],), hlo.array_type(dtype, ()), op.loc)
    name = combiner_in(module, op.to_apply.data[0], "f32", dtype)
    properties = {**op.properties, "to_apply": hlo.StrsAttr((name,))}
    found = insert_before(
        op, type(op), (cast.operand, initial), hlo.array_type(dtype, op.shape.dims), op.loc, properties
    )
    for each in back:
        replace(each, found)
