"""Sums of pads are pieces side by side: what jaxlib computes, bit by bit, and no array is padded for it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from after_passes import compiled
from hypothesis import given
from hypothesis import strategies as st

RNG = np.random.default_rng(0)
X, WEIGHTS = RNG.standard_normal((4, 12), np.float32), RNG.standard_normal((5, 12, 12), np.float32) / 4


@given(st.data())
def test_any_pads(data: Any) -> None:
    """At any places, with signed zeros among the numbers, beside another addend or none."""
    size = data.draw(st.integers(1, 9))
    pads = []
    for _ in range(data.draw(st.integers(2, 5))):
        low = data.draw(st.integers(0, size - 1))
        pads.append((low, size - data.draw(st.integers(low + 1, size))))
    numbers = st.sampled_from([0.0, -0.0, 1.0, -2.5, np.inf])
    parts = [np.array([data.draw(numbers) for _ in range(size - sum(pad))], np.float32) for pad in pads]
    other = np.array([data.draw(numbers) for _ in range(size)], np.float32)
    if not data.draw(st.booleans()):
        other = None

    def total(*parts: Any) -> Any:
        padded = [jnp.pad(part, pad) for part, pad in zip(parts, pads, strict=False)] + list(parts[len(pads) :])
        value = padded[0]
        for each in padded[1:]:
            value = value + each
        return value

    arguments = parts if other is None else [*parts, other]
    _, _, error = compiled(lambda *args: jax.lax.bitcast_convert_type(total(*args), jnp.int32), *arguments)
    assert error == 0


def split(x: Any, w: Any) -> Any:
    query, key, value = x[:, :4], x[:, 4:9], x[:, 9:]
    return (query @ w[0, :4]).sum() + jnp.tanh(key).sum() + (value * value).sum()


def layers(weights: Any, x: Any) -> Any:
    for index in range(len(weights)):
        x = jnp.tanh(x @ weights[index])
    return (x**2).sum()


@pytest.mark.parametrize(("function", "arguments"), [(split, (X, WEIGHTS)), (layers, (WEIGHTS, X))])
def test_gradients_of_parts(function: Any, arguments: Any) -> None:
    _, counts, error = compiled(jax.grad(function), *arguments)
    assert error < 1e-5
    assert not counts["pad"]
    assert counts["concatenate"] == 1
