"""Schur forms and eigenvalues of general matrices, for which JAX has no lowering on other platforms than its own.

The QR algorithm (Golub and Van Loan, Matrix Computations, 7.5): a Hessenberg form, then sweeps of small reflections,
with two shifts at a time for real matrices, so that pairs of complex eigenvalues stay blocks of real numbers, and with
one for complex ones. Matrices of a batch are computed one after the other, since each takes its own number of sweeps.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.jax_backend.eigh import lowering, plain_promotion
from neuronx_cc.driver.jax_backend.householder import hessenberg, reflector

SWEEPS = 40
"""For each row of a matrix; an eigenvalue takes three as a rule. Whatever takes more becomes NaN."""
PATIENCE = 10
"""Sweeps without a result after which other shifts are tried."""


def register(platform: str) -> None:
    """Give JAX these lowerings of its primitives."""
    from jax._src.interpreters import mlir
    from jax._src.lax import linalg

    mlir.register_lowering(linalg.schur_p, lowering(schur), platform=platform)
    mlir.register_lowering(linalg.eig_p, lowering(eigenvalues), platform=platform)


@plain_promotion
def schur(matrix: Any, *, compute_schur_vectors: bool, sort_eig_vals: bool, **_: Any) -> tuple[Any, ...]:
    """Triangular form and vectors, both [..., n, n]; of a real matrix with 2 x 2 blocks of equal diagonals."""
    if sort_eig_vals:
        raise NotImplementedError("Schur forms with sorted eigenvalues are not implemented")
    triangle, vectors = _each(_schur, matrix)
    return (triangle, vectors) if compute_schur_vectors else (triangle,)


@plain_promotion
def eigenvalues(
    matrix: Any, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool, **_: Any
) -> tuple[Any, ...]:
    """Values [..., n] and, as asked, left and right vectors [..., n, n] of length 1, all complex."""
    values, left, right = _each(_eigenvalues, matrix)
    return (values, *([left] if compute_left_eigenvectors else []), *([right] if compute_right_eigenvectors else []))


def _each(function: Any, matrix: Any) -> Any:
    """``function`` of each matrix of a batch; NaN for those that are not finite."""
    size = matrix.shape[-1]
    if matrix.size == 0:
        kind = jnp.zeros((1, 1), matrix.dtype)
        return tuple(jnp.zeros((*matrix.shape[:-2], *(size,) * each.ndim), each.dtype) for each in function(kind))
    matrix = matrix.astype(jnp.promote_types(matrix.dtype, jnp.float32))

    def one(matrix: Any) -> Any:
        finite = jnp.all(jnp.isfinite(matrix))
        return tuple(jnp.where(finite, each, jnp.nan) for each in function(jnp.where(finite, matrix, 0)))

    results = lax.map(one, matrix.reshape((-1, size, size)))
    return tuple(each.reshape((*matrix.shape[:-2], *each.shape[1:])) for each in results)


def _scale(matrix: Any) -> Any:
    """The largest number, 1 if there is none: squares of very large and very small numbers are not numbers of FP32."""
    largest = jnp.max(jnp.abs(matrix))
    return jnp.where(largest > 0, largest, 1)


def _schur(matrix: Any) -> tuple[Any, Any]:
    size = matrix.shape[0]
    is_real = not jnp.iscomplexobj(matrix)
    scale = _scale(matrix)
    reduced, factors = hessenberg(matrix / scale)
    vectors = jnp.eye(size, dtype=matrix.dtype)
    if size > 1:
        vectors = vectors.at[1:, 1:].set(lax.linalg.householder_product(reduced[1:, :-1], factors))
    place = lax.iota(np.int32, size)
    epsilon = np.finfo(matrix.dtype).eps

    def unfinished(state: Any) -> Any:
        _, _, last, _, count = state
        return (last > 0) & (count < SWEEPS * size)

    def step(state: Any) -> Any:
        triangle, vectors, last, tries, count = state
        sizes = jnp.abs(jnp.diagonal(triangle))
        beside = sizes[1:] + sizes[:-1]
        small = jnp.abs(jnp.diagonal(triangle, -1)) <= epsilon * jnp.where(beside > 0, beside, 1)
        split = jnp.concatenate([jnp.ones(1, bool), small])
        triangle = jnp.where((place[:, None] == place + 1) & split[:, None], 0, triangle)
        first = jnp.max(jnp.where(split & (place <= last), place, 0))
        done = last - first <= (1 if is_real else 0)
        start = (_two_shifts if is_real else _one_shift)(triangle, first, last, tries)
        end = jnp.where(done, first, last)

        def chase(k: Any, each: tuple[Any, Any]) -> tuple[Any, Any]:
            return _chase(each, k, first, last, start, 2 if is_real else 1)

        triangle, vectors = lax.fori_loop(first, end, chase, (triangle, vectors))
        last, tries = jnp.where(done, first - 1, last), jnp.where(done, 0, tries + 1)
        return triangle, vectors, last, tries, count + 1

    triangle, vectors, last, *_ = lax.while_loop(
        unfinished, step, (jnp.triu(reduced, -1), vectors, jnp.int32(size - 1), jnp.int32(0), jnp.int32(0))
    )
    if is_real and size > 1:
        triangle, vectors = lax.fori_loop(0, size - 1, _split_block, (triangle, vectors))
    return jnp.where(last > 0, jnp.nan, triangle * scale), vectors


def _at(matrix: Any, *places: tuple[Any, Any]) -> list[Any]:
    return [matrix[row, column] for row, column in places]


def _two_shifts(matrix: Any, first: Any, last: Any, tries: Any) -> Any:
    """The first column [n] of ``(H - s1)(H - s2)``, the shifts being the eigenvalues of the last four numbers."""
    above = last - 1
    a, b, c, d = _at(matrix, (above, above), (above, last), (last, above), (last, last))
    odd = 1.5 * (jnp.abs(c) + jnp.abs(matrix[above, jnp.maximum(last - 2, 0)]))
    is_odd = tries % PATIENCE == PATIENCE - 1
    total, product = jnp.where(is_odd, odd, a + d), jnp.where(is_odd, odd * odd, a * d - b * c)
    end = jnp.minimum(first + 2, last)
    a, b, c, d, e = _at(
        matrix, (first, first), (first, first + 1), (first + 1, first), (first + 1, first + 1), (end, first + 1)
    )
    place = lax.iota(np.int32, matrix.shape[0])
    column = jnp.where(place == first, a * a + b * c - total * a + product, 0)
    column = jnp.where(place == first + 1, c * (a + d - total), column)
    return jnp.where((place == first + 2) & (place <= last), c * e, column)


def _one_shift(matrix: Any, first: Any, last: Any, tries: Any) -> Any:
    """The first column [n] of ``H - s``, the shift being the nearer eigenvalue of the block's last four numbers."""
    above = last - 1
    a, b, c, d = _at(matrix, (above, above), (above, last), (last, above), (last, last))
    half = (a - d) / 2
    root = jnp.sqrt(half * half + b * c)
    root = jnp.where(jnp.real(jnp.conj(half) * root) >= 0, root, -root)
    far = half + root
    shift = jnp.where(far == 0, d, d - b * c / jnp.where(far == 0, 1, far))
    shift = jnp.where(tries % PATIENCE == PATIENCE - 1, d + jnp.abs(c), shift)
    place = lax.iota(np.int32, matrix.shape[0])
    column = jnp.where(place == first, matrix[first, first] - shift, 0)
    return jnp.where(place == first + 1, matrix[jnp.minimum(first + 1, last), first], column)


def _chase(each: tuple[Any, Any], k: Any, first: Any, last: Any, start: Any, width: int) -> tuple[Any, Any]:
    """Move what stands below the subdiagonal by one column, with a reflection of ``width + 1`` rows from ``k`` on."""
    triangle, vectors = each
    place = lax.iota(np.int32, triangle.shape[0])
    rows = (place >= k) & (place <= k + width) & (place <= last)
    column = jnp.where(k == first, start, jnp.where(rows, triangle[:, jnp.maximum(k - 1, 0)], 0))
    vector, tau, _ = reflector(column, k)
    triangle = triangle - jnp.conj(tau) * jnp.outer(vector, jnp.conj(vector) @ triangle)
    triangle = triangle - tau * jnp.outer(triangle @ vector, jnp.conj(vector))
    vectors = vectors - tau * jnp.outer(vectors @ vector, jnp.conj(vector))
    cleared = (place[:, None] > k) & rows[:, None] & (place == k - 1) & (k > first)
    return jnp.where(cleared, 0, triangle), vectors


def _turn(triangle: Any, vectors: Any, k: Any, upper: Any, lower: Any) -> tuple[Any, Any]:
    """Turn rows and columns ``k`` and ``k + 1`` so that (``upper``, ``lower``), of length 1, becomes the first axis."""
    turn = jnp.stack([jnp.stack([upper, -jnp.conj(lower)]), jnp.stack([lower, jnp.conj(upper)])])
    size = triangle.shape[0]

    def columns(matrix: Any) -> Any:
        return lax.dynamic_update_slice(matrix, lax.dynamic_slice(matrix, (0, k), (size, 2)) @ turn, (0, k))

    return columns(jnp.conj(columns(jnp.conj(triangle.T))).T), columns(vectors)


def _split_block(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
    """A real block: triangular where its eigenvalues are real, else with equal numbers on its diagonal."""
    triangle, vectors = state
    a, b, c, d = _at(triangle, (k, k), (k, k + 1), (k + 1, k), (k + 1, k + 1))
    half = (a - d) / 2
    square = half * half + b * c
    is_real, is_block = square >= 0, c != 0
    far = half + jnp.where(half >= 0, 1, -1) * jnp.sqrt(jnp.maximum(square, 0))
    angle = jnp.where(is_real, jnp.arctan2(c, far), jnp.arctan2(d - a, b + c) / 2)
    angle = jnp.where(is_block, angle, 0)
    triangle, vectors = _turn(triangle, vectors, k, jnp.cos(angle), jnp.sin(angle))
    middle = (triangle[k, k] + triangle[k + 1, k + 1]) / 2
    pair = is_block & ~is_real
    triangle = triangle.at[k + 1, k].set(jnp.where(pair, triangle[k + 1, k], 0))
    triangle = triangle.at[k, k].set(jnp.where(pair, middle, triangle[k, k]))
    return triangle.at[k + 1, k + 1].set(jnp.where(pair, middle, triangle[k + 1, k + 1])), vectors


def _eigenvalues(matrix: Any) -> tuple[Any, Any, Any]:
    size = matrix.shape[0]
    scale = _scale(matrix)
    triangle, vectors = _schur(matrix / scale)
    values = jnp.diagonal(triangle)
    is_real = None
    if not jnp.iscomplexobj(matrix):
        above, below = jnp.diagonal(triangle, 1), jnp.diagonal(triangle, -1)
        imaginary = jnp.where(below != 0, jnp.sqrt(jnp.abs(above)) * jnp.sqrt(jnp.abs(below)), 0)
        none = jnp.zeros(1, values.dtype)
        imaginary = jnp.concatenate([imaginary, none]) - jnp.concatenate([none, imaginary])
        is_real = imaginary == 0
        values = lax.complex(values, imaginary)

        def split(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
            triangle, vectors = state
            below = triangle[k + 1, k]
            far = 1j * imaginary[k].astype(values.dtype)
            length = jnp.sqrt(jnp.abs(far) ** 2 + jnp.abs(below) ** 2)
            safe = jnp.where(length > 0, length, 1)
            pair = (below != 0) & (imaginary[k] > 0)
            upper, lower = jnp.where(pair, far / safe, 1), jnp.where(pair, below / safe, 0)
            return _turn(triangle, vectors, k, upper, lower)

        start = (triangle.astype(values.dtype), vectors.astype(values.dtype))
        triangle, vectors = lax.fori_loop(0, size - 1, split, start) if size > 1 else start
    right = _normal(vectors @ _vectors_of_triangle(triangle, values), is_real)
    mirrored = jnp.flip(jnp.conj(triangle).T, (0, 1))
    left = jnp.flip(_vectors_of_triangle(mirrored, jnp.flip(jnp.conj(values))), (0, 1))
    return values * scale, _normal(vectors @ left, is_real), right


def _vectors_of_triangle(triangle: Any, values: Any) -> Any:
    """Right eigenvectors [n, n], as columns, of an upper triangular matrix with these ``values``."""
    size = triangle.shape[0]
    place = lax.iota(np.int32, size)
    least = np.finfo(triangle.dtype).eps * _scale(triangle)

    def row(number: Any, vectors: Any) -> Any:
        i = size - 1 - number
        total = jnp.where(place > i, triangle[i], 0) @ vectors
        divisor = values - triangle[i, i]
        entry = total / jnp.where(jnp.abs(divisor) < least, least, divisor)
        vectors = jnp.where((place[:, None] == i) & (place > i), entry, vectors)
        # vectors that nearly coincide with others grow by as much as 1 / eps in each row
        height = jnp.max(jnp.abs(vectors), axis=0)
        return vectors / jnp.where(height > 1e8, height, 1)

    return lax.fori_loop(0, size, row, jnp.eye(size, dtype=triangle.dtype))


def _normal(vectors: Any, is_real: Any) -> Any:
    """Of length 1, the largest number real; all of them where the matrix and the eigenvalue are."""
    height = jnp.max(jnp.abs(vectors), axis=0)
    vectors = vectors / jnp.where(height > 0, height, 1)
    vectors = vectors / jnp.sqrt(jnp.sum(jnp.abs(vectors) ** 2, axis=0))
    top = jnp.take_along_axis(vectors, jnp.argmax(jnp.abs(vectors), axis=0)[None], axis=0)
    vectors = vectors * (jnp.conj(top) / jnp.abs(top))
    return vectors if is_real is None else jnp.where(is_real, jnp.real(vectors), vectors)
