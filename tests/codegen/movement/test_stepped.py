"""Reversed and strided operands of kernels that compute: loaded in long runs, or put straight first."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from bit_patterns import descriptors, same_bits
from generated import check_function
from jax import lax

FUNCTIONS: dict[str, Any] = {
    "sum of rows, reversed": lambda x, y: x[:, ::-1].sum(0),
    "maximum of reversed rows": lambda x, y: x[::-1, ::-1].max(1),
    "sum of every third": lambda x, y: x[:, ::3].sum(0),
    "product with reversed": lambda x, y: x[:64, ::-1] @ y[:, :64],
    "product of steps": lambda x, y: x[:64, ::2] @ y[:128, ::4],
    "add every eighth": lambda x, y: x[:, ::8] + y[:, :32],
    "add from the end": lambda x, y: x[::-1, ::-8] + y[:, :32],
    "add every 60.": lambda x, y: jnp.exp(x[:, ::60]) + y[:, :5],
    "short pieces": lambda x, y: jnp.tanh(x.reshape(256, 16, 16)[:, :, 3:9]) * 2,
    "transposed pieces": lambda x, y: jnp.tanh(x.reshape(256, 16, 16)[:, :, ::-2].swapaxes(1, 2)) * 2,
    "row backwards": lambda x, y: x + y[0, ::-1],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_computed(name: str, dtype: str, random: np.random.Generator) -> None:
    x, y = (random.integers(-9, 9, (256, 256)).astype(jnp.dtype(dtype)) for _ in range(2))
    compiled = check_function(FUNCTIONS[name], x, y, relative=1e-2 if dtype == "bfloat16" else 1e-5)
    assert descriptors(compiled) <= 6000


@pytest.mark.parametrize("start", [0, 5, 1000])
def test_windows_of_transposed_arrays(start: int, random: np.random.Generator) -> None:
    x, at = random.standard_normal((130, 260)).astype(np.float32), np.int32(start)
    check_function(lambda x, at: lax.dynamic_slice(x.T, (at, 0), (128, 130)), x, at)
    check_function(lambda x, at: lax.dynamic_slice(x[:, ::-1], (at, at), (70, 128)), x, at)
    check_function(lambda x, at: lax.dynamic_update_slice(x, x[:60, ::-1], (at, 0)), x, at)
    check_function(lambda x, at: lax.dynamic_update_slice(x.T, x[:70].T, (0, at)), x, at)


def test_windows_in_loops(random: np.random.Generator) -> None:
    x = random.standard_normal((96, 256)).astype(np.float32)

    def function(x: Any) -> Any:
        def body(step: Any, y: Any) -> Any:
            return y + lax.dynamic_slice(x.T[::-1], (step * 64, 0), (64, 96))

        return lax.fori_loop(0, 4, body, jnp.zeros((64, 96), jnp.float32))

    check_function(function, x)


def test_zeros_keep_their_signs(random: np.random.Generator) -> None:
    x = random.choice(np.array([0.0, -0.0, np.inf, -np.inf], np.float32), (128, 96))
    same_bits(lambda x: -x[:, ::-8], x)


def test_tiles_of_transposed_operands_fit(random: np.random.Generator) -> None:
    """What lies between the elements of a tile is nearly the whole row, where the tiles' dim is the minor one there."""
    x, y = (random.integers(-9, 9, (4, 257, 127)).astype(np.float32) for _ in range(2))

    def function(x: Any, y: Any) -> Any:
        product = y * (lax.cummax(x, 1, reverse=True) + y)
        return product - x, product

    check_function(function, x, y)


def test_few_terms_side_by_side_beside_a_batch(random: np.random.Generator) -> None:
    x, y = (random.standard_normal(dims).astype(np.float32) for dims in ((16, 16, 4, 128), (16, 128, 16, 4)))
    compiled = check_function(lambda x, y: jnp.einsum("ebcf,bwec->efw", x, y), x, y)
    assert descriptors(compiled) <= 12_000, "32,768 where four terms are a run"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "CNHW"])
def test_images_that_repeat_their_positions(layout: str, dtype: str, random: np.random.Generator) -> None:
    """Gradients of means over positions: what is spread is loaded, not each element of the image by itself."""

    def function(x: Any, w: Any, k: Any) -> Any:
        results = []
        for given in (x, x @ w):
            dims = [0, 1] if layout == "NCHW" else [0, 3] if layout == "NHWC" else [1, 0]
            shape = [{"N": 8, "C": 32, "H": 12, "W": 12}[letter] for letter in layout]
            image = lax.broadcast_in_dim(given if dims[0] < dims[1] else given.T, shape, sorted(dims))
            results.append(
                lax.conv_general_dilated(image, k, (1, 1), "SAME", dimension_numbers=(layout, "HWIO", layout))
            )
        return results

    sizes = ((8, 32), (32, 32), (3, 3, 32, 16))
    given = [random.integers(-3, 3, size).astype(jnp.dtype(dtype)) for size in sizes]
    compiled = check_function(function, *given, relative=1e-2 if dtype == "bfloat16" else 1e-5)
    assert descriptors(compiled) <= 6000
