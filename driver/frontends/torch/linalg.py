"""Rows of linear algebra and Fourier transforms."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import expm, solve_triangular

from neuronx_cc.driver.frontends.torch.registry import axis_of, row, widened


@row("linalg_cholesky_ex")
def _cholesky(x: Any, upper: bool = False, check_errors: bool = False) -> Any:
    low = jnp.linalg.cholesky(x, symmetrize_input=False)
    status = jnp.zeros(x.shape[:-2], np.int32)
    return (jnp.conj(jnp.swapaxes(low, -1, -2)) if upper else low), status


row("cholesky")(lambda x, upper=False: _cholesky(x, upper)[0])


@row("linalg_solve_triangular")
def _solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = jnp.broadcast_to(a, batch + a.shape[-2:]), jnp.broadcast_to(b, batch + b.shape[-2:])
    return lax.linalg.triangular_solve(a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular)


@row("triangular_solve")
def _old_triangular(b: Any, a: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False) -> Any:
    return solve_triangular(a, b, 1 if transpose else 0, not upper, unit_diagonal=unitriangular), a


row("linalg_inv_ex")(lambda x, check_errors=False: (jnp.linalg.inv(x), jnp.zeros(x.shape[:-2], np.int32)))
row("geqrf")(lambda x: (lambda raw: (jnp.swapaxes(raw[0], -1, -2), raw[1]))(jnp.linalg.qr(x, "raw")))
row("linalg_qr")(lambda x, mode="reduced": tuple(jnp.linalg.qr(x, mode)))
row("_linalg_eigh")(lambda x, uplo="L", vectors=True: tuple(jnp.linalg.eigh(x, uplo, symmetrize_input=False)))
row("_linalg_svd")(lambda x, full=False, uv=True, driver=None: tuple(jnp.linalg.svd(x, full_matrices=full)))


@row("linalg_pinv.atol_rtol_tensor")
def _pinv(x: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    """The inverse by singular values above ``max(atol, rtol * largest)``."""
    if not x.size:
        return jnp.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    default = 0.0 if atol is not None else max(x.shape[-2:]) * float(np.finfo(x.dtype).eps)
    if hermitian:  # torch reads the lower triangle alone
        signed, left = jnp.linalg.eigh(x, "L", symmetrize_input=False)
        values, right = jnp.abs(signed), _adjoint(left * jnp.sign(signed)[..., None, :])
    else:
        left, values, right = jnp.linalg.svd(x, full_matrices=False)
    relative = jnp.asarray(default if rtol is None else rtol, values.dtype)[..., None]
    absolute = jnp.asarray(0.0 if atol is None else atol, values.dtype)[..., None]
    kept = values > jnp.maximum(absolute, relative * jnp.max(values, -1, keepdims=True))
    inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)
    return _adjoint(left * inverse[..., None, :] @ right)


@row("_linalg_det")
def _det(x: Any) -> Any:
    factors, pivots, _ = lax.linalg.lu(x)
    return jnp.linalg.det(x), factors, pivots + 1


@row("_linalg_slogdet")
def _slogdet(x: Any) -> Any:
    factors, pivots, _ = lax.linalg.lu(x)
    sign, logarithm = jnp.linalg.slogdet(x)
    return sign, logarithm, factors, pivots + 1


@row("linalg_lu_factor_ex")
def _lu_factor(x: Any, pivot: bool = True, check_errors: bool = False) -> Any:
    factors, pivots, _ = lax.linalg.lu(x)
    return factors, pivots + 1, jnp.zeros(x.shape[:-2], np.int32)


@row("_linalg_solve_ex")
def _solve(a: Any, b: Any, left: bool = True, check_errors: bool = False) -> Any:
    factors, pivots, _ = lax.linalg.lu(a)
    vector = b.ndim == a.ndim - 1
    columns = b[..., None] if vector else b
    solved = jnp.linalg.solve(a, columns) if left else _turned(jnp.linalg.solve(_turned(a), _turned(columns)))
    return (solved[..., 0] if vector else solved), factors, pivots + 1, jnp.zeros(a.shape[:-2], np.int32)


def _turned(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2)


def _adjoint(x: Any) -> Any:
    return jnp.conj(_turned(x))


def _by_triangle(a: Any, b: Any, lower: bool, turned: bool = False, unit: bool = False) -> Any:
    """``x`` of ``a x = b``, or of the adjoint of ``a``."""
    return lax.linalg.triangular_solve(
        a, b, left_side=True, lower=lower, transpose_a=turned, conjugate_a=turned, unit_diagonal=unit
    )


def _batched(*matrices: Any) -> list[Any]:
    """The same leading dims for all."""
    batch = jnp.broadcast_shapes(*(each.shape[:-2] for each in matrices))
    return [jnp.broadcast_to(each, batch + each.shape[-2:]) for each in matrices]


@row("cholesky_solve")
def _cholesky_solve(b: Any, factor: Any, upper: bool = False) -> Any:
    b, factor = _batched(b, factor)
    low = _adjoint(factor) if upper else factor
    return _by_triangle(low, _by_triangle(low, b, True), True, turned=True)


@row("cholesky_inverse")
def _cholesky_inverse(factor: Any, upper: bool = False) -> Any:
    return _cholesky_solve(jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape), factor, upper)


def _order(pivots: Any, rows: int) -> Any:
    """In which order the row exchanges of ``pivots``, counted from 1 as LAPACK does, put the rows."""
    return lax.linalg.lu_pivots_to_permutation(pivots.astype(np.int32) - 1, rows)


@row("lu_unpack")
def _lu_unpack(factors: Any, pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    rows, columns = factors.shape[-2:]
    least = min(rows, columns)
    nothing = jnp.zeros(0, factors.dtype)
    low = jnp.tril(factors[..., :least], -1) + jnp.eye(rows, least, dtype=factors.dtype)
    high = jnp.triu(factors[..., :least, :])
    exchange = _turned(jnp.eye(rows, dtype=factors.dtype)[_order(pivots, rows)]) if unpack_pivots else nothing
    return exchange, *((low, high) if unpack_data else (nothing, nothing))


@row("linalg_lu")
def _lu(x: Any, *, pivot: bool = True) -> Any:
    factors, pivots, _ = _lu_factor(x, pivot)
    return _lu_unpack(factors, pivots)


@row("linalg_lu_solve")
def _lu_solve(factors: Any, pivots: Any, b: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    if not left:
        return _adjoint(_lu_solve(factors, pivots, _adjoint(b), adjoint=not adjoint))
    order = _order(pivots, factors.shape[-1])
    factors, b = _batched(factors, b)
    order = jnp.broadcast_to(order, b.shape[:-1])
    if adjoint:
        solved = _by_triangle(factors, _by_triangle(factors, b, False, True), True, True, unit=True)
        return jnp.take_along_axis(solved, jnp.argsort(order, -1)[..., None], -2)
    moved = jnp.take_along_axis(b, order[..., None], -2)
    return _by_triangle(factors, _by_triangle(factors, moved, True, unit=True), False)


row("linalg_householder_product")(lambda x, tau: lax.linalg.householder_product(x, tau))
row("linalg_eig")(lambda x: tuple(jnp.linalg.eig(x)))
row("linalg_eigvals", "_linalg_eigvals")(jnp.linalg.eigvals)
row("linalg_matrix_exp")(lambda x: expm(widened(x)).astype(x.dtype) if x.shape[-1] else x)


@row("ormqr")
def _ormqr(x: Any, tau: Any, other: Any, left: bool = True, transpose: bool = False) -> Any:
    """The product of all reflections of ``x``, of whole height, with ``other``."""
    rows, columns = x.shape[-2:]
    whole = jnp.concatenate([x, jnp.zeros((*x.shape[:-1], max(rows - columns, 0)), x.dtype)], -1)[..., :rows]
    matrix = lax.linalg.householder_product(whole, tau)
    matrix = _adjoint(matrix) if transpose else matrix
    return jnp.matmul(matrix, other) if left else jnp.matmul(other, matrix)


def _scale(x: Any, dims: Sequence[int], normalization: int, sizes: Sequence[int]) -> Any:
    """0: none, 1: by the root of the number of elements, 2: by their number."""
    count = float(np.prod([sizes[dim] for dim in dims])) if dims else 1.0
    return x * (1.0, count**-0.5, 1 / count)[normalization]


@row("_fft_c2c")
def _fft_c2c(x: Any, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    dims = [axis_of(each, x.ndim) for each in dim]
    result = jnp.fft.fftn(x, axes=dims) if forward else jnp.fft.ifftn(x, axes=dims, norm="forward")
    return _scale(result, dims, normalization, x.shape)


@row("_fft_r2c")
def _fft_r2c(x: Any, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    dims = [axis_of(each, x.ndim) for each in dim]
    result = jnp.fft.rfftn(x, axes=dims) if onesided else jnp.fft.fftn(x, axes=dims)
    return _scale(result, dims, normalization, x.shape)


@row("_fft_c2r")
def _fft_c2r(x: Any, dim: Sequence[int], normalization: int, last: int) -> Any:
    dims = [axis_of(each, x.ndim) for each in dim]
    sizes = [x.shape[axis] for axis in dims[:-1]] + [last]
    result = jnp.fft.irfftn(x, s=sizes, axes=dims, norm="forward")
    return _scale(result, dims, normalization, result.shape)
