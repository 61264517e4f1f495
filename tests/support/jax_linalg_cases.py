"""Factorisations on the JAX backend, each a function that asserts; ``test_jax_backend`` runs this file as a process.

Prints one JSON object: case -> empty text, or what went wrong.
"""

import jax
import jax.numpy as jnp
import numpy as np
from case_report import report

X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
EPSILON = np.finfo(np.float32).eps


def case_eigh():
    matrix = X[:5] @ X[:5].T - np.eye(5, dtype=np.float32)
    values, vectors = jnp.linalg.eigh(matrix)
    assert np.allclose(values, np.linalg.eigvalsh(matrix), atol=1e-5)
    assert np.allclose(matrix @ vectors, vectors * values, atol=1e-5)


def case_eigh_of_a_program_that_promotes_nothing():
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        values = jnp.linalg.eigvalsh(X[:3] @ X[:3].T)
    assert np.allclose(values, np.linalg.eigvalsh(X[:3] @ X[:3].T), atol=1e-5)


def case_householder_forms():
    """What LAPACK's routines return, from ``Q``: columns by falling norm, one diagonal below, three diagonals."""
    square = (X[:6, :3] @ X[2:8, :3].T + 1j * X[:6, 1:] @ X[1:7, 1:].T).astype(np.complex64)
    for matrix in (X[:4, :4], square):
        reduced, q = jax.scipy.linalg.hessenberg(matrix, calc_q=True)
        assert np.allclose(q @ reduced @ q.conj().T, matrix, atol=1e-4)
        assert not np.tril(reduced, -2).any()
        hermitian = matrix + matrix.conj().T
        for lower in (False, True):
            _, diagonal, beside, _ = jax.lax.linalg.tridiagonal(jnp.asarray(hermitian), lower=lower)
            values = np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
            assert np.allclose(values, np.linalg.eigvalsh(hermitian), atol=1e-4)
    for matrix in (X, X[:3], np.stack([X[:4], X[4:]]), square):
        q, r, pivots = jax.scipy.linalg.qr(matrix, mode="economic", pivoting=True)
        permuted = np.take_along_axis(matrix, np.asarray(pivots)[..., None, :], axis=-1)
        sizes = np.abs(np.diagonal(r, axis1=-2, axis2=-1))
        assert np.allclose(q @ r, permuted, atol=1e-4)
        assert np.all(sizes[..., :-1] >= sizes[..., 1:] - 1e-4)


def case_schur_forms():
    for matrix in (X[:4, :4], X[:4, :4] + 1j * X[4:, :4]):
        triangle, vectors = jax.scipy.linalg.schur(matrix)
        assert np.allclose(vectors @ triangle @ vectors.conj().T, matrix, atol=1e-4)
        assert np.allclose(vectors.conj().T @ vectors, np.eye(4), atol=1e-4)
        assert not np.tril(triangle, -1 if np.iscomplexobj(matrix) else -2).any()


def case_eigenvalues_of_general_matrices():
    roots = np.array([-3, -2, 0.5, 1 + 2j, 1 - 2j])
    found = jnp.roots(jnp.asarray(np.poly(roots).real, jnp.float32), strip_zeros=False)
    assert np.allclose(np.sort_complex(found), np.sort_complex(roots), atol=1e-4)
    assert np.count_nonzero(np.imag(found)) == 2
    rotations = np.stack([[[0, 1, 0], [0, 0, 1], [1, 0, 0]], X[:3, :3], X[3:6, :3] * 1e20]).astype(np.float32)
    for matrices in (rotations, (rotations * 1j).astype(np.complex64)):
        left, right = (jax.lax.linalg.eig(matrices, compute_left_eigenvectors=side)[side:] for side in (True, False))
        values, vectors = right[0], right[1]
        scale = np.abs(matrices).max(axis=(1, 2), keepdims=True)
        assert np.allclose(matrices / scale @ vectors, values[:, None] * vectors / scale, atol=1e-5)
        adjoint = np.conj(left[0]).swapaxes(1, 2)
        assert np.allclose(adjoint @ (matrices / scale), values[:, :, None] * adjoint / scale, atol=1e-5)
    assert np.isnan(jnp.linalg.eigvals(jnp.array([[jnp.inf]]))).all()


def residue(matrix, values, vectors):
    """Error of A V = V W and of V^H V = I, in rounding errors of the matrix and of 1."""
    matrix, values, vectors = (np.asarray(each).astype(np.complex128) for each in (matrix, values, vectors))
    error = np.linalg.norm(matrix @ vectors - vectors * values) / np.linalg.norm(matrix)
    return error / EPSILON, np.linalg.norm(vectors.conj().T @ vectors - np.eye(len(matrix))) / EPSILON


def case_eigh_is_accurate():
    """Rounding errors of the many small rotations of the last sweeps do not add up."""
    numbers = np.random.default_rng(1).standard_normal((2, 64, 64)).astype(np.float32)
    symmetric, singular = numbers[0] + numbers[0].T, numbers[0][:, :63] @ numbers[0][:, :63].T
    for matrix in (symmetric, singular, symmetric + 1j * (numbers[1] - numbers[1].T)):
        error, orthogonality = residue(matrix, *jnp.linalg.eigh(matrix))
        assert error < 20, error
        assert orthogonality < 150, orthogonality


def case_eigh_of_any_size_of_numbers():
    matrix = X[:5] @ X[:5].T
    values = np.linalg.eigvalsh(matrix.astype(np.float64))
    for scale in (1e-30, 1e25):
        assert np.allclose(jnp.linalg.eigvalsh(np.float32(scale) * matrix) / np.float32(scale), values, atol=1e-5)
    assert np.array_equal(jnp.linalg.eigvalsh(np.zeros((3, 3), np.float32)), np.zeros(3))
    matrix[3, 2] = np.inf
    assert np.isnan(jnp.linalg.eigvalsh(matrix)).all()


def case_tridiagonal_systems():
    rng = np.random.default_rng(2)
    for size, count, kind in ((1, 1, np.float32), (2, 3, np.float32), (37, 2, np.float32), (9, 1, np.complex64)):
        lower, diagonal, upper = rng.standard_normal((3, 2, size)).astype(kind) + (0 if kind == np.float32 else 1j)
        diagonal[:, ::3] *= 1e-30  # pivots are wanted
        if size == 1:
            diagonal = diagonal + np.float32(2)
        lower[:, 0], upper[:, -1] = np.nan, np.nan  # outside the matrix
        matrix = [
            np.diag(d) + np.diag(b[1:], -1) + np.diag(a[:-1], 1) for b, d, a in zip(lower, diagonal, upper, strict=True)
        ]
        wanted = rng.standard_normal((2, size, count)).astype(kind)
        right = np.stack(matrix) @ wanted
        for perturb in (False, True):
            found = jax.lax.linalg.tridiagonal_solve(lower, diagonal, upper, right, perturb_singular=perturb)
            assert np.allclose(found, wanted, atol=2e-3), np.abs(found - wanted).max()
    singular = np.ones((3, 3), np.float32)
    singular[1, :2] = singular[0, 1] = singular[2, 0] = 0
    found = jax.lax.linalg.tridiagonal_solve(*singular, np.ones((3, 1), np.float32))
    assert np.isnan(found).all()
    found = jax.lax.linalg.tridiagonal_solve(*singular, np.ones((3, 1), np.float32), perturb_singular=True)
    assert np.isfinite(found).all()
    assert np.abs(found).max() > 1e5


def case_eigenvectors_of_tridiagonal_matrices():
    diagonal, beside = X[:, 0], X[1:, 1]
    matrix = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    values, vectors = jax.scipy.linalg.eigh_tridiagonal(diagonal, beside, eigvals_only=False)
    assert max(residue(matrix, values, vectors)) < 100


def case_sparse_systems():
    from jax.experimental.sparse.linalg import spsolve

    rng = np.random.default_rng(3)
    matrix = np.where(rng.random((12, 12)) < 0.3, rng.standard_normal((12, 12)), 0).astype(np.float32)
    matrix += 3 * np.roll(np.eye(12, dtype=np.float32), 1, axis=0)  # what is large is off the diagonal
    wanted = rng.standard_normal(12).astype(np.float32)
    columns, starts = np.nonzero(matrix)[1], np.concatenate([[0], np.cumsum(np.count_nonzero(matrix, axis=1))])
    padded = np.append(matrix[matrix != 0], np.float32(7)), np.append(columns, 0)  # entries that no row has
    for data, indices in ((matrix[matrix != 0], columns), padded):
        found = spsolve(data, indices.astype(np.int32), starts.astype(np.int32), matrix @ wanted)
        assert np.allclose(found, wanted, atol=1e-4)


if __name__ == "__main__":
    report(globals())
