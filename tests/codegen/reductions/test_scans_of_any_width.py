"""Scans along a dim whose neighbours lie apart: values, and times without steps from one width to the next."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, assert_close, check_function, compile_text, text_of
from jax import lax

from neuronx_cc.passes import chunk_scans
from neuronx_cc.runtime.clock_regions import simulate


def simulated_us(function: Any, *shapes: tuple[int, ...]) -> float:
    given = [np.zeros(dims, np.float32) for dims in shapes]
    return simulate(compile_text(text_of(function, *given)).program, TRN1).total / 1e3


def tree(a: Any, b: Any) -> Any:
    return lax.associative_scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (a, b), axis=1)[1]


def loop(a: Any, b: Any) -> Any:
    def step(h: Any, given: Any) -> Any:
        h = given[0] * h + given[1]
        return h, h

    steps = a.swapaxes(0, 1), b.swapaxes(0, 1)
    return lax.scan(step, jnp.full(b[:, 0].shape, 0.5), steps)[1].swapaxes(0, 1)


def gated(a: Any, b: Any) -> Any:
    gate = jax.nn.sigmoid(a)
    return b * tree(gate, (1 - gate) * b)


def selective(dt: Any, x: Any, rates: Any, into: Any, out_of: Any) -> Any:
    factors = jnp.exp(-jax.nn.softplus(dt)[..., None] * jnp.exp(rates))
    return (tree(factors, (dt * x)[..., None] * into[..., None, :]) * out_of[..., None, :]).sum(-1)


def logarithms(a: Any, b: Any) -> Any:
    decay = jnp.cumsum(jax.nn.softplus(a), 1)
    return lax.cumlogsumexp(b - decay, axis=1) + decay


def states(batch: int, steps: int, width: int, few: int) -> list[tuple[int, ...]]:
    return [(batch, steps, width)] * 2 + [(width, few)] + [(batch, steps, few)] * 2


@pytest.mark.parametrize("function", [tree, loop, gated, logarithms], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dims", [(1, 130, 129), (2, 100, 131), (3, 40, 257), (130, 20, 7), (2, 1030, 97)], ids=str)
def test_values(function: Any, dims: tuple[int, ...], random: np.random.Generator) -> None:
    check_function(function, *(random.uniform(-1, 1, dims).astype(np.float32) for _ in range(2)), relative=1e-4)


@pytest.mark.parametrize("sizes", [(1, 70, 131, 8), (2, 150, 257, 4), (1, 300, 129, 16)], ids=str)
def test_values_of_states(sizes: tuple[int, int, int, int], random: np.random.Generator) -> None:
    check_function(selective, *(random.uniform(-1, 1, dims).astype(np.float32) for dims in states(*sizes)))


@pytest.mark.parametrize("function", [tree, loop, gated], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dims", [(2, 500, 384), (1, 1200, 512)], ids=str)
def test_one_feature_more_or_less(function: Any, dims: tuple[int, int, int]) -> None:
    batch, steps, width = dims
    before, even, after = (simulated_us(function, *[(batch, steps, width + more)] * 2) for more in (-1, 0, 1))
    assert before < 1.25 * even
    assert after < 1.6 * even


@pytest.mark.parametrize("sizes", [(1, 512, 384, 16), (4, 256, 512, 16)], ids=str)
def test_one_feature_more_or_less_of_states(sizes: tuple[int, int, int, int]) -> None:
    batch, steps, width, few = sizes
    before, even, after = (simulated_us(selective, *states(batch, steps, width + more, few)) for more in (-1, 0, 1))
    assert before < 1.1 * even
    assert after < 1.5 * even


@pytest.mark.parametrize("dims", [(5, 4), (40, 300), (200, 130), (3, 20, 7)], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
def test_running_folds_from_a_start(dims: tuple[int, ...], reverse: bool, random: np.random.Generator) -> None:
    x, edge = random.uniform(-1, 1, dims).astype(np.float32), dims[0] - 1
    padding = [(0, edge) if reverse else (edge, 0), *((0, 0) for _ in dims[1:])]
    window = (dims[0], *(1 for _ in dims[1:]))
    ones = (1,) * len(dims)
    turned = np.flip(x, 0) if reverse else x  # XLA's CPU client counts the start of long windows several times
    for start, combine, fold in ((8, jnp.add, np.add), (0.25, jnp.maximum, np.maximum)):
        compiled = compile_text(
            text_of(lambda x, s, f=combine: lax.reduce_window(x, s, f, window, ones, padding), x, np.float32(start))
        )
        wanted = fold(fold.accumulate(turned.astype(np.float64), 0), start).astype(np.float32)
        (result,) = compiled.run([x, np.float32(start)])
        assert_close(result, np.flip(wanted, 0) if reverse else wanted)


def test_long_rows_of_many_features() -> None:
    assert simulated_us(tree, (1, 4093, 1023), (1, 4093, 1023)) < 1500


@pytest.mark.parametrize("steps", [65, 129, 130])
def test_a_range_of_one_step(steps: int, monkeypatch: pytest.MonkeyPatch, random: np.random.Generator) -> None:
    """The first range of steps, which has those left over, goes on from the initial state as others do."""
    for name, value in (("ALIVE", 4000), ("PART", 200), ("LEAST", 8)):
        monkeypatch.setattr(chunk_scans, name, value)
    a, b = (random.uniform(-1, 1, (2, steps, 16)).astype(np.float32) for _ in range(2))
    check_function(lambda a, b: (loop(a, b) * a).sum(2), a, b)
    check_function(lambda a, b: jnp.tanh(lax.cumsum(a * b, 1)), a, b)
