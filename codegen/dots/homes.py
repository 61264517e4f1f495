"""Where the result of a contraction lies in HBM: dense, where the program wants it, or in the order of an operand.

Tiles are stored in runs, and what reads them loads runs: another order than that of the result's dims may make both
longer. So each home has the time of the contraction, of those that read it, and of a copy that the program wants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.contraction import Bound, Contraction
from neuronx_cc.codegen.dots.copies import copies_of
from neuronx_cc.codegen.dots.statement import problems_of
from neuronx_cc.codegen.emission.views import View, unplaced
from neuronx_cc.codegen.formation.graph import is_view
from neuronx_cc.codegen.movement.transfer import nanoseconds
from neuronx_cc.codegen.view_ops import seen_by
from neuronx_cc.ir import hlo

MOST_READERS = 4
"""Contractions that are asked about the order of what they read."""
CLEARLY = 1.3
"""How many times less another order has to take."""


def unpermuted(value: hlo.SSAValue, place: View) -> tuple[hlo.SSAValue, View | None]:
    """What ``value`` is a transpose of, and how that lies in its ``place``; None where it would lie in none."""
    found: View | None = place
    while found is not None and isinstance(value.owner, hlo.TransposeOp | hlo.ReshapeOp):
        op = value.owner
        value = op.operand
        if isinstance(op, hlo.TransposeOp):
            order = op.dimensions.data
            found = found.transpose([order.index(dim) for dim in range(len(order))])
        else:
            found = found.reshape(hlo.shape_of(value).dims)
    return value, found


def best_home(
    context: Context, contraction: Contraction, bound: Sequence[Bound], resident: View | None
) -> tuple[View | None, bool]:
    """An unplaced home in HBM that is better than a dense one, if any; whether ``resident`` is no worse than that."""
    result, shape = contraction.result, hlo.shape_of(contraction.result)
    permuted, readers = context.permuted.get(result), _readers(result)
    if contraction.arrays or (permuted is None and not readers):
        return None, True
    dense = unplaced(shape.dtype, shape.dims)
    homes = [
        dense,
        *([permuted] if permuted is not None else []),
        *(_along(contraction, bound, shape) if readers else ()),
    ]

    def nanoseconds_of(home: View) -> float:
        problems = problems_of(context, contraction, bound, home, ())
        if not problems:
            return inf
        _, made = copies_of(context, contraction, bound, home, (), problems)
        if permuted is not None and home is not permuted:
            made += nanoseconds(context.builder, permuted, home) + context.timing.transfer_latency
        return made + sum(_read_ns(context, op, index, value, home) for op, index, value in readers)

    times = [nanoseconds_of(home) * (1 if home is dense else CLEARLY if readers else 1) for home in homes]
    least = min(range(len(homes)), key=times.__getitem__)
    stays = resident is not None and (not least or nanoseconds_of(resident) <= times[least])
    return homes[least] if least else None, stays


def _along(contraction: Contraction, bound: Sequence[Bound], shape: hlo.Shape) -> Iterator[View]:
    """Dense arrays in the order in which each operand in HBM lies, with the other's rows in place of its terms."""
    batch, free = len(contraction.sizes(0)[0]), (contraction.free(0), contraction.free(1))
    seen = {tuple(range(shape.rank))}
    for index, each in enumerate(bound):
        dims = each.view.dims
        if each.view.in_sbuf or each.staged is not None or len(dims) < 3 or not all(dims):
            continue
        own = batch + (free[0] if index else 0)
        others = range(batch, batch + free[0]) if index else range(batch + free[0], shape.rank)
        order: list[int] = []
        for dim in sorted(range(len(dims)), key=lambda dim: -dims[dim][0].stride):
            if dim < batch:
                order.append(dim)
            elif dim < batch + free[index]:
                order.append(own + dim - batch)
            else:
                order += [other for other in others if other not in order]
        order += [other for other in others if other not in order]
        if tuple(order) not in seen:
            seen.add(tuple(order))
            stored = unplaced(shape.dtype, [shape.dims[dim] for dim in order])
            yield stored.transpose([order.index(dim) for dim in range(shape.rank)])


def _readers(result: hlo.SSAValue) -> list[tuple[hlo.DotOp, int, hlo.SSAValue]]:
    """The contractions that read it, with the number of the operand and its value; none if others read it as well."""
    found, pending = list[tuple[hlo.DotOp, int, hlo.SSAValue]](), [result]
    while pending:
        value = pending.pop()
        for use in value.uses:
            if isinstance(use.operation, hlo.DotOp):
                found.append((use.operation, use.index, value))
            elif isinstance(use.operation, hlo.HloOp) and is_view(use.operation):
                pending.append(use.operation.results[0])
            elif not isinstance(use.operation, hlo.TupleOp):
                return []
    return found if len(found) <= MOST_READERS else []


def _read_ns(context: Context, op: hlo.DotOp, index: int, value: hlo.SSAValue, home: View) -> float:
    """Nanoseconds of a contraction that reads ``value``, of what lies in ``home``."""
    view = seen_by(value, home)
    contraction = Contraction(op, op.result, 0)
    if view is None:
        return inf
    other = hlo.shape_of(op.operands[1 - index])
    views = [view, unplaced(other.dtype, other.dims)][:: -1 if index else 1]
    bound = [
        Bound(operand, each.transpose(contraction.order(at)))
        for at, (operand, each) in enumerate(zip(op.operands, views, strict=True))
    ]
    wanted = context.permuted.get(op.result)
    out = wanted if wanted is not None else unplaced(op.shape.dtype, op.shape.dims)
    problems = problems_of(context, contraction, bound, out, ())
    return context.planner.time(context.planner.easiest(problems)) if problems else inf


def placed(context: Context, result: hlo.SSAValue, home: View) -> View:
    """A home of its own for what lies so."""
    if context.permuted.get(result) == home:
        return home
    array = context.own_hbm(result, hlo.shape_of(result))
    return View(array.alloc, home.dtype, array.start, home.dims)
