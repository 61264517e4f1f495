"""A mixture of experts: top-2 routing of 512 tokens over 8 gated feed-forward networks with a fixed capacity each.

The router's ``top_k`` picks experts, a running count gives each token its place in its expert's buffer, a scatter fills
the buffers (tokens beyond the capacity are dropped), batched products apply the experts, a gather brings the results
back.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from lowering import Array, Model


@dataclass(frozen=True)
class Config:
    """Sizes of the layer."""

    tokens: int = 512
    width: int = 1024
    hidden: int = 3584
    experts: int = 8
    chosen: int = 2
    capacity: int = 160
    seed: int = 0


def forward(weights: dict[str, Any], x: Any, config: Config) -> tuple[Any, Any]:
    """The mixed outputs [tokens, width] of x [tokens, width] f32, and how many tokens chose each expert (s32)."""
    shares = jax.nn.softmax(x @ weights["router"], axis=-1)
    share, expert = lax.top_k(shares, config.chosen)
    share = share / jnp.sum(share, axis=-1, keepdims=True)
    flat = expert.reshape(-1)
    one_hot = jax.nn.one_hot(flat, config.experts, dtype=jnp.int32)
    place = jnp.sum(one_hot * (jnp.cumsum(one_hot, axis=0) - 1), axis=-1)
    rows = jnp.repeat(x, config.chosen, axis=0)
    buffers = jnp.zeros((config.experts, config.capacity, config.width), x.dtype)
    buffers = buffers.at[flat, place].set(rows, mode="drop")
    gate = jnp.einsum("ecw,ewh->ech", buffers, weights["gate"])
    up = jnp.einsum("ecw,ewh->ech", buffers, weights["up"])
    done = jnp.einsum("ech,ehw->ecw", jax.nn.silu(gate) * up, weights["down"])
    back = done.at[flat, place].get(mode="fill", fill_value=0.0).reshape(*expert.shape, config.width)
    return jnp.sum(back * share[..., None], axis=1), jnp.sum(one_hot, axis=0)


def build(config: Config = Config()) -> Model:
    """The layer with random weights on random tokens."""
    random = np.random.default_rng(config.seed)

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape, np.float32) * np.float32(shape[-2] ** -0.5)

    weights = {
        "router": normal(config.width, config.experts),
        "gate": normal(config.experts, config.width, config.hidden),
        "up": normal(config.experts, config.width, config.hidden),
        "down": normal(config.experts, config.hidden, config.width),
    }
    x = random.standard_normal((config.tokens, config.width), np.float32)
    return Model("moe", lambda weights, x: forward(weights, x, config), weights, (x,))


if __name__ == "__main__":
    from running import main

    def from_arguments(arguments: Any) -> Model:
        capacity = arguments.tokens * 5 // 16
        return build(Config(arguments.tokens, arguments.width, arguments.hidden, capacity=capacity))

    main(__doc__, from_arguments, {"tokens": 512, "width": 1024, "hidden": 3584})
