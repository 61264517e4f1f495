"""Rows of operators that draw random numbers: from JAX's generator, for a key that torch's generator gives.

The numbers follow the same distributions as torch's, and ``torch.manual_seed`` repeats them, but they are others.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neuronx_cc.driver.frontends.torch.registry import row

Sizes = Sequence[int]


def _chosen(key: Any, share: Any, shape: Sizes) -> Any:
    """True for a share of all elements."""
    return jax.random.uniform(key, tuple(shape), np.float32) < jnp.asarray(share, np.float32)


@row("native_dropout", draws=True)
def _dropout(key: Any, x: Any, share: float, train: bool | None = True) -> Any:
    if train is False or share == 0:
        return x, jnp.ones(x.shape, bool)
    kept = _chosen(key, 1 - share, x.shape)
    return jnp.where(kept, x * (1 / (1 - share) if share < 1 else 0), 0), kept


row("rand", draws=True)(lambda key, size, dtype=None: jax.random.uniform(key, tuple(size), dtype or np.float32))
row("randn", draws=True)(lambda key, size, dtype=None: jax.random.normal(key, tuple(size), dtype or np.float32))
row("rand_like", draws=True)(lambda key, x, dtype=None: jax.random.uniform(key, x.shape, dtype or x.dtype))
row("randn_like", draws=True)(lambda key, x, dtype=None: jax.random.normal(key, x.shape, dtype or x.dtype))
row("randperm", draws=True)(lambda key, n, dtype=None: jax.random.permutation(key, n))


@row("randint.default", draws=True)
def _randint(key: Any, high: int, size: Sizes, dtype: Any = None) -> Any:
    return _whole(key, 0, high, size)


@row("randint.low", draws=True)
def _randint_low(key: Any, low: int, high: int, size: Sizes, dtype: Any = None) -> Any:
    return _whole(key, low, high, size)


def _whole(key: Any, low: int, high: int, size: Sizes) -> Any:
    """Integers from ``low`` up to ``high`` - 1, in 32 bits where these hold them."""
    dtype = np.int32 if low >= -(2**31) and high < 2**31 else np.int64
    return jax.random.randint(key, tuple(size), low, high, dtype)


row("randint_like", draws=True)(lambda key, x, high, dtype=None: _whole(key, 0, high, x.shape))
row("randint_like.low_dtype", draws=True)(lambda key, x, low, high, dtype=None: _whole(key, low, high, x.shape))


row("bernoulli.default", draws=True)(lambda key, x: _chosen(key, x, x.shape))
row("bernoulli.p", draws=True)(lambda key, x, p=0.5: _chosen(key, p, x.shape))
row("exponential", draws=True)(lambda key, x, rate=1.0: jax.random.exponential(key, x.shape, x.dtype) / rate)
row("uniform", draws=True)(
    lambda key, x, low=0.0, high=1.0: jax.random.uniform(key, x.shape, x.dtype, minval=low, maxval=high)
)
row("normal_functional", draws=True)(
    lambda key, x, mean=0.0, std=1.0: jax.random.normal(key, x.shape, x.dtype) * std + mean
)


@row("multinomial", draws=True)
def _multinomial(key: Any, weights: Any, count: int, replacement: bool = False) -> Any:
    """Indices by weight: the largest of logarithms with Gumbel noise."""
    logs = jnp.log(weights)
    if replacement:
        return jnp.moveaxis(jax.random.categorical(key, logs, shape=(count, *weights.shape[:-1])), 0, -1)
    noisy = logs + jax.random.gumbel(key, weights.shape, logs.dtype)
    return jnp.argsort(-noisy, -1)[..., :count]


@row("rrelu_with_noise_functional", draws=True)
def _rrelu(key: Any, x: Any, noise: Any, low: float = 1 / 8, high: float = 1 / 3, train: bool = False) -> Any:
    """What is not positive times a slope that is drawn, or the middle one; and the slopes, 1 elsewhere."""
    if not train:
        return jnp.where(x > 0, x, x * ((low + high) / 2)), noise
    slopes = jnp.where(x > 0, 1, jax.random.uniform(key, x.shape, x.dtype, minval=low, maxval=high))
    return x * slopes, slopes
