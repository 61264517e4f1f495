"""Attentions as libraries write them: every combination of scale, mask, softmax and shared heads is one kernel."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, assert_close, compile_text, text_of

from neuronx_cc.codegen.attention import choose
from neuronx_cc.ir.targets import find_machine

DEPTH = 16
MACHINES = Path(__file__).parents[2] / "machines"


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, too, are one kernel here."""
    monkeypatch.setattr(choose, "apart", lambda *_: math.inf)


def scores_of(q: Any, k: Any) -> Any:
    return jnp.einsum("bhqd,bhkd->bhqk", q, k)


def lower(s: Any) -> Any:
    return jnp.tril(jnp.ones(s.shape[-2:], bool))


def least(s: Any) -> Any:
    return jnp.finfo(s.dtype).min


def sums(weights: Any) -> Any:
    return weights.sum(-1, keepdims=True)


def beside_the_greatest(s: Any) -> Any:
    return jnp.exp(s - s.max(-1, keepdims=True))


SCALES: dict[str, Callable[[Any, Any], Any]] = {
    "queries": lambda q, k: scores_of(q * DEPTH**-0.5, k),
    "keys": lambda q, k: scores_of(q, k / math.sqrt(DEPTH)),
    "both": lambda q, k: scores_of(q * DEPTH**-0.25, k * DEPTH**-0.25),
    "divided": lambda q, k: scores_of(q, k) / math.sqrt(DEPTH),
    "multiplied": lambda q, k: scores_of(q, k) * DEPTH**-0.5,
}
MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda s, m: s,
    "-inf": lambda s, m: jnp.where(m, s, -jnp.inf),
    "-1e9": lambda s, m: jnp.where(m, s, -1e9),
    "least": lambda s, m: jnp.where(m, s, least(s)),
    "inverted": lambda s, m: jnp.where(~m, least(s), s),
    "added": lambda s, m: s + jnp.where(m, 0.0, least(s)),
    "1 - mask": lambda s, m: s + (1.0 - m) * -10000.0,
    "lower": lambda s, m: jnp.where(lower(s), s, least(s)),
    "lower added": lambda s, m: s + jnp.where(lower(s), 0.0, -1e9),
    "lower and mask": lambda s, m: jnp.where(lower(s) & m, s, -1e9),
    "lower, then mask": lambda s, m: jnp.where(m, jnp.where(lower(s), s, -1e9), -1e9),
    "window": lambda s, m: jnp.where(lower(s) & ~jnp.tril(jnp.ones(s.shape[-2:], bool), -50), s, -jnp.inf),
    "numbers": lambda s, m: jnp.where(jnp.arange(s.shape[-1]) <= jnp.arange(s.shape[-2])[:, None], s, -1e9),
    "distance": lambda s, m: s + 0.1 * (jnp.arange(s.shape[-1]) - jnp.arange(s.shape[-2])[:, None]),
}
ENDS: dict[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda s, v: jax.nn.softmax(s, axis=-1) @ v,
    "by hand": lambda s, v: (beside_the_greatest(s) / sums(beside_the_greatest(s))) @ v,
    "reciprocal": lambda s, v: (beside_the_greatest(s) * (1 / sums(beside_the_greatest(s)))) @ v,
    "divided after": lambda s, v: beside_the_greatest(s) @ v / sums(beside_the_greatest(s)),
    "logarithms": lambda s, v: jnp.exp(jax.nn.log_softmax(s, axis=-1)) @ v,
}
SHARED: dict[str, Callable[[Any, int], Any]] = {
    "repeat": lambda x, times: jnp.repeat(x, times, axis=1),
    "tile": lambda x, times: jnp.tile(x, (1, times, 1, 1)),
    "broadcast": lambda x, times: jnp.broadcast_to(
        x[:, :, None], (x.shape[0], x.shape[1], times, *x.shape[2:])
    ).reshape(x.shape[0], -1, *x.shape[2:]),
}


def checked(seed: int, machine: Any, columns: int) -> bool:
    """Values of a combination drawn by ``seed``, against XLA; whether it is one kernel."""
    random = np.random.default_rng(seed)
    scale, mask, end, shared = (random.choice(list(kinds)) for kinds in (SCALES, MASKS, ENDS, SHARED))
    times, heads, rows = (int(random.integers(1, limit)) for limit in (4, 3, 300))

    def function(q: Any, k: Any, v: Any, m: Any) -> Any:
        k, v = (SHARED[shared](x, times) for x in (k, v))
        return ENDS[end](MASKS[mask](SCALES[scale](q, k), m), v)

    shapes = (1, heads * times, rows, DEPTH), (1, heads, columns, DEPTH), (1, heads, columns, DEPTH)
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    kept = random.random((1, 1, rows, columns)) < 0.8
    kept[..., 0] = True
    compiled = compile_text(text_of(function, *inputs, kept), machine)
    what = f"{scale}, {mask}, {end}, {shared} {times}"
    (found,) = compiled.run([*inputs, kept])
    assert_close(found, np.asarray(jax.jit(function)(*inputs, kept)), 3e-5, name=what)
    return not any("dot" in name for name in compiled.program.kernels)


@pytest.mark.parametrize("seed", range(30))
def test_combinations(seed: int) -> None:
    assert checked(seed, TRN1, 200)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("machine", ["half", "quarter"])
def test_small_machines(seed: int, machine: str) -> None:
    """Many columns, little room: with the least of it, kernels are apart."""
    assert checked(seed, find_machine(str(MACHINES / f"{machine}.toml")), 1700) is (machine == "half")
