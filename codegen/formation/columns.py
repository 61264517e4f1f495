"""Sums over leading dims that a map kernel adds up as it makes, or loads, what is summed: column sums.

Statistics of a batch, and the gradients of what is repeated along one, are such sums. TensorE multiplies each tile with
ones, beside the work of the other engines, so that what is summed need not be stored for a kernel of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.formation.graph import (
    Kernel,
    computes_elementwise,
    prefix_reduction,
    reads,
    squeeze,
    suffix_reduction,
)
from neuronx_cc.ir import hlo
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import WIDE_FLOATS

LEAST_SUMMED = 1 << 18
"""Elements of which a map kernel takes column sums: fewer stay on chip."""
MOST_LOOKED_AT = 64
"""Values around a sum that are looked at; more may do anything."""
MOST_SECTIONS = 16
"""In which the columns of a kernel are taken, one after the other."""


def folded_by(context: Context, op: hlo.ReduceOp, sections: int = MOST_SECTIONS) -> int:
    """How many leading dims ``op`` adds up, if that may be done tile by tile, in so many ``sections``; else 0."""
    count = prefix_reduction(op)
    if not count or context.combiners.get(op.to_apply.data[0]) != "add" or context.splat(op.sources[1]) != 0:
        return 0
    source = hlo.shape_of(op.sources[0])
    adds = source.dtype in WIDE_FLOATS and op.shape.dtype in WIDE_FLOATS and source.size >= LEAST_SUMMED
    fills = source.size >= context.sizes.partitions * op.shape.size
    fits = op.shape.size <= sections * most_columns(context.sizes, 1)
    return count if adds and fills and fits and _most_banks(context.sizes) else 0


def most_columns(sizes: Sizes, count: int) -> int:
    """Columns of ``count`` sums that are added up together; 0 where there are too many sums."""
    return _most_banks(sizes) // count * sizes.bank_columns


def _most_banks(sizes: Sizes) -> int:
    """Banks that the sums of a kernel may take: half, as sums of rows of several dims may fill theirs in part."""
    return sizes.banks // 2


def takes(context: Context, kernel: Kernel, op: hlo.ReduceOp, count: int, dims: tuple[int, ...]) -> bool:
    """Whether ``kernel`` may make the sums ``op`` over the first ``count`` of ``dims``, too."""
    if (
        not kernel.is_map
        or kernel.order
        or kernel.shape != dims
        or kernel.scanned >= 0
        or kernel.folded not in (0, count)
    ):
        return False
    columns = most_columns(context.sizes, 1 + len(sums_in(kernel)))
    several = MOST_SECTIONS if not kernel.reduced and not _folds_rows(op, dims) else 1
    return op.shape.size <= columns * several


def _folds_rows(op: hlo.ReduceOp, dims: tuple[int, ...]) -> bool:
    """Whether rows of what comes of the same as ``op`` are folded, for which a kernel needs all columns at once."""
    made = list(op.sources[:1])
    for value in made:  # grows
        if isinstance(value, hlo.OpResult) and computes_elementwise(value.op):
            made += [x for x in value.op.operands if squeeze(hlo.shape_of(x).dims) == dims and x not in made]
        for user in [use.operation for use in reads(value)]:
            if isinstance(user, hlo.ReduceOp) and suffix_reduction(user):
                return True
            if computes_elementwise(user) and squeeze(user.shape.dims) == dims and user.result not in made:
                made.append(user.result)
        if len(made) > MOST_LOOKED_AT:
            return True
    return False


def takes_rows(context: Context, kernel: Kernel) -> bool:
    """Whether ``kernel`` may fold rows, of which it then needs all columns at once."""
    return not kernel.folded or len(sections_of(kernel, context.sizes)) == 1


def sums_in(kernel: Kernel) -> list[hlo.ReduceOp]:
    """The column sums of ``kernel``."""
    return [op for op in kernel.ops if kernel.sums_columns(op)]


@dataclass(frozen=True, slots=True)
class Section:
    """Neighbouring columns: from ``start`` on ``columns`` of all, and (axis, first, size) of what they are."""

    start: int
    columns: int
    cuts: tuple[tuple[int, int, int], ...]


def sections_of(kernel: Kernel, sizes: Sizes) -> list[Section]:
    """The columns of ``kernel`` as they are summed, one section after the other; one without cuts if all at once."""
    most, inner, last = most_columns(sizes, len(sums_in(kernel)) or 1), 1, len(kernel.shape)
    while last > kernel.folded and inner * kernel.shape[last - 1] <= most:
        last -= 1
        inner *= kernel.shape[last]
    if last == kernel.folded:
        return [Section(0, inner, ())]
    axis, found = last - 1, list[Section]()
    step = ceil(kernel.shape[axis] / ceil(kernel.shape[axis] / (most // inner)))
    around = [range(size) for size in kernel.shape[kernel.folded : axis]]
    for outer in product(*around):
        for first in range(0, kernel.shape[axis], step):
            size = min(step, kernel.shape[axis] - first)
            cuts = [(kernel.folded + at, index, 1) for at, index in enumerate(outer)] + [(axis, first, size)]
            found.append(Section(sum(each.columns for each in found), size * inner, tuple(cuts)))
    return found
