"""Rows of matrix products, convolutions and attention, and of their gradients.

None of them asks for a precision: that would overrule ``--auto-cast``.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.torch.normalisation import guarded_softmax
from neuronx_cc.driver.frontends.torch.registry import kind, row


def product(x: Any, y: Any) -> Any:
    """Matrix product over the last two dims, in the wider of the operands' types."""
    return jnp.matmul(x, y)


row("mm", "bmm", "matmul")(product)
row("mv")(product)
row("dot", "vdot")(product)
row("outer")(lambda x, y: x[:, None] * y[None, :])


def _added(bias: Any, value: Any, beta: Any, alpha: Any) -> Any:
    scaled = value if alpha == 1 else value * alpha
    return scaled if beta == 0 else (bias if beta == 1 else bias * beta) + scaled


row("addmm", "baddbmm", "addmv")(lambda b, x, y, beta=1, alpha=1: _added(b, product(x, y), beta, alpha))
row("addbmm")(lambda b, x, y, beta=1, alpha=1: _added(b, jnp.sum(product(x, y), 0), beta, alpha))
row("addr")(lambda b, x, y, beta=1, alpha=1: _added(b, x[:, None] * y[None, :], beta, alpha))


@row("linear")
def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    result = product(x, weight.T)
    return result if bias is None else result + bias


@row("_trilinear")
def _trilinear(
    x: Any,
    y: Any,
    z: Any,
    more_x: Sequence[int],
    more_y: Sequence[int],
    more_z: Sequence[int],
    summed: Sequence[int],
    _: int = 1,
) -> Any:
    """The product of three arrays, to each of which some dims are added, summed over some dims."""
    letters = "abcdefghijklmnopqrstuvwxyz"[: x.ndim + len(more_x)]
    names = ["".join(each for i, each in enumerate(letters) if i not in more) for more in (more_x, more_y, more_z)]
    left = "".join(each for i, each in enumerate(letters) if i not in summed)
    return jnp.einsum(f"{','.join(names)}->{left}", x, y, z)


def _spread(values: Sequence[int], rank: int) -> list[int]:
    return list(values) * rank if len(values) == 1 else list(values)


def convolve(
    x: Any,
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """Of ``x`` (batch, features, ...) with ``weight``, as ATen's convolution without a bias."""
    rank = weight.ndim - 2
    stride, padding, dilation = _spread(stride, rank), _spread(padding, rank), _spread(dilation, rank)
    letters = "DHW"[3 - rank :]
    forms = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    if not transposed:
        return lax.conv_general_dilated(
            x,
            weight,
            stride,
            [(pad, pad) for pad in padding],
            rhs_dilation=dilation,
            dimension_numbers=forms,
            feature_group_count=groups,
        )
    more = _spread(output_padding, rank)
    reach = [gap * (size - 1) for gap, size in zip(dilation, weight.shape[2:], strict=True)]
    inner, outer = weight.shape[0] // groups, weight.shape[1]
    grouped = weight.reshape(groups, inner, outer, *weight.shape[2:]).swapaxes(1, 2)
    grouped = jnp.flip(grouped.reshape(groups * outer, inner, *weight.shape[2:]), range(2, rank + 2))
    return lax.conv_general_dilated(
        x,
        grouped,
        [1] * rank,
        [(far - pad, far - pad + extra) for far, pad, extra in zip(reach, padding, more, strict=True)],
        lhs_dilation=stride,
        rhs_dilation=dilation,
        dimension_numbers=forms,
        feature_group_count=groups,
    )


@row("convolution", "_convolution")
def _convolution(x: Any, weight: Any, bias: Any, *how: Any) -> Any:
    batched = x.ndim == weight.ndim
    result = convolve(x if batched else x[None], weight, *how[:6])
    if bias is not None:
        result = result + bias.reshape(-1, *[1] * (weight.ndim - 2))
    return result if batched else result[0]


@row("convolution_backward")
def _convolution_backward(given: Any, x: Any, weight: Any, bias_sizes: Any, *how: Any) -> Any:
    *form, wanted = how
    _, back = jax.vjp(lambda x, weight: convolve(x, weight, *form), x, weight)
    for_x, for_weight = back(given.astype(x.dtype)) if wanted[0] or wanted[1] else (None, None)
    for_bias = jnp.sum(given, (0, *range(2, given.ndim))) if wanted[2] else None
    return for_x if wanted[0] else None, for_weight if wanted[1] else None, for_bias


def attention(
    query: Any, key: Any, value: Any, mask: Any = None, causal: bool = False, scale: float | None = None
) -> tuple[Any, Any]:
    """Attention of (batch, heads, rows, features), and the logarithm of each row's sum of exponentials."""
    if key.shape[1] != query.shape[1]:
        key, value = (jnp.repeat(each, query.shape[1] // each.shape[1], 1) for each in (key, value))
    wide = jnp.float32 if query.dtype.itemsize < 4 else query.dtype
    scores = jnp.einsum("...qd,...kd->...qk", query, key, preferred_element_type=wide) * (
        1 / math.sqrt(query.shape[-1]) if scale is None else scale
    )
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if kind(mask.dtype) == 0 else scores + mask.astype(wide)
    shares, logarithms = guarded_softmax(scores, -1)
    return jnp.einsum("...qk,...kd->...qd", shares.astype(query.dtype), value), logarithms[..., 0]


@row("_scaled_dot_product_flash_attention_for_cpu")
def _flash(query: Any, key: Any, value: Any, dropout: float = 0.0, causal: bool = False, **more: Any) -> Any:
    _without_dropout(dropout)
    return attention(query, key, value, more.get("attn_mask"), causal, more.get("scale"))


@row("_scaled_dot_product_flash_attention_for_cpu_backward")
def _flash_backward(
    given: Any, query: Any, key: Any, value: Any, out: Any, sums: Any, dropout: float, causal: bool, **more: Any
) -> Any:
    _without_dropout(dropout)
    mask, scale = more.get("attn_mask"), more.get("scale")
    _, back = jax.vjp(lambda q, k, v: attention(q, k, v, mask, causal, scale)[0], query, key, value)
    return back(given.astype(query.dtype))


def _without_dropout(dropout: float) -> None:
    if dropout:
        raise NotImplementedError("attention with dropout inside")


row("_cdist_forward")(lambda x, y, p, mode=None: distances(x, y, p))


def distances(x: Any, y: Any, p: float) -> Any:
    """The p-norms of the differences of all rows of ``x`` and ``y``."""
    apart = jnp.abs(x[..., :, None, :] - y[..., None, :, :])
    if p == 0:
        return jnp.sum((apart != 0).astype(x.dtype), -1)
    if math.isinf(p):
        return jnp.max(apart, -1)
    if p == 1:
        return jnp.sum(apart, -1)
    return jnp.sqrt(jnp.sum(apart * apart, -1)) if p == 2 else jnp.power(jnp.sum(jnp.power(apart, p), -1), 1 / p)


def _slopes(given: Any, x: Any, y: Any, p: float, found: Any) -> Any:
    """The gradient of each difference of rows, [..., rows, rows, features]; none where rows are equal."""
    apart = x[..., :, None, :] - y[..., None, :, :]
    if p == 0:
        return jnp.zeros_like(apart)
    if math.isinf(p):
        return given[..., None] * jnp.sign(apart) * (jnp.abs(apart) == found[..., None])
    scale = jnp.where(found == 0, 0, given / jnp.where(found == 0, 1, found) ** (p - 1))[..., None]
    if p == 2:
        return scale * apart
    # a slope of nothing, where the power of nothing would be infinite
    length = jnp.where(apart == 0, 1, jnp.abs(apart))
    return scale * jnp.sign(apart) * length ** (p - 1)


@row("_cdist_backward")
def _cdist_backward(given: Any, x: Any, y: Any, p: float, found: Any) -> Any:
    """For ``x`` of all batches; where there is none, torch gives it the shape of ``x`` itself."""
    return jnp.sum(_slopes(given, x, y, p, found), -2) if x.size and y.size else jnp.zeros_like(x)


def _pairs(x: Any) -> tuple[Any, Any]:
    """Numbers of the first and the second row of each pair."""
    return np.triu_indices(x.shape[0], 1)


row("_pdist_forward")(lambda x, p=2.0: distances(x, x, p)[_pairs(x)])


@row("_pdist_backward")
def _pdist_backward(given: Any, x: Any, p: float, found: Any) -> Any:
    square = (x.shape[0], x.shape[0])
    weights, lengths = (jnp.zeros(square, x.dtype).at[_pairs(x)].set(each) for each in (given, found))
    slopes = _slopes(weights, x, x, p, lengths)
    return jnp.sum(slopes, 1) - jnp.sum(slopes, 0)
