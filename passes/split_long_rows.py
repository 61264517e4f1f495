"""Splits reductions of long rows, and over dims that lie apart, in two: first over the last dims, then over the others.

Input: canonical hlo, images features first. Output: a reduction of what elementwise ops make, over trailing dims whose
row is longer than ``SHARE``, or over trailing dims and others, first folds as many of the last dims as a row may have.
What is left folds in a reduction of its own, of few elements. Such rows fit the tiles of the elementwise ops before
them, which need not store them then. No value changes but for the order in which elements are added.
"""

from math import prod

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import insert_before, insert_constant, ops_of, replace
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import NUMPY_DTYPE, itemsize
from neuronx_cc.passes.accumulate_f32 import NARROW_FLOATS
from neuronx_cc.passes.analysis.values import combiner_kind, identity_of
from neuronx_cc.passes.manager import PassContext, only_for

SHARE = (3, 11)
"""Of a partition of SBUF, which holds two tiles of a row that a map kernel reduces, and temporaries: such a row."""

LEAST_FOLDED = 16
"""Elements of a row that is folded on its own."""


@only_for(hlo.ReduceOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.ReduceOp) and len(op.operands) == 2:
                _split(op, module, context.timing.sizes)


def longest_row(sizes: Sizes) -> int:
    """Elements of the longest row that a map kernel may reduce."""
    return sizes.sbuf_share(SHARE) // itemsize("f32")


def is_made(operand: hlo.SSAValue) -> bool:
    """Whether an op makes ``operand`` that may stand in one kernel with a reduction of its last dims."""
    while isinstance(operand.owner, hlo.ReshapeOp | hlo.ConvertOp):
        operand = operand.owner.operand
    return isinstance(operand.owner, hlo.ElementwiseOp)


def _split(op: hlo.ReduceOp, module: HloModule, sizes: Sizes) -> None:
    longest = longest_row(sizes)
    operand, start = op.operands
    shape, kind = hlo.shape_of(operand), combiner_kind(op, module)
    folded, first = sorted(op.dimensions.data), shape.rank
    neutral = identity_of(kind, shape.dtype)
    if neutral is None or (shape.dtype in NARROW_FLOATS and kind in ("add", "multiply")):
        return  # unknown, or rounded twice
    while first - 1 in folded:
        first -= 1
    whole = len(folded) == shape.rank - first
    while prod(shape.dims[first:]) > longest:
        first += 1
    if not is_made(operand) or (whole and first == folded[0]):
        return
    if prod(shape.dims[first:]) < LEAST_FOLDED or prod(shape.dims[:first]) < sizes.partitions:
        return  # tiny rows are folded one by one, few short ones leave partitions without work
    number = np.asarray(neutral, NUMPY_DTYPE[shape.dtype])
    nothing = insert_constant(module, op, number, shape.dtype, op.loc)
    rows = hlo.array_type(shape.dtype, shape.dims[:first])
    properties = {**op.properties, "dimensions": hlo.IntsAttr(tuple(range(first, shape.rank)))}
    short = insert_before(op, hlo.ReduceOp, (operand, nothing), rows, op.loc, properties)
    properties = {**op.properties, "dimensions": hlo.IntsAttr(tuple(dim for dim in folded if dim < first))}
    replace(op, insert_before(op, hlo.ReduceOp, (short, start), op.results[0].type, op.loc, properties))
