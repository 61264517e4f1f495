"""A two-layer recurrent language model, LSTM or GRU, under ``lax.scan``: logits after every token.

The default has the sizes of the medium network of Zaremba et al. 2014: 650 features, vocabulary 10,000; the sequence is
scanned one token at a time, so the program keeps a loop.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from layers import linear
from lowering import Array, Model


@dataclass(frozen=True)
class Config:
    """Sizes of the network."""

    layers: int = 2
    width: int = 650
    vocabulary: int = 10000
    sequence: int = 35
    batch: int = 20
    seed: int = 0


def lstm(weights: Any, state: tuple[Any, Any], x: Any) -> tuple[tuple[Any, Any], Any]:
    """One step: ``state`` is (cell, hidden), each [batch, width]."""
    cell, hidden = state
    entry, forget, update, output = jnp.split(linear(x, weights["x"]) + hidden @ weights["h"], 4, axis=-1)
    cell = jax.nn.sigmoid(forget + 1) * cell + jax.nn.sigmoid(entry) * jnp.tanh(update)
    hidden = jax.nn.sigmoid(output) * jnp.tanh(cell)
    return (cell, hidden), hidden


def gru(weights: Any, state: Any, x: Any) -> tuple[Any, Any]:
    """One step: ``state`` is the hidden state [batch, width]."""
    reset_x, gate_x, new_x = jnp.split(linear(x, weights["x"]), 3, axis=-1)
    reset_h, gate_h, new_h = jnp.split(state @ weights["h"], 3, axis=-1)
    gate = jax.nn.sigmoid(gate_x + gate_h)
    new = jnp.tanh(new_x + jax.nn.sigmoid(reset_x + reset_h) * new_h)
    state = (1 - gate) * new + gate * state
    return state, state


def build(config: Config = Config(), cell: Literal["lstm", "gru"] = "lstm") -> Model:
    """The model with random weights and a random text."""
    random = np.random.default_rng(config.seed)
    width = config.width

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)

    gates = {"lstm": 4, "gru": 3}[cell] * width
    layers = [
        {"x": {"kernel": normal(width, gates), "bias": np.zeros(gates, np.float32)}, "h": normal(width, gates)}
        for _ in range(config.layers)
    ]
    head = {"kernel": normal(width, config.vocabulary), "bias": np.zeros(config.vocabulary, np.float32)}
    weights = {"tokens": normal(config.vocabulary, width), "layers": layers, "head": head}
    tokens = random.integers(0, config.vocabulary, (config.sequence, config.batch), np.int32)
    step = {"lstm": lstm, "gru": gru}[cell]

    def forward(weights: Any, tokens: Any) -> Any:
        x = weights["tokens"][tokens]
        zeros = jnp.zeros((tokens.shape[1], width), jnp.float32)
        for layer in weights["layers"]:
            start = (zeros, zeros) if cell == "lstm" else zeros
            _, x = lax.scan(lambda state, row, layer=layer: step(layer, state, row), start, x)
        return linear(x, weights["head"])

    return Model(cell, forward, weights, (tokens,))


if __name__ == "__main__":
    from running import main

    def from_arguments(arguments: Any) -> Model:
        sizes = (arguments.layers, arguments.width, arguments.vocabulary, arguments.sequence, arguments.batch)
        return build(Config(*sizes), arguments.cell)

    defaults = {"layers": 2, "width": 650, "vocabulary": 10000, "sequence": 35, "batch": 20}
    main(__doc__, from_arguments, defaults, {"cell": ("lstm", "gru")})
