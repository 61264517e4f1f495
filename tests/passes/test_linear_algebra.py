"""Expanded factorisations and triangular systems, evaluated by the reference semantics, beside NumPy in FP64."""

import numpy as np
import pytest
from op_cases import shaped
from op_cases_math import complex_array

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes.analysis.calls import called_names
from neuronx_cc.passes.manager import PassContext, count_ops, run_passes

Array = np.ndarray


def expanded(text: str, *inputs: Array) -> list[Array]:
    module = parse_text(text)
    run_passes(module, ["expand_linear_algebra", "split_complex", "dce"], PassContext(), verify_each=True)
    return evaluate(module, list(inputs))


def matrices(dtype: str, *dims: int) -> Array:
    array = complex_array(dims, "matrices")
    return array if dtype == "c64" else np.ascontiguousarray(array.real)


def wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def close(got: Array, want: Array, tolerance: float = 3e-6) -> None:
    assert np.max(np.abs(got - want)) <= tolerance * np.max(np.abs(want))


def text_of(dtype: str, result: str, call: str, *operands: Array) -> str:
    lines = [f"  p{i} = {shaped(dtype, x.shape)} parameter({i})" for i, x in enumerate(operands)]
    return "\n".join(["HloModule m", "ENTRY e {", *lines, f"  ROOT r = {result} {call}", "}", ""])


@pytest.mark.parametrize("dtype", ["f32", "c64"])
@pytest.mark.parametrize(("size", "lower"), [(1, True), (5, False), (70, True)])
def test_cholesky(dtype: str, size: int, lower: bool) -> None:
    x = matrices(dtype, 2, size, size)
    definite = (x @ x.conj().swapaxes(-1, -2) + size * np.eye(size)).astype(x.dtype)
    want = np.linalg.cholesky(wide(definite))
    want = want if lower else want.conj().swapaxes(-1, -2)
    read = np.tril(definite) if lower else np.triu(definite)
    call = f"cholesky(p0), lower={str(lower).lower()}"
    (got,) = expanded(text_of(dtype, shaped(dtype, x.shape), call, read), read)
    close(got, want)


def test_cholesky_of_an_indefinite_matrix_is_nan() -> None:
    x = np.stack([np.diag([1.0, -1.0, 2.0]), np.eye(3)]).astype(np.float32)
    (got,) = expanded(text_of("f32", "f32[2,3,3]", "cholesky(p0), lower=true", x), x)
    assert np.isnan(got[0]).all()
    np.testing.assert_array_equal(got[1], np.eye(3))


@pytest.mark.parametrize("form", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize(("dtype", "left", "unit", "size"), [("f32", True, False, 5), ("c64", False, True, 6)])
def test_triangular_solve(dtype: str, left: bool, lower: bool, form: str, unit: bool, size: int) -> None:
    a = (matrices(dtype, 2, size, size) / size + 2 * np.eye(size)).astype(matrices(dtype, 1).dtype)
    x = matrices(dtype, 2, size, 3) if left else matrices(dtype, 2, 3, size)
    triangle = np.tril(wide(a)) if lower else np.triu(wide(a))
    if unit:
        triangle[:, np.arange(size), np.arange(size)] = 1
    matrix = {"NO_TRANSPOSE": triangle, "TRANSPOSE": triangle.swapaxes(1, 2)}.get(form, triangle.conj().swapaxes(1, 2))
    b = (matrix @ x if left else x @ matrix).astype(x.dtype)
    flags = {"left_side": left, "lower": lower, "unit_diagonal": unit}
    attributes = ", ".join(f"{name}={str(value).lower()}" for name, value in flags.items())
    call = f"triangular-solve(p0, p1), {attributes}, transpose_a={form}"
    (got,) = expanded(text_of(dtype, shaped(dtype, b.shape), call, a, b), a, b)
    close(got, x)


def test_blocks_of_a_triangle_are_a_loop() -> None:
    """600 rows: ten blocks; the number of instructions does not depend on it."""
    a = np.tril(matrices("f32", 2, 600, 600) / 24) + 2 * np.eye(600, dtype=np.float32)
    x = matrices("f32", 2, 600, 4)
    b = (wide(a) @ x).astype(np.float32)
    call = "triangular-solve(p0, p1), left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE"
    text = text_of("f32", "f32[2,600,4]", call, a, b)
    close(expanded(text, a, b)[0], x, 1e-5)
    counts = []
    for size in (600, 6000):
        module = parse_text(text.replace("600", str(size)))
        run_passes(module, ["expand_linear_algebra"], PassContext())
        counts.append(count_ops(module))
    assert counts[0] == counts[1] < 300


@pytest.mark.parametrize("dtype", ["f32", "c64"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (6, 4), (4, 6)])
def test_householder(dtype: str, rows: int, columns: int) -> None:
    """r is triangular with a real diagonal, q orthonormal, q r the matrix; also where squares would overflow."""
    count = min(rows, columns)
    x = matrices(dtype, 2, rows, columns)
    x[1] *= 1e25
    array, taus = shaped(dtype, x.shape), shaped(dtype, (2, count))
    q_shape = shaped(dtype, (2, rows, count))
    text = f"""HloModule m
ENTRY e {{
  p0 = {array} parameter(0)
  qr = ({array}, {taus}) custom-call(p0), custom_call_target="Qr"
  packed = {array} get-tuple-element(qr), index=0
  taus = {taus} get-tuple-element(qr), index=1
  left = {q_shape} slice(packed), slice={{[0:2], [0:{rows}], [0:{count}]}}
  q = {q_shape} custom-call(left, taus), custom_call_target="ProductOfElementaryHouseholderReflectors"
  ROOT t = ({array}, {q_shape}) tuple(packed, q)
}}
"""
    packed, q = expanded(text, x)
    close(np.swapaxes(q.conj(), 1, 2) @ q, np.broadcast_to(np.eye(count), (2, count, count)))
    for matrix, left, right in zip(wide(x), wide(q), np.triu(packed)[:, :count], strict=True):
        close(left @ wide(right), matrix)
        assert np.all(np.diagonal(right).imag == 0) or count == rows


def test_reflection_of_a_column_that_is_done_is_none() -> None:
    x = np.array([[[3, 1], [0, 2], [0, 0]]], np.float32)
    text = text_of("f32", "(f32[1,3,2], f32[1,2])", 'custom-call(p0), custom_call_target="Qr"', x)
    packed, taus = expanded(text, x)
    np.testing.assert_array_equal(packed, x)
    np.testing.assert_array_equal(taus, [[0, 0]])


@pytest.mark.parametrize("call", ["cholesky(p0), lower=true", 'custom-call(p0), custom_call_target="Qr"'])
def test_empty_matrices(call: str) -> None:
    x = np.zeros((0, 3, 3), np.float32)
    result = "f32[0,3,3]" if "cholesky" in call else "(f32[0,3,3], f32[0,3])"
    assert expanded(text_of("f32", result, call, x), x)[0].shape == (0, 3, 3)


def test_computations_of_several_factorisations_stand_ahead_of_their_callers() -> None:
    module = parse_text("""HloModule m
      ENTRY e {
        a = f32[6,4] parameter(0)
        b = f32[6,4] parameter(1)
        q = (f32[6,4], f32[4]) custom-call(a), custom_call_target="Qr"
        r = (f32[6,4], f32[4]) custom-call(b), custom_call_target="Qr"
        x = f32[6,4] get-tuple-element(q), index=0
        y = f32[6,4] get-tuple-element(r), index=0
        ROOT sum = f32[6,4] add(x, y)
      }""")
    run_passes(module, ["expand_custom_calls", "expand_linear_algebra", "dce"], PassContext(), verify_each=True)
    seen: set[str] = set()
    for computation in module.computations():
        called = {name for op in ops_of(computation.block) for name in called_names(op)}
        assert called <= seen
        seen.add(computation.computation_name)
    assert len(seen) > 4


@pytest.mark.parametrize("dims", [(2, 5, 4), (3, 4), (0, 3)])
def test_lu_decomposition(dims: tuple[int, ...]) -> None:
    """What JAX's backend asks for: factors, pivots from 0 and the permutation."""
    x = matrices("f32", *dims)
    *batch, rows, columns = dims
    types = [
        shaped(dtype, (*batch, *each)) for dtype, each in (("f32", (rows, columns)), ("s32", (min(rows, columns),)))
    ]
    result = f"({', '.join([*types, shaped('s32', (*batch, rows))])})"
    packed, pivots, order = expanded(
        text_of("f32", result, 'custom-call(p0), custom_call_target="LuDecomposition"', x), x
    )
    lower = np.tril(wide(packed), -1)[..., : min(rows, columns)] + np.eye(rows, min(rows, columns))
    product = lower @ np.triu(wide(packed))[..., : min(rows, columns), :]
    np.testing.assert_allclose(product, np.take_along_axis(x, order[..., None], -2), atol=1e-5)
    assert (pivots >= np.arange(min(rows, columns))).all()
