"""Computes contractions of the features of several images as convolutions under a window of one position.

Input: canonical hlo. Output: a dot of a matrix with an array [images, features, positions...], whose result is
transposed to [images, features, positions...], is a convolution, which takes positions of several images together and
computes what follows with one value of each feature (``features_first``). Where positions are very few, tiles of a
convolution are small, and the dot stays; so it does where they are many and nothing follows, and where a rule of the
policy tells the two opcodes apart.
"""

from math import prod
from typing import NamedTuple

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import ConvDims, HloModule, WindowDim
from neuronx_cc.ir.hlo.editing import defining_op, insert_before, ops_of, replace, users
from neuronx_cc.ir.types import WIDE_FLOATS
from neuronx_cc.passes.manager import PassContext, only_for

LEAST = 49
"""Positions of an image: of fewer, a dot takes less time."""
MOST_ALONE = 128
"""Of more, it takes as long, unless elementwise ops follow: its columns are full tiles then."""


@only_for(hlo.DotOp)
def run(module: HloModule, context: PassContext) -> None:
    if context.options.policy.tells_apart(hlo.opcodes(hlo.DotOp, hlo.ConvolutionOp)):
        return
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.TransposeOp) and (found := _of_images(op)) is not None:
                replace(op, _convolved(op, found))


class _Contraction(NamedTuple):
    """A dot of a matrix and images."""

    op: hlo.DotOp
    images: int
    """Which operand the images are."""
    summed: int
    """The dim of the matrix that is."""


def _of_images(op: hlo.TransposeOp) -> _Contraction | None:
    """What ``op`` transposes, if it is a contraction of a matrix and images, whose positions stay in their order."""
    dot = defining_op(op.operand)
    if not isinstance(dot, hlo.DotOp) or not op.operand.has_one_use() or dot.dims.data.lhs_batch:
        return None
    last, numbers = op.shape.rank - 1, dot.dims.data
    summed = numbers.lhs_contracting, numbers.rhs_contracting
    shapes = [hlo.shape_of(operand) for operand in dot.operands]
    for images, order in ((1, (1, 0, *range(2, last + 1))), (0, (0, last, *range(1, last)))):
        matrix, image = shapes[1 - images], shapes[images]
        if op.dimensions.data != order or matrix.rank != 2 or summed[images] != (1,) or len(summed[0]) != 1:
            continue
        alike = {matrix.dtype, image.dtype, op.shape.dtype} <= WIDE_FLOATS and image.rank == op.shape.rank > 2
        if not alike or image.dims[0] == 1 or image.dims[1] == 1:
            return None
        positions = prod(image.dims[2:])
        computed = any(isinstance(user, hlo.ElementwiseOp) for user in users(op.result))
        if positions >= LEAST and (computed or positions <= MOST_ALONE):
            return _Contraction(dot, images, summed[1 - images][0])
    return None


def _convolved(op: hlo.TransposeOp, found: _Contraction) -> hlo.SSAValue:
    dot, rank = found.op, op.shape.rank
    image, matrix = dot.operands[found.images], dot.operands[1 - found.images]
    ones, spatial, shape = (1,) * (rank - 2), tuple(range(2, rank)), hlo.shape_of(matrix)
    type_ = hlo.array_type(shape.dtype, (*shape.dims, *ones))
    kernel = insert_before(op, hlo.ReshapeOp, (matrix,), type_, dot.loc)
    dims = ConvDims(0, 1, spatial, found.summed, 1 - found.summed, spatial, 0, 1, spatial)
    properties: dict[str, hlo.Attribute] = {
        "window": hlo.WindowAttr(tuple(WindowDim(1) for _ in ones)),
        "dims": hlo.ConvDimsAttr(dims),
        "feature_group_count": hlo.IntAttr(1),
        "batch_group_count": hlo.IntAttr(1),
    }
    if dot.operand_precision is not None:
        each = dot.operand_precision.data
        properties["operand_precision"] = hlo.StrsAttr(each[::-1] if found.images else each)
    if dot.algorithm is not None:
        properties["algorithm"] = dot.algorithm
    return insert_before(op, hlo.ConvolutionOp, (image, kernel), op.result.type, dot.loc, properties)
