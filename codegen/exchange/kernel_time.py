"""How long kernels take, by their ops alone: products at TensorE's rate, other elements at Vector's, bytes at DMA's.

No schedule is chosen for it: it says what a collective may be hidden by, for which the roofline will do.
"""

from __future__ import annotations

from math import prod

from neuronx_cc.codegen.exchange.collective_kernel import kind_of, members_of
from neuronx_cc.codegen.formation.graph import Kernel, is_view, operands_of
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.isa.cost import exchange_ns
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.passes.analysis.trip_count import trip_count


class Estimate:
    """Nanoseconds on one machine."""

    def __init__(self, module: hlo.HloModule, timing: Timing) -> None:
        self.module, self.timing = module, timing
        self.hbm = timing.sizes.hbm_bytes

    def of(self, kernel: Kernel) -> float:
        """Of a kernel: what its ops compute, or what it moves to and from HBM, whichever takes longer."""
        first = kernel.ops[0]
        if isinstance(first, hlo.CollectiveOp | hlo.RegionOp):
            return self.of_op(first)
        made = {result for op in kernel.ops for result in op.results}
        read = {value for op in kernel.ops for value in operands_of(op)} - made
        kept = {value for value in made if any(use.operation not in kernel.ops for use in value.uses)}
        moved = sum(_nbytes(value) for value in (*read, *kept))
        computed = sum(self.of_op(op) for op in kernel.ops)
        return max(computed, moved / self.timing.dma_rate) + self.timing.transfer_latency

    def of_op(self, op: hlo.HloOp) -> float:
        """Of an op: its collective, its products, the trips of its loop, or its elements on Vector."""
        if isinstance(op, hlo.CollectiveOp):
            nbytes = max(_nbytes(value) for value in (*op.operands, *op.results))
            return exchange_ns(kind_of(op), nbytes, members_of(op), self.timing.machine)
        if isinstance(op, hlo.WhileOp):
            body = self.module.computation(op.body.data[0])
            return (trip_count(op, self.module) or 1) * self.together(body)
        if isinstance(op, hlo.ConditionalOp):
            return max(self.together(self.module.computation(name)) for name in op.branches.data)
        if isinstance(op, hlo.DotOp | hlo.ConvolutionOp):
            sizes = self.timing.sizes
            columns = _products(op) / (sizes.partitions * sizes.columns)
            return columns * self.timing.column(hlo.shape_of(op.operands[0]).dtype)
        if is_view(op) or isinstance(op, hlo.TupleOp | hlo.GetTupleElementOp | hlo.ConstantOp):
            return 0.0
        largest = max((_size(value) for value in (*op.operands, *op.results)), default=0)
        return largest / self.timing.sizes.partitions * self.timing.cycle(Stream.VECTOR)

    def together(self, computation: hlo.ComputationOp) -> float:
        """Of all ops of a computation, one after the other."""
        return sum(self.of_op(op) for op in ops_of(computation.block))


def _products(op: hlo.DotOp | hlo.ConvolutionOp) -> float:
    """Multiplications, those with padding among them."""
    out = hlo.shape_of(op.results[0])
    if isinstance(op, hlo.DotOp):
        lhs = hlo.shape_of(op.lhs).dims
        return out.size * prod(lhs[dim] for dim in op.dims.data.lhs_contracting)
    kernel = hlo.shape_of(op.operands[1])
    return out.size * kernel.size / max(1, kernel.dims[op.dims.data.rhs_output_feature])


def _size(value: hlo.SSAValue) -> int:
    return hlo.shape_of(value).size if isinstance(value.type, hlo.ArrayType) else 0


def _nbytes(value: hlo.SSAValue) -> int:
    return hlo.shape_of(value).nbytes if isinstance(value.type, hlo.ArrayType) else 0
