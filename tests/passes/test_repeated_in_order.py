"""Transposes of what is made of repeated arrays: values of drawn programs; some read it in its own order, too."""

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_text, text_of

OPS = (jnp.add, jnp.multiply, jnp.maximum, jnp.subtract)


def draw(seed: int) -> tuple[Callable[..., Any], list[Any], float]:
    """A program, its arguments and the error allowed."""
    chance, numbers = random.Random(seed), np.random.default_rng(seed)
    rank = chance.choice((2, 3, 4))
    dims = [chance.choice((1, 3, 8, 40, 130)) for _ in range(rank)]
    while np.prod(dims) > 300_000:
        dims[chance.randrange(rank)] = 3
    order, dtype = chance.sample(range(rank), rank), chance.choice((jnp.float32, jnp.bfloat16))
    kept = [sorted(chance.sample(range(rank), chance.randrange(rank))) for _ in range(chance.choice((1, 2, 3)))]
    ops = [chance.choice(OPS) for _ in kept]
    twice, plain, selected = chance.random() < 0.4, chance.random() < 0.2, chance.random() < 0.3
    counted, axis = chance.random() < 0.4, chance.randrange(rank)

    def function(*arrays: Any) -> list[Any]:
        y = jnp.full(dims, 0.5, dtype)
        if counted:
            y = y + jax.lax.broadcasted_iota(dtype, dims, axis) * jnp.asarray(0.01, dtype)
        for array, axes, op in zip(arrays, kept, ops, strict=True):
            y = op(jnp.tanh(y), jax.lax.broadcast_in_dim(array, dims, axes))
        z = jnp.exp(y * 0.1)
        z = jnp.where(y > 0.3, z, y) if selected else z
        results = [z.transpose(order) * 2]
        if twice:
            results.append(jnp.sin(y).transpose(order) + results[0])
        return [*results, z] if plain else results

    given = [np.asarray(numbers.standard_normal([dims[axis] for axis in axes]), dtype) for axes in kept]
    return function, given, 1e-5 if dtype == jnp.float32 else 3e-2


@pytest.mark.parametrize("seed", range(24))
def test_drawn(seed: int) -> None:
    function, given, relative = draw(seed)
    check_text(text_of(function, *given), *given, relative=relative)
