"""Factorisations by Householder reflections, for which JAX has no lowering on other platforms than its own.

Input and output are those of LAPACK's routines (``gehrd``, ``geqp3``, ``sytrd`` and ``hetrd``), computed column by
column: what is left of the matrix, with the reflectors below it, and their factors. A reflection is ``I - tau v v^H``,
``v`` 1 at its first place; it takes a vector to ``beta``, real and of the sign opposite to the vector's first number.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neuronx_cc.driver.jax_backend.eigh import lowering, plain_promotion


def register(platform: str) -> None:
    """Give JAX these lowerings of its primitives."""
    from jax._src.interpreters import mlir
    from jax._src.lax import linalg

    for primitive, function in (
        (linalg.hessenberg_p, hessenberg),
        (linalg.geqp3_p, pivoted_qr),
        (linalg.tridiagonal_p, tridiagonal),
    ):
        mlir.register_lowering(primitive, lowering(function), platform=platform)


@plain_promotion
def hessenberg(matrix: Any) -> Any:
    """``matrix`` [..., n, n] without what is below its first subdiagonal; factors [..., n - 1]."""
    return _batched(_hessenberg, matrix)


@plain_promotion
def pivoted_qr(matrix: Any, pivots: Any, **_: Any) -> Any:
    """Triangle of ``matrix`` [..., m, n], columns by falling norm, their numbers [..., n] from 1, and factors
    [..., min(m, n)]. Columns whose ``pivots`` are not 0 come first.
    """
    return _batched(_pivoted_qr, matrix, pivots)


@plain_promotion
def tridiagonal(matrix: Any, *, lower: bool) -> Any:
    """The named triangle of a Hermitian ``matrix`` [..., n, n], its diagonal, what is beside it, factors."""
    if lower:
        return _batched(_tridiagonal, matrix)
    # the upper triangle from its last column is the lower one from its first with rows and columns reversed
    result, diagonal, beside, factors = _batched(_tridiagonal, jnp.flip(matrix, (-2, -1)))
    return jnp.flip(result, (-2, -1)), jnp.flip(diagonal, -1), jnp.flip(beside, -1), jnp.flip(factors, -1)


def _batched(function: Any, matrix: Any, *others: Any) -> Any:
    for _ in matrix.shape[:-2]:
        function = jax.vmap(function)
    return function(matrix, *others)


def reflector(column: Any, first: Any) -> tuple[Any, Any, Any]:
    """``v``, ``tau`` and ``beta`` of the rows of ``column`` [n] from ``first`` on; rows of ``v`` before it are 0."""
    rows = jnp.arange(column.shape[0])
    head = column[first]
    below = jnp.where(rows > first, column, 0)
    # squares of very small and very large numbers are not numbers of FP32
    largest = jnp.maximum(jnp.max(jnp.abs(below)), jnp.abs(head))
    scale = jnp.where(largest > 0, largest, 1)
    norm = scale * jnp.sqrt(jnp.sum(jnp.abs(below / scale) ** 2) + jnp.abs(head / scale) ** 2)
    is_done = ~jnp.any(below != 0) & (jnp.imag(head) == 0)
    beta = jnp.where(is_done, jnp.real(head), jnp.where(jnp.real(head) >= 0, -norm, norm))
    divisor = jnp.where(is_done, 1, beta)
    tau = jnp.where(is_done, 0, (beta - head) / divisor).astype(column.dtype)
    vector = below / jnp.where(is_done, 1, head - beta)
    return jnp.where(rows == first, 1, vector).astype(column.dtype), tau, beta


def _hessenberg(matrix: Any) -> Any:
    size = matrix.shape[0]
    if size < 2:
        return matrix, jnp.zeros(0, matrix.dtype)
    place = jnp.arange(size)

    def step(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        matrix, factors = state
        vector, tau, beta = reflector(matrix[:, k], k + 1)
        done = jnp.where(place == k + 1, beta.astype(matrix.dtype), jnp.where(place > k + 1, vector, matrix[:, k]))
        right = matrix - tau * jnp.outer(matrix @ vector, jnp.conj(vector))
        both = right - jnp.conj(tau) * jnp.outer(vector, jnp.conj(vector) @ right)
        matrix = jnp.where(place[None, :] > k, both, matrix)
        return matrix.at[:, k].set(done), factors.at[k].set(tau)

    return lax.fori_loop(0, size - 1, step, (matrix, jnp.zeros(size - 1, matrix.dtype)))


def _pivoted_qr(matrix: Any, pivots: Any) -> Any:
    rows, columns = matrix.shape
    fixed = jnp.sum(pivots != 0)
    order = jnp.argsort(pivots == 0, stable=True)
    matrix, order = matrix[:, order], order.astype(pivots.dtype) + 1
    row, place = jnp.arange(rows)[:, None], jnp.arange(columns)

    def step(k: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        matrix, order, factors = state
        largest = jnp.max(jnp.abs(matrix))
        rest = jnp.where(row >= k, jnp.abs(matrix) / jnp.where(largest > 0, largest, 1), 0)
        norms = jnp.where(place >= k, jnp.sum(rest * rest, axis=0), -1)
        pivot = jnp.where(k < fixed, k, jnp.argmax(norms))
        swapped = jnp.where(place == k, pivot, jnp.where(place == pivot, k, place))
        matrix, order = matrix[:, swapped], order[swapped]
        vector, tau, beta = reflector(matrix[:, k], k)
        done = jnp.where(row[:, 0] == k, beta.astype(matrix.dtype), jnp.where(row[:, 0] > k, vector, matrix[:, k]))
        reflected = matrix - jnp.conj(tau) * jnp.outer(vector, jnp.conj(vector) @ matrix)
        matrix = jnp.where(place > k, reflected, matrix)
        return matrix.at[:, k].set(done), order, factors.at[k].set(tau)

    count = min(rows, columns)
    return lax.fori_loop(0, count, step, (matrix, order, jnp.zeros(count, matrix.dtype)))


def _tridiagonal(matrix: Any) -> tuple[Any, Any, Any, Any]:
    """LAPACK's ``hetd2`` for the lower triangle; the upper one stays as it is."""
    size = matrix.shape[0]
    real = jnp.real(matrix).dtype
    if size < 2:
        diagonal = jnp.real(matrix[0])
        return diagonal[None].astype(matrix.dtype), diagonal, jnp.zeros(0, real), jnp.zeros(0, matrix.dtype)
    place = jnp.arange(size)
    half = jnp.tril(matrix, -1)
    whole = half + jnp.conj(half).T + jnp.diag(jnp.real(jnp.diagonal(matrix)).astype(matrix.dtype))

    def step(k: Any, state: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        whole, kept, beside, factors = state
        vector, tau, beta = reflector(whole[:, k], k + 1)
        image = tau * (whole @ vector)
        shift = image - 0.5 * tau * jnp.vdot(image, vector) * vector
        reflected = whole - jnp.outer(vector, jnp.conj(shift)) - jnp.outer(shift, jnp.conj(vector))
        inside = (place[:, None] > k) & (place[None, :] > k)
        kept = kept.at[:, k].set(jnp.where(place > k + 1, vector, 0).astype(matrix.dtype))
        whole = jnp.where(inside, reflected, whole)
        return whole, kept, beside.at[k].set(beta.astype(real)), factors.at[k].set(tau)

    start = (whole, jnp.zeros_like(matrix), jnp.zeros(size - 1, real), jnp.zeros(size - 1, matrix.dtype))
    whole, kept, beside, factors = lax.fori_loop(0, size - 1, step, start)
    diagonal = jnp.real(jnp.diagonal(whole))
    result = jnp.triu(matrix, 1) + kept + jnp.diag(diagonal.astype(matrix.dtype))
    return result + jnp.diag(beside.astype(matrix.dtype), -1), diagonal, beside, factors
