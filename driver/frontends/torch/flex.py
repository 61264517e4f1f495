"""``flex_attention``: attention whose scores the program's own functions change and mask."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

OF_A_SCORE = Callable[..., Any]
"""A function of a score, or of none, its numbers of batch, head, row and column, and arrays of the program."""


def forward(
    score_of: OF_A_SCORE,
    kept: OF_A_SCORE,
    scale: float,
    query: Any,
    key: Any,
    value: Any,
    buffers: Sequence[Any],
    mask_buffers: Sequence[Any],
) -> tuple[Any, Any, Any]:
    """Of [batch, heads, rows, features], with fewer heads and batches of keys and values.

    The result, the logarithm to base 2 of each row's sum of exponentials, and its greatest score over ln 2. Rows that
    the mask leaves nothing of are zeros.
    """
    repeats = query.shape[1] // key.shape[1]
    key, value = (
        jnp.broadcast_to(jnp.repeat(each, repeats, 1), (query.shape[0], query.shape[1], *each.shape[2:]))
        for each in (key, value)
    )
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=wide) * scale
    places = [jnp.arange(size, dtype=jnp.int32) for size in scores.shape]
    changed = _for_each_place(score_of, True, len(buffers))(scores, *places, *buffers)
    allowed = _for_each_place(kept, False, len(mask_buffers))(*places, *mask_buffers)
    scores = jnp.where(jnp.broadcast_to(allowed, scores.shape), changed, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(scores, -1, keepdims=True))
    powers = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0))
    total = jnp.sum(powers, -1, keepdims=True)
    shares = (powers / jnp.where(total == 0, 1, total)).astype(query.dtype)
    sums = jnp.where(total == 0, -jnp.inf, jnp.log(jnp.where(total == 0, 1, total)) + top)
    result = jnp.einsum("bhqk,bhkd->bhqd", shares, value)
    return result, sums[..., 0] / math.log(2), top[..., 0] / math.log(2)


def _for_each_place(function: OF_A_SCORE, scored: bool, buffers: int) -> OF_A_SCORE:
    """``function`` for all batches, heads, rows and columns; the first dims of its result."""
    for dim in reversed(range(4)):
        axes = [0 if each == dim else None for each in range(4)] + [None] * buffers
        function = jax.vmap(function, [0, *axes] if scored else axes)
    return function
