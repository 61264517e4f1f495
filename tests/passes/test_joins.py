"""Pieces that lie side by side below casts: what moves them has their element type, not their user's."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from after_passes import compiled

WIDTH = 24
CUTS: dict[str, Callable] = {
    "rolled": lambda a: jnp.roll(a, WIDTH // 2, 0),
    "interleaved": lambda a: jnp.stack([a[1::2], a[::2]], 1).reshape(a.shape),
    "reversed": lambda a: jnp.concatenate([a[16:], a[8:16], a[:8]]),
    "padded": lambda a: jnp.concatenate([a[:12], jnp.zeros_like(a[:12])]),
    "updated": lambda a: a.at[:12].set(a[12:]),
    "transposed": lambda a: jnp.concatenate([a[:12].reshape(3, 4).T.reshape(-1), a[12:]]),
}
USES: dict[str, Callable] = {
    "sorted": lambda a: jnp.sort(a, 0, descending=True),
    "wider": lambda a: jnp.exp(a.astype(jnp.float32) / 4) + 1,
    "rotated": lambda a: jnp.concatenate([-a[12:], a[:12]]).astype(jnp.float32) * 2,
    "halves": lambda a: jnp.where(a.astype(jnp.float32) > 0, a[::-1].astype(jnp.float32), 1.5).reshape(2, 12),
    "integers": lambda a: jnp.concatenate([a[12:], a[:12]]).astype(jnp.int32) // 3,
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int16", "float32"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("cut", CUTS)
def test_pieces_below_casts(cut, use, dtype):
    rows = jnp.asarray(np.random.default_rng(7).integers(-20, 20, WIDTH), dtype)
    _, _, error = compiled(lambda a: USES[use](CUTS[cut](a)), rows)
    assert error <= 2.0**-14 * 200
