"""Sizes beside multiples of what the hardware has take about as long as those: no step between neighbours.

Each program is timed with a size, with one element less and one more, and with an eighth more.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, compile_text, text_of

from neuronx_cc.runtime.clock_regions import simulate

MOST = 1.3
"""Times as long as the size itself, or an eighth more of it."""

Array = Any


def softmax(x: Array) -> Array:
    return jax.nn.softmax(x, -1)


def normalised(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def attention(q: Array) -> Array:
    keys = q[:, :256]
    weights = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, keys) / 8, -1)
    return jnp.einsum("hqk,hkd->hqd", weights, keys)


def convolution(images: Array, kernel: Array) -> Array:
    return jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def planes(images: Array, kernel: Array) -> Array:
    return jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME")


def feed_forward(x: Array, up: Array, down: Array) -> Array:
    return x + jax.nn.gelu(x @ up) @ down


PROGRAMS: dict[str, tuple[Callable[..., Array], Callable[[int], list[tuple[int, ...]]], tuple[int, ...]]] = {
    "softmax, rows": (softmax, lambda size: [(size, 1000)], (512, 1024)),
    "softmax, columns": (softmax, lambda size: [(700, size)], (128, 512)),
    "normalised, rows": (normalised, lambda size: [(size, 768)], (256, 1024)),
    "feed forward, rows of a batch": (
        feed_forward,
        lambda size: [(4, size, 480), (480, 1920), (1920, 480)],
        (128, 192),
    ),
    "attention, rows": (attention, lambda size: [(4, size, 128)], (512,)),
    "sums of columns": (lambda x: x.sum(0), lambda size: [(size, 900)], (256, 512, 1024)),
    "sums of rows": (lambda x: x.sum(1), lambda size: [(size, 900)], (256, 1024)),
    "sums between": (lambda x: x.sum(1), lambda size: [(24, size, 60)], (128, 256)),
    "transposed": (lambda x: x.transpose(0, 2, 1), lambda size: [(12, size, 100)], (128, 512)),
    "convolution, features": (convolution, lambda size: [(1, 7, 7, size), (3, 3, size, 128)], (128, 256)),
    "planes, features": (planes, lambda size: [(1, size, 14, 14), (128, size, 3, 3)], (128, 256)),
    "planes, rows": (planes, lambda size: [(1, 64, size, 30), (128, 64, 3, 3)], (32,)),
}


def time(program: str, size: int) -> float:
    function, shapes, _ = PROGRAMS[program]
    zeros = [np.broadcast_to(np.float32(0), each) for each in shapes(size)]
    return simulate(compile_text(text_of(function, *zeros)).program, TRN1).total


@pytest.mark.parametrize(
    ("program", "size"), [(program, size) for program, (*_, sizes) in PROGRAMS.items() for size in sizes]
)
def test_no_steps(program: str, size: int) -> None:
    below, exact, above, more = (time(program, each) for each in (size - 1, size, size + 1, size + size // 8))
    assert below < MOST * exact
    assert above < MOST * max(exact, more)


@pytest.mark.parametrize("function", [softmax, lambda x: jnp.argmax(x, -1), lambda x: jnp.exp(x - x[:, :1])])
@pytest.mark.parametrize("columns", [30522, 32003, 50257])
def test_few_rows_of_a_vocabulary(function: Callable[[Array], Array], columns: int) -> None:
    """Few rows of as many columns as no number of partitions divides: a rest has instructions of its own."""
    least, same = (
        simulate(compile_text(text_of(function, np.broadcast_to(np.float32(0), (4, size)))).program, TRN1).total
        for size in (columns, columns // 128 * 128)
    )
    assert least < 2.2 * same


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.argmax(x, -1),
        lambda x: jnp.argmin(x, -1, keepdims=True),
        lambda x: jax.nn.one_hot(jnp.argmax(x, -1), x.shape[-1]),
        softmax,
        lambda x: jnp.cumsum(x, -1),
        lambda x: jax.lax.top_k(x, 5),
        lambda x: jnp.where(jnp.arange(x.shape[-1]) < 9, x, 0),
    ],
)
def test_one_row_takes_no_longer_than_a_vector(function: Callable[[Array], Array]) -> None:
    vector, *rows = (
        simulate(compile_text(text_of(function, np.broadcast_to(np.float32(0), dims))).program, TRN1).total
        for dims in ((4096,), (1, 4096), (1, 1, 4096))
    )
    assert max(rows) < 1.1 * vector


@pytest.mark.parametrize("shape", [(4, 1024, 128), (8, 3136, 64), (2, 256, 1152), (16, 196, 256)])
def test_scale_and_shift_of_each_image(shape: tuple[int, ...]) -> None:
    """Values of each image and feature are not repeated in HBM for all positions, in 16 bits as little as in 32."""
    images, values = shape, (shape[0], 1, shape[-1])
    times = []
    for dtype in ("float32", "bfloat16"):
        given = [np.broadcast_to(jnp.dtype(dtype).type(0), dims) for dims in (images, values, values)]
        text = text_of(lambda x, scale, shift: jax.nn.silu(x * scale + shift), *given)
        times.append(simulate(compile_text(text).program, TRN1).total)
    assert times[1] < times[0]
