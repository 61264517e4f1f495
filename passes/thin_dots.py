"""Rewrites batches of short matrix-vector products as sums of products.

Input: canonical hlo. Output: an FP32 dot with batch dims, one operand of which has no other dims than those and at most
64 contracted elements, becomes a product and a sum over the other operand's last dims. TensorE would hold one column at
a time, few of its rows in use, and would need each matrix transposed first; other engines read them as they lie. So
does the product of one vector with the rows of a large matrix, and that of two long vectors. A matrix that is a
constant is laid out for TensorE at compile time, one that is stored in few bits is taken so where products are cast:
both are left to it.
"""

from dataclasses import dataclass
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.precision.decisions import of_operands

MOST_CONTRACTED = 64
"""Contracted elements up to which the rows of TensorE are wasted."""
LEAST_MATRIX = 1 << 20
"""Elements of a matrix from which it pays that TensorE need not transpose it."""
LONGEST_MATRIX_ROW = 8192
"""Elements of its rows, of which partitions hold several."""


@only_for(hlo.DotOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.DotOp):
                if _is_of_vectors(op):
                    replace(op, _inner_product(Build.before(module, op), op))
                    continue
                dims = op.dims.data
                lhs = _Side(op.lhs, dims.lhs_batch, dims.lhs_contracting)
                rhs = _Side(op.rhs, dims.rhs_batch, dims.rhs_contracting)
                for matrix, vector in ((lhs, rhs), (rhs, lhs)):
                    if _is_of_batches(op, matrix, vector):
                        replace(op, _sum(Build.before(module, op), matrix.value, vector.value, len(matrix.batch)))
                        break
                    if _is_of_rows(op, matrix, vector) and not _is_for_tensor(op, matrix, context):
                        b, row = Build.before(module, op), matrix.shape.dims[1:]
                        replace(op, b.reshape(_sum(b, matrix.value, b.reshape(vector.value, row), 0), op.shape.dims))
                        break


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand, and which of its dims are batch dims and contracted."""

    value: Value
    batch: tuple[int, ...]
    contracted: tuple[int, ...]

    @property
    def shape(self) -> hlo.Shape:
        return hlo.shape_of(self.value)


def _is_of_batches(op: hlo.DotOp, matrix: _Side, vector: _Side) -> bool:
    """Whether ``op`` multiplies, for each batch index, the rows of ``matrix`` with a short ``vector`` or one number."""
    shape, other, batch = matrix.shape, vector.shape, matrix.batch
    kept = shape.rank - len(matrix.contracted)
    return (
        {shape.dtype, other.dtype, op.shape.dtype} == {"f32"}
        and 0 < len(batch) <= kept
        and batch == tuple(range(len(batch)))
        and matrix.contracted == tuple(range(kept, shape.rank))
        and (*vector.batch, *vector.contracted) == tuple(range(other.rank))
        and prod(shape.dims[kept:]) <= MOST_CONTRACTED
    )


def _is_of_rows(op: hlo.DotOp, matrix: _Side, vector: _Side) -> bool:
    """Whether ``op`` multiplies all rows of a large ``matrix``, as they lie, with one ``vector``."""
    shape, other = matrix.shape, vector.shape
    return (
        {shape.dtype, other.dtype, op.shape.dtype} == {"f32"}
        and not matrix.batch
        and matrix.contracted == (1,)
        and shape.rank == 2
        and other.size == shape.dims[1] <= LONGEST_MATRIX_ROW
        and shape.size >= LEAST_MATRIX
        and shape.dims[0] >= 1024
    )


def _is_for_tensor(op: hlo.DotOp, matrix: _Side, context: PassContext) -> bool:
    """Whether TensorE multiplies rows faster than they are read as they lie."""
    made = matrix.value.owner
    if isinstance(made, hlo.ConvertOp) and itemsize(hlo.shape_of(made.operands[0]).dtype) < itemsize("f32"):
        return of_operands(op, context.options).dtype not in ("f32", "tf32")
    return isinstance(made, hlo.ConstantOp)


def _is_of_vectors(op: hlo.DotOp) -> bool:
    """Whether ``op`` gives one number, of vectors longer than a partition's row."""
    shapes = [hlo.shape_of(operand) for operand in op.operands]
    contracted = (op.dims.data.lhs_contracting, op.dims.data.rhs_contracting)
    return (
        op.shape.size == 1
        and shapes[0].size == shapes[1].size > LONGEST_MATRIX_ROW
        and {shape.dtype for shape in (*shapes, op.shape)} <= {"f32", "bf16", "f16"}
        and all(list(axes) == sorted(axes) for axes in contracted)
    )


def _inner_product(b: Build, op: hlo.DotOp) -> Value:
    """The sum of products of all elements, in FP32."""
    flat = [b.convert(b.reshape(operand, (hlo.shape_of(operand).size,)), "f32") for operand in op.operands]
    return b.convert(b.reshape(b.sum(b.mul(*flat), (0,)), op.shape.dims), op.shape.dtype)


def _sum(b: Build, matrix: Value, vector: Value, batch: int) -> Value:
    """``matrix`` [batch..., rows..., contracted...] times ``vector`` [batch..., contracted...], summed over the end."""
    shape = hlo.shape_of(matrix)
    kept = shape.rank - (hlo.shape_of(vector).rank - batch)
    spread = b.broadcast(vector, shape.dims, [*range(batch), *range(kept, shape.rank)])
    return b.sum(b.mul(matrix, spread), range(kept, shape.rank))
