"""Products of matrices, convolutions, and their integer forms."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.onnx.table import Value, namespace, op, refusal
from neuronx_cc.driver.frontends.onnx.types import checked

Ints = Sequence[int]
Pads = list[tuple[int, int]]


@op("MatMul")
def matmul(a: Value, b: Value) -> Value:
    return namespace(a, b).matmul(a, b) if a.dtype != np.dtype("bfloat16") else jnp.matmul(a, b)


@op("Gemm")
def gemm(
    a: Value,
    b: Value,
    c: Value = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    product = jnp.matmul(a.T if transA else a, b.T if transB else b)
    product = product if alpha == 1 else (product * alpha).astype(a.dtype)
    return product if c is None else product + (c if beta == 1 else (c * beta).astype(a.dtype))


@op("Einsum")
def einsum(*inputs: Value, equation: str) -> Value:
    return jnp.einsum(equation.replace(" ", ""), *inputs)


@op("Det")
def det(x: Value) -> Value:
    return jnp.linalg.det(x)


@dataclass(frozen=True, slots=True)
class Window:
    """How a window moves over the spatial dimensions."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    extra: tuple[int, ...]
    """What ``ceil_mode`` adds at the ends; it counts for no average."""

    @property
    def spans(self) -> tuple[int, ...]:
        """Elements from a window's first to its last, both included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def window_of(
    dims: Ints,
    kernel: Ints,
    strides: Ints | None,
    dilations: Ints | None,
    pads: Ints | None,
    auto_pad: str,
    ceil_mode: int = 0,
) -> Window:
    """The window over spatial ``dims``."""
    rank = len(dims)
    stride, dilation = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
    flat = tuple(pads or (0,) * (2 * rank))
    if not (len(kernel) == len(stride) == len(dilation) == rank == len(flat) / 2):
        raise refusal(f"its window has not the {rank} dimensions of its input", code="EVRF064")
    if min((*stride, *dilation, *kernel), default=1) < 1:
        raise refusal("expected kernel, strides and dilations of 1 or more", code="EVRF064")
    margins, extra = [], []
    for i, n in enumerate(dims):
        span = (kernel[i] - 1) * dilation[i] + 1
        low, high = flat[i], flat[i + rank]
        if auto_pad == "VALID":
            low = high = 0
        if auto_pad.startswith("SAME"):
            total = max((ceil(n / stride[i]) - 1) * stride[i] + span - n, 0)
            low, high = (
                (total // 2, total - total // 2) if auto_pad == "SAME_UPPER" else (total - total // 2, total // 2)
            )
        rest = n + low + high - span
        if rest < 0:
            raise refusal(f"its window spans {span} elements of {n + low + high}", code="EVRF064")
        count = (-(-rest // stride[i]) if ceil_mode else rest // stride[i]) + 1
        if ceil_mode and (count - 1) * stride[i] >= n + low:
            count -= 1  # no window starts in the end's padding
        margins.append((low, high))
        extra.append(max(0, (count - 1) * stride[i] + span - n - low - high))
    return Window(tuple(kernel), stride, dilation, tuple(margins), tuple(extra))


@op("Conv")
def conv(
    x: Value,
    w: Value,
    b: Value = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    window = window_of(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    made = lax.conv_general_dilated(
        jnp.asarray(x),
        jnp.asarray(w),
        window.strides,
        window.pads,
        rhs_dilation=window.dilations,
        feature_group_count=group,
    )
    return made if b is None else made + b.reshape(1, -1, *(1,) * (x.ndim - 2))


@op("ConvTranspose")
def conv_transpose(
    x: Value,
    w: Value,
    b: Value = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    rank = x.ndim - 2
    stride, dilation = strides or (1,) * rank, dilations or (1,) * rank
    more, given = output_padding or (0,) * rank, pads or (0,) * (2 * rank)
    widths = []
    for i, (n, k) in enumerate(zip(x.shape[2:], w.shape[2:], strict=True)):
        span = (k - 1) * dilation[i] + 1
        low, high = given[i], given[i + rank]
        if output_shape or auto_pad.startswith("SAME"):
            wanted = output_shape[i - rank] if output_shape else n * stride[i]
            total = stride[i] * (n - 1) + more[i] + span - wanted
            half = total // 2
            low, high = (half, total - half) if auto_pad == "SAME_UPPER" else (total - half, half)
            low, high = (0, total) if total < 0 else (low, high)
        widths.append((span - 1 - low, span - 1 - high + more[i]))
    checked([x.shape[0], w.shape[1] * group])
    kernel = jnp.asarray(w).reshape(group, w.shape[0] // group, *w.shape[1:]).swapaxes(1, 2)
    kernel = jnp.flip(kernel.reshape(group * w.shape[1], w.shape[0] // group, *w.shape[2:]), range(2, rank + 2))
    made = lax.conv_general_dilated(
        jnp.asarray(x),
        kernel,
        (1,) * rank,
        widths,
        lhs_dilation=stride,
        rhs_dilation=dilation,
        feature_group_count=group,
    )
    return made if b is None else made + b.reshape(1, -1, *(1,) * rank)


@op("DeformConv")
def deform_conv(
    x: Value,
    w: Value,
    offset: Value,
    b: Value = None,
    mask: Value = None,
    *,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    offset_group: int = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    """Two spatial dimensions; each element of a window is read bilinearly, zero outside."""
    if x.ndim != 4:
        raise refusal("only two spatial dimensions are supported")
    window = window_of(x.shape[2:], w.shape[2:], strides, dilations, pads, "NOTSET")
    batch, channels, height, width = x.shape
    (kh, kw), (oh, ow) = window.kernel, offset.shape[2:]
    shifts = offset.reshape(batch, offset_group, kh * kw, 2, oh, ow)
    grid = np.stack(np.meshgrid(np.arange(kh), np.arange(kw), indexing="ij"), -1).reshape(-1, 2)
    ys, xs = [
        (np.arange(n) * window.strides[i] - window.pads[i][0]).reshape((-1, 1) if i == 0 else (1, -1))
        + (grid[:, i] * window.dilations[i])[:, None, None]
        + shifts[:, :, :, i]
        for i, n in enumerate((oh, ow))
    ]
    split = jnp.asarray(x).reshape(batch, offset_group, channels // offset_group, height * width)
    taken = jnp.zeros((batch, offset_group, channels // offset_group, kh * kw, oh, ow), x.dtype)
    for dy in (0, 1):
        for dx in (0, 1):
            row, column = jnp.floor(ys) + dy, jnp.floor(xs) + dx
            weight = (1 - jnp.abs(ys - row)) * (1 - jnp.abs(xs - column))
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            place = (jnp.clip(row, 0, height - 1) * width + jnp.clip(column, 0, width - 1)).astype(np.int32)
            flat = place.reshape(batch, offset_group, 1, -1)
            values = jnp.take_along_axis(split, flat, -1).reshape(taken.shape)
            taken = taken + values * jnp.where(inside, weight, 0).astype(x.dtype)[:, :, None]
    if mask is not None:
        taken = taken * mask.reshape(batch, offset_group, 1, kh * kw, oh, ow)
    columns = taken.reshape(batch, group, channels // group * kh * kw, oh * ow)
    kernel = w.reshape(group, w.shape[0] // group, -1)
    made = jnp.einsum("ngkp,gmk->ngmp", columns, kernel).reshape(batch, w.shape[0], oh, ow)
    return made if b is None else made + b.reshape(1, -1, 1, 1)
