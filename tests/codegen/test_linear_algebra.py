"""``jnp.linalg`` as JAX lowers it for a platform without LAPACK, compiled and run, beside NumPy in FP64."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text
from op_cases_math import complex_array, definite

Array = np.ndarray[Any, Any]

SIZE = 6
A = np.ascontiguousarray(complex_array((SIZE, SIZE), "a").real) + 2 * np.eye(SIZE, dtype=np.float32)
Z = complex_array((SIZE, SIZE), "z") + 2 * np.eye(SIZE, dtype=np.float32)
B = np.ascontiguousarray(complex_array((SIZE, 3), "b").real)
S = definite("f32", (SIZE, SIZE), "s")


def run(function: Callable[..., Any], *inputs: Array) -> list[Array]:
    lowered = jax.jit(function).trace(*inputs).lower(lowering_platforms=("neuron",))
    text = lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True)
    return compile_text(text).run(list(inputs))


def close(got: Array, want: Array, tolerance: float = 2e-6) -> None:
    assert np.max(np.abs(got - want)) <= tolerance * np.max(np.abs(want))


@pytest.mark.parametrize(
    ("function", "exact", "inputs"),
    [
        (jnp.linalg.cholesky, np.linalg.cholesky, (S,)),
        (jnp.linalg.solve, np.linalg.solve, (A, B)),
        (jnp.linalg.solve, np.linalg.solve, (Z, B.astype(np.complex64))),
        (jnp.linalg.inv, np.linalg.inv, (np.stack([A, S]),)),
        (jnp.linalg.det, np.linalg.det, (A,)),
        pytest.param(lambda x: jax.scipy.linalg.expm(x), None, (A / 8,), marks=pytest.mark.slow),
        (jax.grad(lambda x: jnp.linalg.slogdet(x)[1]), lambda x: np.linalg.inv(x).T, (A,)),
    ],
    ids=["cholesky", "solve", "complex solve", "batched inverse", "determinant", "exponential", "gradient"],
)
def test_functions(function: Callable[..., Any], exact: Callable[..., Any] | None, inputs: tuple[Array, ...]) -> None:
    wide = [x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in inputs]
    want = exact(*wide) if exact is not None else np.asarray(jax.jit(function)(*inputs))
    close(run(function, *inputs)[0], want)


@pytest.mark.parametrize("matrix", [A, Z[:, :4], np.ascontiguousarray(A[:4])], ids=["square", "tall", "wide"])
def test_qr(matrix: Array) -> None:
    q, r = run(jnp.linalg.qr, matrix)
    close(q @ r, matrix)
    close(q.conj().T @ q, np.eye(q.shape[1]))
    np.testing.assert_array_equal(np.tril(r, -1), 0)


def test_several_blocks() -> None:
    """Loops over blocks around loops over columns."""
    s = definite("f32", (70, 70), "blocks")
    b = np.ascontiguousarray(complex_array((70, 2), "right").real)
    factor, solution = run(lambda s, b: (jnp.linalg.cholesky(s), jax.scipy.linalg.solve(s, b, assume_a="pos")), s, b)
    close(factor, np.linalg.cholesky(s.astype(np.float64)))
    close(s @ solution, b, 1e-4)
