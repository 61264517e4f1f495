"""One decoding step of a Llama-style model: a token in, logits out, the key-value cache updated in place.

Rotary embedding, grouped query heads, RMS norms and a gated feed-forward network. The cache is donated and written at a
run-time position; the mask follows from that position.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from lowering import Array, Model
from mamba import rms_norm


@dataclass(frozen=True)
class Config:
    """Sizes of the network, about 200M parameters."""

    layers: int = 12
    width: int = 1024
    heads: int = 16
    groups: int = 4
    hidden: int = 2816
    vocabulary: int = 32000
    cache: int = 1024
    batch: int = 1
    seed: int = 0


def rotate(x: Any, position: Any) -> Any:
    """Rotary embedding at ``position`` (s32 scalar) of x [batch, heads, features]."""
    half = x.shape[-1] // 2
    angles = position.astype(jnp.float32) * jnp.exp(-np.log(1e4) / half * jnp.arange(half))
    first, second = jnp.split(x, 2, axis=-1)
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def attention(x: Any, weights: Any, cache: tuple[Any, Any], position: Any, config: Config) -> tuple[Any, Any]:
    """Attention of x [batch, width] over the cache [batch, groups, positions, features] with x's own entry added."""
    size = config.width // config.heads
    query = rotate((x @ weights["query"]).reshape(-1, config.heads, size), position)
    key = rotate((x @ weights["key"]).reshape(-1, config.groups, size), position)
    value = (x @ weights["value"]).reshape(-1, config.groups, size)
    keys = lax.dynamic_update_slice_in_dim(cache[0], key[:, :, None], position, axis=2)
    values = lax.dynamic_update_slice_in_dim(cache[1], value[:, :, None], position, axis=2)
    query = query.reshape(-1, config.groups, config.heads // config.groups, size)
    scores = jnp.einsum("bgqf,bgpf->bgqp", query, keys) / np.float32(np.sqrt(size))
    scores = jnp.where(jnp.arange(config.cache) <= position, scores, -jnp.inf)
    mixed = jnp.einsum("bgqp,bgpf->bgqf", jax.nn.softmax(scores, axis=-1), values)
    return mixed.reshape(-1, config.width) @ weights["output"], (keys, values)


def build(config: Config = Config()) -> Model:
    """The model with random weights in the middle of a text of 700 tokens (or half of a smaller cache)."""
    random = np.random.default_rng(config.seed)

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape, np.float32) * np.float32(shape[-2] ** -0.5)

    size = config.width // config.heads

    def layer() -> dict[str, Array]:
        return {
            "gain1": np.ones(config.width, np.float32),
            "query": normal(config.width, config.width),
            "key": normal(config.width, config.groups * size),
            "value": normal(config.width, config.groups * size),
            "output": normal(config.width, config.width),
            "gain2": np.ones(config.width, np.float32),
            "gate": normal(config.width, config.hidden),
            "up": normal(config.width, config.hidden),
            "down": normal(config.hidden, config.width),
        }

    weights = {
        "tokens": normal(config.vocabulary, config.width),
        "layers": [layer() for _ in range(config.layers)],
        "gain": np.ones(config.width, np.float32),
        "head": normal(config.width, config.vocabulary),
    }
    shape = (config.batch, config.groups, config.cache, size)
    cache = [
        (random.standard_normal(shape, np.float32), random.standard_normal(shape, np.float32))
        for _ in range(config.layers)
    ]
    position = np.asarray(min(700, config.cache // 2), np.int32)
    tokens = random.integers(0, config.vocabulary, config.batch, np.int32)

    def decode(weights: Any, cache: Any, tokens: Any, position: Any) -> tuple[Any, Any]:
        x = weights["tokens"][tokens]
        updated = []
        for part, entry in zip(weights["layers"], cache, strict=True):
            mixed, entry = attention(rms_norm(x, part["gain1"]), part, entry, position, config)
            x = x + mixed
            y = rms_norm(x, part["gain2"])
            x = x + (jax.nn.silu(y @ part["gate"]) * (y @ part["up"])) @ part["down"]
            updated.append(entry)
        return rms_norm(x, weights["gain"]) @ weights["head"], updated

    return Model("llama", decode, weights, (cache, tokens, position), donate=(1,))


if __name__ == "__main__":
    from running import main

    def from_arguments(arguments: Any) -> Model:
        sizes = {name: getattr(arguments, name) for name in ("layers", "width", "hidden", "vocabulary", "cache")}
        return build(Config(**sizes, heads=arguments.width // 64, groups=max(1, arguments.width // 256)))

    main(__doc__, from_arguments, {"layers": 12, "width": 1024, "hidden": 2816, "vocabulary": 32000, "cache": 1024})
