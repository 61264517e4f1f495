"""Reductions of dims that others follow, as over the channels of images, which a map kernel folds as rows.

It pays where what is folded comes back to the whole array, as in normalisations and softmax: in a kernel of its own
each of these steps would load and store the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.formation.graph import Kernel, computes_elementwise, inner_reduction, is_view, squeeze
from neuronx_cc.codegen.maps import crossing, inner_rows
from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import itemsize

MOST_LOOKED_AT = 64
"""Values that come of a reduction that are looked at."""
MORE, KERNELS = 6, 6
"""How often kernels apart move the array, besides loading and storing it once, and how many more they are."""
MOST_TILES = 4
"""Equal tiles of features, one on each partition, up to which they are added up across these."""
FEWEST = 4
"""Rows fill one in so many of the partitions at least, or engines would have too much to do on each."""


def folded_by(context: Context, op: hlo.ReduceOp, maker: Kernel | None) -> tuple[int, ...]:
    """The order of axes, those last that a map kernel folds for ``op``; empty when that is not for a map kernel.

    ``maker``: what makes its operand, and may fold such rows already.
    """
    folded, source = inner_reduction(op), op.sources[0]
    if not folded or op.to_apply.data[0] not in context.combiners or source in context.load_casts:
        return ()
    dims = squeeze(hlo.shape_of(source).dims)
    order = *(dim for dim in range(len(dims)) if dim not in folded), *folded
    if maker is not None and (maker.dims, maker.order) == (dims, order):
        return order
    return order if prod(dims) and _fits(context, op, _joined(dims, folded)) and _comes_back(op) else ()


def _joined(dims: tuple[int, ...], folded: Sequence[int]) -> Kernel:
    """The space of a reduction of ``dims``, with neighbours as one that are folded, or are not."""
    groups = [[*group] for _, group in groupby(range(len(dims)), folded.__contains__)]
    kept, last = ([at for at, group in enumerate(groups) if (group[0] in folded) == folds] for folds in (False, True))
    shape = tuple(prod(dims[dim] for dim in groups[at]) for at in (*kept, *last))
    return Kernel(0, [], shape, len(last), True, order=(*kept, *last))


def _fits(context: Context, op: hlo.ReduceOp, kernel: Kernel) -> bool:
    """Whether tiles of whole rows are loaded and stored in runs that take less than what kernels apart move more."""
    row, timing, size = prod(kernel.shape[len(kernel.rows) :]), context.timing, _stored_size(op.sources[0])
    nbytes = size * prod(kernel.shape)
    long = timing.transfer(nbytes, timing.long_run).bound
    most = long + (MORE * long + KERNELS * 2 * timing.transfer_latency) / 2
    runs = []
    for way in inner_rows.ways(timing, kernel):
        if FEWEST * way.count >= context.sizes.partitions:
            runs.append(inner_rows.run(timing, kernel, way) * way.count / context.sizes.partitions)
    if crossing.takes(context, op, 1, row) or (
        min(kernel.order) == kernel.order[-1] and _lies_across(context, op, row)
    ):
        runs += [inner_rows.run(timing, kernel, across) for across in crossing.candidates(context, kernel)]
    return any(timing.transfer(nbytes, int(size * run)).bound <= most for run in runs)


def _lies_across(context: Context, op: hlo.ReduceOp, features: int) -> bool:
    """Whether ``op`` adds up leading ``features``, which convolutions leave on the partitions, in a few tiles."""
    fits = any(features % n == 0 and features // n <= context.sizes.partitions for n in range(1, MOST_TILES + 1))
    return fits and crossing.adds(context, op)


def _stored_size(value: hlo.SSAValue) -> int:
    """Bytes of an element of the narrowest array that ``value`` is made of, element by element."""
    whole, made = squeeze(hlo.shape_of(value).dims), [value]
    for each in made:  # grows
        if len(made) > MOST_LOOKED_AT:
            break
        if isinstance(each, hlo.OpResult) and computes_elementwise(each.op):
            made += [x for x in each.op.operands if squeeze(hlo.shape_of(x).dims) == whole and x not in made]
    return min(itemsize(hlo.shape_of(each).dtype) for each in made)


def reads_transposed(op: hlo.HloOp) -> bool:
    """Whether ``op`` reads an array in another order than its own: tiles have runs of one of the two only."""
    whole = op.shape.size
    for value in op.sources:
        while isinstance(value, hlo.OpResult) and is_view(value.op) and hlo.shape_of(value).size == whole:
            if isinstance(value.op, hlo.TransposeOp):
                return True
            value = value.op.sources[0]
    return False


def _comes_back(op: hlo.ReduceOp) -> bool:
    """Whether ops on the whole array read what ``op`` folds, or what is made of that row by row."""
    whole, rows = squeeze(hlo.shape_of(op.sources[0]).dims), squeeze(op.shape.dims)
    made: list[hlo.SSAValue] = [op.result]
    for value in made:  # grows
        for user in (use.operation for use in value.uses):
            if not isinstance(user, hlo.HloOp) or not (is_view(user) or computes_elementwise(user)):
                continue
            dims = squeeze(user.shape.dims)
            if dims == whole and computes_elementwise(user):
                return True
            if dims in (rows, whole) and user.results[0] not in made:
                made.append(user.results[0])
        if len(made) > MOST_LOOKED_AT:
            return False
    return False
