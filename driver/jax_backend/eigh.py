"""Eigenvalues of symmetric and Hermitian matrices, for which JAX has no lowering on other platforms than its own.

Jacobi's method with a parallel ordering (Brent and Luk 1985): n/2 independent rotations at a time, each pair of rows
and columns once a sweep, until what is off the diagonal is rounding noise. The matrix is kept as four blocks, so that
the pairs stand opposite each other and the next pairing is a rotation of the rows.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

MAX_SWEEPS = 15
"""Convergence is quadratic: ten sweeps do for a thousand rows."""


def register(platform: str) -> None:
    """Give JAX this lowering of its primitive ``eigh``, and for ``lu`` the call that the pass for it expands."""
    from jax._src.interpreters import mlir
    from jax._src.lax import linalg

    mlir.register_lowering(linalg.eigh_p, lowering(_eigh), platform=platform)
    mlir.register_lowering(linalg.lu_p, linalg._lu_tpu_lowering_rule, platform=platform)


def lowering(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as a lowering rule that sees local arrays alone: its loops do not know of meshes and their axes."""
    from jax._src import config, core
    from jax._src.interpreters import mlir
    from jax._src.mesh import empty_abstract_mesh, use_abstract_mesh

    unchecked = config._check_vma
    rule = mlir.lower_fun(function, multiple_results=True)

    def lowered(context: Any, *arguments: Any, **parameters: Any) -> Any:
        plain = [core.ShapedArray(aval.shape, aval.dtype) for aval in context.avals_in]
        with unchecked(False), use_abstract_mesh(empty_abstract_mesh):
            return rule(context.replace(avals_in=plain), *arguments, **parameters)

    return lowered


def plain_promotion(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` under JAX's usual promotion: what the program has set for itself is not meant for this code."""

    @functools.wraps(function)
    def wrapped(*arguments: Any, **parameters: Any) -> Any:
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return function(*arguments, **parameters)

    return wrapped


@plain_promotion
def _eigh(
    matrix: Any, *, lower: bool, sort_eigenvalues: bool, subset_by_index: tuple[int, int] | None, **_: Any
) -> tuple[Any, Any]:
    """Vectors [..., n, n] as columns and values [..., n], ascending, of the named triangle of ``matrix``."""
    size = matrix.shape[-1]
    if size == 0:
        return matrix, jnp.zeros(matrix.shape[:-1], jnp.real(matrix).dtype)
    half = jnp.tril(matrix, -1) if lower else jnp.conj(jnp.swapaxes(jnp.triu(matrix, 1), -1, -2))
    diagonal = jnp.real(jnp.diagonal(matrix, axis1=-2, axis2=-1)).astype(matrix.dtype)
    whole = half + jnp.conj(jnp.swapaxes(half, -1, -2)) + diagonal[..., None] * jnp.eye(size, dtype=matrix.dtype)
    flat = whole.reshape((-1, size, size)).astype(jnp.promote_types(matrix.dtype, jnp.float32))
    largest = jnp.max(jnp.abs(flat), axis=(1, 2))
    # a power of two, so that squares neither overflow nor vanish
    scale = jnp.clip(lax.reduce_precision(largest, 8, 0), 2.0**-100, 2.0**100)
    vectors, values = jax.vmap(_jacobi)(flat / scale[:, None, None])
    finite = jnp.isfinite(largest)[:, None]
    values = jnp.where(finite, values * scale[:, None], jnp.nan)
    vectors = jnp.where(finite[..., None], vectors, jnp.nan)
    if sort_eigenvalues:
        order = jnp.argsort(values, axis=-1)
        values = jnp.take_along_axis(values, order, axis=-1)
        vectors = jnp.take_along_axis(vectors, order[:, None, :], axis=-1)
    low, high = (0, size) if subset_by_index is None else subset_by_index
    vectors, values = vectors[..., low:high], values[..., low:high]
    vectors = vectors.astype(matrix.dtype).reshape((*matrix.shape[:-1], high - low))
    return vectors, values.astype(jnp.real(matrix).dtype).reshape((*matrix.shape[:-2], high - low))


def _jacobi(matrix: Any) -> tuple[Any, Any]:
    """Vectors and values of one matrix [n, n], in no particular order."""
    size = matrix.shape[0]
    if size == 1:
        return jnp.ones_like(matrix), jnp.real(matrix[0])
    middle = (size + 1) // 2
    odd = 2 * middle - size
    padded = jnp.pad(matrix, ((0, odd), (0, odd)))
    blocks = (padded[:middle, :middle], padded[:middle, middle:], padded[middle:, :middle], padded[middle:, middle:])
    top = jnp.eye(middle, 2 * middle, dtype=matrix.dtype)
    bottom = jnp.eye(middle, 2 * middle, middle, dtype=matrix.dtype)
    tolerance = (4 * np.finfo(matrix.dtype).eps) ** 2 * jnp.sum(jnp.abs(matrix) ** 2)

    def unfinished(state: Any) -> Any:
        number, before, now, *_ = state
        return (number < MAX_SWEEPS) & (now > tolerance) & (now < 0.9 * before)

    def sweep(state: Any) -> Any:
        number, _, now, *rest = state
        rest = lax.fori_loop(0, 2 * middle - 1, lambda _, each: _rotate(*each), tuple(rest))
        return (number + 1, now, _off_diagonal(rest[0]), *rest)

    start = _off_diagonal(blocks)
    *_, blocks, top, bottom = lax.while_loop(
        unfinished, sweep, (0, jnp.full_like(start, jnp.inf), start, blocks, top, bottom)
    )
    # the rows of `top` and `bottom` are the conjugated vectors; padding is a vector of its own, beyond `size`
    vectors = jnp.concatenate([top, bottom])
    values = jnp.concatenate([jnp.real(jnp.diagonal(blocks[0])), jnp.real(jnp.diagonal(blocks[3]))])
    if odd:
        kept = jnp.argsort(jnp.abs(vectors[:, -1]) > 0.5, stable=True)[:size]
        vectors, values = vectors[kept], values[kept]
    return jnp.conj(vectors[:, :size]).T, values


def _off_diagonal(blocks: Any) -> Any:
    """Sum of squares off the diagonal."""
    a, b, c, d = (jnp.abs(block) ** 2 for block in blocks)
    return sum(jnp.sum(block - jnp.diag(jnp.diagonal(block))) for block in (a, d)) + jnp.sum(b) + jnp.sum(c)


def _rotate(blocks: Any, top: Any, bottom: Any) -> Any:
    """Make the diagonals of the off-diagonal blocks zero, then pair the rows anew."""
    a, b, c, d = blocks
    first, second, mixed = (jnp.diagonal(block) for block in (a, d, b))
    size = jnp.abs(mixed)
    present = size > 0
    tau = (jnp.real(second) - jnp.real(first)) / jnp.where(present, 2 * size, 1)
    tangent = jnp.where(tau >= 0, 1.0, -1.0).astype(tau.dtype) / (jnp.abs(tau) + jnp.sqrt(1 + tau * tau))
    tangent = jnp.where(present, tangent, 0)
    cosine = lax.rsqrt(1 + tangent * tangent)
    phase = jnp.where(present, mixed / jnp.where(present, size, 1).astype(mixed.dtype), 1)
    # x - s (y + s' / (1 + c) x) is c x - s y, with an error of the size of the change: small angles add little
    sine = (tangent * cosine).astype(mixed.dtype) * phase
    half = sine / (1 + cosine).astype(mixed.dtype)

    def rows(upper: Any, lower: Any) -> tuple[Any, Any]:
        s_, h_ = sine[:, None], half[:, None]
        return upper - s_ * (lower + jnp.conj(h_) * upper), lower + jnp.conj(s_) * (upper - h_ * lower)

    def columns(left: Any, right: Any) -> tuple[Any, Any]:
        return left - jnp.conj(sine) * (right + half * left), right + sine * (left - jnp.conj(half) * right)

    a, c = rows(a, c)
    b, d = rows(b, d)
    a, b = columns(a, b)
    c, d = columns(c, d)
    top, bottom = rows(top, bottom)
    # what the rotation is for holds exactly: else errors of its products stay, and it never ends
    change = tangent * size
    a, d = _with_diagonal(a, jnp.real(first) - change), _with_diagonal(d, jnp.real(second) + change)
    b, c = (_with_diagonal(block, jnp.zeros_like(change)) for block in (b, c))
    a, c = _next_rows(a, c)
    b, d = _next_rows(b, d)
    a, b = (block.T for block in _next_rows(a.T, b.T))
    c, d = (block.T for block in _next_rows(c.T, d.T))
    return (a, b, c, d), *_next_rows(top, bottom)


def _with_diagonal(block: Any, diagonal: Any) -> Any:
    """``block`` [m, m] with these real numbers [m] on its diagonal."""
    return jnp.where(jnp.eye(block.shape[0], dtype=bool), diagonal.astype(block.dtype)[:, None], block)


def _next_rows(top: Any, bottom: Any) -> tuple[Any, Any]:
    """The tournament's next round: everybody but the first of ``top`` moves on by one place."""
    if top.shape[0] == 1:
        return top, bottom
    return (
        jnp.concatenate([top[:1], bottom[:1], top[1:-1]]),
        jnp.concatenate([bottom[1:], top[-1:]]),
    )
