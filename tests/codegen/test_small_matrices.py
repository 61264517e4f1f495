"""Factorisations of matrices of few elements, beside jaxlib's: pivots that are equal or zero too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

SIZES = [1, 2, 3, 4, 6, 7, 8, 9]


def drawn(*dims, whole=False):
    generator = np.random.default_rng(sum(dims))
    array = generator.integers(-2, 3, dims) if whole else generator.standard_normal(dims)
    return array.astype(np.float32)


def definite(*dims):
    x = drawn(*dims)
    return (x @ np.swapaxes(x, -1, -2) / dims[-1] + np.eye(dims[-1], dtype=np.float32)).astype(np.float32)


def factors(x):
    return jax.lax.linalg.lu(x)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("batch", [(), (5,), (2, 70)])
def test_cholesky(size, batch):
    check_function(jnp.linalg.cholesky, definite(*batch, size, size), relative=1e-5)


@pytest.mark.parametrize("size", [2, 5])
def test_cholesky_of_what_has_none(size):
    x = definite(4, size, size)
    x[1, -1, -1], x[2, 0, 0] = -3, np.nan
    check_function(jnp.linalg.cholesky, x)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("columns", [1, 2, 4, 5])
def test_factors(rows, columns):
    check_function(factors, drawn(3, rows, columns), relative=1e-5)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_equal_and_zero_pivots(size):
    x = drawn(40, size, size, whole=True)
    check_function(lambda x: factors(x)[1:], x)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("batch", [(), (5,), (130,)])
def test_solutions(size, batch):
    matrix = drawn(*batch, size, size) + 3 * np.eye(size, dtype=np.float32)
    check_function(jnp.linalg.solve, matrix, drawn(*batch, size, 3), relative=2e-5)
    check_function(jnp.linalg.inv, matrix, relative=2e-5)


@pytest.mark.parametrize("size", [1, 2, 4, 6, 7])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("unit", [False, True])
def test_triangles(size, lower, transposed, unit):
    def solve(a, b):
        return jax.scipy.linalg.solve_triangular(a, b, lower=lower, trans=transposed, unit_diagonal=unit)

    matrix = 0.5 * drawn(size, size) + 2 * np.eye(size, dtype=np.float32)
    check_function(solve, matrix, drawn(size, 5), relative=1e-5)


def filtered(a, h, q, r, seen):
    """A Kalman filter: the states after each of what is seen."""

    def step(carry, z):
        x, p = carry
        x, p = a @ x, a @ p @ a.T + q
        gain = jnp.linalg.solve(h @ p @ h.T + r, h @ p).T
        return (x + gain @ (z - h @ x), p - gain @ h @ p), x

    size = a.shape[0]
    return jax.lax.scan(step, (jnp.zeros(size), jnp.eye(size)), seen)[1]


@pytest.mark.parametrize(("size", "seen"), [(4, 2), (4, 1), (6, 3), (8, 5)])
def test_filter(size, seen):
    a = 0.5 * np.eye(size, dtype=np.float32) + 0.1 * drawn(size, size)
    given = a, drawn(seen, size), np.eye(size, dtype=np.float32), np.eye(seen, dtype=np.float32), drawn(12, seen)
    check_function(filtered, *given, relative=1e-4)
