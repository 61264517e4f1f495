"""Linear algebra as JAX lowers it for a CPU: calls of LAPACK, compiled, run, and compared with LAPACK."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, compile_text, text_of
from jax.scipy.linalg import lu_factor, solve_triangular

from neuronx_cc.ir.errors import CompileError

Array = np.ndarray[Any, Any]


def matrix(random: np.random.Generator, dtype: str, *dims: int) -> Array:
    parts = random.standard_normal((2, *dims))
    return np.asarray(parts[0] + 1j * parts[1] if dtype == "complex64" else parts[0]).astype(dtype)


def definite(random: np.random.Generator, dtype: str, *dims: int) -> Array:
    x = matrix(random, dtype, *dims)
    return np.asarray(x @ np.swapaxes(x.conj(), -1, -2) + dims[-1] * np.eye(dims[-1])).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("dims", [(4, 4), (2, 5, 3), (3, 7), (0, 0), (1, 1)], ids=str)
def test_factors(dtype: str, dims: tuple[int, ...], random: np.random.Generator) -> None:
    check_function(lambda x: (lu_factor(x), jnp.linalg.qr(x)), matrix(random, dtype, *dims), relative=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("dims", [(5, 5), (2, 3, 3)], ids=str)
def test_definite(dtype: str, dims: tuple[int, ...], random: np.random.Generator) -> None:
    def function(x: Any) -> Any:
        upper = jax.scipy.linalg.cholesky(x, lower=False)
        return upper, jnp.linalg.cholesky(x), jnp.linalg.solve(x, x[..., :2]), jnp.linalg.det(x)

    check_function(function, definite(random, dtype, *dims), relative=1e-4)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("unit", [False, True])
def test_triangles(lower: bool, trans: int, unit: bool, random: np.random.Generator) -> None:
    x = definite(random, "complex64", 4, 4)

    def function(x: Any) -> Any:
        left = solve_triangular(x, x[:, :3], lower=lower, trans=trans, unit_diagonal=unit)
        return left, jax.lax.linalg.triangular_solve(x, x[:2], left_side=False, lower=lower, unit_diagonal=unit)

    check_function(function, x, relative=1e-4)


def test_no_factor_of_an_indefinite_matrix() -> None:
    check_function(jnp.linalg.cholesky, np.array([[1, 2], [2, 1]], np.float32))


def test_zero_pivots() -> None:
    x = np.array([[0, 1, 2], [0, 3, 4], [0, 5, 6]], np.float32)
    check_function(lambda x: (lu_factor(x), jnp.linalg.det(x)), x)


@pytest.mark.parametrize("function", [jnp.linalg.svd, jnp.linalg.eigh, jnp.linalg.eigvals], ids=["svd", "eigh", "eig"])
def test_others_are_refused_with_the_way_out(function: Callable[..., Any]) -> None:
    with pytest.raises(CompileError, match=r"EHCA005.*lapack_.*\n?.*lowering_platforms"):
        compile_text(text_of(function, np.eye(3, dtype=np.float32)))
