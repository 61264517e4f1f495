"""Layers that the transformer examples share."""

from typing import Any

import jax.numpy as jnp
from jax import lax


def layer_norm(x: Any, weights: dict[str, Any], epsilon: float) -> Any:
    """Normalise the last dimension to mean 0 and variance 1, then scale and shift."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + epsilon) * weights["gain"] + weights["bias"]


def linear(x: Any, weights: dict[str, Any]) -> Any:
    """``x @ kernel + bias``."""
    return x @ weights["kernel"] + weights["bias"]
