"""Computes all iterations of a loop at once where they wait for each other through recurrences only, or not at all.

Input: ``flatten_control``'s form. Output: a counted loop is gone if each element of its state that anything needs

* counts, or stays the same;
* is an array that every iteration writes a window of its own into, one after the other, and nothing reads;
* does not depend on itself, so that an iteration finds what the one before it made;
* or is updated element by element, ``outer(inner(a, c), b)`` with ``a`` and ``b`` that do not depend on it
  (``expansions.recurrences``): sums, products, extremes, and linear recurrences, as of generalised advantages,
  exponential averages, filters of first order and states with diagonal decay; states of 16 bits are added up in FP32;

if everything else in its body can be computed of arrays with the iterations as their first dim
(``expansions.stacking``), if these fit, and if that takes less time by estimate. Inner loops come first.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, erase, ops_of, replace, users
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import INTEGERS, NARROW, NUMPY_DTYPE
from neuronx_cc.passes.analysis import batching_cost
from neuronx_cc.passes.analysis.effects import effectful_computations, has_effects
from neuronx_cc.passes.analysis.loop_state import Invariants
from neuronx_cc.passes.analysis.trip_count import Count, counted_loops, element_of, step_of
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.expansions.build import Value
from neuronx_cc.passes.expansions.recurrences import SAME, Line, Update, step
from neuronx_cc.passes.expansions.stacking import Stacks, Walk
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.simplify_control import elements, packed


@only_for(hlo.WhileOp)
def run(module: HloModule, context: PassContext) -> None:
    effectful = effectful_computations(module)
    for loop, counted in counted_loops(module):
        if counted.trips > 1:
            mixed = context.options.mixed_precision_accumulation
            _Loop(module, loop, counted, context.timing, mixed).batch(effectful)


@dataclass(frozen=True, slots=True)
class _Output:
    """An array of the state that windows are written into."""

    op: hlo.HloOp
    window: tuple[int, ...]
    part: Value
    starts: tuple[Value, ...]
    drops: bool = False
    """Windows beyond the array are dropped, not moved."""


class _Loop:
    def __init__(self, module: HloModule, loop: hlo.WhileOp, counted: Count, timing: Timing, mixed: bool) -> None:
        """``mixed``: what narrow floats add up to is rounded once."""
        self.module, self.loop, self.timing, self.mixed = module, loop, timing, mixed
        self.trips = counted.trips
        self.counted = counted
        self.known = Invariants(module, loop)
        self.body = self.known.body
        self.initial, self.results = packed(loop.operand), packed(self.body.root)
        self.reads = {
            index: [element.result for element in found] for index, found in elements(self.body.block.args[0]).items()
        }
        after = elements(loop.result)
        self.wanted = {index: found for index, found in after.items() if any(users(x.result) for x in found)}
        self.needed, self.ops = self._needed()
        self.place: dict[hlo.Operation, int] = {op: at for at, op in enumerate(self.ops)}
        self.outputs = self._outputs()

    def _needed(self) -> tuple[list[int], list[hlo.HloOp]]:
        """The elements of the state, and the ops of the body, that what is wanted is computed from."""
        found, pending = set(self.wanted), list(self.wanted)
        reached: set[hlo.Operation] = set()
        while pending:
            values = [self.results[pending.pop()]]
            while values:
                value = values.pop()
                index, op = element_of(value, self.body), defining_op(value)
                if index is not None and index not in found:
                    found.add(index)
                    pending.append(index)
                elif index is None and op is not None and op not in reached:
                    reached.add(op)
                    values += op.operands
        return sorted(found), [op for op in ops_of(self.body.block) if op in reached]

    def _outputs(self) -> dict[int, _Output]:
        found = {}
        for index in self.needed:
            op, reads = defining_op(self.results[index]), self.reads.get(index, [])
            handed_on = users(self.results[index]) == [defining_op(self.body.root)]
            if not handed_on or sum(len(users(read)) for read in reads) != 1:
                continue
            output = None
            if isinstance(op, hlo.DynamicUpdateSliceOp):
                output = _Output(op, hlo.shape_of(op.args[1]).dims, op.args[1], tuple(op.args[2:]))
            elif isinstance(op, hlo.ScatterOp):
                output = _row_written(op, self.module)
            if output is not None and output.op.operands[0] in reads:
                found[index] = output
        return found

    def batch(self, effectful: Set[str]) -> None:
        """Put what the loop makes ahead of it, computed at once, if that can be done and takes less time."""
        if not self.wanted or any(has_effects(op, effectful) for op in ops_of(self.body.block)):
            return
        if any(isinstance(op, hlo.RegionOp) for op in self.ops):
            return
        before = self.loop.prev_op
        done = self._at_once()
        block = self.loop.parent
        assert block is not None
        made = []
        op = self.loop.prev_op
        while op is not before and isinstance(op, hlo.HloOp):
            made.append(op)
            op = op.prev_op
        if done is not None and self._pays(made, list(done.values())):
            for index, found in self.wanted.items():
                for element in found:
                    replace(element, done[index])
            erase(self.loop)
        for each in made:
            if not users(each.results[0]):
                erase(each)

    def _pays(self, made: Sequence[hlo.HloOp], results: Sequence[Value]) -> bool:
        wanted = {defining_op(value) for value in results}
        live = {*wanted}
        for op in made:  # the last one first
            if op in live:
                live |= {defining_op(operand) for operand in op.operands}
        kept = [op for op in made if op in live]
        alone = batching_cost.in_turn(self.ops, self.trips, self.timing)
        return batching_cost.fits(kept, wanted, self.timing) and batching_cost.at_once(kept, self.timing) < alone

    def _at_once(self) -> dict[int, Value] | None:
        """What the loop leaves of each element that is wanted."""
        stacks = Stacks(self.known, self.trips, False, self.timing)
        self._count(stacks)
        walks = {index: self._walk(stacks, index) for index in self.outputs}
        if not all(isinstance(walk, Walk) for walk in walks.values()):
            return None
        stacks.reverse = self._goes_backwards(stacks, [walk for walk in walks.values() if isinstance(walk, Walk)])
        line = Line(stacks.build, self.trips, stacks.reverse)
        done: dict[int, Value] = {}
        known = {index for index in self.needed if self._is_known(stacks, index)}
        pending = [index for index in self.needed if index not in known and index not in self.outputs]
        while self._advance(stacks):
            solved = {index for index in pending if self._solve(stacks, line, index, done)}
            if not solved:
                break
            pending = [index for index in pending if index not in solved]
        if pending:
            return None
        for index, walk in walks.items():
            output, initial = self.outputs[index], self.initial[index]
            assert isinstance(walk, Walk)
            if output.part not in stacks:
                return None
            parts = stacks.array(output.part)
            parts = stacks.build.reshape(parts, (self.trips, *output.window))
            written = stacks.written(initial, walk, parts)
            if written is None:
                return None
            done[index] = written
        for index in self.wanted:
            if index in known:
                value = self._last_known(stacks, index)
                if value is None:
                    return None
                done[index] = value
        return done

    # what counts

    def _count(self, stacks: Stacks) -> None:
        """Enter the counters among the state, and the numbers that are computed from them."""
        for index, reads in self.reads.items():
            number = splat_number(self.initial[index], self.module)
            shape = hlo.shape_of(self.initial[index])
            amount = step_of(self.results[index], index, self.body, self.module)
            if shape.dtype not in INTEGERS or shape.size != 1 or number is None or amount is None:
                continue
            counts = (int(number) + amount * np.arange(self.trips)).astype(NUMPY_DTYPE[shape.dtype])
            stacks.numbers.update(dict.fromkeys(reads, counts))
        for op in self.ops:
            stacks.add_number(op)

    def _is_known(self, stacks: Stacks, index: int) -> bool:
        same = element_of(self.results[index], self.body) == index
        return same or any(read in stacks.numbers for read in self.reads.get(index, ()))

    def _last_known(self, stacks: Stacks, index: int) -> Value | None:
        if element_of(self.results[index], self.body) == index:
            return self.initial[index]
        numbers = stacks.number(self.results[index])
        shape = hlo.shape_of(self.initial[index])
        if numbers is None:
            return None
        return stacks.build.reshape(stacks.build.number(numbers[-1], shape.dtype), shape.dims)

    def _walk(self, stacks: Stacks, index: int) -> Walk | list[int] | None:
        output, dims = self.outputs[index], hlo.shape_of(self.initial[index]).dims
        for start, size, width in zip(output.starts, dims, output.window, strict=True):
            places = stacks.number(start) if output.drops and width < size else None
            if places is not None and (places.min() < 0 or places.max() > size - width):
                return None
        return stacks.walk(dims, output.window, output.starts)

    def _goes_backwards(self, stacks: Stacks, walks: Sequence[Walk]) -> bool:
        """Whether more arrays are walked through backwards than forwards."""
        ways = [walk.backwards for walk in walks]
        for op in self.ops:
            if isinstance(op, hlo.DynamicSliceOp):
                walk = stacks.walk(hlo.shape_of(op.args[0]).dims, op.shape.dims, op.args[1:])
                ways += [walk.backwards] if isinstance(walk, Walk) else []
        return 2 * sum(ways) > len(ways)

    # what is carried

    def _advance(self, stacks: Stacks) -> bool:
        """Stack what can be; False where an op has no form for all iterations."""
        written = {output.op for output in self.outputs.values()}
        for op in self.ops:
            ready = op not in written and op.results[0] not in stacks and all(x in stacks for x in op.operands)
            if ready and not stacks.add(op):
                return False
        return True

    def _solve(self, stacks: Stacks, line: Line, index: int, done: dict[int, Value]) -> bool:
        """Whether the element of the state is known in all iterations now."""
        result, reads, initial = self.results[index], self.reads.get(index, []), self.initial[index]
        if result in stacks:
            states: Value | None = stacks.array(result)
        else:
            forms = self._forms(stacks, reads)
            if result not in forms:
                return False
            dtype, start = hlo.shape_of(initial).dtype, _wide(stacks, initial)
            if self._is_apart(forms, result):
                total = line.total(forms[result], start)
                if total is not None:
                    done[index] = stacks.build.convert(total, dtype)
                    return True
            states = line.states(forms[result], start)
            if states is None:
                return False
            states = stacks.build.convert(states, dtype)
            if not self._is_parted(forms, reads, result):
                stacks.arrays[result] = states
        assert states is not None
        if reads:
            stacks.arrays.update(dict.fromkeys(reads, line.before(initial, states)))
        if index in self.wanted:
            done[index] = line.last(states)
        return True

    def _forms(self, stacks: Stacks, reads: Sequence[Value]) -> dict[Value, Update]:
        """What follows from ``reads``, the element of the state, by one update, ops in their order."""
        forms: dict[Value, Update] = dict.fromkeys(reads, SAME)
        pending = sorted({self.place[user] for read in reads for user in users(read) if user in self.place})
        while pending:
            op = self.ops[heappop(pending)]
            if op.results[0] in forms:
                continue  # by its other operand
            self._follow(stacks, op, forms)
            if op.results[0] in forms:
                for user in users(op.results[0]):
                    if user in self.place:
                        heappush(pending, self.place[user])
        return forms

    def _follow(self, stacks: Stacks, op: hlo.HloOp, forms: dict[Value, Update]) -> None:
        if not isinstance(op, hlo.ElementwiseOp):
            return
        if op.shape.dtype in NARROW and not self.mixed and not isinstance(op, hlo.ExtremeOp):
            return
        carried = any(operand in forms for operand in op.operands)
        ready = carried and all(x in forms or x in stacks for x in op.operands)
        if not ready or any(hlo.shape_of(operand).dims != op.shape.dims for operand in op.operands):
            return
        operands = [forms[x] if x in forms else _wide(stacks, stacks.array(x)) for x in op.operands]
        form = step(stacks.build, stacks.trips, op, operands)
        if form is not None:
            forms[op.results[0]] = form

    def _is_parted(self, forms: dict[Value, Update], reads: Sequence[Value], result: Value) -> bool:
        """Whether the new value is an extreme of sums, of which others read one: gradients ask whether the extreme is
        that one, so that both must be made of the same state, in the order of the program.
        """
        if not issubclass(forms[result].outer, hlo.ExtremeOp) or forms[result].a is None:
            return False
        sums = [value for value in forms if value is not result and value not in reads]
        return any(user in self.place and user.results[0] not in forms for value in sums for user in users(value))

    def _is_apart(self, forms: dict[Value, Update], result: Value) -> bool:
        """Whether nothing in the body reads a carried value but what updates it."""
        root = defining_op(self.body.root)
        for value in forms:
            readers = users(value)
            if value is result:
                readers.remove(root)  # type: ignore[arg-type]
                if readers:
                    return False
            elif any(reader is root or reader.results[0] not in forms for reader in readers):
                return False
        return True


def _wide(stacks: Stacks, value: Value) -> Value:
    """``value``, in FP32 if it is of narrower floats: states are rounded once they are there."""
    return stacks.build.convert(value, "f32") if hlo.shape_of(value).dtype in NARROW else value


def _row_written(op: hlo.ScatterOp, module: HloModule) -> _Output | None:
    """A scatter of one window in the place of what is there, along the first dims of the array."""
    if len(op.args) != 3:
        return None
    array, at, part = op.args
    dims, body = op.dims.data, module.computation(op.to_apply.data[0])
    axes = dims.scatter_dims_to_operand_dims
    single = len(axes) == 1 and hlo.shape_of(at).size == 1 and not dims.input_batching_dims
    if not single or hlo.shape_of(array).dims[axes[0]] == 1 or body.root is not body.block.args[1]:
        return None
    window = list(hlo.shape_of(array).dims)
    window[axes[0]] = 1
    if hlo.shape_of(part).size * hlo.shape_of(array).dims[axes[0]] != hlo.shape_of(array).size:
        return None
    return _Output(op, tuple(window), part, (at,) * len(window), drops=True)
