"""Computes the contractions of all iterations of a loop at once, where they do not depend on each other.

Input: ``flatten_control``'s form, after ``hoist_invariants``. Output: a contraction in the body of a loop whose one
operand is the same in every iteration, and whose other one is row ``i`` of an array that is, becomes row ``i`` of one
contraction of the whole array ahead of the loop, with what is added to it and is the same in every iteration. So the
projections of a recurrent layer's inputs take few large products instead of many small ones, which leave most columns
of TensorE idle and read the weights again and again.

Only where a contraction has few rows, and the loop uses most rows of the array.
"""

from collections.abc import Set
from dataclasses import dataclass, replace
from math import ceil, prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, users
from neuronx_cc.ir.hlo.editing import replace as replace_op
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing, total
from neuronx_cc.ir.types import FLOATS, itemsize
from neuronx_cc.passes.analysis.effects import effectful_computations
from neuronx_cc.passes.analysis.loop_state import Invariants
from neuronx_cc.passes.analysis.trip_count import counted_loops
from neuronx_cc.passes.dce import sweep
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

HBM_SHARE = 16
"""The results of all iterations may take one of so many parts of HBM."""


@dataclass(frozen=True, slots=True)
class Row:
    """A value of the body that is index ``starts`` along dim ``axis`` of an array ahead of the loop."""

    array: Value
    axis: int
    starts: tuple[Value, ...]
    """Of the window in an array with the dims of ``array``."""


@only_for(hlo.WhileOp)
def run(module: HloModule, context: PassContext) -> None:
    effectful = effectful_computations(module)
    for loop, counted in counted_loops(module):
        if counted.trips > 1:
            _hoist(module, loop, counted.trips, effectful, context.timing)


def _hoist(module: HloModule, loop: hlo.WhileOp, trips: int, effectful: Set[str], timing: Timing) -> None:
    known = Invariants(module, loop)
    found: list[tuple[hlo.HloOp, Row]] = []
    for op in list(ops_of(known.body.block)):
        if isinstance(op, hlo.DotOp):
            row = _product(known, op, trips, timing)
            if row is not None:
                found.append(_with_sums(known, op, row))
    if not found:
        return
    arrays = known.hand_in([row.array for _, row in found])
    for (op, row), array in zip(found, arrays, strict=True):
        b = Build.before(module, op)
        dims = op.shape.dims
        part = b.dynamic_slice(array, row.starts, (*dims[: row.axis], 1, *dims[row.axis :]))
        replace_op(op, b.reshape(part, dims))
    sweep(known.body, effectful)


def _product(known: Invariants, op: hlo.DotOp, trips: int, timing: Timing) -> Row | None:
    """The contraction of all rows, ahead of the loop; None where that is not possible or does not pay."""
    dims = op.dims.data
    rank = len(dims.lhs_batch)
    for place, (batch, contracted) in enumerate(
        ((dims.lhs_batch, dims.lhs_contracting), (dims.rhs_batch, dims.rhs_contracting))
    ):
        value, other = op.operands[place], op.operands[1 - place]
        row = _row(known, value)
        if row is None or other not in known:
            continue
        shape, size = hlo.shape_of(value), hlo.shape_of(row.array).dims[row.axis]
        free = [axis for axis in range(shape.rank) if axis not in (*batch, *contracted)]
        if prod(shape.dims) == 0 or size > 2 * trips or op.shape.nbytes * size * HBM_SHARE > timing.sizes.hbm_bytes:
            continue
        rows, contracted_size = prod(shape.dims[axis] for axis in free), prod(shape.dims[axis] for axis in contracted)
        if not _pays(timing, op, rows, contracted_size, size, trips):
            continue
        moved = [tuple(axis + (axis >= row.axis) for axis in axes) for axes in (contracted, batch)]
        names = ("lhs_contracting", "lhs_batch") if place == 0 else ("rhs_contracting", "rhs_batch")
        numbers = replace(dims, **dict(zip(names, moved, strict=True)))
        before = sum(axis < row.axis for axis in free)
        lhs_free = hlo.shape_of(op.lhs).rank - rank - len(dims.lhs_contracting)
        axis = rank + before + (0 if place == 0 else lhs_free)
        operands = [row.array, known.copy(other)] if place == 0 else [known.copy(other), row.array]
        result = (*op.shape.dims[:axis], size, *op.shape.dims[axis:])
        b = Build.before(known.module, known.loop)
        b.loc = op.loc
        properties = {**op.properties, "dims": hlo.DotDimsAttr(numbers)}
        made = b.typed(hlo.DotOp, operands, hlo.array_type(op.shape.dtype, result), **properties)
        return Row(made, axis, _starts(row, axis, len(result)))
    return None


def _pays(timing: Timing, op: hlo.DotOp, rows: int, contracted: int, size: int, trips: int) -> bool:
    """Whether one contraction of ``size`` times ``rows`` rows takes less time than ``trips`` of ``rows`` each.

    In the loop each one waits until what it multiplies is there, and what reads its sums waits for these; ahead of it
    they overlap, but results are stored and loaded.
    """
    dtype, sizes = hlo.shape_of(op.lhs).dtype, timing.sizes
    dtype = dtype if dtype in FLOATS else "f32"
    others = op.shape.size // rows
    tiles = ceil(contracted / sizes.rows) * ceil(others / sizes.columns)

    def products(count: int) -> float:
        blocks, rest = divmod(count, sizes.moving)
        works = [timing.product(sizes.columns, sizes.moving, dtype).times(blocks)]
        works += [timing.product(sizes.columns, rest, dtype)] if rest else []
        return tiles * total(works).tensor

    alone = products(rows) + timing.latency(Stream.TENSOR) + timing.latency(Stream.SCALAR)
    run = others * itemsize(op.shape.dtype)
    moved = timing.transfer(op.shape.nbytes * size, run, "write") + timing.transfer(op.shape.nbytes * trips, run)
    return max(products(rows * size), moved.bound) < trips * alone


def _starts(row: Row, axis: int, rank: int) -> tuple[Value, ...]:
    """The starts of a window at the index of ``row`` along ``axis`` of an array of ``rank`` dims."""
    others = [start for number, start in enumerate(row.starts) if number != row.axis]
    # windows that span a dim start at 0, whatever their start says
    filler = others[0] if others else row.starts[row.axis]
    return tuple(row.starts[row.axis] if number == axis else filler for number in range(rank))


def _row(known: Invariants, value: Value) -> Row | None:
    """``value`` as a row of an array that the loop does not change, if it is one; casts are moved to the array."""
    found = known.row_of(value)
    if found is None:
        return None
    window, axis, casts = found
    array, *starts = window.args
    outer = known.copy(array)
    for dtype in casts:
        outer = Build.before(known.module, known.loop).convert(outer, dtype)
    return Row(outer, axis, tuple(starts))


def _with_sums(known: Invariants, op: hlo.HloOp, row: Row) -> tuple[hlo.HloOp, Row]:
    """Follow the sums of ``op`` and what is the same in every iteration: the last one, and the row that it is."""
    while True:
        following = users(op.results[0])
        if len(following) != 1 or not isinstance(following[0], hlo.AddOp):
            return op, row
        (sum_,) = following
        assert isinstance(sum_, hlo.AddOp)
        other = sum_.rhs if sum_.lhs is op.results[0] else sum_.lhs
        if other is op.results[0] or other not in known:
            return op, row
        b = Build.before(known.module, known.loop)
        b.loc = sum_.loc
        dims = hlo.shape_of(row.array).dims
        spread = b.broadcast(known.copy(other), dims, [axis for axis in range(len(dims)) if axis != row.axis])
        terms = (row.array, spread) if other is sum_.rhs else (spread, row.array)
        op, row = sum_, replace(row, array=b.add(*terms))
