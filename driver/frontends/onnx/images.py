"""Resizing, sampling and regions of images. Weights of a resize are known, so that it is a product a dimension."""

from collections.abc import Callable, Sequence
from itertools import product
from math import floor
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.onnx.shapes import ints, normal
from neuronx_cc.driver.frontends.onnx.table import Value, op, refusal
from neuronx_cc.driver.frontends.onnx.types import checked, is_float, tabled

Array = Any
"""A NumPy array."""


def _coordinates(mode: str, length: int, out: int, scale: float, roi: tuple[float, float]) -> Array:
    """Where in the input, of ``length`` elements, each of ``out`` elements of the output lies."""
    x, exact = np.arange(out, dtype=np.float64), scale * length
    if mode == "align_corners":
        return np.zeros(out) if exact == 1 else x * (length - 1) / (exact - 1)
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        first, last = roi[0] * (length - 1), roi[1] * (length - 1)
        return np.full(out, (first + last) / 2) if exact == 1 else first + x * (last - first) / (exact - 1)
    if mode == "pytorch_half_pixel" and exact == 1:
        return np.full(out, -0.5)
    centred = (x + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        return centred + length / 2 * (1 - out / exact)
    if mode not in ("half_pixel", "pytorch_half_pixel"):
        raise refusal(f"there is no coordinate_transformation_mode {mode!r}", code="EVRF064")
    return centred


_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear(x: Array) -> Array:
    return np.maximum(0, 1 - np.abs(x))


def _cubic(x: Array, a: float) -> Array:
    x = np.abs(x)
    inner = (a + 2) * x**3 - (a + 3) * x**2 + 1
    outer = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0))


def _weights(where: Array, length: int, scale: float, cubic: float | None, antialias: int, exclude: int) -> Array:
    """[out, length]: what each element of the input counts for each of the output."""
    shrink = min(scale, 1.0) if antialias else 1.0
    reach = (1 if cubic is None else 2) / shrink
    low = np.floor(where).astype(int)
    offsets = np.arange(-int(np.ceil(reach)), int(np.ceil(reach)) + 2)
    places = low[:, None] + offsets[None, :]
    distance = (places - where[:, None]) * shrink
    counts = _linear(distance) if cubic is None else _cubic(distance, cubic)
    if exclude:
        counts = np.where((places < 0) | (places >= length), 0, counts)
    if exclude or antialias:
        counts = counts / counts.sum(1, keepdims=True)
    made = np.zeros((len(where), length))
    np.add.at(made, (np.arange(len(where))[:, None], np.clip(places, 0, length - 1)), counts)
    return made


@op("Resize", static=("roi", "scales", "sizes"), since=11)
def resize(
    x: Value,
    roi: Value = None,
    scales: Value = None,
    sizes: Value = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Value:
    along = list(range(x.ndim)) if axes is None else [normal(axis, x.ndim) for axis in axes]
    lengths = [x.shape[axis] for axis in along]
    if scales is not None and scales.size:
        factors = [float(scale) for scale in np.asarray(scales).reshape(-1)]
        outs = [floor(n * factor) for n, factor in zip(lengths, factors, strict=True)]
    else:
        outs = list(ints(sizes))
        factors = [out / n for out, n in zip(outs, lengths, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            factor = (min if keep_aspect_ratio_policy == "not_larger" else max)(factors)
            factors = [factor] * len(along)
            outs = [floor(factor * n + 0.5) for n in lengths]
    checked(outs)
    if min(factors, default=1) <= 0:
        raise refusal("expected scales above 0", code="EVRF064")
    region = np.zeros(0) if roi is None else np.asarray(roi, np.float64).reshape(-1)
    made = jnp.asarray(x) if is_float(x.dtype) or mode == "nearest" else jnp.asarray(x).astype(np.float32)
    outside = []
    for i, (axis, length, out, factor) in enumerate(zip(along, lengths, outs, factors, strict=True)):
        crop = (0.0, 1.0) if len(region) < 2 * len(along) else (float(region[i]), float(region[i + len(along)]))
        cropped = coordinate_transformation_mode == "tf_crop_and_resize"
        if length == out and factor == 1 and not cropped:
            continue
        tabled([out] if mode == "nearest" else [out, length])
        where = _coordinates(coordinate_transformation_mode, length, out, factor, crop)
        if cropped:
            beyond = (where < 0) | (where > length - 1)
            outside.append(beyond.reshape([-1 if j == axis else 1 for j in range(x.ndim)]))
        if mode == "nearest":
            chosen = np.clip(_NEAREST[nearest_mode](where), 0, length - 1).astype(np.int32)
            made = jnp.take(made, chosen, axis)
            continue
        counts = _weights(where, length, factor, cubic_coeff_a if mode == "cubic" else None, antialias, exclude_outside)
        resampled = jnp.tensordot(made, counts.astype(made.dtype), ((axis,), (1,)), precision=lax.Precision.HIGHEST)
        made = jnp.moveaxis(resampled, -1, axis)
    for beyond in outside:
        made = jnp.where(beyond, np.asarray(extrapolation_value, made.dtype), made)
    return made if made.dtype == x.dtype else jnp.trunc(made).astype(x.dtype)


def _reflected(where: Value, low: float, high: float) -> Value:
    """Coordinates folded back into ``low`` to ``high``."""
    span = high - low
    if span <= 0:
        return jnp.zeros_like(where)
    off = jnp.abs(where - low)
    turns = jnp.floor(off / span)
    rest = off - turns * span
    return jnp.where(turns % 2 == 0, rest + low, high - rest)


@op("GridSample")
def grid_sample(
    x: Value, grid: Value, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Value:
    """x [N, C, spatial...], grid [N, out..., rank] with the last spatial dimension first."""
    rank, dims = x.ndim - 2, x.shape[2:]
    if mode in ("cubic", "bicubic") and rank != 2:
        raise refusal("cubic sampling has two spatial dimensions", code="EVRF064")
    batch = jnp.arange(x.shape[0]).reshape(-1, *(1,) * rank)
    bounds = [(0.0, n - 1.0) if align_corners else (-0.5, n - 0.5) for n in dims]
    points = []
    for axis, n in enumerate(dims):
        unit = jnp.asarray(grid)[..., rank - 1 - axis]
        points.append((unit + 1) / 2 * (n - 1) if align_corners else ((unit + 1) * n - 1) / 2)
    if padding_mode != "zeros" and mode not in ("cubic", "bicubic"):
        points = [_inside(point, bound, n, padding_mode) for point, bound, n in zip(points, bounds, dims, strict=True)]

    def read(places: Sequence[Value]) -> Value:
        """[N, out..., C] at whole coordinates."""
        if padding_mode != "zeros":
            places = [_inside(p, bound, n, padding_mode) for p, bound, n in zip(places, bounds, dims, strict=True)]
        there = jnp.ones((), bool)
        index = []
        for place, n in zip(places, dims, strict=True):
            there = there & (place >= 0) & (place <= n - 1)
            index.append(jnp.clip(place, 0, n - 1).astype(np.int32))
        values = jnp.moveaxis(jnp.asarray(x), 1, -1)[(batch, *index)]
        return jnp.where(there[..., None], values, np.zeros((), x.dtype))

    if mode == "nearest":
        return jnp.moveaxis(read([jnp.round(point) for point in points]), -1, 1)
    cubic = mode in ("cubic", "bicubic")
    floors = [jnp.floor(point) for point in points]
    total: Value = 0
    for offsets in product((-1, 0, 1, 2) if cubic else (0, 1), repeat=rank):
        weight: Value = 1
        for point, low, offset in zip(points, floors, offsets, strict=True):
            distance = jnp.abs(point - low - offset)
            weight = weight * (_traced_cubic(distance) if cubic else 1 - distance)
        total = total + read([low + offset for low, offset in zip(floors, offsets, strict=True)]) * weight[..., None]
    return jnp.moveaxis(total, -1, 1).astype(x.dtype)


def _inside(where: Value, bound: tuple[float, float], length: int, padding_mode: str) -> Value:
    return jnp.clip(where if padding_mode == "border" else _reflected(where, *bound), 0, length - 1)


def _traced_cubic(x: Value, a: float = -0.75) -> Value:
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return jnp.where(x <= 1, inner, outer)


@op("RoiAlign", note="sampling_ratio above 0: else the number of samples depends on the values")
def roi_align(
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    if sampling_ratio < 1:
        raise refusal("with a sampling_ratio of 0 the number of samples depends on the values", "set it", "EMOD025")
    height, width = x.shape[2:]
    shift = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    corners = jnp.asarray(rois) * spatial_scale - shift

    def samples(axis: int, count: int, limit: int) -> tuple[Value, Value, Value]:
        """Whole coordinates [rois, count * ratio], fractions, and whether they count."""
        first, last = corners[:, 1 - axis], corners[:, 3 - axis]
        extent = last - first if shift else jnp.maximum(last - first, 1)
        steps = (np.arange(count * sampling_ratio) + 0.5) / sampling_ratio
        where = first[:, None] + steps[None, :].astype(x.dtype) * (extent / count)[:, None]
        counts = (where >= -1) & (where <= limit)
        where = jnp.clip(where, 0, limit - 1)
        low = jnp.floor(where).astype(np.int32)
        return low, where - low, counts

    ys, fy, oky = samples(0, output_height, height)
    xs, fx, okx = samples(1, output_width, width)
    planes = jnp.asarray(x)[jnp.asarray(batch_indices)]
    corner_values = []
    for dy in (0, 1):
        for dx in (0, 1):
            rows = jnp.minimum(ys + dy, height - 1)[:, None, :, None]
            columns = jnp.minimum(xs + dx, width - 1)[:, None, None, :]
            roi = jnp.arange(planes.shape[0])[:, None, None, None]
            channel = jnp.arange(planes.shape[1])[None, :, None, None]
            weight = (fy if dy else 1 - fy)[:, None, :, None] * (fx if dx else 1 - fx)[:, None, None, :]
            corner_values.append(planes[roi, channel, rows, columns] * weight)
    counts = oky[:, None, :, None] & okx[:, None, None, :]
    blocks = (len(rois), x.shape[1], output_height, sampling_ratio, output_width, sampling_ratio)
    if mode == "max":
        best = jnp.max(jnp.stack(corner_values), 0)
        return jnp.max(jnp.where(counts, best, 0).reshape(blocks), (3, 5))
    total = sum(corner_values[1:], corner_values[0])
    return jnp.mean(jnp.where(counts, total, 0).reshape(blocks), (3, 5))
