"""Norms over any dims of what is given, transposed or made on chip: axes are one only where memory has them so."""

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function

Array = np.ndarray[Any, Any]
SIZES = (2, 3, 4, 5, 8, 16, 17, 51, 64, 85, 120, 127, 128, 255)
MOST = 60_000
"""Elements."""


def draw(seed: int) -> tuple[Callable[..., Any], Array]:
    """A norm, a softmax or a centring over some dims that do not all follow each other, and what it is of."""
    chance = random.Random(seed)
    dims: list[int] = []
    while not 100 < np.prod(dims) <= MOST:
        dims = [chance.choice(SIZES) for _ in range(chance.choice((3, 4, 4, 5, 5)))]
    axes = tuple(sorted(chance.sample(range(len(dims)), chance.randint(2, len(dims) - 1))))
    if chance.random() < 0.6:  # few rows, of which every other dim is folded
        few, long = (2, 4, 5, 6, 8, 16), (51, 85, 127, 129, 255)
        dims = [chance.choice(few), chance.choice(few), chance.choice(long), chance.choice(few)]
        axes = (0, 2)
    order = chance.sample(range(len(dims)), len(dims)) if chance.random() < 0.6 else [*range(len(dims))]
    given = [dims[order.index(dim)] for dim in range(len(dims))]
    kept: Any = {"axis": axes, "keepdims": True}
    prologue = chance.choice([lambda x: x, jnp.sin, lambda x: jnp.where(x > 0, x, 0.5 * x)])
    fold = chance.choice(
        [
            lambda x: (x - x.mean(**kept)) * jax.lax.rsqrt(x.var(**kept) + 0.1),
            lambda x: jax.nn.softmax(x, axes),
            lambda x: x - x.mean(**kept),
            lambda x: x * jax.lax.rsqrt((x * x).mean(**kept) + 0.1),
        ]
    )
    also = chance.choice(
        [
            lambda made, x: made,
            lambda made, x: (made, made.astype(jnp.bfloat16)),
            lambda made, x: (made.astype(jnp.bfloat16) + 1, x),
            lambda made, x: (made, jnp.moveaxis(made, 0, -1) * 2),
            lambda made, x: made.reshape(-1)[::2] + 1,
            lambda made, x: (made, jnp.where(jnp.arange(x.shape[-1]) % 3 == 0, x, 0.5)),
            lambda made, x: (x + 1, made),
        ]
    )

    dtype = chance.choice((jnp.float32, jnp.float32, jnp.bfloat16))

    def function(x: Any) -> Any:
        made = prologue(x.astype(dtype)).transpose(order)
        return also(fold(made), made)

    return function, np.random.default_rng(seed).standard_normal(given).astype(np.float32)


@pytest.mark.parametrize("sbuf", [None, 40960])
@pytest.mark.parametrize("seed", range(60))
def test_drawn(seed: int, sbuf: int | None) -> None:
    machine = TRN1.with_settings([f"memory.sbuf_partition_bytes={sbuf}"]) if sbuf else TRN1
    function, x = draw(seed)
    check_function(function, x, relative=3e-5, machine=machine)
