"""A U-Net: four levels of two 3 x 3 convolutions each, max pooling down, transposed convolutions up, skips across.

The widths are those of the published network (64 to 1024 features), with padded convolutions, so that a 256 x 256 image
gives a 256 x 256 map. Half as wide and with an embedded time step it is the noise predictor of ``diffusion.py``.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from lowering import Array, Model

LAYOUT = ("NHWC", "HWIO", "NHWC")


@dataclass(frozen=True)
class Config:
    """Sizes of the network."""

    image: int = 256
    channels: int = 3
    outputs: int = 2
    width: int = 64
    levels: int = 4
    batch: int = 1
    seed: int = 0


def pair(x: Any, weights: Any, shift: Any = None) -> Any:
    """Two 3 x 3 convolutions with rectifiers; ``shift`` [batch, features] is added between them."""
    x = lax.conv_general_dilated(x, weights["first"], (1, 1), "SAME", dimension_numbers=LAYOUT) + weights["bias1"]
    x = jax.nn.relu(x)
    if shift is not None:
        x = x + (shift @ weights["time"])[:, None, None, :]
    x = lax.conv_general_dilated(x, weights["second"], (1, 1), "SAME", dimension_numbers=LAYOUT) + weights["bias2"]
    return jax.nn.relu(x)


def forward(weights: Any, images: Any, shift: Any = None) -> Any:
    """A map [batch, rows, columns, outputs] of images [batch, rows, columns, channels], all f32."""
    x, skips = images, []
    for level in weights["down"]:
        x = pair(x, level, shift)
        skips.append(x)
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = pair(x, weights["bottom"], shift)
    for level, skip in zip(weights["up"], reversed(skips), strict=True):
        x = lax.conv_transpose(x, level["expand"], (2, 2), "VALID", dimension_numbers=LAYOUT)
        x = pair(jnp.concatenate([skip, x], axis=-1), level, shift)
    return lax.conv_general_dilated(x, weights["head"], (1, 1), "SAME", dimension_numbers=LAYOUT) + weights["bias"]


def parameters(config: Config, time: int = 0) -> Any:
    """Random weights at the scale of He's initialisation; ``time``: features of the embedded time step, or 0."""
    random = np.random.default_rng(config.seed)

    def kernel(size: int, fan_in: int, fan_out: int) -> Array:
        scale = np.float32(np.sqrt(2 / (size * size * fan_in)))
        return random.standard_normal((size, size, fan_in, fan_out), np.float32) * scale

    def double(fan_in: int, fan_out: int) -> dict[str, Array]:
        weights = {
            "first": kernel(3, fan_in, fan_out),
            "bias1": np.float32(0.1) * random.standard_normal(fan_out, np.float32),
            "second": kernel(3, fan_out, fan_out),
            "bias2": np.float32(0.1) * random.standard_normal(fan_out, np.float32),
        }
        if time:
            weights["time"] = kernel(1, time, fan_out)[0, 0]
        return weights

    widths = [config.width << level for level in range(config.levels + 1)]
    down = [double(a, b) for a, b in zip([config.channels, *widths], widths[:-1], strict=False)]
    up = []
    for below, here in zip(widths[:0:-1], widths[-2::-1], strict=True):
        up.append({"expand": kernel(2, below, here), **double(2 * here, here)})
    return {
        "down": down,
        "bottom": double(widths[-2], widths[-1]),
        "up": up,
        "head": kernel(1, config.width, config.outputs),
        "bias": np.zeros(config.outputs, np.float32),
    }


def build(config: Config = Config()) -> Model:
    """The model with random weights on a random image."""
    random = np.random.default_rng(config.seed + 1)
    images = random.standard_normal((config.batch, config.image, config.image, config.channels), np.float32)
    return Model("unet", forward, parameters(config), (images,))


if __name__ == "__main__":
    from running import main

    def from_arguments(arguments: Any) -> Model:
        return build(Config(arguments.image, width=arguments.width, batch=arguments.batch))

    main(__doc__, from_arguments, {"image": 256, "width": 64, "batch": 1})
