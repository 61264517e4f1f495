"""Rows of linear algebra and Fourier transforms."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular

from neuronx_cc.driver.frontends.torch.registry import axis_of, row


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
row("linalg_qr")(lambda x, mode="reduced": tuple(jnp.linalg.qr(x, mode)))
row("_linalg_eigh")(lambda x, uplo="L", vectors=True: tuple(jnp.linalg.eigh(x, uplo, symmetrize_input=False)))
row("_linalg_svd")(lambda x, full=False, uv=True, driver=None: tuple(jnp.linalg.svd(x, full_matrices=full)))


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
