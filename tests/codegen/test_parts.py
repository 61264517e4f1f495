"""Parts of concatenations and of what loops stack are written where they will lie: values of XLA, and fewer bytes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from jax import lax

import neuronx_cc

RNG = np.random.default_rng(0)


def normal(*dims: int) -> Any:
    return (RNG.standard_normal(dims) * dims[-1] ** -0.5).astype(np.float32)


X, W = normal(130, 64), normal(64, 64)
IMAGES, KERNELS = normal(2, 8, 8, 16), normal(3, 3, 16, 16)


def conv(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def stacked(step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """What ``step(state, number)`` gives as its second result, of four iterations; and the last state."""
    return lambda x, w: lax.scan(lambda c, i: step(c, w, i), x, jnp.arange(4.0))


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "kinds of kernels": (lambda x, w: jnp.concatenate([x @ w, jnp.tanh(x), x[:1] * 0 + x.sum(0)]), (X, W)),
    "images": (lambda x, w: jnp.concatenate([conv(x, w), jnp.tanh(x), conv(jnp.sin(x), w)]), (IMAGES, KERNELS)),
    "stacks": (lambda x, w: jnp.stack([x @ w, jnp.exp(x), x @ w.T]), (X, W)),
    "read elsewhere": (lambda x, w: (lambda y: (jnp.stack([y, y @ w]), jnp.tanh(y).sum()))(x @ w), (X, W)),
    "one part twice": (lambda x, w: (lambda y: jnp.stack([y, jnp.tanh(x), y]))(x @ w), (X, W)),
    "two arrays": (lambda x, w: (lambda y: (jnp.stack([y, x]), jnp.concatenate([x, y])))(x @ w), (X, W)),
    "parts of parts": (
        lambda x, w: jnp.concatenate([jnp.stack([x @ w, jnp.sin(x)]).reshape(-1, 64) @ w, jnp.cos(x)]),
        (X, W),
    ),
    "long rows": (lambda x: jnp.concatenate([jnp.tanh(x), x[:, ::-1] * 2], 1), (normal(3, 4096),)),
    "short rows": (lambda x, w: jnp.concatenate([x @ w, jnp.tanh(x)], 1), (X, W)),
    "given parts": (lambda x, w: jnp.concatenate([x, x @ w, w, jnp.zeros((3, 64))]), (X, W)),
    "turned parts": (lambda x, w: jnp.concatenate([(x @ w).T, jnp.tanh(x).T, w[::-1]], 1), (X, W)),
    "casts": (lambda x, w: jnp.stack([(x @ w).astype(jnp.bfloat16), x.astype(jnp.bfloat16)]), (X, W)),
    "numbers": (lambda x, w: jnp.stack([x.sum(), (x @ w).max(), x[0, 0] + w[1, 1]]), (X, W)),
    "nothing": (lambda x, w: jnp.concatenate([x @ w, jnp.tanh(x[:0])]), (X, W)),
    "products of iterations": (stacked(lambda c, w, i: ((y := jnp.tanh(c @ w) + i), y @ w)), (X, W)),
    "states": (stacked(lambda c, w, i: (jnp.tanh(c @ w) + i, c)), (X, W)),
    "new states": (stacked(lambda c, w, i: ((y := jnp.tanh(c @ w) + i), y)), (X, W)),
    "several": (
        stacked(lambda c, w, i: ((y := jnp.tanh(c @ w)), (y, y.sum(0), (y @ w).reshape(-1), i, y * i))),
        (X, W),
    ),
    "backwards": (
        lambda x, w: lax.scan(lambda c, i: ((y := jnp.tanh(c @ w)), y * i), x, X[:4, 0], reverse=True),
        (X, W),
    ),
    "inner loops": (
        lambda x, w: lax.scan(
            lambda c, i: lax.scan(lambda c, j: (jnp.tanh(c @ w), c * i + j), c, X[:3, 1]), x, X[:4, 0]
        ),
        (X, W),
    ),
    "gradients": (
        jax.grad(lambda x, w: lax.scan(lambda c, i: (jnp.tanh(c @ w) * i, c.sum()), x, X[:4, 0])[0].sum(), (0, 1)),
        (X, W),
    ),
    "what is read again": (
        # the window's old contents, and a window of an earlier iteration
        lambda x, w: lax.fori_loop(
            *(0, 3),
            lambda i, a: a.at[i + 1].set(jnp.tanh(a[i] @ w + a[i + 1])),
            jnp.stack([x, x * 2, x * 3, x * 4]),
        ),
        (X, W),
    ),
    "one place twice": (
        lambda x, w: lax.fori_loop(
            0, 3, lambda i, a: a.at[i].set(x @ w + i).at[i].add(jnp.sin(x)), jnp.zeros((3, *X.shape))
        ),
        (X, W),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    function, arguments = CASES[name]
    check_function(function, *arguments)


@pytest.mark.parametrize("seed", range(12))
def test_parts_and_wholes_outlive_each_other(seed: int) -> None:
    """In any order, both are read, and the whole is updated in place or becomes the state of a loop."""
    random = np.random.default_rng(seed)

    def turns(part: Any, whole: Any) -> Any:
        return jnp.sort(whole, 1)[::-1] * 0.9 + part.sum()

    def function(x: Any, w: Any) -> list[Any]:
        parts = [x @ w, jnp.tanh(x), (x * 3).reshape(X.shape)][: random.integers(2, 4)]
        whole, results = jnp.concatenate(parts), []
        for _ in range(random.integers(2, 6)):
            part = parts[random.integers(len(parts))]
            match random.integers(5):
                case 0:
                    results.append(jnp.sort(part, 1))
                case 1:
                    results.append(jnp.sort(whole, 1).sum(0))
                case 2:
                    whole = lax.dynamic_update_slice(whole, part[:7] * 2, (jnp.int32(x[0, 0]) + 3, 0))
                case 3:
                    whole = lax.fori_loop(0, 2, lambda i, c, part=part: turns(part, c), whole)
                case 4:
                    whole = whole + jnp.concatenate([part] * len(parts))
        return [*results, jnp.sort(whole, 1).sum(0), jnp.sort(parts[random.integers(len(parts))], 1)]

    check_function(function, X, W, relative=1e-4)


def _bytes(function: Callable[..., Any], *arguments: Any) -> float:
    executable = neuronx_cc.compile(jax.jit(function), *arguments, auto_cast="none")
    return float(executable.run([], timing_only=True, check_races=False).report.summary["dma_total_bytes"])


def test_nothing_is_copied() -> None:
    x, w = normal(1024, 512), normal(512, 512)
    apart = _bytes(lambda x, w: (x @ w, x @ w.T, jnp.tanh(x)), x, w)
    # weights may come twice, which is a fourth of what a copy of one part would move
    assert _bytes(lambda x, w: jnp.stack([x @ w, x @ w.T, jnp.tanh(x)]), x, w) < 1.1 * apart


@pytest.mark.parametrize("count", [2, 8])
def test_iterations_store_once(count: int) -> None:
    """Beside products of the same sizes of which nothing is kept."""
    x, w = normal(1024, 512), normal(count, 512, 512)

    def layers(x: Any, w: Any, keeps: bool) -> Any:
        return lax.scan(lambda c, w: ((y := jnp.tanh(c @ w)), y @ w if keeps else None), x, w)

    kept = _bytes(lambda x, w: layers(x, w, True), x, w) - _bytes(lambda x, w: layers(x, w, False), x, w)
    assert kept < 1.05 * count * (x.nbytes * 2 + w[0].nbytes)
