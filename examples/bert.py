"""The forward pass of BERT-base: 12 layers of width 768 over a sequence of 128 tokens, with the pooler.

Post-norm layers, exact (erf) gelu, padding mask. The weights are random, at the scale of the published initialisation;
``weights="constants"`` makes them literals of the module, which lets the compiler cast and lay them out ahead of time.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from layers import layer_norm, linear
from lowering import Array, Model

EPSILON = 1e-12
"""Added to the variance in layer norms."""


@dataclass(frozen=True)
class Config:
    """Sizes of the network; the defaults are BERT-base's."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 30522
    positions: int = 512
    sequence: int = 128
    batch: int = 1
    seed: int = 0


def attention(x: Any, bias: Any, weights: dict[str, Any], heads: int) -> Any:
    """Self-attention over x [batch, sequence, width]; ``bias`` [batch, 1, 1, sequence] hides the padding."""
    batch, sequence, width = x.shape
    query, key, value = (
        linear(x, weights[part]).reshape(batch, sequence, heads, width // heads).transpose(0, 2, 1, 3)
        for part in ("query", "key", "value")
    )
    scores = query @ key.transpose(0, 1, 3, 2) / np.float32(np.sqrt(width // heads)) + bias
    mixed = jax.nn.softmax(scores, axis=-1) @ value
    return linear(mixed.transpose(0, 2, 1, 3).reshape(batch, sequence, width), weights["projection"])


def forward(weights: dict[str, Any], tokens: Any, types: Any, mask: Any, heads: int) -> tuple[Any, Any]:
    """The last hidden state [batch, sequence, width] and the pooled first token [batch, width], both f32.

    ``tokens``, ``types`` and ``mask`` are [batch, sequence] s32; a mask of 0 marks padding.
    """
    embedded = weights["tokens"][tokens] + weights["positions"][: tokens.shape[1]] + weights["types"][types]
    x = layer_norm(embedded, weights["ln"], EPSILON)
    bias = (1 - mask[:, None, None, :].astype(jnp.float32)) * np.float32(-1e4)
    for layer in weights["layers"]:
        x = layer_norm(x + attention(x, bias, layer["attention"], heads), layer["ln1"], EPSILON)
        hidden = jax.nn.gelu(linear(x, layer["up"]), approximate=False)
        x = layer_norm(x + linear(hidden, layer["down"]), layer["ln2"], EPSILON)
    return x, jnp.tanh(linear(x[:, 0], weights["pooler"]))


def build(config: Config = Config(), weights: Literal["constants", "parameters"] = "parameters") -> Model:
    """The model with random weights and a random prompt, the last eighth of which is padding."""
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
            "attention": {part: dense(width, width) for part in ("query", "key", "value", "projection")},
            "ln1": norm(),
            "up": dense(width, 4 * width),
            "down": dense(4 * width, width),
            "ln2": norm(),
        }
        for _ in range(config.layers)
    ]
    parameters = {
        "tokens": normal(config.vocabulary, width),
        "positions": normal(config.positions, width),
        "types": normal(2, width),
        "ln": norm(),
        "layers": layers,
        "pooler": dense(width, width),
    }
    shape = (config.batch, config.sequence)
    tokens = random.integers(0, config.vocabulary, shape, np.int32)
    types = np.broadcast_to(np.arange(config.sequence) >= config.sequence // 2, shape).astype(np.int32)
    mask = np.broadcast_to(np.arange(config.sequence) < config.sequence - config.sequence // 8, shape).astype(np.int32)

    def bert(weights: dict[str, Any], tokens: Any, types: Any, mask: Any) -> tuple[Any, Any]:
        return forward(weights, tokens, types, mask, config.heads)

    return Model("bert", bert, parameters, (tokens, types, mask), constants=weights == "constants")


if __name__ == "__main__":
    from running import main

    def from_arguments(arguments: Any) -> Model:
        width = arguments.width
        config = Config(arguments.layers, width, max(1, width // 64), arguments.vocabulary, 512, arguments.sequence)
        return build(config, arguments.weights)

    sizes = {"layers": 12, "width": 768, "vocabulary": 30522, "sequence": 128}
    main(__doc__, from_arguments, sizes, {"weights": ("parameters", "constants")})
