"""Concatenations and pads whose rows are short: put together on chip, bit for bit."""

import random as random_
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from bit_patterns import bits, descriptors, same_bits
from generated import check_function
from jax import lax


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
@pytest.mark.parametrize(
    ("dims", "widths"),
    [((2048,), (1, 1)), ((4099,), (1, 2, 5)), ((129, 33), (3, 1)), ((130, 8), (16, 0, 7, 1)), ((4097, 2), (1, 1, 1))],
    ids=str,
)
def test_short_rows(dims: tuple[int, ...], widths: tuple[int, ...], dtype: str, random: np.random.Generator) -> None:
    arrays = [bits(random, dtype, *dims, width) for width in widths]
    compiled = same_bits(lambda *x: jnp.concatenate(x, -1), *arrays, oracle=lambda *x: np.concatenate(x, -1))
    assert dtype == "complex64" or descriptors(compiled) <= max(2048, sum(array.size for array in arrays) // 8)
    arrays = [bits(random, dtype, *dims, width, 3) for width in widths]
    same_bits(lambda *x: jnp.concatenate(x, -2), *arrays, oracle=lambda *x: np.concatenate(x, -2))


def test_views_and_computed_values_side_by_side(random: np.random.Generator) -> None:
    x, y = (random.standard_normal((40, 130, 64)).astype(np.float32) for _ in range(2))
    check_function(lambda x: jnp.concatenate([-x[..., 32:], x[..., :32]], -1), x)
    check_function(lambda x, y: jnp.stack([x, y, x + y, jnp.zeros_like(x), x[:, ::-1]], -1), x, y)
    check_function(lambda x, y: jnp.stack([x.swapaxes(1, 2), y.swapaxes(1, 2)], -1), x, y)


@pytest.mark.parametrize("seed", range(12))
def test_columns(seed: int) -> None:
    """Columns of tall arrays, some of the same: what lies between has room, and is loaded once."""
    draw = random_.Random(seed)
    rows, dtype = draw.choice((1000, 4096, 8192, 8199)), draw.choice(("float32", "bfloat16", "int8"))
    widths = [draw.choice((3, 17, 30, 60, 100, 300)) for _ in range(draw.randint(1, 3))]
    parts = []
    for _ in range(draw.randint(2, 25)):
        array = draw.randrange(len(widths))
        start = draw.randrange(widths[array])
        parts.append((array, start, min(widths[array], start + draw.randint(1, 3))))
    arrays = [bits(np.random.default_rng(seed), dtype, rows, width) for width in widths]

    def joined(module: Any, given: Any) -> Any:
        return module.concatenate([given[array][:, start:end] for array, start, end in parts], -1)

    same_bits(lambda *given: joined(jnp, given), *arrays, oracle=lambda *given: joined(np, given))


def padded(x: Any, value: Any, padding: Any) -> Any:
    """``lax.pad`` in NumPy, which moves every bit."""
    for axis, (low, high, interior) in enumerate(padding):
        spread = (x.shape[axis] - 1) * (interior + 1) + 1
        dims = [*x.shape[:axis], max(low, 0) + spread + max(high, 0), *x.shape[axis + 1 :]]
        wide = np.full(dims, value)
        into = [slice(None)] * x.ndim
        into[axis] = slice(max(low, 0), max(low, 0) + spread, interior + 1)
        wide[tuple(into)] = x
        into[axis] = slice(max(-low, 0), dims[axis] - max(-high, 0))
        x = wide[tuple(into)]
    return x


PADS: list[tuple[tuple[int, ...], list[tuple[int, int, int]]]] = [
    ((4096,), [(0, 0, 1)]),
    ((4099,), [(3, 1, 2)]),
    ((70001,), [(0, 1, 1)]),
    ((70001,), [(-3, -1, 1)]),
    ((129, 511), [(0, 0, 0), (0, 0, 1)]),
    ((129, 64), [(0, 0, 0), (2, 3, 5)]),
    ((129, 64), [(1, 2, 3), (1, 0, 1)]),
    ((4099, 3), [(0, 0, 0), (0, 1, 0)]),
    ((4099, 1), [(0, 0, 0), (1, 1, 0)]),
    ((33, 13, 17), [(0, 0, 1), (-1, 2, 0), (0, -3, 2)]),
    ((2, 3, 4, 5, 6, 7), [(0, 0, 1), (1, 1, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0), (0, 1, 1)]),
]


@pytest.mark.parametrize(("dims", "padding"), PADS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_gaps(dims: tuple[int, ...], padding: Any, dtype: str, random: np.random.Generator) -> None:
    x, value = bits(random, dtype, *dims), np.ones((), jnp.dtype(dtype))
    compiled = same_bits(
        lambda x, value: lax.pad(x, value, padding), x, value, oracle=lambda x, value: padded(x, value, padding)
    )
    assert descriptors(compiled) <= max(2048, x.size // 4)
    zero = np.zeros((), jnp.dtype(dtype))
    same_bits(lambda x: lax.pad(x, zero, padding), x, oracle=lambda x: padded(x, zero, padding))


def test_gaps_between_computed_and_moved_values(random: np.random.Generator) -> None:
    x = random.standard_normal((128, 96)).astype(np.float32)
    check_function(lambda x: lax.pad(jnp.exp(x), 0.0, [(0, 0, 0), (0, 1, 1)]), x)
    check_function(lambda x: lax.pad(x.T[::-1], -jnp.inf, [(0, 0, 1), (0, 0, 2)]), x)
