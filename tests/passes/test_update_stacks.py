"""Caches that a loop takes apart and stacks again: values in every form, and that parts are updated where they lie."""

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text, text_of
from jax import lax

import neuronx_cc
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names

UPDATES = ("slice", "rows", "added", "twice", "middle", "all", "rolled", "masked", "column")
READS = ("dot", "sum", "old", "window", "none")
LOOPS = ("stacked", "reversed", "carried", "backwards", "steps", "part")


def updated(part: Any, x: Any, at: Any, update: str) -> Any:
    """``part`` [rows, positions, features] with ``x`` [rows, features] at ``at`` or [rows] such."""
    rows = jnp.arange(part.shape[0])
    several = at + rows
    match update:
        case "slice":
            return lax.dynamic_update_slice_in_dim(part, x[:, None], at, 1)
        case "rows":
            return part.at[rows, several].set(x)
        case "added":
            return part.at[rows, several].add(x)
        case "twice":
            once = lax.dynamic_update_slice_in_dim(part, x[:, None], at, 1)
            return lax.dynamic_update_slice_in_dim(once, (x + 1)[:, None], at + 1, 1)
        case "middle":
            once = lax.dynamic_update_slice_in_dim(part, x[:, None], at, 1)
            return once.at[rows, several].set((once[:, 0] + once.sum(1)).astype(x.dtype))
        case "all":
            return part + x[:, None]
        case "rolled":
            return jnp.concatenate([part[:, 1:], x[:, None]], 1)
        case "masked":
            return part.at[rows, several].set(jnp.where((rows % 2 == 0)[:, None], x, part[rows, several % 3]))
    return lax.dynamic_update_slice(part, x[:1, None, :1], (at % part.shape[0], at, 0))


def read(old: Any, new: Any, x: Any, reads: str) -> Any:
    """[rows, features] of the parts."""
    if reads == "dot":
        weights = jnp.einsum("rf,rpf->rp", x, new) / 64
        return jnp.einsum("rp,rpf->rf", weights, new) / 64
    if reads == "old":
        return (old.sum(1) - new[:, 0]) / 64
    if reads == "window":
        return lax.dynamic_slice_in_dim(new, 1, 2, 1).sum(1)
    return new.sum(1) / 64 if reads == "sum" else x * 0


def program(draw: random.Random, count: int) -> Any:
    update, reads, loop = draw.choice(UPDATES), draw.choice(READS), draw.choice(LOOPS)
    kept = draw.random() < 0.2

    def layer(x: Any, old: Any, at: Any) -> tuple[Any, Any]:
        new = updated(old, x, at, update).astype(old.dtype)
        return (x / 2 + read(old, new, x, reads)).astype(x.dtype), new

    def layers(x: Any, cache: Any, at: Any) -> tuple[Any, Any]:
        if loop in ("carried", "backwards"):

            def step(i: Any, carry: Any) -> Any:
                x, cache = carry
                place = count - 1 - i if loop == "backwards" else i
                x, new = layer(x, cache[place], at)
                return x, lax.dynamic_update_index_in_dim(cache, new, place, 0)

            return lax.fori_loop(0, count, step, (x, cache))
        length = max(1, count - 1) if loop == "part" else count
        x, new = lax.scan(lambda x, old: layer(x, old, at), x, cache[:length], reverse=loop == "reversed")
        return x, new

    def whole(x: Any, cache: Any, at: Any) -> Any:
        if loop != "steps":
            found = layers(x, cache, at)
            return (*found, cache * 2) if kept else found

        def step(carry: Any, number: Any) -> Any:
            x, cache = layers(*carry, at + number)
            return (x, cache), x.sum()

        return lax.scan(step, (x, cache), jnp.arange(3))

    return whole


@pytest.mark.parametrize("seed", range(48))
def test_values(seed: int) -> None:
    draw = random.Random(seed)
    count, rows, positions, features = draw.choice((1, 2, 3, 5)), draw.choice((1, 2, 3)), draw.choice((4, 9, 130)), 8
    dtype = draw.choice(("float32", "float32", "bfloat16", "int32"))
    generator = np.random.default_rng(seed)
    given = [generator.integers(-4, 5, dims) for dims in ((rows, features), (count, rows, positions, features))]
    x, cache = (np.asarray(jnp.asarray(each, dtype)) for each in given)
    at = np.int32(draw.choice((0, 1, positions - 2, positions - 1, positions + 3, -2)))
    function = program(draw, count)
    text = text_of(function, x, cache, at, donated=draw.random() < 0.6)
    found = compile_text(text, verify_each=True).run([x, cache, at])
    for result, want in zip(found, jax.tree.leaves(jax.jit(function)(x, cache, at)), strict=True):
        exact = np.asarray(want, np.float64)
        tolerance = 0.0 if dtype == "int32" else 2e-5 if dtype == "float32" else 3e-2
        np.testing.assert_allclose(np.asarray(result, np.float64), exact, 0, tolerance * (1 + np.abs(exact).max()))


def simulated(function: Any, *given: Any) -> float:
    """Microseconds; the caches are donated."""
    lowered = jax.jit(function, donate_argnums=1).lower(*given)
    return neuronx_cc.compile(lowered, auto_cast="none").run([], timing_only=True).report.time_ns / 1e3


@pytest.mark.parametrize("update", ["slice", "rows", "twice", "column"])
@pytest.mark.parametrize("loop", ["stacked", "reversed", "carried", "steps"])
def test_parts_are_updated_where_they_lie(update: str, loop: str) -> None:
    """However large the caches are: a few rows are written, and none is read."""

    class Fixed(random.Random):
        def choice(self, among: Any) -> Any:
            return {UPDATES: update, READS: "none", LOOPS: loop}[among]

        def random(self) -> float:
            return 1.0

    times = []
    for positions in (16, 4096):
        x, cache = (jax.ShapeDtypeStruct(dims, jnp.float32) for dims in ((4, 64), (3, 4, positions, 64)))
        times.append(simulated(program(Fixed(), 3), x, cache, jax.ShapeDtypeStruct((), jnp.int32)))
    assert times[1] < times[0] * 1.2 + 2, times


def test_what_reads_the_old_part_later_keeps_it() -> None:
    """Else the whole stack would be copied in each iteration."""

    def layer(x: Any, given: Any) -> tuple[Any, Any]:
        old, at = given
        new = lax.dynamic_update_slice_in_dim(old, x[None], at, 0)
        return x + new.sum(0) + old.max(0), new

    given = np.ones(64, np.float32), (np.ones((3, 128, 64), np.float32), np.arange(3, dtype=np.int32))
    module = parse_text(text_of(lambda x, caches: lax.scan(layer, x, caches), *given))
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast="none")))
    updates = [
        op for each in module.computations() for op in ops_of(each.block) if isinstance(op, hlo.DynamicUpdateSliceOp)
    ]
    assert sorted(hlo.shape_of(op.args[1]).size for op in updates) == [64, 128 * 64]
