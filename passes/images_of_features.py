"""Computes contractions of the features of several images as convolutions under a window of one position.

Input: canonical hlo. Output: a dot of a matrix with an array [images, features, positions...], whose result is
transposed to [images, features, positions...], is a convolution, which takes positions of several images together and
computes what follows with one value of each feature (``features_first``). Where positions are few, tiles of a
convolution are small, and the dot stays; so do all where a rule of the policy tells the two opcodes apart.
"""

from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import ConvDims, HloModule, WindowDim
from neuronx_cc.ir.hlo.editing import defining_op, insert_before, ops_of, replace
from neuronx_cc.passes.manager import PassContext, only_for

FLOATS = frozenset(["f32", "bf16", "f16"])
LEAST = 49
"""Positions of an image: of fewer, a dot takes less time."""


@only_for(hlo.DotOp)
def run(module: HloModule, context: PassContext) -> None:
    if context.options.policy.tells_apart(hlo.opcodes(hlo.DotOp, hlo.ConvolutionOp)):
        return
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.TransposeOp) and (dot := _of_images(op)) is not None:
                replace(op, _convolved(op, dot))


def _of_images(op: hlo.TransposeOp) -> hlo.DotOp | None:
    """The dot whose result ``op`` transposes, if it is of a matrix and images, in this order."""
    dot = defining_op(op.operand)
    if not isinstance(dot, hlo.DotOp) or not op.operand.has_one_use() or dot.dims.data.lhs_batch:
        return None
    matrix, images, numbers = hlo.shape_of(dot.lhs), hlo.shape_of(dot.rhs), dot.dims.data
    if matrix.rank != 2 or images.rank < 3 or numbers.rhs_contracting != (1,) or len(numbers.lhs_contracting) != 1:
        return None
    if op.dimensions.data != (1, 0, *range(2, images.rank)) or not {matrix.dtype, images.dtype, op.shape.dtype} <= FLOATS:
        return None
    several, summed = images.dims[0] > 1, images.dims[1] > 1
    return dot if several and summed and prod(images.dims[2:]) >= LEAST else None


def _convolved(op: hlo.TransposeOp, dot: hlo.DotOp) -> hlo.SSAValue:
    matrix, rank = hlo.shape_of(dot.lhs), op.shape.rank
    ones, spatial = (1,) * (rank - 2), tuple(range(2, rank))
    type_ = hlo.array_type(matrix.dtype, (*matrix.dims, *ones))
    kernel = insert_before(op, hlo.ReshapeOp, (dot.lhs,), type_, dot.loc)
    (summed,) = dot.dims.data.lhs_contracting
    properties: dict[str, hlo.Attribute] = {
        "window": hlo.WindowAttr(tuple(WindowDim(1) for _ in ones)),
        "dims": hlo.ConvDimsAttr(ConvDims(0, 1, spatial, summed, 1 - summed, spatial, 0, 1, spatial)),
        "feature_group_count": hlo.IntAttr(1),
        "batch_group_count": hlo.IntAttr(1),
    }
    if dot.operand_precision is not None:
        properties["operand_precision"] = hlo.StrsAttr(dot.operand_precision.data[::-1])
    if dot.algorithm is not None:
        properties["algorithm"] = dot.algorithm
    return insert_before(op, hlo.ConvolutionOp, (dot.rhs, kernel), op.result.type, dot.loc, properties)
