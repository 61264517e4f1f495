"""Maximum, minimum and what is made of them take the zero that IEEE 754 has, as XLA does: signs are compared, too.

Reductions of long rows of FP32 are left out: jaxlib's CPU client vectorises them with a comparison giving either zero.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text, text_of
from jax import lax

FLOATS = ["float32", "bfloat16", "float16"]
CLAMPS = [(0.0, 0.0), (-0.0, -0.0), (-0.0, 0.0), (0.0, 1.0), (-1.0, -0.0)]


def zeros(seed, dtype, *dims):
    """A quarter of them ones of either sign."""
    rng = np.random.default_rng(seed)
    return np.copysign(rng.integers(0, 4, dims) // 3, rng.standard_normal(dims)).astype(dtype)


def check(function, *inputs) -> None:
    expected = jax.tree.leaves(jax.jit(function)(*inputs))
    got = compile_text(text_of(function, *inputs)).run(inputs)
    for want, have in zip(expected, got, strict=True):
        np.testing.assert_array_equal(have, np.asarray(want))
        np.testing.assert_array_equal(np.signbit(have), np.signbit(np.asarray(want)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_elementwise(dtype) -> None:
    def function(x, y):
        clamps = [lax.clamp(jnp.array(low, dtype), x, jnp.array(high, dtype)) for low, high in CLAMPS]
        constants = [f(x, jnp.array(zero, dtype)) for f in (lax.max, lax.min) for zero in (0.0, -0.0)]
        return [lax.max(x, y), lax.min(x, y), lax.clamp(x, y, lax.max(x, x[::-1])), *clamps, *constants]

    check(function, zeros(0, dtype, 3, 50), zeros(1, dtype, 3, 50))


@pytest.mark.parametrize("dtype", FLOATS)
def test_reductions_scans_and_windows(dtype) -> None:
    def function(x):
        low, high = np.array(-np.inf, dtype), np.array(np.inf, dtype)
        reduced = [f(x, axis) for f in (jnp.max, jnp.min) for axis in (0, 1)]
        scanned = [f(x, axis) for f in (lax.cummax, lax.cummin) for axis in (0, 1)]
        pooled = [
            lax.reduce_window(x, start, f, (1, 3), (1, 2), "SAME") for start, f in ((low, lax.max), (high, lax.min))
        ]
        return [*reduced, *scanned, *pooled]

    check(function, zeros(2, dtype, 5, 33))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [1, 5])
def test_scatters(dtype, width) -> None:
    index = np.random.default_rng(3).integers(0, 20, 40).astype(np.int32)

    def function(table, updates):
        return table.at[index].max(updates), table.at[index].min(updates)

    check(function, zeros(4, dtype, 20, width), zeros(5, dtype, 40, width))


@pytest.mark.parametrize("reader", ["angle", "quotient", "power", "norm"])
def test_rows_that_are_repeated(reader) -> None:
    """Products with ones would lose the sign of a zero in a row, which shows in what is made of other products."""
    x, row = np.abs(zeros(0, "float32", 40, 64)) + 1, zeros(1, "float32", 64)
    readers = {
        "angle": lambda x, row: jnp.arctan2(x * row, -x),
        "quotient": lambda x, row: x / (row * x),
        "power": lambda x, row: lax.rsqrt(x * row),
        "norm": lambda x, row: jnp.arctan2((x - x.max(1, keepdims=True)) * row, -x),
    }
    check(readers[reader], x, row)
