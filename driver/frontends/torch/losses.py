"""Rows of losses that torch computes by operators of their own: linear layers with cross entropy, chunk by chunk, and
margins of several labels, whose decomposition of torch 2.13 counts class 0 again for each label that is left out. (AOT
autograd decomposes that one before any backend sees it.)
"""

from typing import Any

import jax
import jax.numpy as jnp

from neuronx_cc.driver.frontends.torch.registry import row

WIDE = jnp.float32


def _each(x: Any, matrix: Any, target: Any, bias: Any, weight: Any, ignored: int) -> tuple[Any, Any]:
    """The loss of each row of ``x`` [n, features] for ``matrix`` [classes, features], and what it weighs."""
    scores = x @ matrix.T
    scores = jax.nn.log_softmax(scores if bias is None else scores + bias, -1)
    counted = target != ignored
    chosen = jnp.where(counted, target, 0)
    shares = jnp.ones(target.shape, x.dtype) if weight is None else jnp.take(weight.astype(x.dtype), chosen)
    shares = jnp.where(counted, shares, 0)
    return -jnp.take_along_axis(scores, chosen[:, None], -1)[:, 0] * shares, shares


def _wide(*values: Any) -> list[Any]:
    return [None if value is None else value.astype(WIDE) for value in values]


@row("torch_nn._linear_cross_entropy_batch_chunked")
def _chunked(
    x: Any,
    matrix: Any,
    target: Any,
    bias: Any,
    weight: Any,
    reduction: str,
    ignored: int,
    smoothing: float,
    chunk: int,
    policy: str,
    accumulator: Any,
    retain: bool,
    *wanted: bool,
) -> tuple[Any, ...]:
    """The loss, and the gradients that are wanted of those by input, matrix and bias; the others are empty."""
    if smoothing:
        raise NotImplementedError("label smoothing in chunks")

    def loss(*given: Any) -> Any:
        losses, shares = _each(given[0], given[1], target, given[2], weight, ignored)
        return jnp.sum(losses) if reduction == "sum" else jnp.sum(losses) / jnp.sum(shares)

    given = _wide(x, matrix, bias)
    value, back = jax.vjp(loss, *given)
    nothing = [jnp.zeros((0, 0), x.dtype), jnp.zeros((0, 0), x.dtype), jnp.zeros(0, x.dtype)]
    if not any(wanted):
        return value, *nothing
    found = back(jnp.ones((), value.dtype))
    return value, *(each if want else empty for each, want, empty in zip(found, wanted, nothing, strict=True))


@row("torch_nn._linear_cross_entropy_batch_chunked_no_reduction")
def _chunked_each(x: Any, matrix: Any, target: Any, bias: Any, weight: Any, ignored: int, *_: Any) -> Any:
    x, matrix, bias = _wide(x, matrix, bias)
    return _each(x, matrix, target, bias, weight, ignored)[0]


@row("multilabel_margin_loss")
def _margins(x: Any, target: Any, reduction: int = 1) -> Any:
    """The loss of scores ``x`` [classes] or [batch, classes] for the labels ahead of the first -1.

    ``reduction``: 0 none, 1 mean, 2 sum.
    """
    scores, labels = jnp.atleast_2d(x), jnp.atleast_2d(target)
    given = jnp.cumsum(labels == -1, 1) == 0
    chosen = jnp.any(given[..., None] & (labels[..., None] == jnp.arange(scores.shape[1])), 1)
    own = jnp.take_along_axis(scores, jnp.where(given, labels, 0), 1)
    apart = jnp.maximum(1 - own[..., None] + scores[:, None], 0)
    losses = jnp.sum(jnp.where(given[..., None] & ~chosen[:, None], apart, 0), (1, 2)) / scores.shape[1]
    losses = losses if x.ndim > 1 else losses[0]
    return losses if reduction == 0 else jnp.mean(losses) if reduction == 1 else jnp.sum(losses)
