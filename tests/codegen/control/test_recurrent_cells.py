"""Recurrent cells: one row or several, features first or last, states that contractions read where they lie."""

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_text, text_of
from jax import lax

SMALL = TRN1.with_settings(["memory.sbuf_partition_bytes=40960"])
FEATURES = (1, 5, 64, 100, 127, 128, 129, 200, 256, 384)


def gated(kind: str, state: Any, gates: Any) -> Any:
    """The next state, of gates with features first."""
    if kind == "plain":
        return (jnp.tanh(gates),)
    parts = jnp.split(gates, {"minimal": 2, "long": 4}[kind])
    if kind == "minimal":
        keep = jax.nn.sigmoid(parts[0])
        return (keep * state[0] + (1 - keep) * jnp.tanh(parts[1]),)
    cell = jax.nn.sigmoid(parts[1]) * state[1] + jax.nn.sigmoid(parts[0]) * jnp.tanh(parts[2])
    return jax.nn.sigmoid(parts[3]) * jnp.tanh(cell), cell


def draw(seed: int) -> tuple[Any, list[Any], float]:
    chance = random.Random(seed)
    kind, first = chance.choice(("plain", "minimal", "long")), chance.random() < 0.5
    rows, features = chance.choice((1, 1, 1, 2, 5, 17)), chance.choice(FEATURES)
    steps, reverse = chance.choice((2, 3, 7)), chance.random() < 0.3
    stacked, squeezed = chance.random() < 0.7, rows == 1 and chance.random() < 0.4
    inside = chance.random() < 0.3
    dtype = chance.choice((jnp.float32, jnp.float32, jnp.bfloat16))
    gates = features * {"plain": 1, "minimal": 2, "long": 4}[kind]

    def function(xs: Any, w: Any, u: Any) -> Any:
        """``xs`` [steps, rows, features], ``w`` and ``u`` [features, gates]."""
        given = xs if inside else xs @ u

        def step(state: Any, x: Any) -> Any:
            x = x @ u if inside else x
            if squeezed:
                new = gated(kind, state, x.reshape(-1) + state[0] @ w)
            elif first:
                new = gated(kind, state, x.T + jnp.einsum("fg,fr->gr", w, state[0]))
            else:
                made = gated(kind, [each.T for each in state], (x + state[0] @ w).T)
                new = tuple(each.T for each in made)
            return new, new[0] if stacked else None

        dims = (features,) if squeezed else (features, rows) if first else (rows, features)
        start = (jnp.full(dims, 0.25, xs.dtype),) * (2 if kind == "long" else 1)
        last, made = lax.scan(step, start, given, reverse=reverse)
        return (*last, made) if stacked else last

    numbers = np.random.default_rng(seed)
    shapes = (steps, rows, features), (features, gates), (features, gates)
    arrays = [np.asarray(numbers.standard_normal(each) / max(1, each[-2]) ** 0.5, dtype) for each in shapes]
    return function, arrays, 1e-5 if dtype == jnp.float32 else 4e-2


@pytest.mark.parametrize("machine", [TRN1, SMALL], ids=["trn1", "small"])
@pytest.mark.parametrize("seed", range(40))
def test_drawn(seed: int, machine: Any) -> None:
    function, arrays, relative = draw(seed)
    check_text(text_of(function, *arrays), *arrays, relative=relative, machine=machine)
