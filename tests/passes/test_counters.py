"""Loops that index arrays by what counts: one counter, no comparisons of it, short ones written out; values."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from jax import lax

from neuronx_cc.passes.known_compares import decided


@pytest.mark.parametrize("direction", ["LT", "LE", "GT", "GE", "EQ", "NE"])
def test_decisions_hold_for_all_values(direction):
    holds = {
        "LT": lambda a, b: a < b,
        "LE": lambda a, b: a <= b,
        "GT": lambda a, b: a > b,
        "GE": lambda a, b: a >= b,
        "EQ": lambda a, b: a == b,
        "NE": lambda a, b: a != b,
    }[direction]
    spans = [(low, high) for low in range(4) for high in range(low, 4)]
    for left in spans:
        for right in spans:
            found = {holds(a, b) for a in range(left[0], left[1] + 1) for b in range(right[0], right[1] + 1)}
            assert decided(direction, left, right) == (found.pop() if len(found) == 1 else None)


def by_index(generator):
    """A loop that reads and writes rows at places that it counts, some of them beyond the ends, and its array."""
    trips, rows, width = generator.choice((2, 3, 4, 9)), generator.choice((4, 9, 12)), generator.choice((1, 5))
    first, offset, factor = generator.randrange(-2, 3), generator.randrange(-3, 4), generator.choice((1, 1, -1, 2))
    mode = generator.choice(("drop", "clip", None))

    def body(i, carry):
        x, total, other = carry
        total = jnp.tanh(total) + x[i * factor + offset] * other
        return x.at[i + offset].set(total * 0.5, mode=mode), total, other + generator.choice((1, 2))

    def run(x):
        return lax.fori_loop(first, first + trips, body, (x, jnp.zeros(width), 3))

    return run, np.random.default_rng(generator.randrange(99)).uniform(-1, 1, (rows, width)).astype(np.float32)


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 100))])
def test_rows_by_index(seed):
    run, x = by_index(random.Random(seed))
    check_function(run, x, relative=1e-5)


def test_bytes_that_count_wrap():
    def body(i, carry):
        x, at = carry
        return x + jnp.tanh(x) * at.astype(jnp.float32), at + jnp.uint8(100)

    def run(x):
        return lax.fori_loop(0, 9, body, (x, jnp.uint8(7)))

    check_function(run, np.linspace(-1, 1, 5, dtype=np.float32), relative=1e-5)


@pytest.mark.parametrize("n", [2, 4, 5])
def test_permutations_of_rows(n):
    def run(pivots):
        return jax.lax.linalg.lu_pivots_to_permutation(pivots, n)

    check_function(run, np.array([n - 1, *range(1, n)], np.int32))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.bool_])
def test_constants_without_elements(dtype):
    """Results without elements, as a cell's reserved space, beside comparisons of counts."""
    none = np.zeros((0, 3), dtype)

    def run(x):
        rows = lax.broadcasted_iota(np.int32, x.shape, 0)
        return jnp.where(rows < 2, x, 0), jnp.asarray(none), none > 0

    check_function(run, np.arange(12, dtype=np.float32).reshape(4, 3), relative=0)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.float32])
@pytest.mark.parametrize("reverse", [False, True])
def test_counts_that_a_loop_walks_through(dtype, reverse):
    """``jnp.arange`` scanned beside other arrays is the count itself; windows of it start within it."""

    def run(x, first):
        def step(total, given):
            i, row = given
            place = i.astype(np.int32)
            part = lax.dynamic_slice(jnp.arange(9), (first + place,), (4,))
            return total + row * i.astype(np.float32) + x[place].sum(), (total, part)

        return lax.scan(step, jnp.zeros(5), (jnp.arange(7).astype(dtype), x), reverse=reverse)

    check_function(run, np.random.default_rng(0).uniform(-1, 1, (7, 5)).astype(np.float32), np.int32(2), relative=1e-5)
