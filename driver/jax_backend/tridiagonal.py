"""Tridiagonal systems by elimination with partial pivoting, as LAPACK's ``gtsv`` and ``lagts`` solve them.

JAX's own lowering for other platforms than its own divides by whatever stands on the diagonal, and perturbs no pivots,
which inverse iteration for eigenvectors (``jax.scipy.linalg.eigh_tridiagonal``) wants.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.jax_backend.eigh import lowering, plain_promotion


def register(platform: str) -> None:
    """Give JAX this lowering of its primitive ``tridiagonal_solve``."""
    from jax._src.interpreters import mlir
    from jax._src.lax import linalg

    mlir.register_lowering(linalg.tridiagonal_solve_p, lowering(solve), platform=platform)


@plain_promotion
def solve(lower: Any, diagonal: Any, upper: Any, right: Any, *, perturb_singular: bool) -> tuple[Any]:
    """Solutions [..., n, k] for ``right`` [..., n, k]; the diagonals are [..., n], unused ends of them ignored.

    Without ``perturb_singular`` a system with a pivot of zero has the solution NaN; with it, pivots below the rounding
    error of the largest number of the triangle are replaced by that error.
    """
    if right.size == 0:
        return (right,)
    # rows first; the last row meets one of zeros, which never is the pivot
    diagonals = [jnp.moveaxis(each, -1, 0)[..., None] for each in (lower, diagonal, upper)]
    lower, diagonal, upper = diagonals
    right = jnp.moveaxis(right, -2, 0)
    upper = upper.at[-1].set(0)
    following = [jnp.concatenate([each[1:], jnp.zeros_like(each[:1])]) for each in (lower, diagonal, upper, right)]
    _, rows = lax.scan(_eliminate, (diagonal[0], upper[0], right[0]), tuple(following))
    pivots, *others = rows
    if perturb_singular:
        largest = jnp.max(jnp.stack([jnp.max(jnp.abs(each), axis=0) for each in rows[:3]]), axis=0)
        smallest = np.finfo(pivots.dtype).eps * jnp.where(largest > 0, largest, 1)
        signed = jnp.where(jnp.real(pivots) < 0, -smallest, smallest).astype(pivots.dtype)
        pivots = jnp.where(jnp.abs(pivots) < smallest, signed, pivots)
    start = (jnp.zeros_like(right[0]), jnp.zeros_like(right[0]))
    _, solution = lax.scan(_substitute, start, (pivots, *others), reverse=True)
    if not perturb_singular:
        solution = jnp.where(jnp.any(pivots == 0, axis=0), jnp.nan, solution)
    return (jnp.moveaxis(solution, 0, -2),)


def _eliminate(row: Any, following: Any) -> tuple[Any, Any]:
    """A row that starts at the diagonal (two numbers, right-hand side) and the one below it -> what is left of the
    other one for the next step; the pivot's row (three numbers, right-hand side)."""
    here, beside, value = row
    lower, diagonal, upper, below = following
    stays = jnp.abs(here) >= jnp.abs(lower)
    pivot, other = jnp.where(stays, here, lower), jnp.where(stays, lower, here)
    factor = jnp.where(pivot == 0, 0, other / jnp.where(pivot == 0, 1, pivot))
    second, third = jnp.where(stays, beside, diagonal), jnp.where(stays, 0, upper)
    right = jnp.where(stays, value, below)
    left = (
        jnp.where(stays, diagonal, beside) - factor * second,
        jnp.where(stays, upper, 0) - factor * third,
        jnp.where(stays, below, value) - factor * right,
    )
    return left, (pivot, second, third, right)


def _substitute(after: Any, row: Any) -> tuple[Any, Any]:
    """The solutions of the two rows below, and a row of the triangle -> those of the next step, its solution."""
    one, two = after
    pivot, second, third, right = row
    solution = (right - second * one - third * two) / pivot
    return (solution, one), solution
