"""Rows of the fused layer of long short-term memory that torch takes on CPUs, and of its gradient.

Layers of several, in both directions, with projections or of other cells are decomposed by torch itself, step by step.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neuronx_cc.driver.frontends.torch.registry import row, widened

LSTM = 2
"""The mode of ``mkldnn_rnn_layer``, by torch's own numbers."""


def _lstm(
    x: Any, w_x: Any, w_h: Any, b_x: Any, b_h: Any, h: Any, c: Any, *, reverse: bool, has_biases: bool
) -> tuple[Any, Any, Any]:
    """[steps, batch, hidden] of one layer in one direction, and its last states [1, batch, hidden].

    ``x``: [steps, batch, features]; ``w_x``, ``w_h``: [4 * hidden, ...], gates in torch's order: input, forget, cell,
    output; ``b_x``, ``b_h``: [4 * hidden]; ``h``, ``c``: [1, batch, hidden].
    """
    given = jnp.einsum("tbf,gf->tbg", x, w_x)
    given = given + (b_x + b_h) if has_biases else given

    def step(carry: tuple[Any, Any], at: Any) -> tuple[tuple[Any, Any], Any]:
        h, c = carry
        enter, forget, cell, leave = jnp.split(at + h @ w_h.T, 4, -1)
        c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(enter) * jnp.tanh(cell)
        h = jax.nn.sigmoid(leave) * jnp.tanh(c)
        return (h, c), h

    (last, cell), made = lax.scan(step, (h[0], c[0]), given, reverse=reverse)
    return made, last[None], cell[None]


@row("mkldnn_rnn_layer")
def _layer(
    x: Any,
    w_x: Any,
    w_h: Any,
    b_x: Any,
    b_h: Any,
    h: Any,
    c: Any,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    *_: Any,
) -> tuple[Any, Any, Any, Any]:
    """The layer, and no workspace: the gradient computes the states again."""
    assert mode == LSTM, "torch's decompositions take this one mode"
    arrays = map(widened, (x, w_x, w_h, b_x, b_h, h, c))
    return *_lstm(*arrays, reverse=reverse, has_biases=has_biases), jnp.zeros(0, jnp.uint8)


@row("mkldnn_rnn_layer_backward")
def _layer_backward(
    x: Any,
    w_x: Any,
    w_h: Any,
    b_x: Any,
    b_h: Any,
    h: Any,
    c: Any,
    output: Any,
    last: Any,
    cell: Any,
    of_output: Any,
    of_last: Any,
    of_cell: Any,
    reverse: bool,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    *_: Any,
) -> tuple[Any, ...]:
    """Gradients of input, weights, biases and states; those of results that nothing reads are None."""
    arrays = tuple(map(widened, (x, w_x, w_h, b_x, b_h, h, c)))
    results, back = jax.vjp(partial(_lstm, reverse=reverse, has_biases=has_biases), *arrays)
    given = zip((of_output, of_last, of_cell), results, strict=True)
    of_arrays = back(tuple(jnp.zeros_like(made) if each is None else widened(each) for each, made in given))
    if has_biases:
        return tuple(of_arrays)
    nothing = jnp.zeros(4 * hidden_size, w_x.dtype)  # torch gives arrays of another shape for biases that are not there
    return *of_arrays[:3], nothing, nothing, *of_arrays[5:]
