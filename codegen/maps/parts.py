"""Parts of a map kernel whose smallest tiles do not fit SBUF together.

Input: a map kernel; rows that it folds or scans lie on one partition as a whole. Output: kernels of some of its ops
each, in order, which fit beside those of their results that stay on chip; values that cross from one to the next go
through memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.formation.columns import sections_of, sums_in
from neuronx_cc.codegen.formation.graph import Kernel, base, squeeze, trace
from neuronx_cc.codegen.maps.axes import full_view
from neuronx_cc.codegen.maps.lifetimes import Member, last_uses, tiles_alive, up
from neuronx_cc.codegen.maps.plan import (
    MapPlan,
    choose_partitions,
    external_operands,
    only_stored,
    results_of,
    staying_bytes,
)
from neuronx_cc.codegen.maps.stages import LEAST_SECTION
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.types import itemsize

SPLIT_ROW = 1024
"""Elements of a reduced row from which operands with one element a row count nothing beside it."""
LEAST_TILE = 16
"""Elements a partition of the smallest tiles: fewer of four bytes take as much of SBUF."""


def fitting(context: Context, kernel: Kernel, member: Member, step: int) -> Iterator[Kernel]:
    """``kernel``, or two with a part of its ops each (and so on) where the rows alive at once would fill SBUF.

    A part is to be emitted before the next one is asked for, which finds the room that its results have left.
    """
    if len(kernel.ops) == 1 or fits(context, kernel, member, step):
        yield kernel
        return
    parts = []
    cut = _thinnest_cut(kernel, member)
    for ops in (kernel.ops[:cut], kernel.ops[cut:]):
        part = replace(kernel, ops=ops, folded=kernel.folded if any(map(kernel.sums_columns, ops)) else 0)
        if len(ops) == 1 and not isinstance(ops[0], hlo.ReduceOp):
            part = replace(part, reduced=0, shape=squeeze(ops[0].shape.dims), order=())
        member.update({op.results[0]: part for op in ops})
        parts.append(part)
    for part in parts:
        if part.reduced and part.scanned >= 0 and len(part.ops) == 1 and not fits(context, part, member, step):
            part = replace(part, scanned=-1)  # a fold need not hold whole rows of a scan
            member[part.ops[0].results[0]] = part
        yield from fitting(context, part, member, step)


def fits(context: Context, kernel: Kernel, member: Member, step: int) -> bool:
    """Whether the smallest tiles of ``kernel`` fit beside those of its results that stay on chip."""
    whole = set(range(len(kernel.rows), len(kernel.shape))) if kernel.reduced else set()
    row = prod(kernel.shape[axis] for axis in whole | ({kernel.scanned} - {-1}))
    if kernel.scanned < 0:
        row = min(row, LEAST_SECTION)  # longer ones are taken in sections
    row = max(row, _columns(context, kernel))
    sbuf = context.builder.sbuf
    plan = MapPlan(kernel)
    external = external_operands(context, plan, member)
    results = results_of(context, kernel, member)
    tiles = [*(value for value in external if row < SPLIT_ROW or _along(context, value, kernel) > 1), *plan.iotas]
    alive = tiles_alive(kernel, tiles, last_uses(kernel, member))
    nbytes = alive.aligned(max(row, LEAST_TILE), max(1, LEAST_TILE // row), sbuf.alignment)
    nbytes += len(sums_in(kernel)) * up(4 * _columns(context, kernel), sbuf.alignment)
    room = sbuf.largest_gap() * 0.95
    if nbytes > room or nbytes <= room - max(0, context.residents.left):
        return nbytes <= room  # whatever stays
    plan.partitions = choose_partitions(context, plan, external, only_stored(context, results, step))
    return nbytes <= room - staying_bytes(context, plan, results, step)


def _columns(context: Context, kernel: Kernel) -> int:
    """Columns that are summed at once; 0 without any."""
    return max(each.columns for each in sections_of(kernel, context.sizes)) if kernel.folded else 0


def _along(context: Context, value: hlo.SSAValue, kernel: Kernel) -> int:
    """Elements of an operand along a row that is folded or scanned, without repetitions."""
    view = full_view(context.views(value)[0], kernel)
    rows = len(kernel.rows) if kernel.reduced else len(kernel.shape)
    axes = {*range(rows, len(kernel.shape)), kernel.scanned} - {-1}
    return prod(atom.size for axis in axes for atom in view.dims[axis] if atom.stride)


def too_long(context: Context, kernel: Kernel, member: Member) -> bool:
    """Whether ``kernel`` is a reduction whose rows do not fit SBUF as a whole."""
    op, row = kernel.ops[0], prod(kernel.shape[len(kernel.rows) :])
    if len(kernel.ops) > 1 or not isinstance(op, hlo.ReduceOp) or row < SPLIT_ROW:
        return False
    homes = context.homes.get(base(op.sources[0]), [])
    loaded = [] if any(home.in_sbuf for home in homes) else [op.sources[0]]
    alive = tiles_alive(kernel, loaded, last_uses(kernel, member))
    return alive.element_bytes * row > context.builder.sbuf.largest_gap() * 0.95


def _thinnest_cut(kernel: Kernel, member: Member) -> int:
    """Where to cut the ops of ``kernel`` in two so that the fewest bytes have to be loaded after the cut again."""
    first: dict[hlo.SSAValue, int] = {}
    last: dict[hlo.SSAValue, int] = {}
    for index, op in enumerate(kernel.ops):
        for operand in op.sources:
            source = trace(operand, kernel, member) or operand
            first.setdefault(source, index)
            last[source] = index
        first[op.results[0]] = index
    count = len(kernel.ops)
    change = [0] * (count + 1)
    for value, end in last.items():
        nbytes = prod(hlo.shape_of(base(value)).dims) * itemsize(hlo.shape_of(value).dtype)
        if first[value] < end:
            change[first[value] + 1] += nbytes
            change[end + 1] -= nbytes
    crossing = list(accumulate(change))
    return min(range(max(1, count // 4), count - count // 4), key=lambda cut: (crossing[cut], abs(2 * cut - count)))
