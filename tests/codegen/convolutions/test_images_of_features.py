"""Contractions of the features of images, positions last, with values of each feature after them: drawn."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function
from jax import lax

FORMS = 6


def draw(random: np.random.Generator) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    images, features, results = (
        int(random.choice(of)) for of in ((1, 1, 2, 3), (1, 3, 24, 130), (1, 72, 129, 144, 256))
    )
    high, wide = int(random.choice((1, 5, 7, 16))), int(random.choice((1, 7, 8, 33)))
    form, under_scan = int(random.integers(FORMS)), bool(random.integers(3) == 0)

    def function(x: Any, w: Any, p: Any, y: Any) -> Any:
        made = jnp.einsum("bchw,cd->bdhw", x, w)
        scale, shift = p[0][:, None, None], p[1][:, None, None]
        if form == 0:
            return jnp.maximum(made * scale + shift, 0)
        if form == 1:
            return jnp.maximum(made * scale + shift + y, 0)
        if form == 2:
            return (made + scale).reshape(images, results, -1) * 2
        if form == 3:
            return jnp.einsum("bdhw,de->behw", jnp.maximum(made + shift, 0), jnp.ones((results, 9), x.dtype))
        if form == 4:
            return (made + scale).sum((2, 3)), made
        return jnp.transpose(jnp.tanh(made * 0.001 + shift), (0, 2, 3, 1))

    def twice(x: Any, w: Any, p: Any, y: Any) -> Any:
        return lax.scan(lambda s, _: (s + 1, function(x + s.astype(x.dtype), w, p, y)), jnp.float32(0), jnp.arange(2))[
            1
        ]

    shapes = (images, features, high, wide), (features, results), (2, results), (images, results, high, wide)
    given = [random.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
    return twice if under_scan else function, given


def check(seed: int) -> None:
    random = np.random.default_rng(seed)
    function, given = draw(random)
    nbytes = (192, 48)[seed % 2] * 1024
    dtype = (np.float32, jnp.bfloat16)[seed // 2 % 2]
    machine = TRN1.with_settings([f"memory.sbuf_partition_bytes={nbytes}"])
    relative = 1e-5 if dtype == np.float32 else 3e-2
    check_function(function, *(array.astype(dtype) for array in given), relative=relative, machine=machine)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_values(first: int) -> None:
    for seed in range(first, first + 10):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1800, 50))
def test_values_of_many(first: int) -> None:
    for seed in range(first, first + 50):
        check(seed)
