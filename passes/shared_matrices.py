"""Contractions with a matrix by number for each row multiply every row with all matrices where these are fewer.

Input: canonical hlo. Output: of contractions whose operand is ``table[numbers]``, a matrix for each index, with more
numbers than ``table`` has matrices, those that take less time so are one with the whole table, of which each row takes
the result of its own matrix. Every matrix is read once then, not once for each row: so tokens multiply with the weights
of experts that they share. With few rows, or large tables, a matrix is read for each number (``analysis.listed``).
"""

from dataclasses import dataclass
from math import ceil, prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import FLOATS, itemsize
from neuronx_cc.passes.analysis.listed import listed_rows, uses_of
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.indexing.costs import Costs
from neuronx_cc.passes.indexing.rows import gather_rows
from neuronx_cc.passes.manager import PassContext, only_for

STEPS = 6
"""Transfers that follow one another until rows have their results."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A contraction, which operand the matrices are, and how many leading dims of that tell them."""

    op: hlo.DotOp
    index: int
    lead: int

    @property
    def rows(self) -> Value:
        return self.op.operands[1 - self.index]

    @property
    def matrices(self) -> hlo.Shape:
        return hlo.shape_of(self.op.operands[self.index])

    @property
    def contracting(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the rows, and of the matrices."""
        dims = self.op.dims.data
        both = dims.lhs_contracting, dims.rhs_contracting
        return both[1 - self.index], both[self.index]

    @property
    def batch(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The same."""
        dims = self.op.dims.data
        both = dims.lhs_batch, dims.rhs_batch
        return both[1 - self.index], both[self.index]


@only_for(hlo.GatherOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            rows = listed_rows(op) if isinstance(op, hlo.GatherOp) else None
            if not isinstance(op, hlo.GatherOp) or rows is None or rows[2] <= rows[0]:
                continue
            found = [_product(dot, index, rows[2]) for dot, index in uses_of(op, context.timing)]
            for each in found:
                if each is not None and _is_faster(each, rows, context):
                    replace(each.op, _with_all(Build.before(module, each.op, context.timing), each, op))


def _product(op: hlo.DotOp, index: int, count: int) -> _Product | None:
    """None where rows have dims of their own, or matrices dims in common with them."""
    sizes = hlo.shape_of(op.operands[index]).dims
    lead = next((dim for dim in range(len(sizes) + 1) if prod(sizes[:dim]) == count), None)
    if lead is None:
        return None
    found = _Product(op, index, lead)
    own = hlo.shape_of(found.rows).rank - len(found.batch[0]) - len(found.contracting[0])
    return found if not own and all(dim < lead for dim in found.batch[1]) else None


def _is_faster(product: _Product, rows: tuple[int, int, int], context: PassContext) -> bool:
    timing, (height, width, count) = context.timing, rows
    size = itemsize(product.matrices.dtype)
    matrix = width * size
    each = timing.found(matrix, matrix // timing.sizes.rows).bound * count
    terms = prod(product.matrices.dims[dim] for dim in product.contracting[1])
    columns, heights = width // terms, hlo.shape_of(product.rows).size // terms
    fast = size < 4 or (context.options.auto_cast != "none" and product.matrices.dtype in FLOATS)
    return _of_all(timing, height, heights, terms, columns, "bf16" if fast else "f32", size, count) < each


def _of_all(
    timing: Timing, height: int, rows: int, terms: int, columns: int, dtype: str, size: int, count: int
) -> float:
    tiles = ceil(terms / timing.sizes.rows) * ceil(rows / timing.sizes.columns)
    products = tiles * height * columns * timing.column(dtype)
    weights, made = height * terms * columns * size, rows * height * columns * size
    moved = max(products, (weights + made) / timing.dma_rate)
    return STEPS * timing.transfer_latency + moved + Costs(timing).rows(count, columns * size)


def _with_all(b: Build, product: _Product, gather: hlo.GatherOp) -> Value:
    op, dims = product.op, hlo.shape_of(product.rows).dims
    height = hlo.shape_of(gather.lhs).dims[0]
    inner = product.matrices.dims[product.lead :]
    table = b.convert(b.reshape(gather.lhs, (height, *inner)), product.matrices.dtype)
    contracting = product.contracting[0], tuple(dim - product.lead + 1 for dim in product.contracting[1])
    apart = [size for dim, size in enumerate(dims) if dim not in contracting[0]]
    columns = [size for dim, size in enumerate((height, *inner)) if dim and dim not in contracting[1]]
    properties = {name: attr for name, attr in op.properties.items() if name != "dims"}
    if product.index == 0 and op.operand_precision is not None:
        properties["operand_precision"] = hlo.StrsAttr(op.operand_precision.data[::-1])
    type_ = hlo.array_type(op.shape.dtype, (*apart, height, *columns))
    attr = hlo.DotDimsAttr(hlo.DotDims(*contracting))
    made = b.typed(hlo.DotOp, (product.rows, table), type_, dims=attr, **properties)
    # which of these rows each index of the result takes: batch dims as rows have them, then those of matrices alone
    batch, told = product.batch
    order = [*told, *(dim for dim in range(product.lead) if dim not in told)]
    taken = b.reshape(gather.rhs, product.matrices.dims[: product.lead])
    taken = b.transpose(b.convert(taken, "s32"), order)
    taken = b.each(hlo.MaximumOp, taken, b.number_like(0, taken))
    number = b.each(hlo.MinimumOp, taken, b.number_like(height - 1, taken))
    shape, kept = hlo.shape_of(number).dims, [dim for dim in range(len(dims)) if dim not in contracting[0]]
    for place, dim in enumerate(batch):
        stride = height * prod(dims[other] for other in kept if other > dim)
        number = b.add(number, b.mul(b.iota(shape, place), b.number(stride, "s32", shape)))
    rows = b.reshape(made, (prod(apart) * height, prod(columns)))
    return b.reshape(gather_rows(b, rows, b.reshape(number, (prod(shape),))), op.shape.dims)
