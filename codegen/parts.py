"""Results that are parts of a larger array: their kernels write them where they lie in it, and nothing is copied.

Parts are the pieces of a concatenation, and what a loop puts into an array at the place that its counter says, as
``lax.scan`` stacks its results. A part is a run of memory in the array.
The array is nobody's before its parts are there: a concatenation has a buffer of its own, and the array of a loop is
read by the update alone, so that what stands in the window is of no interest to the iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.control import counters
from neuronx_cc.codegen.emission.views import View, coalesce
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.ir import hlo

Place = tuple[hlo.SSAValue, int]
"""A part, and where it starts along the axis of a concatenation."""


class Lowered(Protocol):
    """A computation as kernels (``blocks.Block``)."""

    kernels: list[Kernel]

    def step_of(self, value: hlo.SSAValue) -> int: ...


@dataclass(slots=True)
class Parts:
    """Which kernels of a computation write parts of what arrays."""

    context: Context
    joined: dict[int, list[tuple[hlo.ConcatenateOp, list[Place]]]] = field(default_factory=dict)
    """Step of the first part that is computed -> the concatenations, with the parts that are written in place."""
    _claimed: set[hlo.SSAValue] = field(default_factory=set)

    @classmethod
    def of(cls, context: Context, block: Lowered) -> Parts:
        """The concatenations among the kernels of ``block``."""
        found = cls(context)
        for kernel in block.kernels:
            for op in kernel.ops:
                if isinstance(op, hlo.ConcatenateOp) and not _is_lent(context, op.result):
                    places = found._claim(op, block.step_of(op.result))
                    if places:
                        first = min(block.step_of(source) for source, _ in places)
                        found.joined.setdefault(first, []).append((op, places))
        return found

    def before(self, step: int) -> None:
        """Give the arrays whose first part is made in ``step`` their buffers, and all of their parts places."""
        context = self.context
        for op, places in self.joined.pop(step, ()):
            # what is used last has the buffer: nothing may be written over the others that are still to be read
            last = max([op.result, *(source for source, _ in places)], key=context.last_use)
            given = op.result in context.outputs or last is op.result
            whole = context.new_hbm(op.result) if given else context.own_hbm(last, op.shape)
            context.homes[op.result] = [whole]
            for source, start in places:
                place = _window(whole, op, start, source)
                if place is not None:
                    context.outputs[source] = place

    def _claim(self, op: hlo.ConcatenateOp, step: int) -> list[Place]:
        """The parts of ``op``, of kernel ``step``, that may be written in place; each is of one array only.

        The last kernel that reads the whole may write over it: none that reads a part as well.
        """
        found, end = [], self.context.last_use(op.result)
        if prod(op.shape.dims[: op.dimension.data]) == 1:  # parts are runs: kernels write results that are dense
            for source, start in _places(op):
                apart = self.context.last_use(source) != end or end == step
                if apart and _is_computed(self.context, source) and source not in self._claimed:
                    self._claimed.add(source)
                    found.append((source, start))
        return found


def update_of(context: Context, old: Sequence[hlo.SSAValue], result: hlo.SSAValue) -> hlo.DynamicUpdateSliceOp | None:
    """The update by which an iteration leaves ``result`` of the element ``old`` of a loop's state, at a place that the
    counter says, where nothing else reads either.
    """
    op = result.owner
    if not isinstance(op, hlo.DynamicUpdateSliceOp) or len(old) != 1 or op.args[0] is not old[0]:
        return None
    alone = old[0].has_one_use() and result.has_one_use()
    return op if alone and counters.is_counted(context, op) else None


def stack(context: Context, block: Lowered, home: View, op: hlo.DynamicUpdateSliceOp) -> None:
    """Let what ``op`` (see ``update_of``) puts into the array in ``home`` be written there at once."""
    source = _source(op.args[1])
    if block.step_of(source) < 0 or not _is_computed(context, source):
        return
    window = counters.window(context, op, home, lambda start, _: context.counted[start])
    window = window.reshape(hlo.shape_of(source).dims) if window is not None else None
    if window is not None and _is_run(window):
        context.outputs[source] = window


def _places(op: hlo.ConcatenateOp) -> Iterator[Place]:
    """What each operand is a reshape of, and where it starts; those that occur once."""
    sources = [_source(operand) for operand in op.args]
    counts, start = Counter(sources), 0
    for operand, source in zip(op.args, sources, strict=True):
        if counts[source] == 1:
            yield source, start
        start += hlo.shape_of(operand).dims[op.dimension.data]


def _window(whole: View, op: hlo.ConcatenateOp, start: int, source: hlo.SSAValue) -> View | None:
    axis, shape = op.dimension.data, hlo.shape_of(source)
    size = shape.size * op.shape.dims[axis] // op.shape.size
    window = whole.slice(axis, start, size)
    return window.reshape(shape.dims) if window is not None else None


def _source(value: hlo.SSAValue) -> hlo.SSAValue:
    while isinstance(value.owner, hlo.ReshapeOp):
        value = value.owner.operand
    return value


def _is_computed(context: Context, value: hlo.SSAValue) -> bool:
    """Whether a kernel makes ``value``, for which no place is known."""
    op = value.owner
    kinds = hlo.DotOp | hlo.ConvolutionOp | hlo.ElementwiseOp | hlo.ReduceOp
    if not isinstance(op, kinds) or not hlo.shape_of(value).size:
        return False
    return value not in context.outputs and value not in context.load_casts


def _is_lent(context: Context, value: hlo.SSAValue) -> bool:
    """Whether ``value`` belongs into a buffer that others may still read."""
    place = context.outputs.get(value)
    return place is not None and (place.in_sbuf or any(lent.alloc is place.alloc for lent in context.carried.values()))


def _is_run(window: View) -> bool:
    """Whether neighbours in order are neighbours in memory throughout."""
    return len(coalesce(tuple(atom for atoms in window.dims for atom in atoms))) <= 1
