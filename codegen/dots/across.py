"""Results of few rows whose columns lie on the partitions: as a contraction of these wants them, and with work for all
partitions in what is computed of them.

Columns of the stationary operand land on the partitions, so the many columns are stationary and the few rows stream
past: a tile of 128 columns takes 64 cycles instead of 128. Each partition has neighbouring columns, which are a run
where they are loaded or stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.contraction import Bound, Contraction
from neuronx_cc.codegen.dots.problem import Problem, divisor
from neuronx_cc.codegen.dots.statement import problems_of
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.views import View, unplaced
from neuronx_cc.codegen.epilogues.arrays import views_of_cast
from neuronx_cc.codegen.formation.graph import base, squeeze
from neuronx_cc.codegen.maps.plan import RESIDENT_STEPS, partitions_of, resident_view
from neuronx_cc.codegen.maps.spread import Partitions
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

WORTH = 0.98
"""Of the time in rows, what it may take: there are four times the products, each of which is compiled and simulated."""


def home_across(context: Context, contraction: Contraction, bound: Sequence[Bound]) -> View | None:
    """A home for such a result, where it takes less time by estimate than a result in rows that goes to HBM, and back
    if it is read; None elsewhere.
    """
    result, step = contraction.result, contraction.step
    (batch, rows, _), (_, columns, _) = contraction.sizes(0), contraction.sizes(1)
    if batch or len(rows) > 1 or len(columns) != 1:
        return None
    readers, is_output = _readers(result), result in context.outputs
    # others read parts of it, which are on some of the partitions only
    if not all(isinstance(each, hlo.DotOp | hlo.ElementwiseOp | hlo.ReduceOp | hlo.BroadcastOp) for each in readers):
        return None
    if not readers and not is_output:
        return None
    shape, size = hlo.shape_of(result), divisor(columns[0], context.sizes.columns)
    found = _repeated(context, readers, columns[0]) or Partitions(len(rows), size, columns[0] // size)
    lies = replace(found, axis=len(rows))
    if lies.size == 1 or context.last_use(result) - step > RESIDENT_STEPS:
        return None
    nbytes = shape.size // lies.size * itemsize(shape.dtype)
    made = resident_view(Alloc(Space.SBUF, 0, nbytes), shape.dtype, shape.dims, lies)
    adds = [
        near_home(context, contraction, each, made) or unplaced(hlo.shape_of(each).dtype, shape.dims)
        for each in contraction.arrays
    ]
    across = _time(context, contraction, bound, made, adds)
    if across == inf or _waits(context.timing, problems_of(context, contraction, bound, made, adds)):
        return None
    stored = [unplaced(each.dtype, each.shape) for each in (made, *adds)]
    in_rows = _time(context, contraction, bound, stored[0], stored[1:])
    if is_output:
        across += context.timing.arrival(shape.nbytes, lies.inner * itemsize(shape.dtype), "write")
    if readers:
        in_rows += context.timing.arrival(shape.nbytes, context.timing.long_run)
    if across > WORTH * in_rows:
        return None
    alloc = context.new_resident(result, nbytes)
    return None if alloc is None else resident_view(alloc, shape.dtype, shape.dims, lies)


def _waits(timing: Timing, problems: Sequence[Problem]) -> bool:
    """Whether columns are transposed, all of them ahead of the first product, and take longer to come than others wait
    for a transfer.
    """
    transposed = [each.rhs for each in problems if each.rhs.transposed]
    nbytes = max((prod(each.n) * prod(each.k) * itemsize(each.rhs.stored) for each in problems), default=0)
    return bool(transposed) and timing.transfer(nbytes, timing.long_run).bound > timing.transfer_latency


def _time(context: Context, contraction: Contraction, bound: Sequence[Bound], out: View, adds: Sequence[View]) -> float:
    """Nanoseconds; infinite where arrays do not nest or nothing fits. Those of FP32 for tf32, which lies as that does
    so that it never takes longer.
    """
    found = [
        replace(each, flags=(), compared=itemsize(each.rhs.stored) == 1)
        for each in problems_of(context, contraction, bound, out, adds)
    ]
    return context.planner.time(context.planner.easiest(found)) if found else inf


def _readers(value: hlo.SSAValue) -> list[hlo.Operation]:
    """What reads ``value``, maybe with other dims of size 1."""
    found: list[hlo.Operation] = []
    for op in (use.operation for use in value.uses):
        if isinstance(op, hlo.ReshapeOp) and squeeze(op.shape.dims) == squeeze(hlo.shape_of(value).dims):
            found += _readers(op.result)
        elif not isinstance(op, hlo.ReturnOp):
            found.append(op)
    return found


def _repeated(context: Context, readers: Sequence[hlo.Operation], columns: int) -> Partitions | None:
    """How an array on chip lies that all columns are repeated along, as gates of features are; None without one."""
    repeated = [use.operation for op in readers if isinstance(op, hlo.BroadcastOp) for use in op.result.uses]
    for array in (source for op in repeated if isinstance(op, hlo.ElementwiseOp) for source in op.sources):
        for view in context.views(array) if base(array) in context.homes else []:
            found = partitions_of(view) if view.in_sbuf else None
            if found is None or hlo.shape_of(array).dims[found.axis] != columns:
                continue
            if found.inner in (1, columns // found.size):
                return found
    return None


def near_home(context: Context, contraction: Contraction, array: hlo.SSAValue, out: View) -> View | None:
    """How an array lies on chip, each row on a partition of its own; as the result does if that lies there, too.

    None if it does not: what is repeated for all rows lies on one partition, from which the others read nothing.
    """
    if views_of_cast(context, array):
        return None
    one_row = prod(contraction.sizes(0)[1]) == 1
    return next(
        (
            view
            for view in context.views(array)
            if view.in_sbuf and (_alike(view, out) if out.in_sbuf else one_row or view.partition_atom is not None)
        ),
        None,
    )


def _alike(view: View, other: View) -> bool:
    """Whether elements of both lie on the same partitions, in the same order, whatever their types."""
    return all(
        [(atom.size, atom.partition) for atom in atoms] == [(atom.size, atom.partition) for atom in others]
        for atoms, others in zip(view.dims, other.dims, strict=True)
    )
