"""The forward pass of GPT-2 small: 12 layers of width 768, 50,257 tokens, and the output head tied to the embedding.

One sequence of 128 token ids (s32) gives 128 rows of logits. The weights are random, at the scale of the published
initialisation, and are parameters of the module.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from layers import layer_norm, linear
from lowering import Array, Model

EPSILON = 1e-5
"""Added to the variance in layer norms."""


@dataclass(frozen=True)
class Config:
    """Sizes of the network; the defaults are GPT-2 small's."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257
    positions: int = 1024
    sequence: int = 128
    batch: int = 1
    seed: int = 0


def attention(x: Any, weights: dict[str, Any], heads: int) -> Any:
    """Causal self-attention over x [batch, sequence, width]."""
    batch, sequence, width = x.shape
    query, key, value = (
        part.reshape(batch, sequence, heads, width // heads).transpose(0, 2, 1, 3)
        for part in jnp.split(linear(x, weights["qkv"]), 3, axis=-1)
    )
    scores = query @ key.transpose(0, 1, 3, 2) / np.float32(np.sqrt(width // heads))
    row = lax.broadcasted_iota(jnp.int32, scores.shape, 2)
    column = lax.broadcasted_iota(jnp.int32, scores.shape, 3)
    scores = jnp.where(column <= row, scores, jnp.finfo(scores.dtype).min)
    mixed = jax.nn.softmax(scores, axis=-1) @ value
    return linear(mixed.transpose(0, 2, 1, 3).reshape(batch, sequence, width), weights["projection"])


def forward(weights: dict[str, Any], tokens: Any, heads: int) -> Any:
    """Logits [batch, sequence, vocabulary] f32 of tokens [batch, sequence] s32."""
    x = weights["wte"][tokens] + weights["wpe"][: tokens.shape[1]]
    for layer in weights["layers"]:
        x = x + attention(layer_norm(x, layer["ln1"], EPSILON), layer["attention"], heads)
        hidden = jax.nn.gelu(linear(layer_norm(x, layer["ln2"], EPSILON), layer["up"]), approximate=True)
        x = x + linear(hidden, layer["down"])
    return layer_norm(x, weights["ln"], EPSILON) @ weights["wte"].T


def build(config: Config = Config()) -> Model:
    """The model with random weights and a random prompt."""
    random = np.random.default_rng(config.seed)

    def normal(*shape: int, scale: float = 0.02) -> Array:
        return random.standard_normal(shape, np.float32) * np.float32(scale)

    def norm() -> dict[str, Array]:
        return {"gain": 1 + normal(config.width, scale=0.1), "bias": normal(config.width)}

    def dense(fan_in: int, fan_out: int) -> dict[str, Array]:
        return {"kernel": normal(fan_in, fan_out), "bias": normal(fan_out)}

    width = config.width
    layers = [
        {
            "ln1": norm(),
            "attention": {"qkv": dense(width, 3 * width), "projection": dense(width, width)},
            "ln2": norm(),
            "up": dense(width, 4 * width),
            "down": dense(4 * width, width),
        }
        for _ in range(config.layers)
    ]
    weights = {
        "wte": normal(config.vocabulary, width),
        "wpe": normal(config.positions, width, scale=0.01),
        "layers": layers,
        "ln": norm(),
    }
    tokens = random.integers(0, config.vocabulary, (config.batch, config.sequence), np.int32)

    def gpt2(weights: dict[str, Any], tokens: Any) -> Any:
        return forward(weights, tokens, config.heads)

    return Model("gpt2", gpt2, weights, (tokens,))


if __name__ == "__main__":
    from running import main

    def from_arguments(arguments: Any) -> Model:
        width = arguments.width
        return build(
            Config(arguments.layers, width, max(1, width // 64), arguments.vocabulary, 1024, arguments.sequence)
        )

    main(__doc__, from_arguments, {"layers": 12, "width": 768, "vocabulary": 50257, "sequence": 128})
