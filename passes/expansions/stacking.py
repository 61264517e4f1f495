"""What the body of a counted loop computes, of all iterations at once, ahead of the loop.

A value of the body is the same in every iteration (``outer``), a known number in each (``numbers``: counters and what
is computed from them), or row t of an array with the iterations along dim 0 (``arrays``), in the order of memory: the
last iteration comes first where the loop walks backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import copy_op
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.scans import scan_of
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.analysis.effects import has_effects
from neuronx_cc.passes.analysis.loop_state import Invariants
from neuronx_cc.passes.analysis.values import splat_of
from neuronx_cc.passes.analysis.windows import PLAIN
from neuronx_cc.passes.expansions.build import Build, Value

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Walk:
    """Windows of ``width`` elements along ``axis`` that an array is walked through by, from ``low`` on."""

    axis: int
    low: int
    width: int
    stride: int
    """Between the starts of neighbouring windows."""
    backwards: bool


class Stacks:
    """The values of a loop's body, of all ``trips`` iterations."""

    def __init__(self, known: Invariants, trips: int, reverse: bool, timing: Timing) -> None:
        from neuronx_cc.ir.reference import evaluator

        self.known, self.trips, self.reverse = known, trips, reverse
        self.build = Build.before(known.module, known.loop, timing)
        self.outer = known.outside
        self.numbers: dict[Value, Array] = {}
        self.arrays: dict[Value, Value] = {}
        self._apply = evaluator(known.module).apply

    def __contains__(self, value: Value) -> bool:
        return value in self.outer or value in self.numbers or value in self.arrays

    def array(self, value: Value) -> Value:
        """``value`` with the iterations as dim 0."""
        if value not in self.arrays:
            dims, dtype = hlo.shape_of(value).dims, hlo.shape_of(value).dtype
            if value in self.outer:
                spread = (self.trips, *dims)
                self.arrays[value] = self.build.broadcast(self.outer[value], spread, range(1, len(dims) + 1))
            else:
                numbers = self.numbers[value].reshape(self.trips)[:: -1 if self.reverse else 1]
                found = self.build.array(np.ascontiguousarray(numbers), dtype)
                self.arrays[value] = self.build.reshape(found, (self.trips, *dims))
        return self.arrays[value]

    def add(self, op: hlo.HloOp) -> bool:
        """Whether the result of ``op``, all of whose operands are there, could be made."""
        result = op.results[0]
        opaque = isinstance(op, hlo.OpaqueOp | hlo.TupleOp) and scan_of(op) is None
        if opaque or has_effects(op) or not isinstance(result.type, hlo.ArrayType):
            return False
        if self.add_number(op):
            return True
        if all(operand in self.outer for operand in op.sources):
            self.outer[result] = self._copy(op, [self.outer[operand] for operand in op.sources])
            return True
        made = self._dynamic_slice(op) if isinstance(op, hlo.DynamicSliceOp) else self._stacked(op)
        if made is None:
            return False
        (self.arrays if made[1] else self.outer)[result] = made[0]
        return True

    def _copy(self, op: hlo.HloOp, operands: Sequence[Value], wide: Sequence[int] | None = None, **new: Any) -> Value:
        type_ = None if wide is None else hlo.array_type(op.shape.dtype, tuple(wide))
        made = copy_op(op, operands, type_)
        made.properties.update(new)
        block = self.known.loop.parent
        assert block is not None
        block.insert_op_before(made, self.known.loop)
        return made.results[0]

    # numbers

    def add_number(self, op: hlo.HloOp) -> bool:
        """Whether the result of ``op`` is a known number in each iteration."""
        number = self._number(op)
        if number is not None:
            self.numbers[op.results[0]] = number
        return number is not None

    def _number(self, op: hlo.HloOp) -> Array | None:
        """The one element of ``op``'s result in each iteration, where it is known."""
        if not isinstance(op, hlo.ElementwiseOp | hlo.ReshapeOp | hlo.BroadcastOp) or op.shape.size != 1:
            return None
        if not any(operand in self.numbers for operand in op.sources):
            return None
        found = [self.number(operand) for operand in op.sources]
        given = [each for each in found if each is not None]
        if len(given) < len(found):
            return None
        if not isinstance(op, hlo.ElementwiseOp):
            return given[0]
        return np.broadcast_to(np.asarray(self._apply(op, given)), self.trips)

    def number(self, value: Value) -> Array | None:
        """The one element of ``value`` in each iteration."""
        if value in self.numbers:
            return self.numbers[value]
        splat = splat_of(self.outer.get(value, value), self.known.module)
        if splat is None or hlo.shape_of(value).size != 1:
            return None
        return np.broadcast_to(splat.astype(NUMPY_DTYPE[hlo.shape_of(value).dtype]), self.trips)

    # windows

    def walk(self, dims: Sequence[int], window: Sequence[int], starts: Sequence[Value]) -> Walk | list[int] | None:
        """How windows walk through an array of ``dims``; their starts where they stay; None of any other way."""
        found: Walk | None = None
        still = []
        for axis, (size, width, start) in enumerate(zip(dims, window, starts, strict=True)):
            places = np.zeros(self.trips, np.int64) if size == width else self.number(start)
            if places is None:
                return None
            places = np.clip(places.astype(np.int64), 0, size - width)
            still.append(int(places[0]))
            steps = np.unique(np.diff(places))
            if len(steps) == 0 or (len(steps) == 1 and not steps[0]):
                continue
            if len(steps) > 1 or found is not None:
                return None
            stride = abs(int(steps[0]))
            if stride != width and width != 1:
                return None
            found = Walk(axis, int(places.min()), width, stride, bool(steps[0] < 0))
        if found is None:
            return still
        others = [axis for axis, start in enumerate(still) if axis != found.axis and window[axis] != dims[axis]]
        return None if others else found

    def _dynamic_slice(self, op: hlo.DynamicSliceOp) -> tuple[Value, bool] | None:
        source, *starts = op.args
        dims, window = hlo.shape_of(source).dims, op.shape.dims
        walk = self.walk(dims, window, starts)
        if isinstance(walk, list):
            inside = source not in self.outer
            array = self.array(source) if inside else self.outer[source]
            for axis, (start, width) in enumerate(zip(walk, window, strict=True)):
                array = self.build.slice(array, axis + inside, start, start + width)
            return array, inside
        if walk is None or source not in self.outer:
            return None
        bounds = [hlo.SliceDim(0, size) for size in dims]
        limit = walk.low + (self.trips - 1) * walk.stride + walk.width
        bounds[walk.axis] = hlo.SliceDim(walk.low, limit, walk.stride if walk.width == 1 else 1)
        array = self.outer[source]
        cut = [*dims[: walk.axis], self.trips * walk.width, *dims[walk.axis + 1 :]]
        if tuple(cut) != tuple(dims):
            shape = hlo.shape_of(array)
            array = self.build.op(hlo.SliceOp, (array,), shape.dtype, cut, slice=hlo.SliceAttr(tuple(bounds)))
        array = self.build.reshape(array, [*cut[: walk.axis], self.trips, walk.width, *cut[walk.axis + 1 :]])
        order = [walk.axis, *(axis for axis in range(len(dims) + 1) if axis != walk.axis)]
        array = self.build.transpose(array, order)
        return (self.build.reverse(array, [0]) if walk.backwards != self.reverse else array), True

    def written(self, initial: Value, walk: Walk, parts: Value) -> Value | None:
        """``initial`` after the windows that ``parts`` are in each iteration have been written into it."""
        build, dims = self.build, hlo.shape_of(initial).dims
        if walk.backwards != self.reverse:
            parts = build.reverse(parts, [0])
        order = [*range(1, walk.axis + 1), 0, *range(walk.axis + 1, len(dims) + 1)]
        size = self.trips * walk.width
        whole = build.reshape(build.transpose(parts, order), (*dims[: walk.axis], size, *dims[walk.axis + 1 :]))
        if size == dims[walk.axis]:
            return whole
        if walk.stride != walk.width:
            return None
        ends = (0, walk.low), (walk.low + size, dims[walk.axis])
        before, after = ([build.slice(initial, walk.axis, *end)] if end[0] < end[1] else [] for end in ends)
        return build.concatenate([*before, whole, *after], walk.axis)

    # ops

    def _stacked(self, op: hlo.HloOp) -> tuple[Value, bool] | None:
        dims = (self.trips, *op.shape.dims)
        made: Value | None = None
        if isinstance(op, hlo.ElementwiseOp):
            rank = op.shape.rank
            operands = [self.array(operand) for operand in op.sources]
            spread = [x if hlo.shape_of(x).rank == rank + 1 else self.build.broadcast(x, dims, [0]) for x in operands]
            made = self._copy(op, spread, dims)
        elif isinstance(op, hlo.DotOp):
            made = self._product(op)
        elif isinstance(op, hlo.ReduceOp) and len(op.args) == 2 and op.args[1] in self.outer:
            axes = hlo.IntsAttr(tuple(axis + 1 for axis in op.dimensions.data))
            made = self._copy(op, [self.array(op.args[0]), self.outer[op.args[1]]], dims, dimensions=axes)
        elif isinstance(op, hlo.ReduceWindowOp) and len(op.args) == 2 and op.args[1] in self.outer:
            window = hlo.WindowAttr((PLAIN, *op.window.data))
            made = self._copy(op, [self.array(op.args[0]), self.outer[op.args[1]]], dims, window=window)
        elif isinstance(op, hlo.ConcatenateOp):
            axis = hlo.IntAttr(op.dimension.data + 1)
            made = self._copy(op, [self.array(operand) for operand in op.sources], dims, dimension=axis)
        elif isinstance(op, hlo.PadOp) and op.rhs in self.outer:
            padding = hlo.PaddingAttr((hlo.PadDim(0, 0), *op.padding.data))
            made = self._copy(op, [self.array(op.lhs), self.outer[op.rhs]], dims, padding=padding)
        elif isinstance(op, hlo.ViewOp):
            made = self._view(op, dims)
        elif (scan := scan_of(op)) is not None:
            arrays = [self.array(operand) for operand in op.sources]
            made = self._copy(op, arrays, dims, backend_config=scan.config(scan.axis + 1))
        return None if made is None else (made, True)

    def _view(self, op: hlo.HloOp, dims: Sequence[int]) -> Value | None:
        array = self.array(op.operands[0])
        if isinstance(op, hlo.ReshapeOp):
            return self.build.reshape(array, dims)
        if isinstance(op, hlo.SliceOp):
            bounds = hlo.SliceAttr((hlo.SliceDim(0, self.trips), *op.slice.data))
            return self._copy(op, [array], dims, slice=bounds)
        if isinstance(op, hlo.BroadcastOp | hlo.TransposeOp | hlo.ReverseOp):
            moved = tuple(axis + 1 for axis in op.dimensions.data)
            places = moved if isinstance(op, hlo.ReverseOp) else (0, *moved)
            return self._copy(op, [array], dims, dimensions=hlo.IntsAttr(places))
        return None

    def _product(self, op: hlo.DotOp) -> Value:
        """Iterations are a batch where both operands have them, else rows or columns of one product."""
        numbers = op.dims.data
        inside = [operand not in self.outer for operand in op.sources]
        operands = [self.array(x) if each else self.outer[x] for x, each in zip(op.sources, inside, strict=True)]

        def moved(axes: tuple[int, ...], place: int) -> tuple[int, ...]:
            return tuple(axis + inside[place] for axis in axes)

        numbers = replace(
            numbers,
            lhs_contracting=moved(numbers.lhs_contracting, 0),
            rhs_contracting=moved(numbers.rhs_contracting, 1),
            lhs_batch=((0,) if all(inside) else ()) + moved(numbers.lhs_batch, 0),
            rhs_batch=((0,) if all(inside) else ()) + moved(numbers.rhs_batch, 1),
        )
        dims, place = list(op.shape.dims), 0
        if not all(inside):
            place = len(numbers.lhs_batch)
            if inside[1]:
                place += hlo.shape_of(operands[0]).rank - len(numbers.lhs_contracting) - len(numbers.lhs_batch)
        made = self._copy(op, operands, [*dims[:place], self.trips, *dims[place:]], dims=hlo.DotDimsAttr(numbers))
        order = [place, *(axis for axis in range(len(dims) + 1) if axis != place)]
        return self.build.transpose(made, order)
