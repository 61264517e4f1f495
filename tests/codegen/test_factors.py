"""Factorisations by kernels: across the partitions or one matrix in each, by blocks, equal pivots, zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function, compile_text, text_of

from neuronx_cc.codegen.factors import choose
from neuronx_cc.ir.isa.timing import Timing

Array = np.ndarray


def drawn(*dims: int) -> Array:
    return np.random.default_rng(sum(dims)).standard_normal(dims).astype(np.float32)


def definite(*dims: int) -> Array:
    x = drawn(*dims)
    return (x @ np.swapaxes(x, -1, -2) / dims[-1] + np.eye(dims[-1], dtype=np.float32)).astype(np.float32)


@pytest.mark.parametrize("dims", [(1, 1), (33, 33), (2, 19, 19), (6, 21, 21), (131, 12, 12), (131, 131)])
def test_cholesky(dims):
    check_function(jnp.linalg.cholesky, definite(*dims), relative=1e-5)


@pytest.mark.parametrize("batch", [3, 9])
def test_cholesky_of_what_has_none(batch):
    """NaN all over, whichever pivot it is that is not positive; the upper triangle is not read. JAX makes it zero."""
    x = definite(batch, 17, 17)
    x[0, -1, -1], x[1, 4, 4], x[2] = -3, 0, x[2] + np.triu(np.full((17, 17), np.inf, np.float32), 1)
    x[1, 4, :4] = x[1, 4, 5:] = x[1, :4, 4] = x[1, 5:, 4] = 0
    got = compile_text(text_of(lambda x: jax.lax.linalg.cholesky(x, symmetrize_input=False), x)).run([x])[0]
    np.testing.assert_array_equal(np.isnan(got[:2]), np.tril(np.ones((2, 17, 17), np.bool_)))
    np.testing.assert_allclose(got[2], np.linalg.cholesky(x[2].astype(np.float64)), atol=1e-5)


@pytest.mark.parametrize(
    "dims", [(1, 1), (7, 1), (1, 7), (40, 40), (1100, 5), (9, 150), (6, 20, 13), (6, 13, 20), (140, 135), (131, 7, 7)]
)
def test_factors(dims):
    check_function(jax.lax.linalg.lu, drawn(*dims), relative=1e-5)


@pytest.mark.parametrize("dims", [(30, 30), (12, 5), (9, 30, 30), (40, 9, 14), (9, 14, 9)])
@pytest.mark.parametrize("kind", ["rank one", "zero", "growing"])
def test_equal_and_zero_pivots(dims, kind):
    """Rows are exchanged as LAPACK exchanges them; all numbers are exact."""
    generator, (rows, columns) = np.random.default_rng(3), dims[-2:]
    signs = [generator.choice([-1, 1], (*dims[:-2], *each)) for each in ((rows, 1), (1, columns))]
    growing = np.where(np.tri(rows, columns, -1) > 0, -1, np.eye(rows, columns)) * signs[0]
    x = {"rank one": signs[0] * signs[1], "zero": np.zeros(dims), "growing": growing}[kind]
    check_function(jax.lax.linalg.lu, x.astype(np.float32))


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(("left", "transposed"), [(True, False), (True, True), (False, True)])
@pytest.mark.parametrize(("size", "batch"), [(70, ()), (130, (2,)), (10, (17,))])
def test_triangles(lower, left, transposed, size, batch):
    def solve(a, b):
        return jax.lax.linalg.triangular_solve(a, b, left_side=left, lower=lower, transpose_a=transposed)

    matrix = drawn(*batch, size, size) / np.float32(size) + 2 * np.eye(size, dtype=np.float32)
    right = drawn(*batch, *((size, 5) if left else (5, size)))
    check_function(solve, matrix, right, relative=1e-5)


def test_solutions_have_no_loop():
    """The permutation comes with the factors, not from a loop over the pivots."""
    matrix = drawn(30, 30) + 5 * np.eye(30, dtype=np.float32)
    program = compile_text(text_of(jnp.linalg.solve, matrix, drawn(30, 2))).program
    assert not any(type(record).__name__ == "While" for record in program.records)


def test_one_in_each_partition():
    """Of many matrices, of few that are small, and not of those that do not fit."""
    timing = Timing(TRN1)
    room = timing.sizes.sbuf_bytes
    assert not choose.are_choleskys_side_by_side(timing, 1, 64, room)
    assert choose.are_choleskys_side_by_side(timing, 64, 64, room)
    assert not choose.are_choleskys_side_by_side(timing, 64, 64, 4 * 64 * 64)
    assert not choose.are_lus_side_by_side(timing, 2, 100, 100, room)
    assert choose.are_lus_side_by_side(timing, 64, 100, 100, room)
    assert not choose.are_lus_side_by_side(timing, 64, 300, 100, room)
