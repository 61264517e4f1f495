"""Rows that read images between their elements: at the places of a grid, and at other sizes without aliasing."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neuronx_cc.driver.frontends.torch.registry import row

LINEAR, NEAREST, CUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
"""Torch's numbers for interpolation, and for what lies outside."""


def _cubic(distance: Any, a: float, library: Any = jnp) -> Any:
    """Keys' kernel: 1 at 0, and 0 from 2 on."""
    x = library.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return library.where(x <= 1, near, library.where(x < 2, far, 0))


def _inside(place: Any, size: int, padding: int, aligned: bool) -> Any:
    """Places along a dim, those outside moved as ``padding`` says."""
    if padding == ZEROS:
        return place
    if padding == REFLECTION:
        low, span = (0.0, size - 1.0) if aligned else (-0.5, float(size))
        if not span:
            return jnp.zeros_like(place)
        beyond = jnp.abs(place - low)
        turns = jnp.floor(beyond / span)
        rest = beyond - turns * span
        place = jnp.where(turns % 2 == 0, rest, span - rest) + low
    return jnp.clip(place, 0, size - 1)


def _taps(place: Any, size: int, mode: int, padding: int, aligned: bool) -> list[tuple[Any, Any]]:
    """Numbers of elements along a dim, still floats, with their weights."""
    if mode == CUBIC:
        first = jnp.floor(place)
        return [
            (_inside(first + step, size, padding, aligned), _cubic(place - (first + step), -0.75))
            for step in range(-1, 3)
        ]
    place = _inside(place, size, padding, aligned)
    if mode == NEAREST:
        return [(jnp.round(place), jnp.ones_like(place))]
    first = jnp.floor(place)
    return [(first, 1 - (place - first)), (first + 1, place - first)]


def _grid_sampled(x: Any, grid: Any, mode: int, padding: int, aligned: bool) -> Any:
    """``x`` [n, c, *sizes] at ``grid`` [n, *points, dims], whose last dim names the sizes backwards, from -1 to 1."""
    sizes, points = x.shape[2:], grid.shape[1:-1]
    dims = []
    for axis, size in enumerate(sizes):
        given = grid[..., len(sizes) - 1 - axis].reshape(x.shape[0], -1)
        place = (given + 1) / 2 * (size - 1) if aligned else ((given + 1) * size - 1) / 2
        dims.append(_taps(place, size, mode, padding, aligned))
    flat = x.reshape(*x.shape[:2], -1)
    total: Any = 0
    for corner in itertools.product(*dims):
        number: Any = 0
        weight: Any = 1
        for (place, share), size in zip(corner, sizes, strict=True):
            number = number * size + jnp.clip(place, 0, size - 1).astype(np.int32)
            weight = weight * jnp.where((place >= 0) & (place <= size - 1), share, 0)
        total = total + jnp.take_along_axis(flat, number[:, None], 2, mode="clip") * weight[:, None]
    return total.reshape(*x.shape[:2], *points)


row("grid_sampler_2d", "grid_sampler_3d")(_grid_sampled)


@row("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid_sampled_backward(
    given: Any, x: Any, grid: Any, mode: int, padding: int, aligned: bool, wanted: Sequence[bool]
) -> tuple[Any, ...]:
    found = jax.vjp(lambda x, grid: _grid_sampled(x, grid, mode, padding, aligned), x, grid)[1](given)
    return tuple(each if want else None for each, want in zip(found, wanted, strict=True))


def _shares(have: int, want: int, aligned: bool, scale: float | None, kernel: Callable[[Any], Any], reach: int) -> Any:
    """[want, have]: the weight of each element in each sample, with the kernel as wide as the step where that is more.

    ``reach``: the half-width of the kernel.
    """
    steps = (have - 1) / (want - 1) if want > 1 else 0.0
    step = steps if aligned else 1 / scale if scale else have / want
    wide = max(step, 1.0)
    # the centre of a sample counts from the edges of elements, also where corners are said to be aligned
    centres = step * (np.arange(want) + 0.5)
    first = np.maximum((centres - reach * wide + 0.5).astype(np.int64), 0)
    last = np.minimum((centres + reach * wide + 0.5).astype(np.int64), have)
    numbers = np.arange(have)
    shares = kernel((numbers - centres[:, None] + 0.5) / wide)
    shares = np.where((numbers >= first[:, None]) & (numbers < last[:, None]), shares, 0)
    total = shares.sum(1, keepdims=True)
    return shares / np.where(total == 0, 1, total)


def _smooth(kernel: Callable[[Any], Any], reach: int) -> Any:
    def resample(x: Any, sizes: Sequence[int] | None, aligned: bool, *scales: Any) -> Any:
        if len(scales) == 1:  # the overload that takes factors in place of sizes
            scales = tuple(scales[0] or ())
            sizes = sizes or [int(have * scale) for have, scale in zip(x.shape[2:], scales, strict=True)]
        for axis, (have, want) in enumerate(zip(x.shape[2:], sizes or (), strict=True), 2):
            if have == want:
                continue  # whatever the scale
            scale = scales[axis - 2] if scales else None
            shares = _shares(have, want, aligned, scale, kernel, reach).astype(np.float32)
            moved = jnp.matmul(jnp.moveaxis(x, axis, -1).astype(np.float32), shares.T)
            x = jnp.moveaxis(moved, -1, axis).astype(x.dtype)
        return x

    return resample


KERNELS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "bilinear": (lambda x: np.maximum(1 - np.abs(x), 0), 1),
    "bicubic": (lambda x: _cubic(x, -0.5, np), 2),
}


def _backward(forward: Any) -> Any:
    def backward(given: Any, sizes: Sequence[int], shape: Sequence[int], aligned: bool, *scales: float | None) -> Any:
        image = jnp.zeros(tuple(shape), given.dtype)
        return jax.vjp(lambda x: forward(x, sizes, aligned, *scales), image)[1](given)[0]

    return backward


for _name, _kernel in KERNELS.items():
    row(f"_upsample_{_name}2d_aa")(_smooth(*_kernel))
    row(f"_upsample_{_name}2d_aa_backward")(_backward(_smooth(*_kernel)))
