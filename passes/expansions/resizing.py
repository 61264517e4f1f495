"""Resizes images [batch, height, width, feature] as TensorFlow's kernels of the same names do.

``corners`` is two binary digits: whether the corner pixels' centres are aligned, and whether pixel centres lie at
halves. Source: TensorFlow's documentation of ``resize_nearest_neighbor`` and ``resize_bilinear``.
"""

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.passes.expansions.build import Build, Value

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

AXES = (1, 2)
"""Height and width."""


def _positions(source: int, target: int, corners: str, bilinear: bool) -> Array:
    """Where each of ``target`` pixels lies on ``source`` ones."""
    aligned, half = (digit == "1" for digit in corners)
    scale = (source - 1) / (target - 1) if aligned and target > 1 else source / target
    places = np.arange(target, dtype=np.float64)
    if half:
        return (places + 0.5) * scale - (0.5 if bilinear else 0)
    return places * scale


def _nearest(source: int, target: int, corners: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    places = _positions(source, target, corners, False).astype(np.float32)
    whole = np.floor(places + 0.5) if corners[0] == "1" else np.floor(places)
    return np.minimum(whole, source - 1).astype(np.int64)


def nearest(b: Build, x: Value, dims: tuple[int, ...], corners: str) -> Value:
    """Each pixel is a copy of the nearest one."""
    for axis in AXES:
        source, target = hlo.shape_of(x).dims[axis], dims[axis]
        chosen = _nearest(source, target, corners)
        if target % source == 0 and (chosen == np.arange(target) // (target // source)).all():
            x = _repeated(b, x, axis, target // source)
        else:
            x = _picked(b, x, axis, chosen)
    return x


def _repeated(b: Build, x: Value, axis: int, count: int) -> Value:
    shape = hlo.shape_of(x).dims
    if count == 1:
        return x
    wide = (*shape[: axis + 1], count, *shape[axis + 1 :])
    kept = [dim for dim in range(len(wide)) if dim != axis + 1]
    return b.reshape(b.broadcast(x, wide, kept), (*shape[:axis], shape[axis] * count, *shape[axis + 1 :]))


def _picked(b: Build, x: Value, axis: int, chosen: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Value:
    shape = hlo.shape_of(x)
    dims = hlo.GatherDims(tuple(dim for dim in range(shape.rank) if dim != axis), (axis,), (axis,), 1)
    sizes = tuple(1 if dim == axis else size for dim, size in enumerate(shape.dims))
    result = tuple(len(chosen) if dim == axis else size for dim, size in enumerate(shape.dims))
    return b.typed(
        hlo.GatherOp,
        (x, b.array(chosen, "s32")),
        hlo.array_type(shape.dtype, result),
        dims=hlo.GatherDimsAttr(dims),
        slice_sizes=hlo.IntsAttr(sizes),
        indices_are_sorted=hlo.BoolAttr(True),
    )


def _weighted(b: Build, x: Value, axis: int, weights: Array) -> Value:
    """``axis`` contracted with the columns of ``weights`` [target, source]."""
    done = b.dot(b.array(weights), x, ([1], [axis]))
    order = [*range(1, axis + 1), 0, *range(axis + 1, hlo.shape_of(x).rank)]
    return b.transpose(done, order)


def bilinear(b: Build, x: Value, dims: tuple[int, ...], corners: str) -> Value:
    """Each pixel is a mean of up to four, weighted by distance. FP32."""
    for axis in AXES:
        source, target = hlo.shape_of(x).dims[axis], dims[axis]
        places = _positions(source, target, corners, True)
        low = np.clip(np.floor(places), 0, source - 1).astype(int)
        high = np.clip(np.ceil(places), 0, source - 1).astype(int)
        share = places - np.floor(places)
        weights = np.zeros((target, source))
        np.add.at(weights, (np.arange(target), low), 1 - share)
        np.add.at(weights, (np.arange(target), high), share)
        x = _weighted(b, x, axis, weights)
    return x


def nearest_gradient(b: Build, x: Value, dims: tuple[int, ...], corners: str) -> Value:
    """The gradient of ``nearest`` from images of ``x``'s size to those of ``dims``: sums over the copies. FP32."""
    for axis in AXES:
        target, source = hlo.shape_of(x).dims[axis], dims[axis]
        chosen = _nearest(source, target, corners)
        if target % source == 0 and (chosen == np.arange(target) // (target // source)).all():
            shape = hlo.shape_of(x).dims
            x = b.sum(b.reshape(x, (*shape[:axis], source, target // source, *shape[axis + 1 :])), [axis + 1])
        else:
            weights = np.zeros((source, target))
            weights[chosen, np.arange(target)] = 1
            x = _weighted(b, x, axis, weights)
    return x
