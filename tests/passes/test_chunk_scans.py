"""Scans as loops over ranges of steps: values of drawn programs, cut far more often than their sizes ask for."""

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_text, text_of
from jax import lax

from neuronx_cc.passes import chunk_scans

SIZES = (1, 2, 3, 5, 8, 16, 17)
STEPS = (64, 100, 129, 200, 257, 400)
MOST = 150_000
"""Elements."""
KINDS = ("recurrence", "greatest", "sum", "running greatest", "loop", "before", "two")
RESULTS = (
    *("states", "folded", "last", "first", "strided", "over time", "transposed", "beside", "shifted", "total"),
    "factors",
)
SMALL = TRN1.with_settings(["memory.sbuf_partition_bytes=40960"])


def combine(left: Any, right: Any) -> Any:
    return left[0] * right[0], right[0] * left[1] + right[1]


def states(kind: str, a: Any, b: Any, axis: int, reverse: bool, back: bool) -> Any:
    if kind == "greatest":
        parts = lax.associative_scan(
            lambda x, y: (x[0] + y[0], jnp.maximum(x[1] + y[0], y[1])), (-a, b), axis=axis, reverse=reverse
        )
        return parts[1]
    if kind == "sum":
        return lax.cumsum(b * a, axis=axis, reverse=reverse)
    if kind == "running greatest":
        return lax.cummax(b * a, axis=axis, reverse=reverse)
    if kind in ("loop", "before"):
        steps = tuple(jnp.moveaxis(each, axis, 0) for each in (a, b))
        start = jnp.full(steps[0].shape[1:], 0.5, a.dtype)

        def step(s: Any, g: Any) -> Any:
            new = (g[0] * s + g[1]).astype(a.dtype)
            return new, s if kind == "before" else new

        _, made = lax.scan(step, start, steps, reverse=reverse)
        return jnp.moveaxis(made, 0, axis)
    made = lax.associative_scan(combine, (a, b), axis=axis, reverse=reverse)[1]
    if kind == "two":
        return lax.associative_scan(combine, (a * 0.5, made), axis=axis, reverse=back)[1]
    return made


def draw(seed: int) -> tuple[Callable[..., Any], list[Any], float]:
    """A program, its arguments and the error allowed."""
    chance = random.Random(seed)
    rank = chance.choice((2, 3, 3, 4))
    dims, axis = [chance.choice(SIZES) for _ in range(rank)], chance.randrange(rank)
    dims[axis] = chance.choice(STEPS)
    while np.prod(dims) > MOST:
        dims[axis] = max(64, dims[axis] // 2)
        dims[chance.choice([at for at in range(rank) if at != axis])] = 2
    dtype = chance.choice((jnp.float32, jnp.float32, jnp.float32, jnp.bfloat16))
    kind, reverse, back = KINDS[seed % len(KINDS)], chance.random() < 0.3, chance.random() < 0.5
    wanted = [chance.choice(RESULTS) for _ in range(chance.choice((1, 2, 3)))]
    folded = tuple(at for at in range(rank) if at != axis and chance.random() < 0.6)
    order = chance.sample(range(rank), rank)
    narrow = [size if at == axis or chance.random() < 0.6 else 1 for at, size in enumerate(dims)]
    shared = [1 if at != axis and chance.random() < 0.5 else size for at, size in enumerate(dims)]

    def function(a: Any, b: Any, c: Any) -> list[Any]:
        a, b = jax.nn.sigmoid(a + jnp.zeros(dims, dtype)), jnp.sin(b * 2 + c)
        h = states(kind, a, b, axis, reverse, back)
        y = (h * c).sum(folded)
        made = {
            "states": lambda: h,
            "folded": lambda: y,
            "last": lambda: h.take(-1, axis),
            "first": lambda: lax.slice_in_dim(h, 0, 1, axis=axis),
            "strided": lambda: lax.slice_in_dim(h, 1, dims[axis], 3, axis=axis),
            "over time": lambda: h.sum(axis),
            "transposed": lambda: h.transpose(order) * 2,
            "beside": lambda: jnp.tanh(h) + b,
            "shifted": lambda: jnp.roll(h, 1, axis) - h,
            "total": lambda: y.sum(),
            "factors": lambda: lax.associative_scan(combine, (a, b), axis=axis, reverse=reverse)[0],
        }
        return [made[each]() for each in wanted]

    numbers = np.random.default_rng(seed)
    given = [np.asarray(0.5 * numbers.standard_normal(each), dtype) for each in (narrow, dims, shared)]
    return function, given, 5e-5 if dtype == jnp.float32 else 4e-2


@pytest.mark.parametrize("machine", [TRN1, SMALL], ids=["trn1", "small"])
@pytest.mark.parametrize("seed", range(60))
def test_drawn(seed: int, machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ALIVE", 400), ("PART", 200), ("LEAST", 8)):
        monkeypatch.setattr(chunk_scans, name, value)
    function, given, relative = draw(seed)
    check_text(text_of(function, *given), *given, relative=relative, machine=machine)


def test_ranges_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least every fourth of them."""
    chunk, found = chunk_scans._Region.chunk, []
    monkeypatch.setattr(chunk_scans._Region, "chunk", lambda self, *given: found.append(self) or chunk(self, *given))
    for seed in range(24):
        test_drawn(seed, TRN1, monkeypatch)
    assert len(found) >= 6


def filtered(x: Any, reverse: bool) -> Any:
    """States before each step of a filter, and the last one."""
    return lax.scan(lambda s, r: (s * 0.9 + r, s), jnp.zeros(x.shape[1:], x.dtype), x, reverse=reverse)


def gated(x: Any, reverse: bool) -> Any:
    def loss(x: Any) -> Any:
        steps = x, jax.nn.sigmoid(x[::-1])
        _, made = lax.scan(lambda s, g: (g[1] * s + g[0],) * 2, x[0], steps, reverse=reverse)
        return (made * made).mean()

    return jax.grad(loss)(x)


@pytest.mark.parametrize("function", [filtered, gated], ids=lambda function: function.__name__)
@pytest.mark.parametrize("features", [1, 3, 128])
@pytest.mark.parametrize("reverse", [False, True])
def test_states_before_steps_of_which_no_partition_holds_a_row(
    function: Callable[..., Any], features: int, reverse: bool
) -> None:
    x = np.random.default_rng(features).standard_normal((11_003, features)).astype(np.float32)
    check_text(text_of(lambda x: function(x, reverse), x), x, relative=5e-5, machine=SMALL)


def test_users_of_several_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads two of them reads both from the loop; which user takes the last state stays known."""
    for name, value in (("ALIVE", 400), ("PART", 200), ("LEAST", 8)):
        monkeypatch.setattr(chunk_scans, name, value)

    def read(a: Any, b: Any) -> list[Any]:
        terms = jnp.sin(b)
        h = lax.associative_scan(combine, (jax.nn.sigmoid(a), terms), axis=1)[1]
        return [h[:, 7], jnp.concatenate([terms, h]), h[:, -1], jnp.concatenate([h, terms])]

    a, b = np.random.default_rng(0).standard_normal((2, 3, 200, 129)).astype(np.float32)
    check_text(text_of(read, a, b), a, b, relative=5e-5)
