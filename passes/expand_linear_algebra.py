"""Rewrites ``cholesky``, ``triangular-solve`` and the custom calls of QR and LU with ``linear_algebra``.

Input: any module. Output: none of them; counted ``while`` loops, dots and elementwise ops. Custom calls: ``Qr``
[..., m, n] -> (packed factor, taus), and (packed, taus) -> ``ProductOfElementaryHouseholderReflectors`` (what JAX emits
for a platform without LAPACK); ``getrf`` of LAPACK -> (packed factors, pivots, info). 16-bit and 8-bit floats are
computed in FP32.
"""

from collections.abc import Callable
from math import prod

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.passes.expansions import linear_algebra as algebra
from neuronx_cc.passes.expansions.build import Build, Value, replace_elements
from neuronx_cc.passes.expansions.lapack_calls import LU_TARGETS
from neuronx_cc.passes.expansions.linear_algebra import dims_of
from neuronx_cc.passes.expansions.lu_factor import lu_factor
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.CholeskyOp, hlo.TriangularSolveOp, hlo.CustomCallOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):  # the elements after an op are erased with it
            key = op.target.data if isinstance(op, hlo.CustomCallOp) else op.opcode
            if op.parent is not None and key in EXPANSIONS:
                EXPANSIONS[key](Build.before(module, op), op)


def _batch(b: Build, value: Value, rank: int = 2) -> Value:
    """``value`` with its leading dims as one and in the type of the computation."""
    shape = hlo.shape_of(value)
    wide = value if shape.dtype == "c64" else b.convert(value, "f32")
    split = len(shape.dims) - rank
    return b.reshape(wide, (prod(shape.dims[:split]), *shape.dims[split:]))


def _back(b: Build, value: Value, type_: hlo.Attribute) -> Value:
    assert isinstance(type_, hlo.ArrayType)
    return b.convert(b.reshape(value, type_.data.dims), type_.data.dtype)


def _is_empty(op: hlo.HloOp) -> bool:
    return any(0 in dims_of(operand) for operand in op.operands)


def _zeros(b: Build, type_: hlo.Attribute) -> Value:
    assert isinstance(type_, hlo.ArrayType)
    return b.number(0, type_.data.dtype, type_.data.dims)


def _cholesky(b: Build, op: hlo.HloOp) -> None:
    assert isinstance(op, hlo.CholeskyOp)
    type_ = op.results[0].type
    if _is_empty(op):
        replace(op, _zeros(b, type_))
        return
    x = _batch(b, op.operand)
    factor = algebra.cholesky(b, x if op.lower.data else algebra.adjoint(b, x))
    replace(op, _back(b, factor if op.lower.data else algebra.adjoint(b, factor), type_))


def _triangular_solve(b: Build, op: hlo.HloOp) -> None:
    """All forms become one: the matrix lower, on the left, not transposed. Reversing both its dims swaps triangles."""
    assert isinstance(op, hlo.TriangularSolveOp)
    type_ = op.results[0].type
    if _is_empty(op):
        replace(op, _zeros(b, type_))
        return
    matrix, right = _batch(b, op.lhs), _batch(b, op.rhs)
    lower, form = op.lower.data, op.transpose_a.data
    if form == "ADJOINT":
        matrix = algebra.conj(b, matrix)
    if (form != "NO_TRANSPOSE") == op.left_side.data:  # x m = b is m^T x^T = b^T
        matrix, lower = algebra.transposed(b, matrix), not lower
    right = right if op.left_side.data else algebra.transposed(b, right)
    if not lower:
        matrix, right = b.reverse(matrix, [1, 2]), b.reverse(right, [1])
    triangle = algebra.lower_part(b, matrix)
    if op.unit_diagonal.data:
        ones = np.eye(dims_of(triangle)[1], dtype=np.bool_)
        triangle = algebra.where(b, ones, b.number_like(1, triangle), triangle)
    solution = algebra.solve_lower(b, triangle, right)
    solution = solution if lower else b.reverse(solution, [1])
    replace(op, _back(b, solution if op.left_side.data else algebra.transposed(b, solution), type_))


def _qr(b: Build, op: hlo.HloOp) -> None:
    type_ = op.results[0].type
    assert isinstance(type_, hlo.TupleType)
    if _is_empty(op):
        replace_elements(op, [_zeros(b, part) for part in type_.data])
        return
    parts = algebra.householder_factor(b, _batch(b, op.operands[0]))
    replace_elements(op, [_back(b, part, wanted) for part, wanted in zip(parts, type_.data, strict=True)])


def _householder_product(b: Build, op: hlo.HloOp) -> None:
    x, taus = op.operands
    type_ = op.results[0].type
    if 0 in dims_of(x):
        replace(op, _zeros(b, type_))
        return
    replace(op, _back(b, algebra.householder_product(b, _batch(b, x), _batch(b, taus, 1)), type_))


def _lu(b: Build, op: hlo.HloOp) -> None:
    type_ = op.results[0].type
    assert isinstance(type_, hlo.TupleType)
    if _is_empty(op):
        replace_elements(op, [_zeros(b, part) for part in type_.data])
        return
    parts = lu_factor(b, _batch(b, op.operands[0]))
    replace_elements(op, [_back(b, part, wanted) for part, wanted in zip(parts, type_.data, strict=True)])


EXPANSIONS: dict[str, Callable[[Build, hlo.HloOp], None]] = {
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    "Qr": _qr,
    "ProductOfElementaryHouseholderReflectors": _householder_product,
    **dict.fromkeys(LU_TARGETS, _lu),
}
"""Opcode or custom-call target -> expansion."""
