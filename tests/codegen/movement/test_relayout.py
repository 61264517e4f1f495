"""Copies that reverse, pick out, interleave or repeat elements: every bit, in runs that a DMA moves well."""

import jax.numpy as jnp
import numpy as np
import pytest
from bit_patterns import bits, descriptors, same_bits

DTYPES = ["float32", "bfloat16", "int8", "complex64", "bool"]

SIZES = [
    (1,),
    (127,),
    (4096,),
    (4099,),
    (70001,),
    (128, 513),
    (129, 511),
    (1, 8191),
    (3, 5, 7, 131),
    (2, 3, 2, 5, 2, 3, 2, 17),
]


@pytest.mark.parametrize("dims", SIZES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_reverse(dims: tuple[int, ...], dtype: str, random: np.random.Generator) -> None:
    x = bits(random, dtype, *dims)
    compiled = same_bits(lambda x: x[..., ::-1], x)
    assert descriptors(compiled) <= max(2048, x.size // 8)
    same_bits(lambda x: x[(slice(None, None, -1),) * x.ndim], x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_width(dtype: str, random: np.random.Generator) -> None:
    x = bits(random, dtype, 130, 257)
    same_bits(lambda x: x[::-1, ::-1], x)
    same_bits(lambda x: x[::-2, 3::5], x)
    same_bits(lambda x: x[:, :256].reshape(130, 4, 64).swapaxes(1, 2), x)


@pytest.mark.parametrize("step", [2, 3, 4, 7, 16, 100, 600, -1, -2, -5])
def test_steps(step: int, random: np.random.Generator) -> None:
    x = bits(random, "float32", 40, 2400)
    same_bits(lambda x: x[:, ::step], x)
    same_bits(lambda x: x[::2, 1::step], x)
    same_bits(lambda x: x.reshape(-1)[::step], x)


SWAPS = [
    ((64, 32, 2, 2), (0, 2, 1, 3)),
    ((33, 64, 4), (1, 0, 2)),
    ((2, 14, 2, 14, 2, 3), (0, 1, 3, 2, 4, 5)),
    ((5, 7, 9, 11), (3, 2, 1, 0)),
    ((5, 7, 9, 11, 3), (4, 1, 3, 0, 2)),
    ((16, 8, 16, 3, 16), (0, 2, 1, 4, 3)),
    ((2, 3, 4, 5, 6, 7, 2), (6, 4, 5, 0, 2, 3, 1)),
    ((130, 2, 70), (2, 1, 0)),
    ((127, 65, 17), (2, 1, 0)),
]


@pytest.mark.parametrize(("dims", "order"), SWAPS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_permutations(dims: tuple[int, ...], order: tuple[int, ...], dtype: str, random: np.random.Generator) -> None:
    x = bits(random, dtype, *dims)
    compiled = same_bits(lambda x: x.transpose(order), x)
    assert descriptors(compiled) <= max(2048, x.size // 4)
    same_bits(lambda x: x[:, ::-1].transpose(order), x)


def test_repetitions_in_another_order(random: np.random.Generator) -> None:
    x = bits(random, "bfloat16", 60, 50)
    dims = (60, 3, 50, 4)
    same_bits(
        lambda x: jnp.broadcast_to(x[::-1, None, ::-1, None], dims),
        x,
        oracle=lambda x: np.broadcast_to(x[::-1, None, ::-1, None], dims),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(
    "dims",
    [(127, 129), (129, 131), (513, 515), (128, 1026), (1029, 512), (2048, 100), (90, 2048), (1600, 66), (3, 129, 257)],
    ids=str,
)
def test_squares(dims: tuple[int, ...], dtype: str, random: np.random.Generator) -> None:
    x = bits(random, dtype, *dims)
    compiled = same_bits(lambda x: x.swapaxes(-1, -2), x)
    assert descriptors(compiled) <= max(2048, x.size // 8)
    same_bits(lambda x: x[..., 1:-1, 1:].swapaxes(-1, -2)[..., ::-1], x)
