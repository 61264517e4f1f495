"""State spaces (selective scans) of any size and spelling: values, and that no shape takes many times longer."""

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function
from jax import lax

import neuronx_cc
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.targets import find_machine

SMALL = TRN1.with_settings(["memory.sbuf_partition_bytes=40960"])
STEPS = (1, 2, 15, 16, 17, 100, 127, 128, 129, 255, 513, 1025)
MOST = 1_000_000
"""States of all steps."""
FEATURES = (1, 3, 48, 128, 130, 256)
STATES = (1, 2, 3, 4, 8, 16)
HOWS = ("plain", "reversed", "states too", "last state", "time last", "loop", "greatest", "gradient")


def selective_scan(batch: int, steps: int, features: int, states: int, how: str) -> tuple[Any, list[tuple[int, ...]]]:
    """``y[t] = c[t] h[t]`` with ``h[t] = exp(dt[t] a) h[t-1] + dt[t] x[t] b[t]``, and the dims of its arguments."""
    rank = 4

    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def function(x: Any, mix: Any, spread: Any, rates: Any) -> Any:
        mixed = x @ mix
        low, b, c = jnp.split(mixed, [rank, rank + states], -1)
        dt = jax.nn.softplus(low @ spread)
        decay = jnp.exp(dt[..., None] * -jnp.exp(rates))
        entry = (dt * x)[..., None] * b[..., None, :]
        axis = x.ndim - 2
        if how == "loop":
            each_step = tuple(jnp.moveaxis(each, axis, 0) for each in (dt, dt * x, b, c))

            def step(h: Any, given: Any) -> Any:
                dt, u, b, c = given
                h = jnp.exp(dt[..., None] * -jnp.exp(rates)) * h + u[..., None] * b[..., None, :]
                return h, (h * c[..., None, :]).sum(-1)

            h, y = lax.scan(step, jnp.ones((*x.shape[:axis], *rates.shape)), each_step)
            return y, h
        if how == "greatest":
            h = lax.associative_scan(
                lambda a, b: (a[0] + b[0], jnp.maximum(a[1] + b[0], b[1])), (decay, entry), axis=axis
            )[1]
            return (h * c[..., None, :]).sum(-1)
        if how == "gradient":

            def loss(entry: Any, decay: Any) -> Any:
                h = lax.associative_scan(combine, (decay, entry), axis=axis)[1]
                return (jnp.sin((h * c[..., None, :]).sum(-1)) * x).sum()

            return jax.grad(loss, (0, 1))(entry, decay)
        if how == "time last":
            decay, entry = (jnp.moveaxis(each, axis, -1) for each in (decay, entry))
            _, h = lax.associative_scan(combine, (decay, entry), axis=-1)
            return jnp.einsum("...dnt,...tn->...td", h, c)
        _, h = lax.associative_scan(combine, (decay, entry), axis=axis, reverse=how == "reversed")
        y = (h * c[..., None, :]).sum(-1)
        return (y, h) if how == "states too" else (y, h.take(-1, axis)) if how == "last state" else y

    lead = (batch,) if batch else ()
    return function, [
        (*lead, steps, features),
        (features, rank + 2 * states),
        (rank, features),
        (features, states),
    ]


def arguments(dims: list[tuple[int, ...]], seed: int) -> list[Any]:
    random_numbers = np.random.default_rng(seed)
    return [(0.3 * random_numbers.standard_normal(each)).astype(np.float32) for each in dims]


@pytest.mark.parametrize("machine", [TRN1, SMALL], ids=["trn1", "small"])
@pytest.mark.parametrize("seed", range(64))
def test_drawn(seed: int, machine: Any) -> None:
    draw = random.Random(seed)
    how, sizes = HOWS[seed % len(HOWS)], (0, 0, 0, MOST)
    while max(1, sizes[0]) * sizes[1] * sizes[2] * sizes[3] > MOST or not sizes[1]:
        sizes = draw.choice((0, 1, 2, 3)), draw.choice(STEPS), draw.choice(FEATURES), draw.choice(STATES)
    function, dims = selective_scan(*sizes, how)
    check_function(function, *arguments(dims, seed), relative=3e-5, machine=machine)


@pytest.mark.parametrize("steps", [65, 257, 513])
def test_one_step_after_a_state(steps: int) -> None:
    """What is left of ranges in little room is one step, which has no axis to scan."""
    function, dims = selective_scan(0, steps, 48, 4, "loop")
    check_function(function, *arguments(dims, steps), relative=3e-5, machine=SMALL)


@pytest.mark.parametrize(
    "sizes", [(0, 128, 1536, 16), (0, 512, 768, 16), (2, 300, 256, 16), (4, 256, 256, 8), (1, 1024, 256, 64)]
)
@pytest.mark.parametrize("how", ["plain", "reversed"])
def test_time_is_that_of_vector(sizes: tuple[int, ...], how: str) -> None:
    """At most 32 times what Vector takes for one op on all states; 9 where they fit, 1,180 once."""
    function, dims = selective_scan(*sizes, how)  # type: ignore[arg-type]
    lowered = jax.jit(function).lower(*(jax.ShapeDtypeStruct(each, jnp.float32) for each in dims))
    time = neuronx_cc.compile(lowered, auto_cast="none").run([], timing_only=True).report.time_ns
    elements = max(1, sizes[0]) * sizes[1] * sizes[2] * sizes[3]
    timing = Timing(find_machine("trn1"))
    assert time < 32 * elements / timing.sizes.partitions * timing.cycle(neuronx_cc.ir.isa.program.Stream.VECTOR)


@pytest.mark.parametrize("sizes", [(0, 128, 512, 16), (2, 300, 256, 16)])
def test_no_state_is_stored_for_the_last_step(sizes: tuple[int, ...]) -> None:
    """What is read of the last step alone takes no longer than all of it."""
    function, dims = selective_scan(*sizes, "time last")  # type: ignore[arg-type]
    last = lambda *given: function(*given)[..., -1:, :]  # noqa: E731
    shapes = [jax.ShapeDtypeStruct(each, jnp.float32) for each in dims]
    times = []
    for each in (function, last):
        compiled = neuronx_cc.compile(jax.jit(each).lower(*shapes), auto_cast="none")
        times.append(compiled.run([], timing_only=True).report.kernel_ns)
    assert times[1] < 1.05 * times[0]
