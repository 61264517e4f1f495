"""Arrays whose short runs are repeated: enlarged images, gradients of mean pooling."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import Compiled, check_function
from jax import lax

Array = np.ndarray[Any, Any]


def copied_bytes(compiled: Compiled) -> int:
    """Bytes of the shortest run that a DMA writes to HBM."""
    stores = [r.outs[0] for r in compiled.program.records if getattr(r, "op", "") == "dma_copy"]
    return min(ref.dims[-1][0] * abs(ref.dims[-1][1]) for ref in stores if ref.space.name == "HBM")


def enlarge(x: Any, height: int, width: int) -> Any:
    n, h, w, c = x.shape
    wide = jnp.broadcast_to(x[:, :, None, :, None, :], (n, h, height, w, width, c))
    return wide.reshape(n, h * height, w * width, c)


@pytest.mark.parametrize(
    ("dims", "height", "width"),
    [((2, 20, 9, 16), 2, 2), ((1, 130, 33, 3), 3, 2), ((3, 64, 8, 128), 1, 4), ((2, 40, 700, 8), 2, 3)],
    ids=str,
)
def test_enlarged(dims: tuple[int, ...], height: int, width: int, random: np.random.Generator) -> None:
    compiled = check_function(lambda x: enlarge(x, height, width), random.standard_normal(dims).astype(np.float32))
    assert copied_bytes(compiled) >= 512


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.uint8, np.int32, np.bool_, np.complex64], ids=str)
def test_every_size_of_element(dtype: Any, random: np.random.Generator) -> None:
    x = random.integers(0, 2, (2, 40, 30, 8)).astype(dtype)
    check_function(lambda x: enlarge(x, 2, 2), x)


def test_repeated_elements(random: np.random.Generator) -> None:
    x = random.standard_normal((64, 50)).astype(np.float32)
    check_function(lambda x: (jnp.repeat(x, 3, 1), jnp.repeat(x, 3, 0), jnp.tile(x, (2, 3)), jnp.repeat(x[0], 200)), x)


def mean(x: Any, size: tuple[int, ...]) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, size, size, "VALID") / np.prod(size)


@pytest.mark.parametrize("size", [(1, 2, 2, 1), (1, 3, 1, 1), (2, 2, 5, 4)], ids=str)
def test_gradient_of_mean_pooling(size: tuple[int, ...], random: np.random.Generator) -> None:
    dims = (2, 12, 10, 16)
    small = tuple(n // k for n, k in zip(dims, size, strict=True))
    g = random.standard_normal(small).astype(np.float32)
    g.flat[:3] = -0.0, np.inf, np.nan
    compiled = check_function(lambda g: jax.vjp(lambda x: mean(x, size), jnp.zeros(dims, jnp.float32))[1](g)[0], g)
    assert not any("reduce-window" in name or "pad" in name for name in compiled.program.kernels)


@pytest.mark.parametrize(
    ("window", "apart", "low", "high"), [(3, 3, 2, 2), (3, 3, 2, 1), (2, 3, 2, 2), (4, 3, 3, 3), (2, 1, 1, 1)], ids=str
)
def test_sums_with_gaps(window: int, apart: int, low: int, high: int, random: np.random.Generator) -> None:
    """One element in every window, or not."""
    x, n = random.standard_normal((40, 7)).astype(np.float32), random.integers(-9, 9, (40, 7)).astype(np.int32)

    def function(x: Any) -> Any:
        args = (x, x.dtype.type(0), lax.add, (1, window), (1, 1))
        gaps = lax.reduce_window(*args, [(0, 0), (low, high)], base_dilation=(1, apart))
        padded = lax.pad(x, x.dtype.type(0), [(0, 0, 0), (low, high, apart - 1)])
        return gaps, lax.reduce_window(padded, x.dtype.type(0), lax.add, (1, window), (1, 1), "VALID")

    check_function(lambda x, n: (function(x), function(n)), x, n)
