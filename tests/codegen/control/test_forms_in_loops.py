"""Every kind of op on what a loop carries, in every kind of loop: in place, batched over iterations, or unrolled."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from jax import lax

W = np.linspace(-1, 1, 81, dtype=np.float32).reshape(9, 9)
ROWS = np.array([2, 0, 3, 1])


def sum_and_most(a: Any, b: Any) -> Any:
    return a[0] + b[0], jnp.maximum(a[1], b[1])


FORMS: dict[str, Callable[[Any], Any]] = {
    "negate": lambda s: -s,
    "tanh": jnp.tanh,
    "divide": lambda s: s / (1 + s * s),
    "power": lambda s: jnp.abs(s) ** 1.5,
    "round": jnp.floor,
    "compare": lambda s: jnp.where(s > 0.2, s, 0.5),
    "clip": lambda s: jnp.clip(s, -0.5, 0.7),
    "cast": lambda s: (s * 8).astype(jnp.int32).astype(s.dtype) / 8,
    "rounded": lambda s: lax.reduce_precision(s, 8, 7),
    "bits": lambda s: lax.bitcast_convert_type(lax.bitcast_convert_type(s, jnp.int32) & -65536, jnp.float32),
    "sum": lambda s: s - s.sum(1, keepdims=True) / 9,
    "max": lambda s: s - s.max(0),
    "product": lambda s: s + s.prod(1, keepdims=True),
    "any": lambda s: s * (s > 0.9).any(0),
    "argmax": lambda s: s + jnp.argmax(s, 1, keepdims=True).astype(s.dtype) / 9,
    "argmin": lambda s: s[jnp.argmin(s, 0)[:4] % 4],
    "softmax": jax.nn.softmax,
    "norm": lambda s: (s - s.mean(1, keepdims=True)) / jnp.sqrt(s.var(1, keepdims=True) + 0.1),
    "cumsum": lambda s: jnp.cumsum(s, 1) / 9,
    "cumprod": lambda s: jnp.cumprod(s, 0),
    "cummax": lambda s: lax.cummax(s, 1),
    "sort": jnp.sort,
    "argsort": lambda s: s + jnp.argsort(s).astype(s.dtype) / 9,
    "sort by key": lambda s: lax.sort((s[:, ::-1], s), num_keys=1)[1],
    "top": lambda s: jnp.concatenate([lax.top_k(s, 3)[0], s[:, 3:]], 1),
    "median": lambda s: s - jnp.median(s, 1, keepdims=True),
    "reduce two": lambda s: s * lax.reduce((s, s), (0.0, -jnp.inf), sum_and_most, (1,))[1][:, None],
    "transpose": lambda s: s[:, :4].T[:, :4] @ s,
    "reverse": lambda s: s[::-1, ::-1],
    "roll": lambda s: jnp.roll(s, 2, 1),
    "reshape": lambda s: s.reshape(9, 4).reshape(4, 9)[::-1],
    "slice": lambda s: jnp.pad(s[1:, 2:], ((0, 1), (1, 1))),
    "strided": lambda s: jnp.repeat(s[:, ::3], 3, 1),
    "pad": lambda s: lax.pad(s, jnp.float32(1), ((-1, 1, 0), (1, -1, 0))),
    "concatenate": lambda s: jnp.concatenate([s[2:], s[:2]]),
    "broadcast": lambda s: s[0] + s[:, :1],
    "dot": lambda s: s @ W / 4,
    "gram": lambda s: (s @ s.T) @ s / 9,
    "batched": lambda s: jnp.einsum("ij,ijk->ik", s, jnp.broadcast_to(W, (4, 9, 9))) / 4,
    "solve": lambda s: jnp.linalg.solve(W @ W.T + 4 * jnp.eye(9), s.T).T,
    "gather": lambda s: s[ROWS],
    "take": lambda s: jnp.take_along_axis(s, jnp.argsort(s), 1),
    "scatter": lambda s: s.at[ROWS[:2]].set(s[2:]),
    "scatter add": lambda s: s.at[:, jnp.array([1, 1, 8])].add(0.25),
    "update": lambda s: lax.dynamic_update_slice(s, s[:1] * 0.5, (2, 0)),
    "dynamic slice": lambda s: jnp.concatenate([lax.dynamic_slice(s, (jnp.argmax(s[:, 0]), 0), (1, 9)), s[1:]]),
    "windows": lambda s: lax.reduce_window(s, -jnp.inf, lax.max, (1, 3), (1, 1), "SAME"),
    "averages": lambda s: lax.reduce_window(s, 0.0, lax.add, (3, 1), (1, 1), "SAME") / 3,
    "convolution": lambda s: lax.conv(s[:, None], jnp.ones((1, 1, 3)) / 3, (1,), "SAME")[:, 0],
    "fft": lambda s: jnp.fft.irfft(jnp.fft.rfft(s) * 0.5, 9),
    "random": lambda s: s + jax.random.uniform(jax.random.key(3), s.shape),
    "iota": lambda s: s + jnp.arange(9) / 9,
    "cond": lambda s: lax.cond(s.sum() > 0, lambda s: s * 0.5, lambda s: s + 0.25, s),
    "inner loop": lambda s: lax.fori_loop(0, 2, lambda _, t: jnp.sin(t) + 0.1, s),
    "inner scan": lambda s: lax.scan(lambda a, row: (a + row, a * 0.5), jnp.zeros(9), s)[1],
    "searched": lambda s: s + jnp.searchsorted(jnp.sort(s[0]), s[1]).astype(s.dtype) / 9,
}
"""f32[4, 9] -> the same shape."""


def counted(form: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: lax.fori_loop(0, 4, lambda _, s: form(s) * 0.5 + x, x)


def two_states(form: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The first is the same update in all iterations, the second reads it."""
    return lambda x: lax.fori_loop(0, 4, lambda _, s: (s[0] * 0.5 + x, s[1] + form(s[0])), (x, x))


def stacked(form: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: lax.scan(lambda s, k: (s * k + 0.5, form(s) + k), x, jnp.linspace(0.5, 1, 5))


def watched(form: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Until a sum of what is carried is there."""

    def run(x: Any) -> Any:
        return lax.while_loop(
            lambda s: (s[0] < 5) & (s[1][0, 0] < 90), lambda s: (s[0] + 1, form(s[1]) * 0.5 + x), (0, x)
        )

    return run


LOOPS = {"counted": counted, "two states": two_states, "stacked": stacked, "watched": watched}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loop", LOOPS)
def test_values(loop: str, form: str) -> None:
    x = np.random.default_rng(5).permutation(36).reshape(4, 9).astype(np.float32) / 18 - 0.9
    check_function(LOOPS[loop](FORMS[form]), x, relative=1e-4)
