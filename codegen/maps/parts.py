"""Parts of a map kernel whose rows do not fit SBUF together.

Input: a map kernel that folds or scans rows, each of which lies on one partition as a whole. Output: kernels of some of
its ops each, in order, which fit; values that cross from one to the next go through memory.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.formation.graph import Kernel, base, squeeze, trace
from neuronx_cc.codegen.maps.lifetimes import Member, bytes_alive, last_uses
from neuronx_cc.codegen.maps.plan import MapPlan, external_operands
from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import itemsize

SPLIT_ROW = 1024
"""Elements of a reduced row from which on a kernel may be too large for SBUF."""


def fitting(context: Context, kernel: Kernel, member: Member) -> list[Kernel]:
    """``kernel``, or two with a part of its ops each (and so on) where the rows alive at once would fill SBUF."""
    whole = set(range(len(kernel.rows), len(kernel.shape))) if kernel.reduced else set()
    row = prod(kernel.shape[axis] for axis in whole | ({kernel.scanned} - {-1}))
    if row < SPLIT_ROW or len(kernel.ops) == 1:
        return [kernel]
    room = context.builder.sbuf.largest_gap() - max(0, context.resident_limit - context.resident_bytes)
    operands = [*external_operands(context, plan := MapPlan(kernel), member), *plan.iotas]
    large = [value for value in operands if prod(hlo.shape_of(base(value)).dims) * row > prod(kernel.shape)]
    if bytes_alive(kernel, large, last_uses(kernel, member)) * row <= room * 0.95:
        return [kernel]
    parts = []
    cut = _thinnest_cut(kernel, member)
    for ops in (kernel.ops[:cut], kernel.ops[cut:]):
        part = replace(kernel, ops=ops)
        if len(ops) == 1 and not isinstance(ops[0], hlo.ReduceOp):
            part = replace(part, reduced=0, shape=squeeze(ops[0].shape.dims))
        member.update({op.results[0]: part for op in ops})
        parts.append(part)
    return [smaller for part in parts for smaller in fitting(context, part, member)]


def too_long(context: Context, kernel: Kernel, member: Member) -> bool:
    """Whether ``kernel`` is a reduction whose rows do not fit SBUF as a whole."""
    op, row = kernel.ops[0], prod(kernel.shape[len(kernel.rows) :])
    if len(kernel.ops) > 1 or not isinstance(op, hlo.ReduceOp) or row < SPLIT_ROW:
        return False
    homes = context.homes.get(base(op.operands[0]), [])
    loaded = [] if any(home.in_sbuf for home in homes) else [op.operands[0]]
    return bytes_alive(kernel, loaded, last_uses(kernel, member)) * row > context.builder.sbuf.largest_gap() * 0.95


def _thinnest_cut(kernel: Kernel, member: Member) -> int:
    """Where to cut the ops of ``kernel`` in two so that the fewest bytes have to be loaded behind the cut again."""
    first: dict[hlo.SSAValue, int] = {}
    last: dict[hlo.SSAValue, int] = {}
    for index, op in enumerate(kernel.ops):
        for operand in op.operands:
            source = trace(operand, kernel, member) or operand
            first.setdefault(source, index)
            last[source] = index
        first[op.results[0]] = index
    count = len(kernel.ops)

    def crossing(cut: int) -> int:
        values = (value for value in last if first[value] < cut <= last[value])
        return sum(prod(hlo.shape_of(base(v)).dims) * itemsize(hlo.shape_of(v).dtype) for v in values)

    return min(range(max(1, count // 4), count - count // 4), key=lambda cut: (crossing(cut), abs(2 * cut - count)))
