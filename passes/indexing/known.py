"""Gathers of windows whose places are known at compile time and differ along each dim by itself: resampled images.

XLA's bridges spell the resizing of images as one gather of small windows and a contraction of those with the outer
product of weights along the dims. Here the dims follow one another: along each, the result is a sum over the window's
elements of strided slices of the operand, times weights. Places advance evenly but at the ends, so that slices are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, erase, replace
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.expansions.build import Build

Value = hlo.SSAValue
Array = np.ndarray[Any, Any]

MOST_ELEMENTS = 1 << 21
"""Of an array that is computed at compile time to see places and weights."""
MOST_OPS = 256
"""Ops that such an array is made by."""
LONGEST_PERIOD = 8
"""Places after which the same steps follow, as far as they are looked for."""
MOST_PIECES = 128
"""Slices that a dim is put together from; more of them are a gather."""


def separated(b: Build, op: hlo.GatherOp) -> bool:
    """Replace ``op``, or the contraction that it is for, where places are known and dims are apart."""
    dims, sizes = op.dims.data, op.slice_sizes.data
    if dims.operand_batching_dims or op.shape.size == 0 or len(dims.start_index_map) < 2:
        return False
    places = known(op.rhs, b.module)
    walks = None if places is None else _walks(op, places)
    if walks is None:
        return False
    shape = hlo.shape_of(op.lhs)
    inner = [axis for axis in range(shape.rank) if axis not in dims.collapsed_slice_dims]
    window = dict(zip(inner, dims.offset_dims, strict=True))
    """Operand dim -> dim of the result along the window."""
    if any(sizes[dim] > 1 and dim not in window for dim in walks):
        return False
    image = op.lhs
    for dim, size in enumerate(sizes):
        if dim not in walks:
            image = b.slice(image, dim, 0, size)
    sums = _contraction(b, op, walks, window)
    if sums is not None:
        _contracted(b, image, op, sums, walks, window)
        erase(op)
        return True
    batches = [axis for axis in range(op.shape.rank) if axis not in dims.offset_dims]
    labels: list[int | None] = [window.get(dim) for dim in range(shape.rank)]
    for dim in sorted(walks, reverse=True):  # later dims first: earlier ones keep their numbers
        walk = walks[dim]
        before, count = hlo.shape_of(image).dims, len(walk.starts)
        single = (*before[:dim], count, 1, *before[dim + 1 :])
        taps = [b.reshape(taken(b, image, dim, walk.starts + tap), single) for tap in range(sizes[dim])]
        image = b.concatenate(taps, dim + 1)
        labels[dim : dim + 1] = [batches[walk.axis], window.get(dim)]
    kept = [axis for axis, label in enumerate(labels) if label is not None]
    shaped = b.reshape(image, [hlo.shape_of(image).dims[axis] for axis in kept])
    found = [labels[axis] for axis in kept]
    replace(op, b.transpose(shaped, [found.index(axis) for axis in range(op.shape.rank)]))
    return True


def known(value: Value, module: HloModule) -> Array | None:
    """What ``value`` is in every run, where it is made of constants and counts alone, by few ops."""
    from neuronx_cc.ir.reference import evaluator

    order: list[hlo.HloOp] = []
    if not _made_of_constants(value, order, set()):
        return None
    engine, values = evaluator(module), dict[Value, Any]()
    for op in order:
        if isinstance(op, hlo.ConstantOp):
            values[op.results[0]] = module.constants[op.value.data]
        else:
            values[op.results[0]] = engine.apply(op, [values[operand] for operand in op.operands])
    return np.asarray(values[value])


def _made_of_constants(value: Value, order: list[hlo.HloOp], seen: set[Value]) -> bool:
    """Whether it is; ``order`` gets the ops, each after those that it uses."""
    if value in seen:
        return True
    seen.add(value)
    op = defining_op(value)
    if (
        not isinstance(op, hlo.HloOp)
        or isinstance(op, hlo.OpaqueOp)
        or not isinstance(op.results[0].type, hlo.ArrayType)
        or op.shape.size > MOST_ELEMENTS
        or len(seen) > MOST_OPS
        or not all(_made_of_constants(operand, order, seen) for operand in op.operands)
    ):
        return False
    order.append(op)
    return True


@dataclass(frozen=True, slots=True)
class Walk:
    """Along one dim of the operand: the axis of the indices that moves the window, and where it stands then."""

    axis: int
    starts: Array


def _walks(op: hlo.GatherOp, indices: Array) -> dict[int, Walk] | None:
    """Operand dim -> how windows move along it, when each axis of the indices moves them along one dim."""
    dims, sizes, shape = op.dims.data, op.slice_sizes.data, hlo.shape_of(op.lhs)
    vectors = np.moveaxis(indices, dims.index_vector_dim, -1).astype(np.int64)
    axes: dict[int, int | None] = {}
    places = {}
    for dim, starts in zip(dims.start_index_map, np.moveaxis(vectors, -1, 0), strict=True):
        starts = np.clip(starts, 0, shape.dims[dim] - sizes[dim])
        moved = [axis for axis in range(starts.ndim) if (starts != starts.take([0], axis)).any()]
        if len(moved) > 1:
            return None
        axes[dim], places[dim] = moved[0] if moved else None, starts
    # a dim along which all windows stand at one place has any axis that moves none
    still = [axis for axis in range(vectors.ndim - 1) if axis not in axes.values()]
    walks: dict[int, Walk] = {}
    for dim, axis in axes.items():
        if axis is None:
            axis = still.pop(0) if still else -1
        if axis < 0 or any(walk.axis == axis for walk in walks.values()):
            return None
        walks[dim] = Walk(axis, np.moveaxis(places[dim], axis, 0).reshape(vectors.shape[axis], -1)[:, 0])
        if sum(len({*piece.first}) for piece in _pieces(walks[dim].starts)) > MOST_PIECES:
            return None
    return None if still else walks


@dataclass(frozen=True, slots=True)
class Sums:
    """The contraction of the windows with weights along each operand dim, [places, window]."""

    dot: hlo.DotOp
    weights: dict[int, Array]
    batch: tuple[int, ...]
    """Dims of the gather's result in the order of the contraction's batch dims."""


def _contraction(b: Build, op: hlo.GatherOp, walks: dict[int, Walk], window: dict[int, int]) -> Sums | None:
    """The only use of ``op``, when it sums windows with known weights."""
    use = op.results[0].first_use
    dot = use.operation if use is not None else None
    if not isinstance(dot, hlo.DotOp) or len({*op.results[0].uses}) > 1 or dot.lhs is dot.rhs:
        return None
    if not {op.shape.dtype, dot.shape.dtype} <= FLOATS:
        return None
    dims = dot.dims.data
    ours = (
        (dims.rhs_batch, dims.rhs_contracting) if dot.rhs is op.results[0] else (dims.lhs_batch, dims.lhs_contracting)
    )
    theirs = (
        (dims.lhs_batch, dims.lhs_contracting) if dot.rhs is op.results[0] else (dims.rhs_batch, dims.rhs_contracting)
    )
    other = dot.lhs if dot.rhs is op.results[0] else dot.rhs
    if len(theirs[0]) + len(theirs[1]) != hlo.shape_of(other).rank:
        return None
    batches = [axis for axis in range(op.shape.rank) if axis not in op.dims.data.offset_dims]
    pairs = {dim: (batches[walk.axis], window[dim]) for dim, walk in walks.items() if dim in window}
    if len(pairs) < len(walks) or {*ours[0]} != {*batches} or {*ours[1]} != {window[dim] for dim in walks}:
        return None
    place = dict(zip((*ours[0], *ours[1]), (*theirs[0], *theirs[1]), strict=True))
    weights = _factors(b, other, {dim: (place[at], place[along]) for dim, (at, along) in pairs.items()})
    return None if weights is None else Sums(dot, weights, ours[0])


def _factors(b: Build, value: Value, pairs: dict[int, tuple[int, int]]) -> dict[int, Array] | None:
    """``value`` as an outer product of known matrices, each over the pair of its dims that ``pairs`` names."""
    made = defining_op(value)
    if not isinstance(made, hlo.DotOp) or made.dims.data.lhs_batch or made.dims.data.lhs_contracting:
        return None
    weights, first = {}, 0
    for part in made.operands:
        rank = hlo.shape_of(part).rank
        dim = next((dim for dim, pair in pairs.items() if {*pair} == {first, first + 1}), None)
        array = known(part, b.module)
        if rank != 2 or dim is None or array is None or array.dtype.kind != "f":
            return None
        weights[dim] = array.T if pairs[dim][0] > pairs[dim][1] else array
        first += rank
    return weights if weights.keys() == pairs.keys() else None


def _contracted(
    b: Build, image: Value, op: hlo.GatherOp, sums: Sums, walks: dict[int, Walk], window: dict[int, int]
) -> None:
    """Replace the contraction: along each dim, weighted elements of the windows are added up, in FP32."""
    b = Build.before(b.module, sums.dot, b.timing)
    image = b.convert(image, "f32")
    for dim in sorted(walks, key=lambda dim: len(walks[dim].starts) / hlo.shape_of(image).dims[dim]):
        total = None
        for tap in range(op.slice_sizes.data[dim]):
            piece, weight = taken(b, image, dim, walks[dim].starts + tap), sums.weights[dim][:, tap]
            if (weight != 1).any():
                piece = b.mul(piece, b.broadcast(b.array(weight), hlo.shape_of(piece).dims, (dim,)))
            total = piece if total is None else b.add(total, piece)
        assert total is not None
        image = total
    batches = [axis for axis in range(op.shape.rank) if axis not in op.dims.data.offset_dims]
    label = {dim: batches[walk.axis] for dim, walk in walks.items()} | {
        dim: axis for dim, axis in window.items() if dim not in walks
    }
    free = sorted(axis for dim, axis in window.items() if dim not in walks)
    rank = hlo.shape_of(image).rank
    kept = [dim for dim in range(rank) if dim in label]
    shaped = b.reshape(image, [hlo.shape_of(image).dims[dim] for dim in kept])
    order = [label[dim] for dim in kept]
    result = b.transpose(shaped, [order.index(axis) for axis in (*sums.batch, *free)])
    replace(sums.dot, b.convert(result, sums.dot.shape.dtype))


def taken(b: Build, value: Value, axis: int, places: Array) -> Value:
    """The elements ``places`` of ``value`` along ``axis``, as slices put together."""
    return b.concatenate([_piece(b, value, axis, piece) for piece in _pieces(places)], axis)


@dataclass(frozen=True, slots=True)
class Piece:
    """Places that repeat a few steps: ``first[r] + step * i`` for each ``i < count``, and each ``r`` within it."""

    first: tuple[int, ...]
    step: int
    count: int


def _pieces(array: Array) -> list[Piece]:
    """Places as few pieces: each is what covers most for its slices from where the last ended."""
    found, at, places = [], 0, array.tolist()
    while at < len(places):
        best = Piece((places[at],), 1, 1)
        for period in range(1, min(LONGEST_PERIOD, len(places) - at) + 1):
            after = at + period
            step = places[after] - places[at] if after < len(places) else 1
            end = after
            while step >= 0 and end < len(places) and places[end] - places[end - period] == step:
                end += 1
            piece = Piece(tuple(places[at:after]), step, (end - at) // period)
            if piece.count * period / _cost(piece) > best.count * len(best.first) / _cost(best):
                best = piece
        found.append(best)
        at += best.count * len(best.first)
    return found


def _cost(piece: Piece) -> int:
    return len({*piece.first})


def _piece(b: Build, value: Value, axis: int, piece: Piece) -> Value:
    dims = hlo.shape_of(value).dims
    columns: dict[int, Value] = {}
    for first in piece.first:
        if first not in columns:
            columns[first] = _strided(b, value, axis, first, piece.step, piece.count)
    shape = (*dims[:axis], piece.count, len(piece.first), *dims[axis + 1 :])
    if len(columns) == 1:
        kept = [dim for dim in range(len(shape)) if dim != axis + 1]
        whole = b.broadcast(columns[piece.first[0]], shape, kept)
    else:
        single = (*shape[: axis + 1], 1, *shape[axis + 2 :])
        whole = b.concatenate([b.reshape(columns[first], single) for first in piece.first], axis + 1)
    return b.reshape(whole, (*dims[:axis], piece.count * len(piece.first), *dims[axis + 1 :]))


def _strided(b: Build, value: Value, axis: int, first: int, step: int, count: int) -> Value:
    shape = hlo.shape_of(value)
    if step == 0:
        one = b.slice(value, axis, first, first + 1)
        kept = [dim for dim in range(shape.rank) if dim != axis]
        inner = b.reshape(one, [shape.dims[dim] for dim in kept])
        return b.broadcast(inner, [count if dim == axis else size for dim, size in enumerate(shape.dims)], kept)
    if step == 1:
        return b.slice(value, axis, first, first + count)
    bounds = [hlo.SliceDim(0, size) for size in shape.dims]
    bounds[axis] = hlo.SliceDim(first, first + step * (count - 1) + 1, step)
    dims = [count if dim == axis else size for dim, size in enumerate(shape.dims)]
    return b.op(hlo.SliceOp, (value,), shape.dtype, dims, slice=hlo.SliceAttr(tuple(bounds)))
