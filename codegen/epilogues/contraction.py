"""What the choice of an epilogue asks about a contraction: its tiles of sums, and the work of its products."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.dots.problem import PE_DTYPES, divisor, order_of, pe_dtype, rounding_of
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.timing import Timing, Work
from neuronx_cc.ir.types import WIDE_FLOATS, itemsize
from neuronx_cc.passes.analysis.convolutions import is_depthwise, is_kernel_gradient

LEAST_RESIDENT = 32
"""Partitions with features from which the result of a convolution stays on chip, if it has so many features."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """``op`` as sums of ``terms`` products each, of ``rows`` x ``columns`` elements of the result."""

    op: hlo.DotOp | hlo.ConvolutionOp
    rows: int
    """Elements that lie on the partitions."""
    columns: int
    along: tuple[int, ...]
    """Dims of the result that the columns are."""
    terms: int
    dtype: str
    """Of the products."""

    @property
    def kind(self) -> Hashable:
        """Equal for contractions whose options are the same."""
        shape = self.op.shape
        return self.op.opcode, shape.dtype, shape.dims, self.rows, self.columns, self.along, self.terms, self.dtype

    @classmethod
    def of(cls, op: hlo.Operation) -> Contraction | None:
        """None of ops that have no epilogue."""
        if not isinstance(op, hlo.DotOp | hlo.ConvolutionOp) or op.shape.dtype not in WIDE_FLOATS or not op.shape.size:
            return None
        return _of_dot(op) if isinstance(op, hlo.DotOp) else _of_convolution(op)

    def wide(self, timing: Timing) -> int:
        """Columns of a tile of sums: of one tile of rows, or of as many as one bank holds."""
        bank = timing.sizes.bank_columns
        return min(self.columns * min(self._row_tiles(timing), max(1, bank // self.columns)), bank)

    def tiles(self, timing: Timing) -> float:
        """Tiles of sums."""
        return self._row_tiles(timing) * self.columns / self.wide(timing)

    def _row_tiles(self, timing: Timing) -> int:
        """Those of all matrices of a batch."""
        return self.op.shape.size // (self.rows * self.columns) * -(-self.rows // timing.sizes.columns)

    def partitions(self, timing: Timing) -> int:
        """Those that the result fills where it stays on chip; 0 if it never does."""
        if isinstance(self.op, hlo.DotOp):
            sizes = [hlo.shape_of(self.op.lhs).dims[axis] for axis in order_of(self.op, 0)[1]]
            return max((divisor(size, timing.sizes.partitions) for size in sizes), default=1)
        found = divisor(self.rows, timing.sizes.partitions) if len(self.along) > 1 else 0
        return found if found >= min(LEAST_RESIDENT, self.rows) else 0

    def work(self, timing: Timing) -> Work:
        """The products and their operands."""
        sizes, flags = timing.sizes, rounding_of(self.op)
        moved = min(self.columns, sizes.bank_columns)
        product = timing.product(min(self.rows, sizes.columns), moved, self.dtype, flags=flags)
        work = product.times(self._row_tiles(timing) * self.columns / moved * max(1, -(-self.terms // sizes.rows)))
        for operand in self.op.sources:
            nbytes = max(1, hlo.shape_of(operand).size * itemsize(self.dtype))
            work += timing.transfer(nbytes, timing.long_run)
        return work


def _of_dot(op: hlo.DotOp) -> Contraction:
    lhs, rhs = ([hlo.shape_of(op.sources[at]).dims[axis] for axis in order_of(op, at)[1]] for at in (0, 1))
    terms = prod(hlo.shape_of(op.lhs).dims[axis] for axis in order_of(op, 0)[2])
    rank = op.shape.rank
    along = tuple(range(rank - len(rhs), rank))
    return Contraction(op, max(1, prod(lhs)), max(1, prod(rhs)), along, terms, pe_dtype(op))


def _of_convolution(op: hlo.ConvolutionOp) -> Contraction | None:
    """Features are the rows, but where they are neighbours: there positions are."""
    if is_kernel_gradient(op) or is_depthwise(op):
        return None
    dims, shape = op.dims.data, op.shape
    lhs, rhs = hlo.shape_of(op.lhs), hlo.shape_of(op.rhs)
    features = shape.dims[dims.out_feature]
    positions = shape.size // features
    taps = prod(-(-dim.size // dim.lhs_dilation) for dim in op.window.data)
    terms = rhs.dims[dims.rhs_input_feature] * taps
    dtype = lhs.dtype if lhs.dtype == rhs.dtype and lhs.dtype in PE_DTYPES else "f32"
    if dims.out_feature == shape.rank - 1:
        return Contraction(op, positions, features, (dims.out_feature,), terms, dtype)
    along = (dims.out_batch, *dims.out_spatial)
    return Contraction(op, features, positions, along, terms, dtype)
