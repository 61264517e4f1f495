"""Rewrites ``cholesky``, ``triangular-solve`` and the custom calls of QR and LU with ``linear_algebra``.

Input: any module. Output: none of them; counted ``while`` loops, dots and elementwise ops. Custom calls: ``Qr``
[..., m, n] -> (packed factor, taus), and (packed, taus) -> ``ProductOfElementaryHouseholderReflectors`` (what JAX emits
for a platform without LAPACK); ``getrf`` of LAPACK -> (packed factors, pivots, info); ``LuDecomposition`` -> (packed
factors, pivots from 0, permutation). 16-bit and 8-bit floats are computed in FP32.
"""

from collections.abc import Callable
from math import prod

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.passes.analysis.row_exchanges import exchanges
from neuronx_cc.passes.analysis.values import splat_number
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
                EXPANSIONS[key](Build.before(module, op, context.timing), op)


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
    """All forms become two: a lower triangle, or its transpose, on the left."""
    assert isinstance(op, hlo.TriangularSolveOp)
    type_ = op.results[0].type
    if _is_empty(op):
        replace(op, _zeros(b, type_))
        return
    matrix, right = _batch(b, op.lhs), _batch(b, op.rhs)
    form = op.transpose_a.data
    if form == "ADJOINT":
        matrix = algebra.conj(b, matrix)
    is_turned = (form != "NO_TRANSPOSE") == op.left_side.data  # x m = b is m^T x^T = b^T
    right = right if op.left_side.data else algebra.transposed(b, right)
    if not op.lower.data:
        matrix, is_turned = algebra.transposed(b, matrix), not is_turned
    triangle = algebra.lower_part(b, matrix)
    if op.unit_diagonal.data:
        ones = np.eye(dims_of(triangle)[1], dtype=np.bool_)
        triangle = algebra.where(b, ones, b.number_like(1, triangle), triangle)
    solution = algebra.solve_lower(b, triangle, right, is_turned)
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
    *parts, order = lu_factor(b, _batch(b, op.operands[0]))
    pivots = next((use for use in op.results[0].uses if _element_number(use.operation) == 1), None)
    if pivots is not None:
        _put_permutation(b, pivots.operation.results[0], order)
    replace_elements(op, [_back(b, part, wanted) for part, wanted in zip(parts, type_.data, strict=True)])


def _lu_decomposition(b: Build, op: hlo.HloOp) -> None:
    type_ = op.results[0].type
    assert isinstance(type_, hlo.TupleType)
    if _is_empty(op):
        dims = dims_of(op.operands[0])[:-1]
        order = b.iota(dims, len(dims) - 1)
        replace_elements(op, [*(_zeros(b, part) for part in type_.data[:2]), order])
        return
    packed, pivots, _, order = lu_factor(b, _batch(b, op.operands[0]))
    parts = packed, b.sub(pivots, b.number_like(1, pivots)), order
    replace_elements(op, [_back(b, part, wanted) for part, wanted in zip(parts, type_.data, strict=True)])


def _element_number(op: hlo.Operation) -> int | None:
    return op.index.data if isinstance(op, hlo.GetTupleElementOp) else None


def _put_permutation(b: Build, pivots: Value, order: Value) -> None:
    """Let what a loop makes of ``pivots``, by exchanges of the places 0, 1, ..., be ``order``."""
    for subtract in [use.operation for use in pivots.uses]:
        if not isinstance(subtract, hlo.SubtractOp) or splat_number(subtract.rhs, b.module) != 1:
            continue
        for start in [use.operation for use in subtract.results[0].uses]:
            loops = [use.operation for use in start.results[0].uses] if isinstance(start, hlo.TupleOp) else []
            for loop in loops:
                found = exchanges(loop, b.module) if isinstance(loop, hlo.WhileOp) else None
                if found is None or start.operands[found.pivots] is not subtract.results[0]:
                    continue
                places = start.operands[found.places]
                if not _counts(places) or dims_of(places)[-1] != dims_of(order)[-1]:
                    continue
                for use in list(loop.results[0].uses):
                    if _element_number(use.operation) == found.places:
                        use.operation.results[0].replace_all_uses_with(b.reshape(order, dims_of(places)))


def _counts(value: Value) -> bool:
    """Whether the elements of ``value``'s last dim are 0, 1, ..."""
    op, rank = defining_op(value), len(dims_of(value))
    if isinstance(op, hlo.BroadcastOp) and op.dimensions.data == (rank - 1,):
        op, rank = defining_op(op.operand), 1
    return isinstance(op, hlo.IotaOp) and op.iota_dimension.data == rank - 1


EXPANSIONS: dict[str, Callable[[Build, hlo.HloOp], None]] = {
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    "Qr": _qr,
    "ProductOfElementaryHouseholderReflectors": _householder_product,
    "LuDecomposition": _lu_decomposition,
    **dict.fromkeys(LU_TARGETS, _lu),
}
"""Opcode or custom-call target -> expansion."""
