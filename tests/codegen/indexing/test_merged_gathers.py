"""Gathers of neighbours of the same places, which become one: exact at any place, in any spelling."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.ndimage import map_coordinates

import neuronx_cc
from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes import merge_gathers
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names

ODD = [np.nan, np.inf, -np.inf, 2.0**31, 2.0**31 - 129, -(2.0**31), 3e9, -3e9, 2.0**24, 1e20, -0.0, 0.5, -0.5, -1.0]
"""Places far outside, at the ends of the integers, and nowhere."""
FOUR = list(itertools.product((0, 1), (0, 1)))

SPELLINGS = {
    "floats, then clipped": lambda y, t, a, last: jnp.clip((t + a).astype(jnp.int32), 0, last),
    "integers, clipped": lambda y, t, a, last: jnp.clip(t.astype(jnp.int32) + a, 0, last),
    "integers as they are": lambda y, t, a, last: t.astype(jnp.int32) + a,
    "after a clip": lambda y, t, a, last: jnp.clip(t.astype(jnp.int32), 0, max(last - 1, 0)) + a,
    "clipped floats": lambda y, t, a, last: jnp.clip(t + a, 0, last).astype(jnp.int32),
    "selected": lambda y, t, a, last: jnp.where(
        t.astype(jnp.int32) + a < 0, 0, jnp.minimum(t.astype(jnp.int32) + a, last)
    ),
    "one bound alone": lambda y, t, a, last: jnp.minimum(t.astype(jnp.int32) - a, last),
}


def sampler(spelling, mode, offsets=FOUR):
    place = SPELLINGS[spelling]

    def sample(image, at):
        high, wide = image.shape[0] - 1, image.shape[1] - 1
        y, x = at[:, 0], at[:, 1]
        places = [(place(y, jnp.floor(y), a, high), place(x, jnp.floor(x), b, wide)) for a, b in offsets]
        return [image[at] if mode is None else image.at[at].get(mode=mode) for at in places]

    return sample


def inputs(dims, count, dtype="float32", batch=()):
    draw = np.random.default_rng(sum(dims) + count)
    image = draw.standard_normal((*batch, *dims)).astype(np.float32) * 50
    image.flat[:3] = [np.inf, np.nan, -np.inf][: image.size]
    at = ((draw.random((*batch, count, 2)) * 1.6 - 0.3) * dims[:2]).astype(np.float32)
    at.flat[: min(at.size, 2 * len(ODD))] = [*ODD, *ODD[::-1]][: at.size]
    return np.asarray(jnp.asarray(image).astype(dtype)), at


def assert_equal(function, *given):
    lowered = jax.jit(function).lower(*given)
    found = neuronx_cc.compile(lowered, auto_cast="none").run(list(given)).outputs
    for got, want in zip(found, jax.tree.leaves(jax.jit(function)(*given)), strict=True):
        np.testing.assert_array_equal(got.astype(np.float64), np.asarray(want).astype(np.float64))


@pytest.fixture
def always(monkeypatch):
    """Merges, whatever that takes."""
    monkeypatch.setattr(merge_gathers, "_is_quicker", lambda *_: True)


@pytest.mark.parametrize("mode", [None, "clip", "fill"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_any_place(always, spelling, mode) -> None:
    assert_equal(sampler(spelling, mode), *inputs((9, 13, 3), 130))


@pytest.mark.parametrize("dims", [(1, 1, 1), (1, 7, 2), (2, 2, 5), (30, 3, 1)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_small_images(always, dims, dtype) -> None:
    assert_equal(sampler("integers, clipped", None), *inputs(dims, 40, dtype))


@pytest.mark.parametrize(
    "offsets", [[(0, 0), (1, 0)], list(itertools.product((-1, 0, 1), (0, 1))), [(0, 0), (2, 0), (0, 3), (-5, 2)]]
)
def test_other_neighbours(always, offsets) -> None:
    assert_equal(sampler("floats, then clipped", "clip", offsets), *inputs((9, 13, 3), 130))


def test_batches(always) -> None:
    image, at = inputs((9, 13, 3), 60, batch=(3,))
    assert_equal(jax.vmap(sampler("integers as they are", None)), image, at)


def gathers(function, *given):
    module = load_module(jax.jit(function).lower(*given).compiler_ir("hlo").as_serialized_hlo_module_proto())
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast="none")))
    return sum(isinstance(op, hlo.GatherOp) for op in ops_of(module.entry.block))


def blended(image, at):
    y, x = at[:, 0], at[:, 1]
    top, left = jnp.floor(y), jnp.floor(x)
    total = 0.0
    for a, b in FOUR:
        row, column = (top + a).astype(jnp.int32), (left + b).astype(jnp.int32)
        share = (1 - jnp.abs(y - top - a)) * (1 - jnp.abs(x - left - b))
        pixel = image[jnp.clip(row, 0, image.shape[0] - 1), jnp.clip(column, 0, image.shape[1] - 1)]
        total = total + pixel * share[:, None]
    return total


def test_samplers_gather_once() -> None:
    image, at = np.zeros((64, 64, 3), np.float32), np.zeros((4096, 2), np.float32)
    assert gathers(blended, image, at) == 1
    assert gathers(lambda x, p: map_coordinates(x, [p[:, 0], p[:, 1]], 1), image[:, :, 0], at) == 1


def test_unrelated_places_stay_apart(always) -> None:
    image, at = np.zeros((64, 64, 3), np.float32), np.zeros((4096, 2), np.float32)

    def two(x, p):
        first, second = (p[:, axis].astype(jnp.int32) for axis in (0, 1))  # truncated, not floored
        return x[first, second], x[second, first], x[(p[:, 0] + 1).astype(jnp.int32), second]

    assert gathers(two, image, at) == 3


def test_wide_rows_take_less_time() -> None:
    """25,088 places between the pixels of 35 x 35 x 248 took 2.6 ms when each neighbour was gathered by itself."""
    given = np.zeros((35, 35, 248), np.float32), np.zeros((25088, 2), np.float32)
    lowered = jax.jit(blended).lower(*given)
    report = neuronx_cc.compile(lowered, auto_cast="none").run([], timing_only=True).report
    assert report.kernel_ns < 1_900_000
