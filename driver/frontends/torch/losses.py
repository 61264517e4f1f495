"""Rows of losses that torch computes by operators of their own: linear layers with cross entropy, chunk by chunk."""

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
