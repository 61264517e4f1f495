"""Loops whose iterations overlap: values, races and provenance of drawn bodies, in little memory."""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_text, text_of
from jax import lax

from neuronx_cc.ir.isa.program import Loop, Program, While

MACHINES = [TRN1, *(TRN1.with_settings([f"memory.sbuf_partition_bytes={size}"]) for size in (40_960, 24_576))]
Step = Callable[[Any, Any, Any, Any], tuple[Any, Any]]
"""(state, what is stacked, count, input) -> (state, what is stacked)."""


def steps_of(chance: random.Random, width: int, stacked: int, trips: int, w: Any) -> dict[str, Step]:
    """What a body is made of; none amplifies differences."""

    def place(i: Any) -> Any:
        return i if stacked == trips else i % stacked  # the run computes a remainder, and iterations do not overlap

    order, odd, axis = list(range(width)), chance.random() < 0.5, chance.choice((0, 1))
    chance.shuffle(order)
    return {
        "product": lambda h, kept, i, x: (jnp.tanh(h @ w), kept),
        "transposed": lambda h, kept, i, x: (jnp.tanh(h @ w.T), kept),
        "function": lambda h, kept, i, x: (jnp.tanh(h) * 1.25, kept),
        "rows": lambda h, kept, i, x: (h - jax.nn.softmax(h.astype(jnp.float32), -1).astype(h.dtype), kept),
        "part": lambda h, kept, i, x: (h.at[:, : width // 2].multiply(0.5), kept),
        "shifted": lambda h, kept, i, x: (jnp.roll(h, 1, axis), kept),
        "read": lambda h, kept, i, x: (h * 0.5 + kept[place(i)] * 0.25, kept),
        "write": lambda h, kept, i, x: (h, kept.at[place(i + odd)].set(h)),
        "outer": lambda h, kept, i, x: (h + 0.1 * jnp.tanh(h[:, :1] * h[:1]), kept),
        "mean": lambda h, kept, i, x: (h - h.mean(0, keepdims=True), kept),
        "order": lambda h, kept, i, x: (h[:, np.array(order)], kept),
        "all": lambda h, kept, i, x: (h, kept + 0.1 * h[None]),
        "input": lambda h, kept, i, x: (h * x + 0.3, kept),
    }


def draw(seed: int) -> tuple[Callable[..., Any], list[Any], float]:
    """A program, its arguments and the error allowed."""
    chance, numbers = random.Random(seed), np.random.default_rng(seed)
    width, rows = chance.choice((1, 3, 16, 64, 100, 128, 130, 300)), chance.choice((1, 2, 7, 32, 128, 140))
    trips, dtype = chance.choice((2, 3, 5, 8, 33)), chance.choice((jnp.float32, jnp.float32, jnp.bfloat16))
    stacked, counted, results = chance.choice((2, trips, trips)), chance.random() < 0.4, chance.random() < 0.6
    count, reverse = chance.choice((1, 2, 3, 4, 6)), chance.random() < 0.3

    def function(h: Any, w: Any, xs: Any) -> Any:
        own = random.Random(seed)
        steps = steps_of(own, width, stacked, trips, w)
        chosen = [steps[own.choice(list(steps))] for _ in range(count)]

        def body(state: tuple[Any, Any], i: Any, x: Any) -> tuple[Any, Any]:
            h, kept = state
            for step in chosen:
                h, kept = step(h, kept, i, x)
            return (h * 0.9 + x * 0.1).astype(dtype), kept.astype(dtype)

        start = h, jnp.zeros((stacked, rows, width), dtype)
        if counted:
            return lax.fori_loop(0, trips, lambda i, s: body(s, i, xs[trips - 1 - i if reverse else i]), start)

        def scanned(state: tuple[Any, Any], given: Any) -> tuple[Any, Any]:
            state = body(state, *given)
            return state, state[0] if results else None

        return lax.scan(scanned, start, (jnp.arange(trips), xs), reverse=reverse)

    shapes = (rows, width), (width, width), (trips, rows, width)
    arrays = [np.asarray(numbers.standard_normal(each), dtype) for each in shapes]
    arrays[1] = (arrays[1] / max(1, width) ** 0.5).astype(dtype)
    return function, arrays, 2e-5 if dtype == jnp.float32 else 6e-2


def overlapping(program: Program) -> int:
    """Loops that are all of a region that is run once."""
    return sum(
        isinstance(region, While) and region.count == 1 and isinstance(loop, Loop)
        for region, loop in pairwise(program.records)
    )


@pytest.mark.parametrize("seed", range(60))
def test_drawn(seed: int) -> None:
    function, arrays, relative = draw(seed)
    check_text(text_of(function, *arrays), *arrays, relative=relative, machine=MACHINES[seed % len(MACHINES)])


def test_loops_overlap() -> None:
    found = [overlapping(check_text(text_of(f, *a), *a, relative=r).program) for f, a, r in map(draw, range(12))]
    assert sum(found) >= 5


def test_one_buffer_after_the_other() -> None:
    """What has the same bytes in an iteration as something before it waits for that of the iteration before."""

    def step(h: Any, x: Any) -> tuple[Any, Any]:
        h = h.at[:, :64].multiply(0.5) * x + 0.3
        return h, h

    h, xs = np.ones((2, 128), jnp.bfloat16), np.ones((33, 2, 128), jnp.bfloat16)
    text = text_of(lambda h, xs: lax.scan(step, h, xs), h, xs)
    program = check_text(text, h, xs, relative=6e-2, machine=MACHINES[-1]).program
    assert overlapping(program) == 1
