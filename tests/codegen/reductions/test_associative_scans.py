"""Associative scans: found in the trees that JAX makes of them, and computed in one kernel."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import Compiled, assert_close, check_function, compile_text, text_of
from jax import lax

Array = np.ndarray[Any, Any]


def compose(left: Any, right: Any) -> Any:
    return left[0] * right[0], right[0] * left[1] + right[1]


def steps(random: np.random.Generator, dims: tuple[int, ...]) -> tuple[Array, Array]:
    return random.uniform(0.5, 1, dims).astype(np.float32), random.standard_normal(dims).astype(np.float32)


def count(compiled: Compiled, op: str) -> int:
    return sum(getattr(record, "op", "") == op for record in compiled.program.records)


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize(
    ("dims", "axis"),
    [((4,), 0), ((7, 5), 0), ((130, 40), 1), ((33, 24, 8), 0), ((5, 300, 3), 1), ((2, 5, 1), 1)],
    ids=str,
)
def test_recurrence(dims: tuple[int, ...], axis: int, reverse: bool, random: np.random.Generator) -> None:
    def function(a: Any, b: Any) -> Any:
        return lax.associative_scan(compose, (jnp.exp(a - 1), b * 2), axis=axis, reverse=reverse)[1] * a

    compiled = check_function(function, *steps(random, dims))
    assert count(compiled, "tensor_tensor_scan")
    assert compiled.program.kernels == ["0.map"]


@pytest.mark.parametrize("dims", [(6, 512, 7), (3, 2000), (300, 512), (6, 7, 130)], ids=str)
def test_leading_dim(dims: tuple[int, ...], random: np.random.Generator) -> None:
    """Few rows of many elements are combined row by row, others are transposed; no element is moved on its own."""
    a, b = steps(random, dims)
    compiled = check_function(lambda a, b: lax.associative_scan(compose, (a, b), reverse=len(dims) == 3)[1], a, b)
    assert compiled.program.kernels == ["0.map"]
    moved = [record for record in compiled.program.records if getattr(record, "op", "") == "dma_copy"]
    shortest = min(abs(ref.dims[-1][1]) for record in moved for ref in (*record.outs, *record.ins))
    assert shortest == 4


def test_both_results_and_their_readers(random: np.random.Generator) -> None:
    def function(a: Any, b: Any) -> Any:
        products, h = lax.associative_scan(compose, (a, b))
        return products, h, jnp.sum(h * products, -1), h[-1]

    check_function(function, *steps(random, (50, 40)))


@pytest.mark.parametrize("combine", [jnp.add, jnp.multiply, jnp.maximum, jnp.minimum], ids=lambda f: f.__name__)
def test_one_operator(combine: Any, random: np.random.Generator) -> None:
    x = random.uniform(0.9, 1.1, (6, 37)).astype(np.float32)
    compiled = check_function(lambda x: lax.associative_scan(combine, x, axis=1), x)
    assert len(compiled.program.kernels) == 1


def test_whole_numbers(random: np.random.Generator) -> None:
    n = random.integers(-100, 100, (6, 37)).astype(np.int32)
    check_function(lambda n: [lax.associative_scan(f, n, axis=1) for f in (jnp.add, jnp.bitwise_xor)], n)
    check_function(lambda n: lax.associative_scan(compose, (n, n + 1), axis=1), n)
    check_function(lambda n: lax.associative_scan(jnp.logical_or, n > 95, axis=1), n)


def test_longest_path(random: np.random.Generator) -> None:
    """``max(a + h, b)`` is a recurrence, too."""

    def combine(left: Any, right: Any) -> Any:
        return left[0] + right[0], jnp.maximum(right[0] + left[1], right[1])

    x = random.standard_normal((2, 20, 60)).astype(np.float32)
    compiled = check_function(lambda x: lax.associative_scan(combine, (x[0], x[1]), axis=1)[1], x)
    assert count(compiled, "tensor_tensor_scan")


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=lambda dtype: np.dtype(dtype).name)
def test_narrow_floats(dtype: Any, random: np.random.Generator) -> None:
    """The state is FP32: only results are rounded."""
    a, b = (array.astype(dtype) for array in steps(random, (20, 33)))
    compiled = compile_text(text_of(lambda a, b: lax.associative_scan(compose, (a, b), axis=1)[1], a, b))
    (result,) = compiled.run([a, b])
    want, state = [], np.zeros(20)
    for column in range(33):
        state = a[:, column].astype(np.float64) * state + b[:, column].astype(np.float64)
        want.append(state)
    assert count(compiled, "tensor_tensor_scan")
    assert_close(result, np.stack(want, 1).astype(dtype), 2.0**-8 if dtype is ml_dtypes.bfloat16 else 2.0**-11)


def test_special_values_stay_where_they_are(random: np.random.Generator) -> None:
    """The first factor is never used; infinities and NaNs reach what follows, and no other row."""
    a, b = steps(random, (4, 20))
    a[0, 0], a[1, 0], b[2, 7], b[3, 11] = np.inf, np.nan, np.inf, np.nan
    check_function(lambda a, b: lax.associative_scan(compose, (a, b), axis=1)[1], a, b)


def test_with_reductions_of_either_side(random: np.random.Generator) -> None:
    """As a state space model does: the state is folded with weights of each step."""
    decay, entry = steps(random, (24, 130, 8))
    weights = random.standard_normal((24, 8)).astype(np.float32)

    def function(decay: Any, entry: Any, weights: Any) -> Any:
        dt = decay[:, :, 0]
        factors = jnp.exp(-dt[:, :, None] * jnp.abs(entry[0]))
        _, h = lax.associative_scan(compose, (factors, (dt * 2)[:, :, None] * weights[:, None, :]))
        return jnp.einsum("tfs,ts->tf", h, weights)

    check_function(function, decay, entry, weights)


@pytest.mark.parametrize("special", [False, True], ids=["numbers", "special values"])
@pytest.mark.parametrize(
    ("time", "features", "state"), [(128, 256, 16), (130, 384, 8), (40, 130, 6), (96, 64, 5), (17, 256, 2)], ids=str
)
def test_selective_state_space(
    time: int, features: int, state: int, special: bool, random: np.random.Generator
) -> None:
    """Decays of one value a feature and state, scanned, weighted by rows that all features share, and summed."""

    def function(dt: Any, x: Any, a: Any, b: Any, c: Any) -> Any:
        decay, entry = jnp.exp(dt[:, :, None] * a), (dt * x)[:, :, None] * b[:, None, :]
        h = lax.associative_scan(compose, (decay, entry), axis=0)[1]
        return jnp.einsum("tfs,ts->tf", h, c) + x

    dt, x = (random.uniform(0.1, 1, (time, features)).astype(np.float32) for _ in range(2))
    a = -random.uniform(0.5, 4, (features, state)).astype(np.float32)
    b, c = (random.standard_normal((time, state)).astype(np.float32) for _ in range(2))
    if special:
        x[time // 2, 1], c[time // 3, 1] = np.nan, np.inf
    compiled = check_function(function, dt, x, a, b, c)
    assert count(compiled, "tensor_tensor_scan")


def test_gradient(random: np.random.Generator) -> None:
    check_function(
        jax.grad(lambda a, b: jnp.sum(jnp.sin(lax.associative_scan(compose, (a, b), axis=1)[1])), (0, 1)),
        *steps(random, (9, 33)),
    )


def test_trees_of_other_combiners_stay(random: np.random.Generator) -> None:
    """Matrices of 2 x 2, a difference, and a tree that leaves an element out."""

    def matrices(left: Any, right: Any) -> Any:
        return jnp.einsum("...ij,...jk->...ik", right, left)

    def wrong(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[0] * left[1] + right[1]

    x = random.uniform(-1, 1, (17, 3, 2, 2)).astype(np.float32)
    check_function(lambda x: lax.associative_scan(matrices, x), x, relative=1e-4)
    check_function(lambda x: lax.associative_scan(jnp.subtract, x), x)
    check_function(lambda a, b: lax.associative_scan(wrong, (a, b)), x, x)


def test_gaps_that_are_no_tree(random: np.random.Generator) -> None:
    x = random.standard_normal((5, 8)).astype(np.float32)

    def function(x: Any) -> Any:
        even, odd = x[:, ::2] + x[:, 1::2], x[:, ::2]
        zero = jnp.float32(0)
        return lax.pad(even, zero, ((0, 0, 0), (0, 1, 1))) + lax.pad(odd, zero, ((0, 0, 0), (1, 0, 1)))

    check_function(function, x)
