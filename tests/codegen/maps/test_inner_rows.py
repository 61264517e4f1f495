"""Rows that are folded along dims that others follow: drawn norms and softmaxes over dims in the middle."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function, compile_text, text_of

from neuronx_cc.runtime.clock_regions import simulate

Array = np.ndarray[Any, Any]
SIZES = (1, 2, 3, 5, 7, 8, 12, 16, 21, 32, 33, 64, 96, 100, 127, 128, 129, 200)
MOST = 300_000
"""Elements."""
QUARTER = TRN1.with_settings(["memory.sbuf_partition_bytes=49152"])


def functions(axes: tuple[int, ...]) -> dict[str, Callable[..., Any]]:
    """Of x, an array w that varies along the folded dims, and r that has one element for each row."""
    kept: Any = {"axis": axes, "keepdims": True}

    def norm(x: Any) -> Any:
        return (x - x.mean(**kept)) * jax.lax.rsqrt(x.var(**kept) + 1e-3)

    def positions(x: Any) -> Any:
        return jax.lax.broadcasted_iota(jnp.int32, x.shape, axes[-1])

    def places(x: Any) -> Any:
        dims = [size if axis == axes[-1] else 1 for axis, size in enumerate(x.shape)]
        return jnp.arange(x.shape[axes[-1]], dtype=x.dtype).reshape(dims)

    def masked(x: Any, *_: Any) -> Any:
        first = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
        return jax.nn.softmax(jnp.where(positions(x) <= 2 * first, x, -1e30), axes)

    return {
        "softmax": lambda x, *_: jax.nn.softmax(x, axes),
        "norm": lambda x, *_: norm(x),
        "norm with scale": lambda x, w, r: norm(x) * w + r,
        "residual": lambda x, w, r: x + norm(jnp.tanh(x) * w) * r,
        "of rows and more": lambda x, w, r: (x / (jnp.abs(x).max(**kept) + r * r + 1), x.sum(**kept)),
        "masked": masked,
        "counted": lambda x, w, r: x - (x * positions(x)).mean(**kept) * w,
        "places": lambda x, w, r: x - (x * places(x)).mean(**kept),
        "reversed": lambda x, w, r: norm(x[..., ::-1]) + x,
        "transposed": lambda x, w, r: jnp.moveaxis(norm(x), axes[-1], -1),
        "chained": lambda x, w, r: jax.nn.softmax(norm(x) * w, -1),
        "others too": lambda x, w, r: norm(x) * x.mean(-1, keepdims=True) + x.mean(0, keepdims=True),
        "gradient": lambda x, w, r: jax.grad(lambda x, w: (norm(x) * w * jnp.sin(x)).sum(), (0, 1))(
            x.astype(jnp.float32), w.astype(jnp.float32)
        ),
        "of a softmax": lambda x, w, r: jax.grad(lambda x: (jax.nn.softmax(x * r, axes) * w).sum())(x),
        "scanned": lambda x, w, r: norm(x) + jnp.cumsum(x, -1),
        "whole numbers": lambda x, w, r: (lambda n: n - n.max(**kept) + n.sum(**kept))((8 * x).astype(jnp.int32)),
        "any": lambda x, w, r: jnp.where((x > 2.5).any(**kept), x, w),
    }


def draw(seed: int) -> tuple[Callable[..., Any], list[Array]]:
    chance = random.Random(seed)
    dims: list[int] = []
    while not 1 < np.prod(dims) <= MOST or len(dims) < 3:
        dims = [chance.choice(SIZES) for _ in range(chance.choice((3, 3, 4, 4, 5)))]
    axes = tuple(sorted(chance.sample(range(1, len(dims) - 1), chance.randint(1, min(2, len(dims) - 2)))))
    table = functions(axes)
    function = table[list(table)[seed % len(table)]]
    values = np.random.default_rng(seed)
    shapes = (
        dims,
        [d if a in axes else 1 for a, d in enumerate(dims)],
        [1 if a in axes else d for a, d in enumerate(dims)],
    )
    dtype = chance.choice((jnp.float32, jnp.float32, jnp.bfloat16))
    return function, [np.asarray(values.standard_normal(shape), dtype) for shape in shapes]


@pytest.mark.parametrize("seed", range(96))
def test_values(seed: int) -> None:
    function, arrays = draw(seed)
    check_function(function, *arrays, relative=3e-5 if arrays[0].dtype == np.float32 else 2e-2)


@pytest.mark.parametrize("seed", range(100, 148))
def test_values_on_a_small_machine(seed: int) -> None:
    function, arrays = draw(seed)
    relative = 3e-5 if arrays[0].dtype == np.float32 else 2e-2
    check_function(function, *arrays, relative=relative, machine=QUARTER)


@pytest.mark.parametrize("size", [24, 48, 129])
def test_counts_along_columns(size: int) -> None:
    """The weights of a resized image: both its dims are counted along."""
    x = np.random.default_rng(0).standard_normal((2, size, 9, 5)).astype(np.float32)
    check_function(lambda x: jax.image.resize(x, (2, 2 * size, 18, 5), "linear"), x)
    check_function(lambda x: jax.image.resize(x, (2, size // 2, 4, 5), "cubic"), x, relative=3e-5)


def time(function: Callable[..., Any], dims: Sequence[int]) -> float:
    text = text_of(function, np.ones(dims, np.float32))
    return simulate(compile_text(text).program, TRN1).total


@pytest.mark.parametrize("dims", [(640, 640, 4), (640, 640, 2), (1024, 64, 16), (4096, 16, 8), (2048, 2, 100)], ids=str)
def test_time(dims: tuple[int, int, int]) -> None:
    """Beside the same over the last dim; kernels apart took 1.5 to 3.1 times as long."""
    last = (dims[0], dims[2], dims[1])
    assert time(lambda x: jax.nn.softmax(x, 1), dims) <= 1.9 * time(lambda x: jax.nn.softmax(x, -1), last)
