"""Rows of operators that torch takes for whole layers where nothing needs a gradient: attention, encoder layers.

``torch.nn.TransformerEncoderLayer`` and ``MultiheadAttention`` call them in ``eval()`` under ``no_grad``.
"""

from typing import Any

import jax
import jax.numpy as jnp

from neuronx_cc.driver.frontends.torch.contractions import product
from neuronx_cc.driver.frontends.torch.normalisation import guarded_softmax, layer_norm
from neuronx_cc.driver.frontends.torch.registry import kind, row, widened

BY_PAIR, BY_KEY = 0, 1
"""What a mask is of: [rows, columns], or [batch, columns]; others are [batch, heads, rows, columns]."""


@row("_masked_softmax")
def masked_softmax(scores: Any, mask: Any, dim: int | None = None, form: int | None = None) -> Any:
    """Of ``scores`` [batch, heads, rows, columns], without what ``mask`` is not zero for; rows of nothing are zeros."""
    left_out = mask if kind(mask.dtype) == 0 else mask != 0
    if form == BY_KEY:
        left_out = left_out[:, None, None, :]
    elif form != BY_PAIR:
        left_out = left_out.reshape(scores.shape)
    return guarded_softmax(jnp.where(left_out, -jnp.inf, widened(scores)), -1 if dim is None else dim)[0]


@row("_native_multi_head_attention")
def attention(
    query: Any,
    key: Any,
    value: Any,
    features: int,
    heads: int,
    matrix: Any,
    bias: Any,
    last_matrix: Any,
    last_bias: Any,
    mask: Any = None,
    wants_weights: bool = True,
    averages: bool = True,
    form: int | None = None,
) -> tuple[Any, Any]:
    """Of [batch, rows, features]; ``matrix`` [3 * features, features] is of queries, keys and values.

    Also the weights [batch, rows, columns], of each head if they are not averaged, or an empty array.
    """
    parts = zip((query, key, value), jnp.split(matrix, 3), jnp.split(bias, 3), strict=True)
    q, k, v = (_heads(product(x, weights.T) + more, heads) for x, weights, more in parts)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q * (features // heads) ** -0.5, k)
    shares = jax.nn.softmax(widened(scores), -1) if mask is None else masked_softmax(scores, mask, -1, form)
    shares = shares.astype(query.dtype)
    mixed = jnp.swapaxes(jnp.einsum("bhqk,bhkd->bhqd", shares, v), 1, 2).reshape(query.shape)
    result = product(mixed, last_matrix.T) + last_bias
    if not wants_weights:
        return result, jnp.zeros(0, query.dtype)
    return result, jnp.mean(shares, 1) if averages else shares


def _heads(x: Any, heads: int) -> Any:
    return jnp.swapaxes(x.reshape(*x.shape[:2], heads, -1), 1, 2)


@row("_transformer_encoder_layer_fwd")
def _encoder_layer(
    x: Any,
    features: int,
    heads: int,
    matrix: Any,
    bias: Any,
    last_matrix: Any,
    last_bias: Any,
    gelu: bool,
    norm_first: bool,
    epsilon: float,
    *weights: Any,
) -> Any:
    """``weights``: scale and shift of both norms, matrix and bias of both dense layers, a mask and its form."""
    norms, dense, mask = (weights[:2], weights[2:4]), (weights[4:6], weights[6:8]), (*weights[8:], None, None)

    def normalised(x: Any, number: int) -> Any:
        return layer_norm(x, x.shape[-1:], *norms[number], epsilon)[0].astype(x.dtype)

    def attended(x: Any) -> Any:
        given = (features, heads, matrix, bias, last_matrix, last_bias, mask[0], False, False, mask[1])
        return attention(x, x, x, *given)[0]

    def fed_forward(x: Any) -> Any:
        inner = product(x, dense[0][0].T) + dense[0][1]
        inner = jax.nn.gelu(inner, approximate=False) if gelu else jnp.maximum(inner, 0)
        return product(inner, dense[1][0].T) + dense[1][1]

    for number, part in enumerate((attended, fed_forward)):
        x = x + part(normalised(x, number)) if norm_first else normalised(x + part(x), number)
    return x
