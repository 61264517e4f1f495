"""One sampling step of a denoising diffusion model (Ho et al. 2020, algorithm 2): predict noise, remove it, add fresh.

The noise predictor is a U-Net for 64 x 64 images with a sinusoidal embedding of the time step; the fresh noise comes
from ``jax.random.normal`` on a key that is an input, and the next key is an output.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import unet
from lowering import Model

STEPS = 1000


@dataclass(frozen=True)
class Config:
    """Sizes of the network."""

    image: int = 64
    width: int = 64
    levels: int = 3
    time: int = 256
    batch: int = 4
    seed: int = 0


def embed(step: Any, features: int) -> Any:
    """Sines and cosines of ``step`` [batch] s32 at geometric frequencies: [batch, features]."""
    frequencies = jnp.exp(-np.log(1e4) / (features // 2) * jnp.arange(features // 2))
    angles = step.astype(jnp.float32)[:, None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def sample_step(weights: dict[str, Any], x: Any, step: Any, key: Any) -> tuple[Any, Any]:
    """From x at ``step`` (s32 scalar) to x at ``step - 1``, and the key of the next step (u32[2])."""
    beta = jnp.linspace(1e-4, 0.02, STEPS, dtype=jnp.float32)
    kept = jnp.cumprod(1 - beta)
    steps = jnp.broadcast_to(step, (x.shape[0],))
    shift = jax.nn.silu(embed(steps, weights["embedding"].shape[0]) @ weights["embedding"])
    noise = unet.forward(weights["unet"], x, shift)
    mean = (x - beta[step] / jnp.sqrt(1 - kept[step]) * noise) / jnp.sqrt(1 - beta[step])
    key, used = jax.random.split(key)
    fresh = jax.random.normal(used, x.shape, jnp.float32)
    return mean + jnp.where(step > 0, jnp.sqrt(beta[step]), 0.0) * fresh, key


def build(config: Config = Config()) -> Model:
    """The model with random weights in the middle of sampling."""
    random = np.random.default_rng(config.seed + 1)
    network = unet.Config(config.image, 3, 3, config.width, config.levels, config.batch, config.seed)
    weights = {
        "unet": unet.parameters(network, config.time),
        "embedding": random.standard_normal((config.time, config.time), np.float32) * np.float32(config.time**-0.5),
    }
    x = random.standard_normal((config.batch, config.image, config.image, 3), np.float32)
    return Model("diffusion", sample_step, weights, (x, np.asarray(500, np.int32), np.array([1, 2], np.uint32)))


if __name__ == "__main__":
    from running import main

    def from_arguments(arguments: Any) -> Model:
        return build(Config(arguments.image, arguments.width, batch=arguments.batch))

    main(__doc__, from_arguments, {"image": 64, "width": 64, "batch": 4})
