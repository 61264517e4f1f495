"""A Mamba language model (Gu and Dao 2023) of the 130M size: selective state spaces by an associative scan.

Each block projects to twice the inner width, convolves over time per feature, scans ``h = a h + b x`` over the sequence
with ``lax.associative_scan``, gates and projects back.
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
    """Sizes of the network; the defaults are those of the 130M model, on a sequence of 128 tokens."""

    layers: int = 24
    width: int = 768
    state: int = 16
    rank: int = 48
    window: int = 4
    vocabulary: int = 50280
    sequence: int = 128
    seed: int = 0


def rms_norm(x: Any, gain: Any) -> Any:
    """``x`` over the root of its mean square along the last dimension, scaled."""
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-5) * gain


def selective_scan(x: Any, weights: Any, config: Config) -> Any:
    """``y[t] = c[t] h[t] + d x[t]`` with ``h[t] = exp(dt a) h[t-1] + dt b[t] x[t]`` for x [sequence, features]."""
    projected = x @ weights["x"]
    low, b, c = jnp.split(projected, [config.rank, config.rank + config.state], axis=-1)
    dt = jax.nn.softplus(low @ weights["dt"] + weights["dt_bias"])
    decay = jnp.exp(dt[:, :, None] * -jnp.exp(weights["log_a"]))
    entry = (dt * x)[:, :, None] * b[:, None, :]

    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    _, h = lax.associative_scan(combine, (decay, entry), axis=0)
    return jnp.einsum("tfs,ts->tf", h, c) + weights["d"] * x


def block(x: Any, weights: Any, config: Config) -> Any:
    """One layer on x [sequence, width]."""
    inner, gate = jnp.split(rms_norm(x, weights["gain"]) @ weights["entry"], 2, axis=-1)
    features = inner.shape[-1]
    inner = lax.conv_general_dilated(
        inner[None],
        weights["window"],
        (1,),
        [(config.window - 1, 0)],
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=features,
    )[0]
    y = selective_scan(jax.nn.silu(inner + weights["window_bias"]), weights, config)
    return x + (y * jax.nn.silu(gate)) @ weights["exit"]


def build(config: Config = Config()) -> Model:
    """The model with random weights and a random prompt; gives the logits after the last token."""
    random = np.random.default_rng(config.seed)
    inner = 2 * config.width

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape, np.float32) * np.float32(shape[-2] ** -0.5)

    def layer() -> dict[str, Array]:
        return {
            "gain": np.ones(config.width, np.float32),
            "entry": normal(config.width, 2 * inner),
            "window": random.standard_normal((config.window, 1, inner), np.float32) * np.float32(0.5),
            "window_bias": np.zeros(inner, np.float32),
            "x": normal(inner, config.rank + 2 * config.state),
            "dt": normal(config.rank, inner),
            "dt_bias": np.log(np.expm1(random.uniform(1e-3, 0.1, inner))).astype(np.float32),
            "log_a": np.log(np.tile(np.arange(1, config.state + 1, dtype=np.float32), (inner, 1))),
            "d": np.ones(inner, np.float32),
            "exit": normal(inner, config.width),
        }

    weights = {
        "tokens": np.float32(0.02) * random.standard_normal((config.vocabulary, config.width), np.float32),
        "layers": [layer() for _ in range(config.layers)],
        "gain": np.ones(config.width, np.float32),
    }
    tokens = random.integers(0, config.vocabulary, config.sequence, np.int32)

    def forward(weights: Any, tokens: Any) -> Any:
        x = weights["tokens"][tokens]
        for part in weights["layers"]:
            x = block(x, part, config)
        return rms_norm(x[-1], weights["gain"]) @ weights["tokens"].T

    return Model("mamba", forward, weights, (tokens,))


if __name__ == "__main__":
    from running import main

    def from_arguments(arguments: Any) -> Model:
        sizes = {name: getattr(arguments, name) for name in ("layers", "width", "vocabulary", "sequence")}
        return build(Config(**sizes))

    main(__doc__, from_arguments, {"layers": 24, "width": 768, "vocabulary": 50280, "sequence": 128})
