"""Folds of everything, of arrays of which some repeat their elements along an axis, or lie apart in memory."""

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

import neuronx_cc

WORST = 1.6
"""Times that such a fold may take as long as one of arrays that lie in the order of the program."""
BESIDE = 8.0
"""Microseconds of the loads of what is repeated, which come one after the other."""
KINDS: dict[str, Callable[..., Any]] = {
    "columns": lambda x, y, z: (x, y[:, None]),
    "rows": lambda x, y, z: (x, z),
    "pairs": lambda x, y, z: (y[:, None], z),
    "all": lambda x, y, z: (x * y[:, None], z),
    "parts": lambda x, y, z: (x[:, 1:], x[:, :-1]),
    "counted": lambda x, y, z: (x, jnp.where(y[:, None] > jnp.arange(x.shape[1]), 1.0, 0.5)),
}


def long_chain(a: Any, b: Any) -> Any:
    p = jax.nn.sigmoid(a)
    return jnp.exp(-p * b) * (1 - p) ** 2 * jnp.tanh(a - b) * p


def drawn(seed: int) -> tuple[str, tuple[int, int]]:
    draw = random.Random(seed)
    rows = draw.choice((64, 100, 128, 159, 320, 1092, 4096, 8008))
    return draw.choice(list(KINDS)), (rows, max(2, min(draw.choice((2, 3, 7, 40, 100, 257)), 60000 // rows)))


@pytest.mark.parametrize("seed", range(24))
def test_folds(seed: int) -> None:
    """Right, and about as long as the same fold of dense arrays: all partitions have part of it."""
    name, (rows, columns) = drawn(seed)
    numbers = np.random.default_rng(seed)
    arrays = [numbers.standard_normal(shape).astype(np.float32) for shape in ((rows, columns), (rows,), (columns,))]
    if name != "parts":
        check_function(lambda *given: long_chain(*KINDS[name](*given)).sum(), *arrays, relative=2e-5)
    check_function(lambda *given: (long_chain(*KINDS[name](*given)) ** 2).sum(), *arrays, relative=2e-5)

    def microseconds(function: Callable[..., Any], *given: Any) -> float:
        lowered = jax.jit(function).lower(*given)
        return neuronx_cc.compile(lowered, auto_cast="none").run([], timing_only=True).report.kernel_ns / 1e3

    dense = microseconds(lambda a, b: long_chain(a, b).sum(), arrays[0], arrays[0])
    taken = microseconds(lambda *given: long_chain(*KINDS[name](*given)).sum(), *arrays)
    assert taken <= WORST * dense + BESIDE, f"{name} {rows}x{columns}: {taken:.1f} us, {dense:.1f} dense"


@pytest.mark.parametrize("kept", [1, 4])
def test_some_rows_are_kept(kept: int) -> None:
    numbers = np.random.default_rng(kept)
    x, y = (numbers.standard_normal(shape).astype(np.float32) for shape in ((kept, 100, 50), (kept, 100)))

    def centred(x: Any, y: Any) -> Any:
        part = jnp.exp(x * y[:, :, None])
        return part / part.sum((1, 2), keepdims=True) * y[:, :, None]

    check_function(centred, x, y)
