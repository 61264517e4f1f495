"""Norms over features that lie on the partitions, as convolutions leave them: one kernel, where they lie."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function
from jax import lax

import neuronx_cc
from neuronx_cc.codegen.maps import joined
from neuronx_cc.codegen.maps.estimate import Problem
from neuronx_cc.ir.isa.timing import Timing

SMALL = TRN1.with_settings(["memory.sbuf_partition_bytes=40960"])
Norm = Callable[..., Any]


def layer_norm(x: Any, scale: Any, axis: int) -> Any:
    centred = x - x.mean(axis, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(axis, keepdims=True) + 1e-5) * scale


def in_one_pass(x: Any, scale: Any, axis: int) -> Any:
    mean = x.mean(axis, keepdims=True)
    return (x - mean) / jnp.sqrt(jnp.maximum((x * x).mean(axis, keepdims=True) - mean * mean, 0) + 1e-3) * scale


def root_mean_square(x: Any, scale: Any, axis: int) -> Any:
    return jax.nn.gelu(x * lax.rsqrt((x * x).mean(axis, keepdims=True) + 1e-5) * scale, approximate=False)


def gated(x: Any, scale: Any, axis: int) -> Any:
    return x * jax.nn.sigmoid((x * scale).sum(axis, keepdims=True) * 0.1) + x


def convolve(x: Any, kernel: Any, first: bool) -> Any:
    order = ("NCHW", "OIHW", "NCHW") if first else ("NHWC", "OIHW", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=order)


def between(norm: Norm, first: bool, given: bool = False, left: bool = False) -> Norm:
    """The norm of what a convolution makes, or of what is ``given``, for another one, or ``left`` as it is."""
    axis = 1 if first else 3

    def function(x: Any, before: Any, after: Any, scale: Any) -> Any:
        scale = scale.reshape([-1 if dim == axis else 1 for dim in range(4)])
        made = norm(x if given else convolve(x, before, first), scale, axis)
        return made if left else convolve(made, after, first)

    return function


def arguments(features: int, batch: int, sizes: tuple[int, int], first: bool) -> list[Any]:
    random = np.random.default_rng(0)
    dims = (batch, features, *sizes) if first else (batch, *sizes, features)
    shapes = [dims, (features, features, 3, 3), (features, features, 1, 1), (features,)]
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("norm", [layer_norm, in_one_pass, root_mean_square, gated])
@pytest.mark.parametrize("features", [1, 2, 24, 96, 127, 129, 192, 384])
@pytest.mark.parametrize("sizes", [(1, 1), (7, 7), (33, 28)])
def test_values(norm: Norm, features: int, sizes: tuple[int, int]) -> None:
    first = features % 2 == 0
    check_function(between(norm, first), *arguments(features, 2, sizes, first), relative=5e-5)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("features", [8, 64, 256])
@pytest.mark.parametrize(("given", "left"), [(True, False), (False, True)])
def test_what_is_given_or_left(first: bool, features: int, given: bool, left: bool) -> None:
    values = arguments(features, 1, (14, 37), first)
    check_function(between(layer_norm, first, given, left), *values, relative=5e-5)


@pytest.mark.parametrize("features", [16, 128, 320])
def test_small_memory(features: int) -> None:
    values = arguments(features, 3, (20, 21), True)
    check_function(between(layer_norm, True), *values, relative=5e-5, machine=SMALL)


def filter_response(x: Any, scale: Any, axis: int) -> Any:
    positions = tuple(dim for dim in (1, 2, 3) if dim != axis)
    return jnp.maximum(x * lax.rsqrt((x * x).mean(positions, keepdims=True) + 1e-6) * scale, scale)


@pytest.mark.parametrize("norm", [layer_norm, filter_response, gated])
@pytest.mark.parametrize("features", [512, 513, 1024, 2048])
@pytest.mark.parametrize(("given", "first"), [(True, True), (True, False), (False, True)])
def test_many_rows_across(monkeypatch: pytest.MonkeyPatch, norm: Norm, features: int, given: bool, first: bool) -> None:
    """Sums over the partitions are within a bank, also where another plan takes less time."""
    estimate = joined.estimate

    def across(problem: Problem, timing: Timing) -> float:
        return 0.0 if problem.tiles.crossed.latency else estimate(problem, timing)

    random = np.random.default_rng(1)
    shape = (1, features, 4, 5) if first else (1, 4, 5, features)
    shapes = [shape, (features, features, 1, 1), (8, features, 1, 1), (features,)]
    monkeypatch.setattr(joined, "estimate", across)
    values = [random.standard_normal(each).astype(np.float32) for each in shapes]
    check_function(between(norm, first, given), *values, relative=5e-5)


def microseconds(function: Norm, shapes: list[tuple[int, ...]]) -> float:
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    executable = neuronx_cc.compile(jax.jit(function).lower(*given), auto_cast="matmult")
    return executable.run([], timing_only=True).report.kernel_ns / 1e3


@pytest.mark.parametrize("size", [7, 14, 28, 56])
@pytest.mark.parametrize("features", [32, 96, 128])
def test_a_norm_passes_no_hbm(features: int, size: int) -> None:
    """Twice the sums of all features take TensorE most of the time beyond some latencies."""
    dims, kernel = (1, features, size, size), (features, features, 3, 3)
    shapes = [dims, kernel, (features, features, 1, 1), (features,)]
    alone = microseconds(between(lambda x, scale, axis: x * scale, True), shapes)
    assert microseconds(between(layer_norm, True), shapes) <= alone + 8 + size * size * 7.5e-3


@pytest.mark.parametrize("dims", [(4, 512), (128, 512), (129, 1000), (512, 1024), (2048, 512), (1000, 4), (300, 4096)])
def test_norms_over_rows_are_no_cliff(dims: tuple[int, ...]) -> None:
    """Statistics of a batch read arrays two to three times."""

    def statistics(x: Any, scale: Any) -> Any:
        return layer_norm(x, scale, 0)

    limit = 40 + 12 * 4 * np.prod(dims) / 190e3
    assert microseconds(statistics, [dims, dims[1:]]) <= limit
