"""Computes convolutions under windows of one position as contractions, where images have their features last.

Input: canonical hlo after ``features_first``. Output: a convolution without groups and padding, whose window has one
position and whose image has its features innermost, is a dot with the kernel's matrix; with a step, of a slice of the
image. Rows of features lie as TensorE reads them, all positions in a row, while tiles of a convolution are parts of
rows of an image. Images with features outermost, which are on the partitions, stay convolutions, as do those of one
feature, of which nothing is summed. So do all where a rule of the policy tells the two opcodes apart.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import DotDims, HloModule, SliceDim
from neuronx_cc.ir.hlo.editing import insert_before, ops_of, replace
from neuronx_cc.ir.types import WIDE_FLOATS
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.ConvolutionOp)
def run(module: HloModule, context: PassContext) -> None:
    if context.options.policy.tells_apart(hlo.opcodes(hlo.DotOp, hlo.ConvolutionOp)):
        return
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.ConvolutionOp) and _is_pointwise(op):
                replace(op, _contraction(op))


def _is_pointwise(op: hlo.ConvolutionOp) -> bool:
    dims, last = op.dims.data, op.shape.rank - 1
    dtypes = {hlo.shape_of(value).dtype for value in (op.lhs, op.rhs, op.result)}
    if dims.lhs_feature != last or hlo.shape_of(op.lhs).dims[last] == 1 or not dtypes <= WIDE_FLOATS:
        return False
    if op.feature_group_count.data > 1 or op.batch_group_count.data > 1 or not op.shape.size:
        return False
    if any(dim.size > 1 or dim.pad_low or dim.pad_high or dim.lhs_dilation > 1 for dim in op.window.data):
        return False
    # positions lie in the same order in image and result
    image, result = (dims.lhs_batch, *dims.lhs_spatial), (dims.out_batch, *dims.out_spatial)
    alike = sorted(range(last), key=image.__getitem__) == sorted(range(last), key=result.__getitem__)
    return alike and dims.out_feature in (0, last)


def _contraction(op: hlo.ConvolutionOp) -> hlo.SSAValue:
    dims, image = op.dims.data, op.lhs
    shape, kernel = hlo.shape_of(op.lhs), hlo.shape_of(op.rhs)
    steps = dict(zip(dims.lhs_spatial, (dim.stride for dim in op.window.data), strict=True))
    if any(step > 1 for step in steps.values()):
        taken = tuple(SliceDim(0, size, steps.get(axis, 1)) for axis, size in enumerate(shape.dims))
        sizes = tuple(-(-each.limit // each.stride) for each in taken)
        type_ = hlo.array_type(shape.dtype, sizes)
        image = insert_before(op, hlo.SliceOp, (op.lhs,), type_, op.loc, {"slice": hlo.SliceAttr(taken)})
    features = sorted((dims.rhs_input_feature, dims.rhs_output_feature))
    type_ = hlo.array_type(kernel.dtype, tuple(kernel.dims[axis] for axis in features))
    matrix = insert_before(op, hlo.ReshapeOp, (op.rhs,), type_, op.loc)
    operands, summed = (image, matrix), ((shape.rank - 1,), (features.index(dims.rhs_input_feature),))
    precision = op.operand_precision.data if op.operand_precision is not None else ()
    if dims.out_feature == 0:
        operands, summed, precision = operands[::-1], summed[::-1], precision[::-1]
    properties: dict[str, hlo.Attribute] = {"dims": hlo.DotDimsAttr(DotDims(*summed))}
    if precision:
        properties["operand_precision"] = hlo.StrsAttr(precision)
    return insert_before(op, hlo.DotOp, operands, op.result.type, op.loc, properties)
