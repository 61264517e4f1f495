"""Gathers of windows at places known at compile time: resized images, as XLA's bridges spell them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import neuronx_cc
from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names


def windows(x, rows, columns, window):
    """[batch, window, window, features, rows, columns] of images [batch, rows, columns, features]."""
    grid = jnp.stack(jnp.broadcast_arrays(rows[:, None], columns[None, :]), -1)
    dims = lax.GatherDimensionNumbers((0, 1, 2, 3), (), (1, 2))
    sizes = (x.shape[0], *window, x.shape[3])
    return lax.gather(x, grid, dims, sizes, mode=lax.GatherScatterMode.CLIP)


def places(kind, count, size, window, draw):
    """Of ``count`` windows along a dim of ``size``."""
    if kind == "even":
        return jnp.floor(jnp.arange(count) * jnp.float32(size / count)).astype(jnp.int32)
    if kind == "outside":
        return jnp.arange(count, dtype=jnp.int32) * 3 - 4
    if kind == "down":
        return size - 1 - jnp.arange(count, dtype=jnp.int32)
    return jnp.asarray(draw.integers(0, max(size - window, 0) + 1, count), jnp.int32)


def compiled(model, x, mode="none"):
    lowered = jax.jit(model).lower(x).compiler_ir("hlo").as_serialized_hlo_module_proto()
    module = load_module(lowered)
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast=mode)))
    kinds = {type(op) for op in ops_of(module.entry.block)}
    return neuronx_cc.compile(lowered, auto_cast=mode).run([x]).outputs[0], kinds


CASES = [
    ("even", (32, 32), (64, 64), (3, 3)),
    ("even", (17, 13), (7, 40), (1, 1)),
    ("even", (1, 5), (6, 1), (1, 2)),
    ("outside", (9, 8), (5, 7), (2, 3)),
    ("down", (8, 6), (8, 6), (1, 1)),
    ("drawn", (12, 129), (5, 11), (2, 4)),
]


@pytest.mark.parametrize(("kind", "image", "count", "window"), CASES)
@pytest.mark.parametrize("swapped", [False, True])
def test_weighted_windows_are_sums_of_slices(kind, image, count, window, swapped) -> None:
    draw = np.random.default_rng(len(kind))
    x = draw.standard_normal((2, *image, 5)).astype(np.float32)
    rows, columns = (places(kind, *each, draw) for each in zip(count, image, window, strict=True))
    u, v = (draw.standard_normal(each).astype(np.float32) for each in zip(count, window, strict=True))

    def model(x):
        weights = lax.dot_general(jnp.asarray(u), jnp.asarray(v), (((), ()), ((), ())))  # [rows, taps, columns, taps]
        taken = windows(x, rows, columns, window)
        if swapped:
            return lax.dot_general(taken, weights, (((2, 1), (3, 1)), ((5, 4), (2, 0))))
        return lax.dot_general(weights, taken, (((1, 3), (1, 2)), ((0, 2), (4, 5))))

    got, kinds = compiled(model, x)
    np.testing.assert_allclose(got, jax.jit(model)(x), rtol=1e-5, atol=1e-5)
    assert hlo.GatherOp not in kinds
    if u.size * v.size > 64:  # smaller products are constants by then
        assert hlo.DotOp not in kinds


@pytest.mark.parametrize(("kind", "image", "count", "window"), CASES)
def test_windows_alone_are_slices(kind, image, count, window) -> None:
    draw = np.random.default_rng(len(kind))
    x = draw.integers(-99, 99, (2, *image, 5)).astype(np.int32)
    rows, columns = (places(kind, *each, draw) for each in zip(count, image, window, strict=True))
    got, kinds = compiled(lambda x: windows(x, rows, columns, window), x)
    np.testing.assert_array_equal(got, windows(x, rows, columns, window))
    assert hlo.GatherOp not in kinds


def test_infinities_reach_their_windows_alone() -> None:
    x = np.ones((1, 8, 8, 2), np.float32)
    x[0, 3, 4, 1] = np.inf
    at = jnp.clip(jnp.arange(16) // 2 - 1, 0, 5)
    half = np.full((16, 3), 0.5, np.float32)

    def model(x):
        weights = lax.dot_general(jnp.asarray(half), jnp.asarray(half), (((), ()), ((), ())))
        return lax.dot_general(weights, windows(x, at, at, (3, 3)), (((1, 3), (1, 2)), ((0, 2), (4, 5))))

    np.testing.assert_array_equal(compiled(model, x)[0], jax.jit(model)(x))


@pytest.mark.parametrize("form", ["diagonal", "many"])
def test_others_stay_gathers(form) -> None:
    """Dims that move together, and places that no few slices give."""
    draw = np.random.default_rng(3)
    x = draw.standard_normal((1, 300, 300, 2)).astype(np.float32)
    at = jnp.asarray(draw.permutation(300), jnp.int32)
    columns = jnp.arange(4) + (0 if form == "many" else at[:, None])
    grid = jnp.stack(jnp.broadcast_arrays(at[:, None], columns), -1)
    dims = lax.GatherDimensionNumbers((0, 1), (1, 2), (1, 2))

    def model(x):
        return lax.gather(x, grid, dims, (1, 1, 1, 2), mode=lax.GatherScatterMode.CLIP)

    got, kinds = compiled(model, x)
    np.testing.assert_array_equal(got, model(x))
    assert hlo.GatherOp in kinds
