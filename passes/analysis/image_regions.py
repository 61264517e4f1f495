"""Which convolutions make images that are best kept image by image, and which feature by feature.

Both orders have the features on the partitions. With the batch first a row of memory is a feature of one image: maps
over few features fill the partitions with rows in long runs, and what is computed of each image, as its means are, lies
with it. With features first a row is a feature of all images, as sums over the batch read them, and as contractions
make them, whose results have the dims of one operand after those of the other; and images that are concatenated along
features are runs of memory, which their convolutions write where they lie in the whole.
"""

from collections.abc import Iterator
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, users
from neuronx_cc.passes.analysis.exchanges import is_exchange

_JOINING = (
    hlo.ElementwiseOp,
    hlo.ConvolutionOp,
    hlo.ConcatenateOp,
    hlo.PadOp,
    hlo.SliceOp,
    hlo.ReduceWindowOp,
    hlo.SelectAndScatterOp,
    hlo.ReverseOp,
    hlo.TransposeOp,
    hlo.ReshapeOp,
)
"""Ops whose operands and results lie in one order."""
IMAGE_RANK = 3
"""Batch, features and positions, at least."""


def is_wide(op: hlo.ConvolutionOp) -> bool:
    """Whether results are images, not kernels, of which those of gradients have as many positions as a window."""
    positions = (op.shape.dims[axis] for axis in op.dims.data.out_spatial)
    return prod(positions) >= prod(dim.size for dim in op.window.data)


def image_by_image(computation: hlo.ComputationOp) -> set[hlo.Operation]:
    """Convolutions of regions in which nothing is summed over the batch, or contracted but by convolutions; nor joined,
    unless something is computed of each image.
    """
    found: set[hlo.Operation] = set()
    seen: set[hlo.Operation] = set()
    for op in ops_of(computation.block):
        if not isinstance(op, hlo.ConvolutionOp) or op in seen:
            continue
        region = _region(op)
        seen |= region
        near = region | {other for each in region for other in _around(each)}
        joined = any(isinstance(each, hlo.ConcatenateOp) for each in region)
        reduced = any(isinstance(each, hlo.ReduceOp) for each in near)
        alone = op.shape.dims[op.dims.data.out_batch] == 1  # either order is the same memory
        if not alone and not any(map(_asks_for_features, near)) and (reduced or not joined):
            found |= {each for each in region if isinstance(each, hlo.ConvolutionOp)}
    return found


def _region(start: hlo.HloOp) -> set[hlo.HloOp]:
    """Ops that images join with ``start``."""
    region, left = {start}, [start]
    while left:
        for op in _around(left.pop()):
            if isinstance(op, _JOINING) and op not in region:
                region.add(op)
                left.append(op)
    return region


def _around(op: hlo.HloOp) -> Iterator[hlo.HloOp]:
    """Ops that make images which ``op`` reads, or read those that it makes."""
    for value in op.operands:
        made = defining_op(value)
        if isinstance(made, hlo.HloOp) and _is_image(value):
            yield made
    for value in op.results:
        if _is_image(value):
            yield from (user for user in users(value) if isinstance(user, hlo.HloOp))


def _is_image(value: hlo.SSAValue) -> bool:
    return isinstance(value.type, hlo.ArrayType) and hlo.shape_of(value).rank >= IMAGE_RANK


def _asks_for_features(op: hlo.HloOp) -> bool:
    """Whether it is a contraction, an exchange between devices, a sum over all but the features, or the gradient of a
    kernel.
    """
    if isinstance(op, hlo.ConvolutionOp):
        return not is_wide(op)
    if isinstance(op, hlo.ReduceOp):
        return len(op.dimensions.data) == hlo.shape_of(op.operands[0]).rank - 1
    return isinstance(op, hlo.DotOp) or is_exchange(op)
