"""Reference semantics of normalisation, linear algebra and Fourier transforms: ``LINALG[opcode](op, *arrays)``."""

from collections.abc import Callable, Sequence

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.factors import CHOLESKY, LU
from neuronx_cc.ir.operators_table import CUSTOM_CALLS
from neuronx_cc.ir.reference.values import Array, Value, narrow, widen


def _along(vector: Array, rank: int, axis: int) -> Array:
    return widen(vector).reshape([-1 if i == axis else 1 for i in range(rank)])


def _other_axes(rank: int, axis: int) -> tuple[int, ...]:
    return tuple(i for i in range(rank) if i != axis)


def batch_norm_grad(
    op: hlo.BatchNormGradOp, operand: Array, scale: Array, mean: Array, variance: Array, grad_output: Array
) -> Value:
    """(grad_operand, grad_scale, grad_offset) of training-mode batch normalisation."""
    axis, rank = op.feature_index.data, operand.ndim
    axes = _other_axes(rank, axis)
    count = operand.size // max(1, operand.shape[axis])
    inverse = 1 / np.sqrt(_along(variance, rank, axis) + np.float32(op.epsilon.data))
    centred, grad = widen(operand) - _along(mean, rank, axis), widen(grad_output)
    sum_grad = grad.sum(axes, keepdims=True)
    sum_product = (grad * centred).sum(axes, keepdims=True)
    projected = count * grad - sum_grad - centred * inverse * inverse * sum_product
    grad_operand = _along(scale, rank, axis) * inverse / count * projected
    dtype = scale.dtype
    return (
        grad_operand.astype(operand.dtype),
        (sum_product * inverse).reshape(-1).astype(dtype),
        sum_grad.reshape(-1).astype(dtype),
    )


def batch_norm_inference(
    op: hlo.BatchNormInferenceOp, operand: Array, scale: Array, offset: Array, mean: Array, variance: Array
) -> Array:
    """``scale * (operand - mean) / sqrt(variance + epsilon) + offset`` along the feature dim."""
    axis, rank = op.feature_index.data, operand.ndim
    inverse = 1 / np.sqrt(_along(variance, rank, axis) + np.float32(op.epsilon.data))
    centred = widen(operand) - _along(mean, rank, axis)
    return narrow(centred * inverse * _along(scale, rank, axis) + _along(offset, rank, axis), op.shape.dtype)


def batch_norm_training(op: hlo.BatchNormTrainingOp, operand: Array, scale: Array, offset: Array) -> Value:
    """(output, mean, variance) with the statistics of this batch."""
    axis, rank = op.feature_index.data, operand.ndim
    axes, wide = _other_axes(rank, axis), widen(operand)
    mean = wide.mean(axes, keepdims=True)
    variance = np.square(wide - mean).mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + np.float32(op.epsilon.data))
    output = (wide - mean) * inverse * _along(scale, rank, axis) + _along(offset, rank, axis)
    dtype = scale.dtype
    return (output.astype(operand.dtype), mean.reshape(-1).astype(dtype), variance.reshape(-1).astype(dtype))


def cholesky(op: hlo.CholeskyOp, x: Array) -> Array:
    """Lower (or upper) Cholesky factor of the trailing matrices; NaN where a matrix is not positive definite.

    Only the triangle that ``lower`` names is read.
    """
    lower = op.lower.data
    wide = widen(x)
    triangle = np.tril(wide) if lower else np.triu(wide).swapaxes(-1, -2).conj()
    result = np.zeros_like(triangle)
    for column in range(x.shape[-1]):
        row = result[..., column, :column]
        pivot = np.sqrt(triangle[..., column, column].real - (row * row.conj()).real.sum(-1))
        below = triangle[..., column + 1 :, column] - (
            result[..., column + 1 :, :column] * row.conj()[..., None, :]
        ).sum(-1)
        result[..., column, column] = pivot
        result[..., column + 1 :, column] = below / pivot[..., None]
    return narrow(result if lower else result.swapaxes(-1, -2).conj(), op.shape.dtype)


def fft(op: hlo.FftOp, x: Array) -> Array:
    """``FFT``, ``IFFT``, ``RFFT`` or ``IRFFT`` over the trailing dims."""
    lengths = op.fft_length.data
    axes = tuple(range(x.ndim - len(lengths), x.ndim))
    transforms: dict[str, Callable[..., Array]] = {
        "FFT": np.fft.fftn,
        "IFFT": np.fft.ifftn,
        "RFFT": np.fft.rfftn,
        "IRFFT": np.fft.irfftn,
    }
    return narrow(transforms[op.fft_type.data](x, s=lengths, axes=axes), op.shape.dtype)


def triangular_solve(op: hlo.TriangularSolveOp, a: Array, b: Array) -> Array:
    """Solves ``op(a) x = b`` (``left_side``) or ``x op(a) = b``; only the triangle that ``lower`` names is read."""
    transposed = op.transpose_a.data
    lower = op.lower.data
    matrix, right = widen(a), widen(b)
    if transposed in ("TRANSPOSE", "ADJOINT"):
        matrix, lower = matrix.swapaxes(-1, -2), not lower
    if transposed == "ADJOINT":
        matrix = matrix.conj()
    if not op.left_side.data:  # x m = b is m' x' = b'
        matrix, right, lower = matrix.swapaxes(-1, -2), right.swapaxes(-1, -2), not lower
    solution = _substitute(matrix, right, lower, op.unit_diagonal.data)
    return narrow(solution if op.left_side.data else solution.swapaxes(-1, -2), op.shape.dtype)


def _substitute(matrix: Array, right: Array, lower: bool, unit_diagonal: bool) -> Array:
    size = matrix.shape[-1]
    order: Sequence[int] = range(size) if lower else range(size - 1, -1, -1)
    solution = np.zeros_like(right)
    for row in order:
        known = slice(0, row) if lower else slice(row + 1, size)
        value = right[..., row, :] - (matrix[..., row, known, None] * solution[..., known, :]).sum(-2)
        solution[..., row, :] = value if unit_diagonal else value / matrix[..., row, row, None]
    return solution


def _qr(x: Array) -> Value:
    """LAPACK's geqrf: the packed factor and the scales of the reflections."""
    packed, taus = np.linalg.qr(widen(x), mode="raw")
    return packed.swapaxes(-1, -2).astype(x.dtype), taus.astype(x.dtype)


def _householder_product(x: Array, taus: Array) -> Array:
    """LAPACK's orgqr: the first columns of the product of the reflections."""
    rows, columns = x.shape[-2:]
    result = np.broadcast_to(np.eye(rows, columns, dtype=widen(x).dtype), x.shape).copy()
    for index in reversed(range(taus.shape[-1])):
        vector = np.where(np.arange(rows) > index, widen(x)[..., index], np.arange(rows) == index)[..., None]
        shadow = vector.conj().swapaxes(-1, -2) @ result
        result = result - widen(taus)[..., index, None, None] * vector * shadow
    return result.astype(x.dtype)


def _factor(x: Array) -> Array:
    """The lower factor of each matrix, of which the lower triangle is read; NaN where there is none."""
    result = np.zeros_like(x)
    for at in np.ndindex(x.shape[:-2]):
        try:
            result[at] = np.linalg.cholesky(widen(x[at]))
        except np.linalg.LinAlgError:
            result[at] = np.nan
    return result


def _pivoted(x: Array) -> Value:
    """LAPACK's getrf without info, and the row of ``x`` that each row is."""
    rows, columns = x.shape[-2:]
    left, count = widen(x).copy(), min(rows, columns)
    pivots = np.empty((*x.shape[:-2], count), np.int32)
    order = np.broadcast_to(np.arange(rows, dtype=np.int32), x.shape[:-1]).copy()
    for at in np.ndindex(x.shape[:-2]):
        matrix, places = left[at], order[at]
        for step in range(count):
            chosen = step + int(np.argmax(np.abs(matrix[step:, step])))
            pivots[at][step] = chosen + 1
            for each in (matrix, places):
                each[[step, chosen]] = each[[chosen, step]]
            if matrix[step, step] != 0:
                matrix[step + 1 :, step] /= matrix[step, step]
            matrix[step + 1 :, step + 1 :] -= np.outer(matrix[step + 1 :, step], matrix[step, step + 1 :])
    return left.astype(x.dtype), pivots, order


def _decomposed(x: Array) -> Value:
    """The same with pivots that count from 0."""
    packed, pivots, order = _pivoted(x)
    return packed, pivots - 1, order


CUSTOM: dict[str, Callable[..., Value]] = {
    "Qr": _qr,
    "ProductOfElementaryHouseholderReflectors": _householder_product,
    CHOLESKY: _factor,
    "LuDecomposition": _decomposed,
    LU: _pivoted,
}
"""Custom-call target -> ``fn(*arrays)``."""


def custom_call(op: hlo.CustomCallOp, *values: Value) -> Value:
    """Markers are the identity; CompileError EVRF001 for a target without semantics here."""
    target = op.target.data
    if target in CUSTOM:
        return CUSTOM[target](*values)
    known = CUSTOM_CALLS.get(target)
    if known is None or known.status != "folded" or not values:
        raise CompileError("EVRF001", f"custom call {target} has no reference semantics", "run without --check", op.loc)
    return values if isinstance(op.results[0].type, hlo.TupleType) else values[0]


LINALG: dict[str, Callable[..., Value]] = {
    "batch-norm-grad": batch_norm_grad,
    "batch-norm-inference": batch_norm_inference,
    "batch-norm-training": batch_norm_training,
    "cholesky": cholesky,
    "custom-call": custom_call,
    "fft": fft,
    "triangular-solve": triangular_solve,
}
