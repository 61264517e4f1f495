"""Models of a few contractions, drawn by seed: unlike sizes, residuals, weights of layers, convolutions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
WIDTHS = (24, 64, 100, 160, 257)
IMAGE = (1, 12, 12, 8)


def small_model(seed: int) -> tuple[Callable[..., Any], list[Array]]:
    """A function and its arguments: one to twelve layers."""
    random = np.random.default_rng(seed)
    widths = [int(random.choice(WIDTHS))]
    arrays = [random.standard_normal((int(random.choice([1, 16, 130])), widths[0])).astype(np.float32)]
    steps: list[tuple[str, float]] = []
    for _ in range(random.integers(1, 13)):
        kind = str(random.choice(["dense", "residual", "small", "gated", "image"]))
        steps.append((kind, float(10.0 ** random.uniform(-2, 1))))
        width = int(random.choice(WIDTHS)) if kind == "dense" else widths[-1]
        shape = (3, 3, IMAGE[3], IMAGE[3]) if kind == "image" else (widths[-1], width)
        arrays.append((random.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32))
        widths.append(width)
    arrays.append(random.standard_normal(IMAGE).astype(np.float32))

    def model(x: Any, *rest: Any) -> Any:
        *weights, image = rest
        for (kind, scale), w in zip(steps, weights, strict=True):
            if kind == "image":
                image = image + scale * jax.lax.conv_general_dilated(
                    jnp.tanh(image), w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
            elif kind == "residual":
                x = x + scale * jnp.tanh(x @ w)
            elif kind == "small":
                x = x * (1 + (x[:, :5] @ w[:5, :1]) * scale / 30)
            elif kind == "gated":
                x = jax.nn.sigmoid(x @ w) * (jnp.tanh(x) @ w)
            else:
                x = jnp.tanh(x @ w)
        return x, image

    return model, arrays
