"""Arrays that repeat smaller ones, through reshapes and transposes: what varies along which dim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.passes.expansions.build import Build, Value

Made = Callable[[Build, Value], Value]


@dataclass(frozen=True, slots=True)
class View:
    """A reshape, or a transpose where it has an ``order``."""

    dims: tuple[int, ...]
    """Of its result."""
    order: tuple[int, ...] = ()

    @staticmethod
    def of(op: hlo.ReshapeOp | hlo.TransposeOp) -> View:
        return View(op.shape.dims, op.dimensions.data if isinstance(op, hlo.TransposeOp) else ())

    def of_array(self, b: Build, value: Value) -> Value:
        return b.transpose(value, self.order) if self.order else b.reshape(value, self.dims)


@dataclass(frozen=True, slots=True)
class Repeated:
    """An array of dims ``whole`` that repeats one of ``dims``, which are 1 where nothing varies."""

    value: Value
    """What that is made of, by ``steps``."""
    steps: tuple[Made, ...]
    dims: tuple[int, ...]
    whole: tuple[int, ...]

    def array(self, b: Build) -> Value:
        """Of ``dims``."""
        value = self.value
        for step in self.steps:
            value = step(b, value)
        return value

    def then(self, step: Made, dims: Sequence[int], whole: Sequence[int]) -> Repeated:
        return replace(self, steps=(*self.steps, step), dims=tuple(dims), whole=tuple(whole))


def repeated(value: Value, views: Sequence[View] = ()) -> Repeated | None:
    """What ``views`` of ``value`` repeat, the first one first; None where it is no repetition."""
    seen, types = [*reversed(views)], []
    op = defining_op(value)
    while isinstance(op, hlo.ConvertOp | hlo.ReshapeOp | hlo.TransposeOp):
        if isinstance(op, hlo.ConvertOp):
            types.append(op.shape.dtype)
        else:
            seen.append(View.of(op))
        op = defining_op(op.operands[0])
    if not isinstance(op, hlo.BroadcastOp):
        return None
    found = _of_broadcast(op)
    for dtype in reversed(types):
        found = found.then(_converted(dtype), found.dims, found.whole)
    while seen:
        view = seen.pop()
        while seen and not view.order and not seen[-1].order:
            view = seen.pop()  # two reshapes are one, which may keep apart what the first one joins
        found = viewed(found, view)
    return found


def viewed(array: Repeated, view: View) -> Repeated:
    """``view`` of it."""
    if view.order:
        dims = [array.dims[axis] for axis in view.order]
        return array.then(lambda b, value: b.transpose(value, view.order), dims, view.dims)
    full, dims = list(array.dims), []
    for before, after in groups(array.whole, view.dims):
        varies = [axis for axis in before if array.dims[axis] > 1]
        if not varies:
            dims += [1 for _ in after]
            continue
        for axis in before:
            full[axis] = array.whole[axis]
        dims += [view.dims[axis] for axis in after]
    if tuple(full) != array.dims:
        array = array.then(lambda b, value: spread(b, value, full, range(len(full))), full, array.whole)
    return array.then(lambda b, value: b.reshape(value, dims), dims, view.dims)


def groups(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[range, range]]:
    """The least stretches of dims that a reshape makes of each other."""
    i = j = 0
    while i < len(before) or j < len(after):
        first, other = i, j
        size, made = 1, 1
        while True:
            if size == made and (i, j) != (first, other) and size > 1:
                break
            if size <= made and i < len(before):
                size, i = size * before[i], i + 1
            elif j < len(after):
                made, j = made * after[j], j + 1
            else:
                size, i = size * before[i], i + 1
            if i == len(before) and j == len(after):
                break
        yield range(first, i), range(other, j)


def spread(b: Build, value: Value, dims: Sequence[int], places: Sequence[int]) -> Value:
    """``value``, whose dim i becomes dim ``places[i]`` of ``dims``, repeated along those of one element."""
    sizes = hlo.shape_of(value).dims
    kept = [axis for axis, size in enumerate(sizes) if size > 1]
    return b.broadcast(b.reshape(value, [sizes[axis] for axis in kept]), dims, [places[axis] for axis in kept])


def _of_broadcast(op: hlo.BroadcastOp) -> Repeated:
    axes = op.dimensions.data
    dims = [1] * op.shape.rank
    for axis in axes:
        dims[axis] = op.shape.dims[axis]
    order = sorted(range(len(axes)), key=lambda at: axes[at])

    def made(b: Build, value: Value) -> Value:
        return b.reshape(b.transpose(value, order), dims)

    assert prod(dims) == prod(hlo.shape_of(op.operands[0]).dims), "a broadcast of dims of one element is canonical"
    return Repeated(op.operands[0], (made,), tuple(dims), op.shape.dims)


def _converted(dtype: str) -> Made:
    return lambda b, value: b.convert(value, dtype)
