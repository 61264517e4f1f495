"""Sums over leading dims that a map kernel adds up as it makes, or loads, what is summed: column sums.

Statistics of a batch, and the gradients of what is repeated along one, are such sums. TensorE multiplies each tile with
ones, beside the work of the other engines, so that what is summed need not be stored for a kernel of its own.
"""

from __future__ import annotations

from math import ceil, prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.formation.graph import Kernel, prefix_reduction
from neuronx_cc.ir import hlo

LEAST_SUMMED = 1 << 18
"""Elements of which a map kernel takes column sums: fewer stay on chip."""
SUMMED = ("f32", "bf16", "f16")
"""Types whose values TensorE adds up exactly as they are."""


def folded_by(context: Context, op: hlo.ReduceOp) -> int:
    """How many leading dims ``op`` adds up, if that may be done tile by tile; else 0."""
    count = prefix_reduction(op)
    if not count or context.combiners.get(op.to_apply.data[0]) != "add" or context.splat(op.operands[1]) != 0:
        return 0
    source = hlo.shape_of(op.operands[0])
    adds = source.dtype in SUMMED and op.shape.dtype in SUMMED and source.size >= LEAST_SUMMED
    fills = source.size // op.shape.size >= context.sizes.partitions
    return count if adds and fills and banks_of(context, op) <= most_banks(context) else 0


def banks_of(context: Context, op: hlo.ReduceOp) -> int:
    """Banks of PSUM that the sums of ``op`` take."""
    return ceil(op.shape.size / context.sizes.bank_columns)


def most_banks(context: Context) -> int:
    """Banks that the sums of a kernel may take: half, as sums of rows of several dims may fill theirs in part."""
    return context.sizes.banks // 2


def takes(context: Context, kernel: Kernel, op: hlo.ReduceOp, count: int, dims: tuple[int, ...]) -> bool:
    """Whether ``kernel`` has room for the sums ``op`` over the first ``count`` of ``dims``."""
    if not kernel.is_map or kernel.shape != dims or kernel.scanned >= 0 or kernel.folded not in (0, count):
        return False
    summed = [each for each in kernel.ops if kernel.sums_columns(each)]
    return sum(banks_of(context, each) for each in (*summed, op)) <= most_banks(context)


def kept_size(kernel: Kernel) -> int:
    """Elements of a row of which all columns are summed; 1 without column sums."""
    return prod(kernel.shape[kernel.folded :]) if kernel.folded else 1
