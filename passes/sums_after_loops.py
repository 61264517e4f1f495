"""Adds up after a loop what its iterations add to a sum, where one contraction or fold does it.

Input: ``flatten_control``'s form, after ``hoist_invariants``. Output: an element of a loop's state to which each
iteration adds a contraction, or the sum of some rows, and which nothing else reads, is computed after the loop, from
the operands of all iterations:

    sum = add(sum, dot(a[i], b))  ->  stack[i] = b, and after the loop: sum + dot(a, stack) over the iterations as well

So the gradients of a recurrent layer's weights are one contraction over all steps; in the loop each step contracts few
rows, which leave most of TensorE idle, and adds to all of the gradient. Operands that are parts of stacked arrays are
there already. Only where stacking the others takes less time than adding. Sums are in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, insert_before, users
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.effects import effectful_computations
from neuronx_cc.passes.analysis.loop_state import Invariants, is_each_part, place_of
from neuronx_cc.passes.analysis.trip_count import Count, counted_loops, element_of
from neuronx_cc.passes.analysis.values import is_float, is_positive_zero, splat_number
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.simplify_control import drop_state, elements, pack_root, packed

HBM_SHARE = 16
"""What is stacked may take one of so many parts of HBM."""

Place = tuple[int, int]
"""The part in the first iteration, and the step to that of the next one."""


@dataclass(frozen=True, slots=True)
class Sum:
    """Element ``index`` of the state, to which ``op`` is added, past ``between``."""

    index: int
    op: hlo.DotOp | hlo.ReduceOp
    between: tuple[hlo.HloOp, ...]
    """Casts and views of what ``op`` makes, the first one first."""
    stacks: tuple[Value | None, ...]
    """Of each operand, the array of the body whose parts it is; None for one that is to be stacked."""
    place: Value | None
    """Where the parts of these arrays start; None without one."""


@only_for(hlo.WhileOp)
def run(module: HloModule, context: PassContext) -> None:
    effectful = effectful_computations(module)
    for loop, counted in counted_loops(module):
        sums = _sums(module, loop, counted)
        chosen = _chosen(sums, counted, context.timing)
        if chosen:
            _Mover(module, loop, counted).move(chosen)
            drop_state(module, loop, effectful)


def _sums(module: HloModule, loop: hlo.WhileOp, counted: Count) -> list[Sum]:
    body, condition = (module.computation(names.data[0]) for names in (loop.body, loop.condition))
    known, read = Invariants(module, loop), elements(body.block.args[0])
    found = []
    for index, result in enumerate(packed(body.root)):
        total = defining_op(result)
        if (
            not isinstance(total, hlo.AddOp)
            or index in elements(condition.block.args[0])
            or not is_float(total.shape.dtype)
        ):
            continue
        alone = [user for each in read.get(index, ()) for user in users(each.result)] == [total]
        if alone and result.has_one_use():
            term = total.rhs if element_of(total.lhs, body) == index else total.lhs
            made = _sum(known, counted, index, term)
            found += [made] if made is not None else []
    return found


def _sum(known: Invariants, counted: Count, index: int, term: Value) -> Sum | None:
    between: list[hlo.HloOp] = []
    while term.has_one_use():
        op = defining_op(term)
        if isinstance(op, hlo.ConvertOp | hlo.TransposeOp | hlo.ReshapeOp):
            between.append(op)
            term = op.operand
        elif isinstance(op, hlo.AddOp) and is_positive_zero(splat_number(op.rhs, known.module)):
            term = op.lhs
        else:
            break
    op = defining_op(term)
    if not term.has_one_use() or not isinstance(op, hlo.DotOp | hlo.ReduceOp):
        return None
    if isinstance(op, hlo.ReduceOp):
        (combiner,) = op.to_apply.data
        folded = defining_op(known.module.computation(combiner).root)
        start = splat_number(op.operands[1], known.module) if len(op.operands) == 2 else None
        if not isinstance(folded, hlo.AddOp) or start != 0:
            return None
    operands = op.operands[:1] if isinstance(op, hlo.ReduceOp) else op.operands
    if any(operand in known or not is_float(hlo.shape_of(operand).dtype) for operand in operands):
        return None
    stacks, place = list[Value | None](), None  # of arrays that all go the same way
    for operand in operands:
        window = _window(known, counted, operand)
        stacks.append(window.args[0] if window is not None else None)
        if window is not None and place is None:
            place = window.args[1]
        elif window is not None and place is not None and not _at_once(known, counted, window.args[1], place):
            stacks[-1] = None
    if place is None and abs(counted.step) != 1:
        return None
    return Sum(index, op, tuple(reversed(between)), tuple(stacks), place)


def _at_once(known: Invariants, counted: Count, one: Value, other: Value) -> bool:
    return place_of(known.module, known.body, counted, one) == place_of(known.module, known.body, counted, other)


def _window(known: Invariants, counted: Count, value: Value) -> hlo.DynamicSliceOp | None:
    """What reads ``value``, the part of an iteration, perhaps cast, from an array that the loop does not change."""
    found = known.row_of(value)
    if found is None or found[1] or len(found[2]) > 1:
        return None
    array, *starts = found[0].args
    dims = hlo.shape_of(array).dims, found[0].shape.dims
    return found[0] if is_each_part(known.module, known.body, counted, *dims, starts) else None


def _chosen(sums: Sequence[Sum], counted: Count, timing: Timing) -> list[Sum]:
    """Those that take less time so; what is stacked for one is there for the others."""
    stacked, chosen = set[Value](), list[Sum]()
    for sum_ in sorted(sums, key=lambda each: isinstance(each.op, hlo.ReduceOp)):
        new = {
            operand
            for operand, stack in zip(sum_.op.operands, sum_.stacks, strict=False)
            if stack is None and operand not in stacked
        }
        shapes = [hlo.shape_of(operand) for operand in new]
        nbytes = sum(shape.nbytes * counted.trips for shape in shapes)
        moved = sum(_moved(timing, shape, counted.trips) for shape in shapes)
        if nbytes * HBM_SHARE <= timing.sizes.hbm_bytes and moved < counted.trips * _added(timing, sum_):
            stacked |= new
            chosen.append(sum_)
    return chosen


def _moved(timing: Timing, shape: hlo.Shape, trips: int) -> float:
    """Nanoseconds in which parts are stored, and loaded again."""
    run = shape.dims[-1] * itemsize(shape.dtype) if shape.dims else itemsize(shape.dtype)
    return sum(timing.transfer(shape.nbytes * trips, run, way).bound for way in ("write", "read"))


def _added(timing: Timing, sum_: Sum) -> float:
    """Nanoseconds of an iteration in which it adds to the sum, and waits for what is added."""
    elements_each = ceil(prod(sum_.op.shape.dims) / timing.sizes.partitions)
    add = timing.engine("tensor_tensor", Stream.VECTOR, elements_each, alu=("add",)).bound
    return add + (timing.latency(Stream.TENSOR) if isinstance(sum_.op, hlo.ReduceOp) else 0)


class _Mover:
    """Moves the sums of one loop after it."""

    def __init__(self, module: HloModule, loop: hlo.WhileOp, counted: Count) -> None:
        self.known = Invariants(module, loop)
        self.module, self.loop, self.counted = module, loop, counted
        after = loop.next_op
        assert after is not None, "a computation ends with its results"
        self.after = Build(module, after, loop.loc)
        self.stacked: dict[tuple[Value, Place], int] = {}
        """Operand, and the order of its parts -> the element of the state that they are stacked in."""

    @property
    def body(self) -> hlo.ComputationOp:
        return self.known.body

    def move(self, sums: Sequence[Sum]) -> None:
        """After the loop what it adds up; its elements stay what they were, for nothing reads them."""
        arrays = {sum_.index: self._arrays(sum_) for sum_ in sorted(sums, key=lambda each: each.place is None)}
        read, results = elements(self.body.block.args[0]), packed(self.body.root)
        for sum_ in sums:
            b = Build(self.module, self.after.anchor, sum_.op.loc)
            total = b.add(packed(self.loop.operand)[sum_.index], _whole(b, sum_, arrays[sum_.index]))
            for element in elements(self.loop.result).get(sum_.index, ()):
                element.result.replace_all_uses_with(total)
            results[sum_.index] = read[sum_.index][0].result
        pack_root(self.body, results)

    def _arrays(self, sum_: Sum) -> list[Value]:
        """Of each operand, the parts of all iterations, after the loop."""
        operands = sum_.op.operands[: len(sum_.stacks)]
        place = sum_.place if sum_.place is not None else self._counter()
        order = place_of(self.module, self.body, self.counted, place)
        assert order is not None, "the order of parts is known"
        made = []
        for operand, stack in zip(operands, sum_.stacks, strict=True):
            if stack is not None:
                array = self.known.copy(stack)
            else:
                array = self.after.element(self.loop.result, self._stack(operand, place, order))
            made.append(array)
        return made

    def _counter(self) -> Value:
        """The number of an iteration."""
        counted, last = self.counted, self.body.block.last_op
        assert last is not None
        b = Build(self.module, last, self.loop.loc)
        count = b.element(self.body.block.args[0], counted.index)
        if (counted.start, counted.step) == (0, 1):
            return count
        start = b.number_like(counted.start, count)
        return b.sub(count, start) if counted.step == 1 else b.sub(start, count)

    def _stack(self, operand: Value, place: Value, order: Place) -> int:
        """The element of the state in which the parts ``operand`` are stacked, which is made if there is none."""
        found = self.stacked.get((operand, order))
        found = self._stacked_already(operand, order) if found is None else found
        if found is None:
            shape, dims = hlo.shape_of(operand), (self.counted.trips, *hlo.shape_of(operand).dims)
            empty = Build.before(self.module, self.loop).number(0, shape.dtype, dims)
            (inside,) = self.known.hand_in([empty])
            last, results = self.body.block.last_op, packed(self.body.root)
            assert last is not None
            b = Build(self.module, last, hlo.loc_of(operand))
            zero = b.number_like(0, place)
            part = b.reshape(operand, (1, *shape.dims))
            results[-1] = b.dynamic_update_slice(inside, part, (place, *[zero] * shape.rank))
            pack_root(self.body, results)
            found = len(results) - 1
        self.stacked[operand, order] = found
        return found

    def _stacked_already(self, operand: Value, order: Place) -> int | None:
        for index, result in enumerate(packed(self.body.root)):
            write = defining_op(result)
            if not isinstance(write, hlo.DynamicUpdateSliceOp) or element_of(write.args[0], self.body) != index:
                continue
            part, whole = defining_op(write.args[1]), hlo.shape_of(write.args[0]).dims
            if not isinstance(part, hlo.ReshapeOp) or part.operand is not operand:
                continue
            starts, known = write.args[2:], (self.module, self.body, self.counted)
            if is_each_part(*known, whole, part.shape.dims, starts) and place_of(*known, starts[0]) == order:
                return index
        return None


def _whole(b: Build, sum_: Sum, arrays: Sequence[Value]) -> Value:
    """What all iterations add up to."""
    op = sum_.op
    arrays = [
        b.convert(array, hlo.shape_of(operand).dtype) for array, operand in zip(arrays, op.operands, strict=False)
    ]
    properties = dict(op.properties)
    if isinstance(op, hlo.DotOp):
        numbers = op.dims.data
        moved = {name: _moved_axes(getattr(numbers, name)) for name in ("lhs_batch", "rhs_batch")}
        moved |= {name: (0, *_moved_axes(getattr(numbers, name))) for name in ("lhs_contracting", "rhs_contracting")}
        properties["dims"] = hlo.DotDimsAttr(replace(numbers, **moved))
        value = insert_before(b.anchor, hlo.DotOp, arrays, op.result.type, b.loc, properties)
    else:
        properties["dimensions"] = hlo.IntsAttr((0, *_moved_axes(op.dimensions.data)))
        folded = [*arrays, b.number(0, op.shape.dtype)]
        value = insert_before(b.anchor, hlo.ReduceOp, folded, op.results[0].type, b.loc, properties)
    for each in sum_.between:
        made = copy_op(each, [value])
        assert b.anchor.parent is not None
        b.anchor.parent.insert_op_before(made, b.anchor)
        value = made.results[0]
    return value


def _moved_axes(axes: Sequence[int]) -> tuple[int, ...]:
    """Of an array that has the iterations outermost."""
    return tuple(axis + 1 for axis in axes)
