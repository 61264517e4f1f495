"""What products of a few rows with 8-bit weights take by the clock, so that none gets slower unseen."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eight_bit_texts import product

import neuronx_cc
from neuronx_cc.codegen.dots.tiles import piece_of
from neuronx_cc.ir.types import NUMPY_DTYPE

MORE = 1.02
"""Times that are right may move by so much."""
SHAPES = ((4096, 4096), (1024, 2816), (2816, 1024), (8192, 1024), (768, 3072))
TIMES = {
    "s8": (88.3, 33.8, 34.2, 61.2, 32.1),
    "f8e4m3": (86.0, 32.1, 33.1, 55.3, 30.1),
    "f8e4m3fn": (152.8, 48.4, 50.7, 89.8, 44.4),
    "f8e4m3fn without NaNs": (98.6, 37.9, 39.6, 67.0, 35.2),
}
"""Microseconds of one row times matrices of ``SHAPES`` with scales of columns, start and end included."""
TURNED = {
    "bf16": (164.9, 164.9, 31.8, 42.2, 155.2),
    "s8": (127.0, 127.1, 30.8, 44.1, 153.6),
    "f8e4m3": (87.7, 88.2, 26.4, 36.0, 113.9),
    "f8e4m3fn": (247.1, 247.1, 39.7, 59.6, 256.5),
    "f8e4m3fn without NaNs": (126.6, 126.7, 32.4, 44.8, 173.3),
}
"""The same of weights with the sum last: (rows, k, n) of ``TURNED_SHAPES``."""
TURNED_SHAPES = ((1, 4096, 4096), (4, 4096, 4096), (1, 1024, 1024), (1, 768, 3072), (16, 1024, 14336))
CONSTANTS = {"s8": 38.5, "f8e4m3": 37.5, "f8e4m3fn": 47.8}
"""The same of a matrix of 2048 x 2048 that is a constant, in which all codes are."""
PLACES = (("f8e5m2", 1021, 4093, 1, 45.8), ("s8", 3000, 1031, 4, 40.6))
"""Types, terms, columns, rows of FP32 -> the same."""
SCAN = 138.8
"""The same of layers under ``lax.scan``."""


def microseconds(module: object, **options: object) -> float:
    """Simulated."""
    program = neuronx_cc.compile(module, auto_cast="none", **options)
    return program.run([], timing_only=True, check_races=False).report.time_ns / 1e3


@pytest.mark.parametrize("weights", TIMES)
def test_parameters(weights: str) -> None:
    dtype, *without = weights.split(maxsplit=1)
    times = [microseconds(product(dtype, k, n), nan_codes=not without) for k, n in SHAPES]
    most = zip(SHAPES, times, TIMES[weights], strict=True)
    slower = [(shape, time) for shape, time, right in most if time > right * MORE]
    assert not slower, f"{weights}: {slower}"


@pytest.mark.parametrize("weights", TURNED)
def test_sum_last(weights: str) -> None:
    dtype, *without = weights.split(maxsplit=1)
    times = [microseconds(product(dtype, k, n, m, True), nan_codes=not without) for m, k, n in TURNED_SHAPES]
    most = zip(TURNED_SHAPES, times, TURNED[weights], strict=True)
    slower = [(shape, time) for shape, time, right in most if time > right * MORE]
    assert not slower, f"{weights}: {slower}"


@pytest.mark.parametrize(("dtype", "right"), [("f8e4m3fn", 52.9), ("f8e4m3", 40.7), ("s8", 59.6)])
def test_one_row_of_fp32_is_for_tensor(dtype: str, right: float) -> None:
    """Sums of products of it with 2048 x 2048 took 435 us of codes that no engine reads, and 85 of others."""
    assert microseconds(product(dtype, 2048, 2048, turned=True, other="f32")) <= right * MORE


@pytest.mark.parametrize(("dtype", "k", "n", "m", "right"), PLACES)
def test_columns_that_do_not_lie_on_partitions(dtype: str, k: int, n: int, m: int, right: float) -> None:
    """Few rows of FP32 stream past a prime number of columns, and past those of a result that a loop carries."""
    assert microseconds(product(dtype, k, n, m, other="f32")) <= right * MORE


def test_rows_of_fp32_under_scan() -> None:
    """Four layers of 2048 x 2048, of which columns that stream past three parts of the rows took 231 us."""

    def model(x: Any, ws: Any) -> Any:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w.astype(jnp.float32)), None), x, ws)[0]

    given = (np.zeros((4, 2048), np.float32), np.zeros((4, 2048, 2048), np.int8))
    assert microseconds(jax.jit(model).lower(*given)) <= SCAN * MORE


@pytest.mark.parametrize("dtype", CONSTANTS)
def test_constants(dtype: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] = 0x7E
    matrix = np.resize(codes, (2048, 2048)).view(NUMPY_DTYPE[dtype])
    model = neuronx_cc.load_model(product(dtype, 2048, 2048).encode(), constants={"w": matrix})
    assert microseconds(model) <= CONSTANTS[dtype] * MORE


@pytest.mark.parametrize("m", [129, 160])
def test_rows_of_two_tiles_beside_constants(m: int) -> None:
    """Blocks of all terms, which are converted and then decoded one after the other, took 244 us."""
    matrix = np.resize(np.arange(0x7F, dtype=np.uint8), (4096, 4096)).view(NUMPY_DTYPE["f8e4m3fn"])
    model = neuronx_cc.load_model(product("f8e4m3fn", 4096, 4096, m).encode(), constants={"w": matrix})
    assert microseconds(model) <= 141.0 * MORE


@pytest.mark.parametrize(("dtype", "right"), [("s8", 58.9), ("f8e4m3", 56.0), ("f8e4m3fn", 61.8)])
def test_layers_under_scan(dtype: str, right: float) -> None:
    """Four layers of 1024 x 1024, of which BF16 takes 62 us: a layer's weights are loaded as stored."""

    def model(x: Any, ws: Any) -> Any:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w.astype(x.dtype)), None), x, ws)[0]

    given = [
        jax.ShapeDtypeStruct(dims, NUMPY_DTYPE[name]) for dims, name in (((1, 1024), "bf16"), ((4, 1024, 1024), dtype))
    ]
    assert microseconds(jax.jit(model).lower(*given)) <= right * MORE


@pytest.mark.parametrize(("k", "n", "right"), [(4096, 11008, 236.7), (2048, 8192, 107.1)])
def test_four_rows(k: int, n: int, right: float) -> None:
    """The DMA casts its share in loops too, where it is less than a row of a block; pieces hold whole words."""
    assert microseconds(product("f8e4m3fn", k, n, 4)) <= right * MORE


@pytest.mark.parametrize(("k", "n", "right"), [(1021, 4093, 50.3), (3001, 3001, 70.4), (11008, 4096, 223.3)])
def test_odd_rows(k: int, n: int, right: float) -> None:
    """Bits are operated on in pairs in rows of any length, which begin at whole words."""
    assert microseconds(product("f8e4m3fn", k, n)) <= right * MORE


@pytest.mark.parametrize(("k", "n", "right"), [(16384, 512, 57.0), (16384, 4096, 289.0)])
def test_long_rows_of_fp32(k: int, n: int, right: float) -> None:
    """They come straight to the partitions: transposed they took 109 us and 328."""
    assert microseconds(product("s8", k, n, other="f32")) <= right * MORE


def in_groups(x: Any, w: Any, s: Any, z: Any) -> Any:
    wide = (w.astype(jnp.float32).reshape(*s.shape[:1], -1, w.shape[1]) - z[:, None]) * s[:, None]
    return jnp.matmul(x, wide.reshape(w.shape).astype(x.dtype), preferred_element_type=jnp.float32)


def with_zero_points(x: Any, w: Any, s: Any, z: Any) -> Any:
    return jnp.matmul(x, ((w.astype(jnp.float32) - z[0]) * s[0]).astype(x.dtype), preferred_element_type=jnp.float32)


def with_a_row(x: Any, w: Any, s: Any, z: Any) -> Any:
    return jnp.matmul(x, w.astype(x.dtype), preferred_element_type=jnp.float32) + s[0]


@pytest.mark.parametrize(
    ("function", "m", "k", "n", "x", "right"),
    [
        (in_groups, 1, 4096, 4096, "bf16", 113.2),
        (in_groups, 4, 1024, 4096, "f32", 96.5),
        (with_zero_points, 4, 16384, 512, "f32", 65.5),
        (with_zero_points, 1, 1024, 1024, "bf16", 27.4),
        (with_a_row, 16, 1600, 6400, "f32", 101.9),
    ],
)
def test_dequantised(function: Any, m: int, k: int, n: int, x: str, right: float) -> None:
    """Scales and zero points of groups of 128 terms and of columns, and a row that is added."""
    dims = ((m, k), x), ((k, n), "u8"), ((k // 128, n), "f32"), ((k // 128, n), "f32")
    given = [jax.ShapeDtypeStruct(sizes, NUMPY_DTYPE[dtype]) for sizes, dtype in dims]
    assert microseconds(jax.jit(function, keep_unused=True).lower(*given)) <= right * MORE


@pytest.mark.parametrize("sizes", [(1, 8192), (3, 2731), (10, 2), (7, 5), (64, 100)])
def test_pieces_hold_whole_words(sizes: tuple[int, int]) -> None:
    """Their bits are operated on in pairs."""
    for most in range(8, 5000, 61):
        if most < sizes[0] * sizes[1]:
            dim, piece = piece_of(sizes, most)
            inner = sizes[dim + 1] if dim == 0 else 1
            assert piece * inner <= max(most, inner)
            assert piece * inner % 4 == 0 or piece < 4
