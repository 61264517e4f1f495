"""Rules of ``canonicalize`` for pieces of arrays that are computed with and put side by side: views instead.

A rotary embedding, however it is written, takes halves (or neighbours) of an array, multiplies and adds them, and puts
the results side by side: ``[a c - b s, b c + a s]``. Over an axis cut in (pieces, size) that is arithmetic on whole
arrays, ``x * [c, c] + [b, a] * [-s, s]``, where ``[b, a]`` is ``x`` with that axis reversed, which is a view. So

* a concatenation of pieces computed alike becomes that computation on stacked operands;
* elementwise ops around such a concatenation work on the cut axis, too, so that one kernel takes them all in.

It is done only where no operand has to be moved: slices of one array at equal distances, repetitions, constants.
Exact but for the order in which constants and rows of a product are multiplied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import PadDim, SliceDim
from neuronx_cc.ir.hlo.editing import insert_before, insert_constant, insert_splat
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.analysis.values import is_float, splat_number, splat_of
from neuronx_cc.passes.canonical.movement import broadcasted, reshaped, same_but_for_ones, sliced
from neuronx_cc.passes.canonical.rule import Rule, Scope, result_op

Value = hlo.SSAValue
Dims = tuple[int, ...]
Make = Callable[[], Value]
"""Builds a value; nothing is built before it is certain that all can be."""

DEPTH = 8
"""Ops between a result and the pieces of arrays that it is made of."""
MOST_PIECES = 8
COMMUTATIVE = (hlo.AddOp, hlo.MultiplyOp)
ELEMENTWISE = (hlo.ElementwiseUnaryOp, hlo.ElementwiseBinaryOp)
KNOWN = (hlo.ReshapeOp, hlo.BroadcastOp, *ELEMENTWISE)


def _then(make: Make | None, more: Callable[[Value], Value]) -> Make | None:
    """``more`` of what ``make`` builds."""
    return None if make is None else lambda: more(make())


@dataclass(frozen=True, slots=True)
class Stack:
    """What is built for ``op``, above it."""

    op: hlo.HloOp
    scope: Scope

    def pieces(self, values: Sequence[Value], at: int, depth: int = DEPTH) -> Make | None:
        """``values``, of equal shapes, one after the other along a new axis ``at``; None if that moves data."""
        first, count = values[0], len(values)
        dims = hlo.shape_of(first).dims
        if any(value.type != first.type for value in values) or not depth:
            return None
        if all(value is first for value in values):
            kept = tuple(axis + (axis >= at) for axis in range(len(dims)))
            return lambda: broadcasted(self.op, first, (*dims[:at], count, *dims[at:]), kept)
        numbers = [splat_of(value, self.scope.module) for value in values]
        if all(number is not None for number in numbers):
            return lambda: self._row(np.array(numbers), first, at)
        ops = [result_op(value) for value in values]
        kinds = {type(op) for op in ops}
        if kinds <= {hlo.AddOp, hlo.SubtractOp} and len(kinds) == 2:
            return self._sums(ops, at, depth)  # type: ignore[arg-type]
        if hlo.NegateOp in kinds and len(kinds) > 1:
            bare = [op.operand if isinstance(op, hlo.NegateOp) else v for op, v in zip(ops, values, strict=True)]
            signs = [-1.0 if isinstance(op, hlo.NegateOp) else 1.0 for op in ops]
            return self._signed(self.pieces(bare, at, depth - 1), signs, first, at)
        if len(kinds) > 1 or None in ops:
            return None
        return self._alike([op for op in ops if op is not None], values, at, depth)

    def _alike(self, ops: Sequence[hlo.HloOp], values: Sequence[Value], at: int, depth: int) -> Make | None:
        """Results of ops of one class."""
        first, dims = ops[0], ops[0].shape.dims
        stacked = (*dims[:at], len(ops), *dims[at:])
        if isinstance(first, hlo.SliceOp):
            return self._slices(ops, at)  # type: ignore[arg-type]
        if any(op.properties != first.properties for op in ops) or not isinstance(first, KNOWN):
            return None
        inner = hlo.shape_of(first.operands[0]).dims
        if isinstance(first, hlo.ReshapeOp) and same_but_for_ones(inner, dims):
            made = self.pieces([op.operands[0] for op in ops], _same_place(dims, at, inner), depth - 1)
            return _then(made, lambda value: reshaped(self.op, value, stacked))
        if isinstance(first, hlo.BroadcastOp):
            place = sum(axis < at for axis in first.dimensions.data)
            made = self.pieces([op.operands[0] for op in ops], place, depth - 1)
            kept = [axis + (axis >= at) for axis in first.dimensions.data]
            kept.insert(place, at)
            return _then(made, lambda value: broadcasted(self.op, value, stacked, tuple(kept)))
        if not isinstance(first, ELEMENTWISE) or not all(value.has_one_use() for value in values):
            return None
        return self._elementwise(ops, stacked, at, depth)

    def _elementwise(self, ops: Sequence[hlo.HloOp], stacked: Dims, at: int, depth: int) -> Make | None:
        first = ops[0]
        pairs = [list(op.operands) for op in ops]
        orders = [pairs]
        if isinstance(first, COMMUTATIVE):
            orders.append([pairs[0], *(pair[::-1] for pair in pairs[1:])])
        for order in orders:
            made = [make for column in zip(*order, strict=True) if (make := self.pieces(column, at, depth - 1))]
            if len(made) == len(first.operands):
                return lambda made=made: self.built(first, stacked, [make() for make in made])  # type: ignore[misc]
        return None

    def built(self, like: hlo.HloOp, dims: Dims, operands: Sequence[Value]) -> Value:
        """An op as ``like``, of other dims."""
        kind = hlo.array_type(like.shape.dtype, dims)
        return insert_before(self.op, type(like), operands, kind, like.loc, dict(like.properties))

    def _sums(self, ops: Sequence[hlo.AddOp | hlo.SubtractOp], at: int, depth: int) -> Make | None:
        """Sums beside differences: ``a + sign * b``."""
        dtype = ops[0].shape.dtype
        if not is_float(dtype) or not all(op.result.has_one_use() for op in ops):
            return None
        signs = [1.0 if isinstance(op, hlo.AddOp) else -1.0 for op in ops]
        straight = [(op.lhs, op.rhs) for op in ops]
        swapped = [(op.rhs, op.lhs) if isinstance(op, hlo.AddOp) else (op.lhs, op.rhs) for op in ops]
        for order in (straight, swapped):
            left, right = (self.pieces([pair[side] for pair in order], at, depth - 1) for side in (0, 1))
            signed = self._signed(right, signs, ops[0].result, at)
            if left is not None and signed is not None:
                return lambda left=left, signed=signed: self._binary(hlo.AddOp, left(), signed())  # type: ignore[misc]
        return None

    def _signed(self, made: Make | None, signs: Sequence[float], like: Value, at: int) -> Make | None:
        row = np.array(signs)
        signed = made if is_float(hlo.shape_of(like).dtype) else None
        return _then(signed, lambda value: self._binary(hlo.MultiplyOp, value, self._row(row, like, at)))

    def _binary(self, kind: type[hlo.HloOp], lhs: Value, rhs: Value) -> Value:
        return insert_before(self.op, kind, (lhs, rhs), lhs.type, self.op.loc)

    def _row(self, numbers: np.ndarray, like: Value, at: int) -> Value:
        """Constants along a new axis ``at`` of the shape of ``like``."""
        shape = hlo.shape_of(like)
        dims = (*shape.dims[:at], len(numbers), *shape.dims[at:])
        array = numbers.astype(NUMPY_DTYPE[shape.dtype])
        if (array == array[0]).all() and array[0] != 0:
            return insert_splat(self.scope.module, self.op, array[:1].reshape(()), shape.dtype, dims, self.op.loc)
        return broadcasted(
            self.op, insert_constant(self.scope.module, self.op, array, shape.dtype, self.op.loc), dims, (at,)
        )

    def _slices(self, ops: Sequence[hlo.SliceOp], at: int) -> Make | None:
        """Slices of one array that lie side by side, or whose elements do, in order or in reverse."""
        source, first = ops[0].operand, ops[0].slice.data
        dims, count = ops[0].shape.dims, len(ops)
        if any(op.operand is not source for op in ops):
            return None
        moved = [axis for axis in range(len(dims)) if any(op.slice.data[axis] != first[axis] for op in ops)]
        if len(moved) != 1:
            return None
        axis = moved[0]
        cuts, size = [op.slice.data[axis] for op in ops], dims[axis]
        step = cuts[1].start - cuts[0].start
        if any(cut.stride != cuts[0].stride or cut.start != cuts[0].start + i * step for i, cut in enumerate(cuts)):
            return None
        together = abs(step) == size and cuts[0].stride == 1
        between = abs(step) == 1 and cuts[0].stride == count
        low = min(cut.start for cut in cuts)
        place = axis if together else axis + 1
        if not (together or between) or low + count * size > hlo.shape_of(source).dims[axis]:
            return None
        if any(size != 1 for size in dims[min(at, place) : max(at, place)]):
            return None
        whole = (*first[:axis], SliceDim(low, low + count * size), *first[axis + 1 :])
        stacked = (*dims[:at], count, *dims[at:])

        def make() -> Value:
            value = reshaped(self.op, sliced(self.op, source, whole), stacked)
            properties = {"dimensions": hlo.IntsAttr((at,))}
            return (
                value
                if step > 0
                else insert_before(self.op, hlo.ReverseOp, (value,), value.type, self.op.loc, properties)
            )

        return make

    def cut(self, value: Value, axis: int, sizes: tuple[int, int], depth: int = DEPTH) -> Value:
        """``value`` with ``axis`` cut into ``sizes``: computed so where it is computed for one user, else a view."""
        op, dims = result_op(value), hlo.shape_of(value).dims
        wanted = (*dims[:axis], *sizes, *dims[axis + 1 :])
        made = joined(self, value, axis, sizes)
        if made is not None:
            return made()
        if isinstance(op, hlo.BroadcastOp):
            kept = [each + (each > axis) for each in op.dimensions.data]
            inner = op.operand
            if axis in op.dimensions.data:
                place = op.dimensions.data.index(axis)
                inner = self.cut(inner, place, sizes, depth - 1)
                kept.insert(place + 1, axis + 1)
            return broadcasted(self.op, inner, wanted, tuple(kept))
        if isinstance(op, hlo.ReshapeOp) and same_but_for_ones(hlo.shape_of(op.operand).dims, dims):
            place = _same_axis(dims, axis, hlo.shape_of(op.operand).dims)
            return reshaped(self.op, self.cut(op.operand, place, sizes, depth), wanted)
        if isinstance(op, ELEMENTWISE) and depth and value.has_one_use():
            return self.built(op, wanted, [self.cut(operand, axis, sizes, depth - 1) for operand in op.operands])
        return reshaped(self.op, value, wanted)


def _same_place(dims: Dims, at: int, other: Dims) -> int:
    """Where in ``other``, equal but for dims of size 1, as many wider dims are ahead as ahead of ``at`` in ``dims``."""
    wide = sum(size != 1 for size in dims[:at])
    return next(i for i in range(len(other) + 1) if sum(size != 1 for size in other[:i]) == wide)


def _same_axis(dims: Dims, axis: int, other: Dims) -> int:
    """The axis of ``other``, equal but for dims of size 1, that is ``axis`` of ``dims``, which is wider."""
    return _same_place(dims, axis + 1, other) - 1


def joined(stack: Stack, value: Value, axis: int, sizes: tuple[int, int]) -> Make | None:
    """How to build a concatenation ``value`` with ``axis`` cut into ``sizes``, pieces first or last."""
    op = result_op(value)
    if isinstance(op, hlo.ConcatenateOp) and op.dimension.data == axis and len(op.operands) == sizes[0]:
        return stack.pieces(op.operands, axis)
    inner = result_op(op.operand) if isinstance(op, hlo.ReshapeOp) else None
    dims = hlo.shape_of(value).dims
    wanted = (*dims[:axis], *sizes, *dims[axis + 1 :])
    if not isinstance(inner, hlo.ConcatenateOp) or inner.shape.dims != wanted or inner.dimension.data != axis + 1:
        return None
    made = stack.pieces(inner.operands, axis + 1) if len(inner.operands) == sizes[1] else None
    return _then(made, lambda value: reshaped(stack.op, value, wanted))


def _found(stack: Stack, value: Value, depth: int = DEPTH) -> tuple[int, tuple[int, int]] | None:
    """The axis of ``value`` that a concatenation below it cuts, and the sizes."""
    op = result_op(value)
    dims = hlo.shape_of(value).dims
    inner = result_op(op.operand) if isinstance(op, hlo.ReshapeOp) else op
    if isinstance(inner, hlo.ConcatenateOp) and 1 < len(inner.operands) <= MOST_PIECES:
        axis, count = inner.dimension.data, len(inner.operands)
        if inner is op:
            cut = (axis, (count, dims[axis] // count))
        else:
            whole = inner.shape.dims
            cut = (axis - 1, (whole[axis - 1], count))
            if axis == 0 or dims != (*whole[: axis - 1], whole[axis - 1] * whole[axis], *whole[axis + 1 :]):
                return None
        return cut if joined(stack, value, *cut) is not None else None
    if not isinstance(op, ELEMENTWISE) or not depth or (depth < DEPTH and not value.has_one_use()):
        return None
    found = (_found(stack, operand, depth - 1) for operand in op.operands)
    return next((cut for cut in found if cut is not None), None)


def _join(op: hlo.HloOp, scope: Scope) -> Value | None:
    """The last op of a chain of elementwise ops, or a concatenation that such ops make, over a cut axis."""
    if hlo.ConcatenateOp not in scope.kinds or _goes_on(op):
        return None
    stack = Stack(op, scope)
    if isinstance(op, hlo.ConcatenateOp) and not any(_is_computed(piece) for piece in op.operands):
        return None
    found = _found(stack, op.results[0])
    if found is None:
        return None
    if isinstance(op, hlo.ConcatenateOp):
        made = joined(stack, op.results[0], *found)
        return made and reshaped(op, made(), op.shape.dims)
    axis, sizes = found
    dims = op.shape.dims
    operands = [stack.cut(operand, axis, sizes) for operand in op.operands]
    return reshaped(op, stack.built(op, (*dims[:axis], *sizes, *dims[axis + 1 :]), operands), dims)


def _is_computed(value: Value) -> bool:
    """Whether ``value`` is the result of an elementwise op, perhaps reshaped."""
    op = result_op(value)
    return isinstance(result_op(op.operand) if isinstance(op, hlo.ReshapeOp) else op, ELEMENTWISE)


def _update(op: hlo.DynamicUpdateSliceOp, scope: Scope) -> Value | None:
    """What is written, at a known place, over a part of one constant, or over pieces of a concatenation, is a piece."""
    whole, update, *starts = op.operands
    numbers = [splat_number(start, scope.module) for start in starts]
    dims, sizes = op.shape.dims, hlo.shape_of(update).dims
    cut = [axis for axis, size in enumerate(dims) if sizes[axis] != size]
    if any(number is None for number in numbers) or not cut:
        return None
    if len(cut) > 1:
        return _surrounded(op, numbers, scope)
    axis = cut[0]
    start = min(max(int(numbers[axis] or 0), 0), dims[axis] - sizes[axis])
    stop = start + sizes[axis]
    if splat_number(whole, scope.module) is not None:
        parts = [(first, last) for first, last in ((0, start), (stop, dims[axis])) if first < last]
        pieces: list[Value] = []
        for part in parts:
            cuts = [SliceDim(*part) if each == axis else SliceDim(0, size) for each, size in enumerate(dims)]
            pieces.append(sliced(op, whole, tuple(cuts)))
        pieces.insert(int(start > 0), update)
    elif isinstance(inner := result_op(whole), hlo.ConcatenateOp) and inner.dimension.data == axis:
        places = [0, *accumulate(hlo.shape_of(piece).dims[axis] for piece in inner.operands)]
        if start not in places or stop not in places:
            return None
        pieces = [*inner.operands[: places.index(start)], update, *inner.operands[places.index(stop) :]]
    else:
        return None
    return insert_before(op, hlo.ConcatenateOp, pieces, op.results[0].type, op.loc, {"dimension": hlo.IntAttr(axis)})


def _surrounded(op: hlo.DynamicUpdateSliceOp, starts: Sequence[float | int | None], scope: Scope) -> Value | None:
    """What is written over a part of one constant, along several dims, is surrounded by that."""
    number = splat_of(op.operands[0], scope.module)
    sizes = hlo.shape_of(op.operands[1]).dims
    if number is None or 0 in sizes:
        return None
    padding = []
    for start, size, whole in zip(starts, sizes, op.shape.dims, strict=True):
        low = min(max(int(start or 0), 0), whole - size)
        padding.append(PadDim(low, whole - size - low))
    scalar = insert_constant(scope.module, op, number, op.shape.dtype, op.loc)
    attribute = {"padding": hlo.PaddingAttr(tuple(padding))}
    return insert_before(op, hlo.PadOp, (op.operands[1], scalar), op.results[0].type, op.loc, attribute)


def _goes_on(op: hlo.HloOp) -> bool:
    """Whether the only user of ``op`` computes with it."""
    value = op.results[0]
    user = next(iter(value.uses)).operation if value.has_one_use() else None
    if isinstance(user, hlo.ReshapeOp) and isinstance(op, hlo.ConcatenateOp) and user.result.has_one_use():
        user = next(iter(user.result.uses)).operation
    return isinstance(user, ELEMENTWISE)


RULES: dict[type, tuple[Rule, ...]] = {
    hlo.ConcatenateOp: (_join,),
    hlo.AddOp: (_join,),
    hlo.SubtractOp: (_join,),
    hlo.MultiplyOp: (_join,),
    hlo.ConvertOp: (_join,),
    hlo.DynamicUpdateSliceOp: (_update,),
}
