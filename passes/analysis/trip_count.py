"""How often a loop is run, where that shows at compile time. No pass: ``codegen`` and other passes ask it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of
from neuronx_cc.ir.types import INTEGERS, NUMPY_DTYPE
from neuronx_cc.passes.analysis.values import splat_number

_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}


@dataclass(frozen=True, slots=True)
class Count:
    """``trips`` iterations, in which element ``index`` of the state is ``start``, ``start + step``, ..."""

    trips: int
    index: int
    start: int
    step: int


def counted_loops(module: HloModule) -> Iterator[tuple[hlo.WhileOp, Count]]:
    """The loops whose trips show. The one that is given may be replaced before the next one is asked for."""
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.WhileOp) and (found := count(op, module)) is not None:
                yield op, found


def trip_count(op: hlo.WhileOp, module: HloModule) -> int | None:
    """Trips of ``op``, if they show."""
    found = count(op, module)
    return None if found is None else found.trips


def count(op: hlo.WhileOp, module: HloModule) -> Count | None:
    """How ``op`` counts: an integer element of the state starts at a constant, each trip adds a constant to it, and
    the condition compares it with a constant. None when it is of another form, or not known to end.
    """
    counter = _counter(op, module)
    if counter is None:
        return None
    index, start, step, direction, bound, dtype = counter
    trips = _trips(start, step, direction, bound)
    if trips is None or not 0 <= trips < 1 << 32:
        return None
    last = start + trips * step
    info = np.iinfo(NUMPY_DTYPE[dtype])
    return Count(trips, index, start, step) if info.min <= last <= info.max else None


def _trips(start: int, step: int, direction: str, bound: int) -> int | None:
    if direction == "NE":
        if bound == start:
            return 0
        ends = step != 0 and (bound - start) % step == 0 and (bound - start) // step > 0
        return (bound - start) // step if ends else None
    limit = bound + {"LE": 1, "GE": -1}.get(direction, 0)
    if direction in ("LT", "LE"):
        return 0 if start >= limit else -(-(limit - start) // step) if step > 0 else None
    if direction in ("GT", "GE"):
        return 0 if start <= limit else -(-(start - limit) // -step) if step < 0 else None
    return None


def _counter(op: hlo.WhileOp, module: HloModule) -> tuple[int, int, int, str, int, str] | None:
    """(element, start, step, direction, bound, element type) of the counter."""
    condition, body = module.computation(op.condition.data[0]), module.computation(op.body.data[0])
    compare = defining_op(condition.root)
    if not isinstance(compare, hlo.CompareOp):
        return None
    lhs, rhs, direction = compare.lhs, compare.rhs, compare.direction.data
    if element_of(lhs, condition) is None:
        lhs, rhs, direction = rhs, lhs, _MIRRORED[direction]
    index, bound = element_of(lhs, condition), splat_number(rhs, module)
    initial = defining_op(op.operand)
    root = defining_op(body.root)
    if index is None or not isinstance(initial, hlo.TupleOp) or not isinstance(root, hlo.TupleOp):
        return None
    dtype = hlo.shape_of(lhs).dtype
    if bound is None:
        other = element_of(rhs, condition)
        if other is None or element_of(root.operands[other], body) != other:
            return None
        bound = splat_number(initial.operands[other], module)
    start = splat_number(initial.operands[index], module)
    step = step_of(root.operands[index], index, body, module)
    if dtype not in INTEGERS or start is None or bound is None or step is None:
        return None
    return index, int(start), step, direction, int(bound), dtype


def step_of(value: hlo.SSAValue, index: int, body: hlo.ComputationOp, module: HloModule) -> int | None:
    """What each trip adds to element ``index`` of the state."""
    op = defining_op(value)
    if isinstance(op, hlo.AddOp):
        for counter, amount in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            number = splat_number(amount, module)
            if element_of(counter, body) == index and number is not None:
                return int(number)
    if isinstance(op, hlo.SubtractOp) and element_of(op.lhs, body) == index:
        number = splat_number(op.rhs, module)
        return None if number is None else -int(number)
    return None


def element_of(value: hlo.SSAValue, computation: hlo.ComputationOp) -> int | None:
    """The element of the computation's tuple that ``value`` is, or None."""
    op = defining_op(value)
    if isinstance(op, hlo.GetTupleElementOp) and op.operand is computation.block.args[0]:
        return op.index.data
    return None
