"""Gathers in all their forms, on the simulator, against XLA."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import check_function, check_text, text_of
from indexing_cases import windows
from jax import lax

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes import pipelines
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes


@pytest.mark.parametrize("seed", range(40))
def test_any_dimension_numbers(seed: int) -> None:
    case = windows(np.random.default_rng(seed))
    numbers = case.gather_numbers()
    check_function(lambda x, i: lax.gather(x, i, numbers, case.sizes, mode="clip"), case.operand, case.indices)


@pytest.mark.parametrize("vector", [0, 1, 2])
def test_index_vectors_along_any_dim(vector: int, random: np.random.Generator) -> None:
    dims = [4, 5]
    dims.insert(vector, 2)
    text = f"""
HloModule m
ENTRY e {{
  x = f32[9,7,3] parameter(0)
  i = s32[{",".join(map(str, dims))}] parameter(1)
  ROOT g = f32[4,5,3] gather(x, i), offset_dims={{2}}, collapsed_slice_dims={{0,1}}, start_index_map={{1,0}},
    index_vector_dim={vector}, slice_sizes={{1,1,3}}
}}
"""
    check_text(
        text, random.standard_normal((9, 7, 3)).astype(np.float32), random.integers(-2, 10, dims).astype(np.int32)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("size", [1, 130, 5000])
def test_scalars(dtype: Any, size: int, random: np.random.Generator) -> None:
    x, i = random.integers(0, 2, size).astype(dtype), random.integers(-size, size, 3001).astype(np.int32)
    check_function(lambda x, i: x[i], x, i)


def test_tables_larger_than_their_partitions(random: np.random.Generator) -> None:
    x = random.standard_normal(700_001).astype(np.float32)
    check_function(lambda x, i: x[i], x, random.integers(-(10**6), 10**6, 70_000).astype(np.int32))


def test_short_last_part_of_a_table(random: np.random.Generator) -> None:
    """It lies where the others did: there is no room for both."""
    x, rows = random.standard_normal((10, 512), np.float32), random.standard_normal((4000, 512), np.float32)
    check_function(lambda x, i, u: x.at[i].set(u[0]), x, random.integers(0, 10, 4000).astype(np.int32), rows)


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_along_an_axis(mode: str, random: np.random.Generator) -> None:
    x, i = random.standard_normal((20, 300)).astype(np.float32), random.integers(0, 300, (20, 400)).astype(np.int32)
    if mode != "promise_in_bounds":
        i[0, :3] = [-1000, 300, 10**9]
    check_function(lambda x, i: jnp.take_along_axis(x, i, 1, mode=mode), x, i)
    check_function(lambda x, i: jnp.take_along_axis(x.T, i.T, 0, mode=mode), x, i)


def test_columns(random: np.random.Generator) -> None:
    x, i = random.standard_normal((70, 300)).astype(np.float32), random.integers(0, 300, 500).astype(np.int32)
    check_function(lambda x, i: (x[:, i], x[:, i[:3]], x[i[:40] % 70, :][:, i]), x, i)


def test_windows_of_many_sizes(random: np.random.Generator) -> None:
    x, i = random.standard_normal((40, 50)).astype(np.float32), random.integers(-5, 60, (300, 2)).astype(np.int32)
    for sizes in ((3, 4), (1, 50), (40, 1), (7, 50), (1, 1)):
        numbers = lax.GatherDimensionNumbers((1, 2), (), (0, 1))
        check_function(lambda x, i: lax.gather(x, i, numbers, sizes, mode="clip"), x, i)  # noqa: B023
    check_function(lambda x, i: jax.vmap(lambda row, at: lax.dynamic_slice(row, (at,), (5,)))(x, i[:40, 0]), x, i)


def test_empty() -> None:
    x, i = np.zeros((0, 3), np.float32), np.zeros((2,), np.int32)
    check_function(lambda x, i: jnp.take(x, i[:0], axis=0, mode="clip"), x, i)
    check_function(lambda x, i: jnp.take(x.T, i, axis=0, mode="clip"), x, i)


def test_special_values_stay_where_they_are(random: np.random.Generator) -> None:
    x = np.array([[np.nan, np.inf], [-0.0, -np.inf], [1, 2]], np.float32)
    i = random.integers(0, 3, 700).astype(np.int32)
    compiled = check_function(lambda x, i: (x[i], x[:, 0][i]), x, i)
    rows, column = compiled.run([x, i])
    np.testing.assert_array_equal(np.signbit(rows), np.signbit(x[i]))
    np.testing.assert_array_equal(np.signbit(column), np.signbit(x[i, 0]))


def test_search_sorted(random: np.random.Generator) -> None:
    x, at = np.sort(random.standard_normal(100)).astype(np.float32), random.standard_normal(50).astype(np.float32)
    check_function(lambda x, at: jnp.searchsorted(x, at, method="scan_unrolled"), x, at)


def test_features_between_indexed_dims_share_an_index(random: np.random.Generator) -> None:
    """Pixels of images features first, as deformable sampling takes them: an index a pixel, not one an element."""
    images = random.standard_normal((2, 48, 20, 20)).astype(np.float32)
    y, x = (random.integers(-3, 24, (2, 700)).astype(np.int32) for _ in range(2))
    pixels = jax.vmap(lambda image, y, x: image[:, y, x])
    text = text_of(pixels, images, y, x)
    module = parse_text(text)
    run_passes(module, pipelines.pass_names(pipelines.DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast="none")))
    ops = [op for block in module.computations() for op in ops_of(block.block) if isinstance(op, hlo.GatherOp)]
    assert [op.shape.dims for op in ops] == [(16, 6, 700, 1)]
    check_text(text, images, y, x)
