"""A map kernel whose rows lie apart in memory (``Kernel.order``) as kernels of their own.

Reductions then take the array as it lies (``reductions``), and each step before and after loads it again, unless it
stays on chip: where so much of a row is alive at once that tiles of whole rows have short runs of neighbours.
"""

from __future__ import annotations

from itertools import groupby
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.formation.graph import Kernel, base, squeeze, trace
from neuronx_cc.codegen.maps import inner_rows
from neuronx_cc.codegen.maps.axes import full_view
from neuronx_cc.codegen.maps.lifetimes import Member, last_uses, tiles_alive
from neuronx_cc.codegen.maps.plan import MapPlan, external_operands
from neuronx_cc.codegen.maps.spread import Partitions
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.types import itemsize

ROOM = 0.9
"""How much of the largest gap in SBUF the tiles under way take."""
ROWS, WHOLE, FOLDS = range(3)
"""Ops on values of rows, on whole arrays, and reductions."""


def parts_of(context: Context, kernel: Kernel, member: Member) -> list[Kernel]:
    """``kernel`` alone where it has runs as long as it was formed for, else what it is in parts."""
    if not kernel.order:
        return [kernel]
    timing = context.timing
    given = external_operands(context, MapPlan(kernel), member)
    loaded = [x for x in given if hlo.shape_of(base(x)).size == prod(kernel.shape)]
    alive = inner_rows.BUFFERS * tiles_alive(kernel, loaded, last_uses(kernel, member)).element_bytes / itemsize("f32")
    ways = inner_rows.ways(timing, kernel)
    wanted = max(inner_rows.run(timing, kernel, way) for way in ways)
    for way in ways:
        beside = sum(_bytes_on_each(context, kernel, x, way) for x in given if x not in loaded)
        room = context.sizes.sbuf_bytes / max(
            1.0, ROOM * context.builder.sbuf.largest_gap() - inner_rows.BUFFERS * beside
        )
        run = inner_rows.run(timing, kernel, way, alive * room)
        if 2 * run >= min(wanted, timing.long_run // itemsize("f32")):
            return [kernel]
    parts = _apart(kernel, member)
    member.update({op.results[0]: part for part in parts for op in part.ops})
    return parts


def _bytes_on_each(context: Context, kernel: Kernel, value: hlo.SSAValue, partitions: Partitions) -> int:
    """Of ``value`` on each partition."""
    view, axes = full_view(context.views(value)[0], kernel), dict(partitions.steps)
    sizes = (atom.size for at, atoms in enumerate(view.dims) if at not in axes for atom in atoms if atom.stride)
    return prod(sizes) * itemsize(view.dtype)


def _apart(kernel: Kernel, member: Member) -> list[Kernel]:
    """Kernels of one kind of ops each, in order; only reductions fold, each alone."""
    stages: dict[hlo.SSAValue, tuple[int, int]] = {}
    for op in kernel.ops:
        kind = FOLDS if isinstance(op, hlo.ReduceOp) else ROWS if kernel.is_row(op.shape) else WHOLE
        sources = [stages[x] for x in (trace(operand, kernel, member) for operand in op.sources) if x is not None]
        steps = [step + (kind == FOLDS or before != kind) for step, before in sources]
        stages[op.results[0]] = max(steps, default=0), kind
    parts = []
    ordered = sorted(kernel.ops, key=lambda op: stages[op.results[0]])
    for (_, kind), ops in groupby(ordered, lambda op: stages[op.results[0]]):
        if kind == FOLDS:
            parts += [replace(kernel, ops=[op]) for op in ops]
            continue
        made = [*ops]
        parts.append(replace(kernel, ops=made, shape=squeeze(made[0].shape.dims), reduced=0, order=()))
    return parts
