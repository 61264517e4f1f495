"""Sums of updates by their row numbers, for TensorE: ``sum_kernel`` multiplies them with ones and zeros.

Input: an FP32 table [R, W], row numbers [N], updates [N, W] to be added. A product would spread an infinity or a NaN of
one update over all rows. So whether all updates are finite is found out first, and decides between the product and what
adds up one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.passes.expansions.build import Build

Value = hlo.SSAValue
LONGEST = 4096
"""Elements of a row that a map kernel folds in one visit."""


def sums_where_finite(
    b: Build,
    sums: Callable[[Build, Value, Value], Value],
    safe: Callable[[Build, Value, Value], Value],
    args: list[Value],
) -> Value:
    """``sums(*args)`` if all updates, the last argument, are finite, else ``safe(*args)``."""
    updates = args[-1]
    size = hlo.shape_of(updates).size
    height = gcd(size, PARTITIONS)
    while size // height > LONGEST and size % (2 * height) == 0:
        height *= 2
    rows = b.reshape(updates, (height, size // height))
    spoiled = b.mul(rows, b.number_like(0, rows))
    # by another operator, or both reductions become one of the whole array, which takes longer
    spoiled = b.reduce(hlo.MaximumOp, spoiled, (1,), float("-inf"))
    spoiled = b.sum(spoiled, (0,))
    # the case that is assumed where nobody runs the program is that of false: what nearly all updates take
    found = b.compare(spoiled, b.number(0), "NE")
    carried = hlo.tuple_type(tuple(arg.type for arg in args))
    names = []
    result: hlo.Attribute | None = None
    for way in (safe, sums):
        computation, inner = b.computation(b.fresh_name("sums"), [carried])
        parts = [inner.element(computation.block.args[0], index) for index in range(len(args))]
        value = way(inner, *parts)
        result = hlo.tuple_type((value.type,))
        assert computation.block.last_op is not None
        computation.block.last_op.operands = [inner.typed(hlo.TupleOp, [value], result)]
        names.append(computation.computation_name)
    assert result is not None, "there are two ways"
    packed = [b.typed(hlo.TupleOp, args, carried) for _ in names]
    chosen = b.typed(hlo.ConditionalOp, [found, *packed], result, branches=hlo.StrsAttr(tuple(names)))
    return b.element(chosen, 0)
