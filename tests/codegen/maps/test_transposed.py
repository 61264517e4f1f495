"""Maps whose operands lie across: transposed on their way in, exactly, at about the rate of the DMA."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import check_function

import neuronx_cc

Array = np.ndarray[Any, Any]


def drawn(random: np.random.Generator, dims: tuple[int, ...], dtype: str) -> Array:
    """Values of all magnitudes, with an infinity, a NaN and -0 where there are such."""
    x = np.asarray(random.standard_normal(dims) * 50).astype(dtype)
    if dtype in ("float32", ml_dtypes.bfloat16):
        x.flat[:4] = [np.inf, np.nan, -0.0, -np.inf]
    return x


@pytest.mark.parametrize("dims", [(128, 128), (197, 320), (320, 1021), (131, 33), (640, 512)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16, "int32", "int8"])
def test_matrices(dims: tuple[int, int], dtype: str, random: np.random.Generator) -> None:
    x = drawn(random, dims, dtype)

    def function(x: Any, y: Any) -> Any:
        return x.T * 2, x.T + y, jnp.where(x.T > 0, y, x.T)

    check_function(function, x, np.ascontiguousarray(x.T))


@pytest.mark.parametrize(
    ("dims", "order"),
    [
        ((8, 128, 128), (0, 2, 1)),
        ((3, 197, 509), (0, 2, 1)),
        ((3, 197, 509), (2, 0, 1)),
        ((5, 130, 257), (2, 1, 0)),
        ((130, 5, 257), (1, 2, 0)),
        ((2, 3, 70, 140), (0, 3, 1, 2)),
        ((16, 200, 64), (0, 2, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16])
def test_permutations(dims: tuple[int, ...], order: tuple[int, ...], dtype: str, random: np.random.Generator) -> None:
    x, row = drawn(random, dims, dtype), drawn(random, (dims[order[-1]],), dtype)
    check_function(lambda x, row: (x.transpose(order) * 2, x.transpose(order) * row), x, row)


def test_in_a_loop(random: np.random.Generator) -> None:
    x = random.standard_normal((256, 256), np.float32)
    check_function(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y.T * 0.5 + x.T, x), x)


@pytest.mark.parametrize("size", [512, 1000, 1021, 2048])
@pytest.mark.parametrize(("dtype", "most"), [("float32", 2.0), (ml_dtypes.bfloat16, 2.9)])
def test_time(size: int, dtype: str, most: float) -> None:
    """Beside the bytes in and out: the greater of Vector's and Scalar's work on 16-bit types is 1.5 times as much."""
    x = jax.ShapeDtypeStruct((size, size), dtype)
    lowered = jax.jit(lambda x: x.T * 2).lower(x)
    report = neuronx_cc.compile(lowered, auto_cast="none").run([], timing_only=True, check_races=False).report
    moved = 2 * size * size * x.dtype.itemsize / 272
    assert report.kernel_ns < most * moved + 5000
