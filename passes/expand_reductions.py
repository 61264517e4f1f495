"""Rewrites reductions whose computation no engine knows: elements are combined pairwise, with array operators.

Input: an inlined module. Output: every ``reduce`` left has one operand and a one-operator computation, or is an argmax
or argmin. The order of the elements is kept (row-major), so a computation need not be commutative; the initial value
takes part once, on the left. Folding n elements takes log2(n) rounds of neighbours.
"""

from collections.abc import Sequence
from math import isqrt, prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.argument_reductions import argument_kind
from neuronx_cc.passes.analysis.values import computation_kind
from neuronx_cc.passes.expand_argument_reductions import EXTREMES
from neuronx_cc.passes.expansions.bodies import apply_body
from neuronx_cc.passes.expansions.build import Build, Value, replace_results
from neuronx_cc.passes.expansions.masked_loops import apply_loops, loops_on_scalars
from neuronx_cc.passes.expansions.strided import strided_slice
from neuronx_cc.passes.manager import PassContext, only_for

SHORT = 8
"""Elements folded where they are."""


@only_for(hlo.ReduceOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):  # the elements after an op are erased with it
            if isinstance(op, hlo.ReduceOp) and not _note_kind(op, module):
                replace_results(op, fold(module, op, context.timing))


def fold(module: HloModule, op: hlo.ReduceOp, timing: Timing) -> list[Value]:
    """The results of ``op``, built above it, whose computation consists of operators on scalars and loops of them."""
    return _Fold(module, op, timing).results()


def _note_kind(op: hlo.ReduceOp, module: HloModule) -> bool:
    """Whether kernels and later passes know it; noted on reductions of pairs, whose form may be lost on the way."""
    body = module.computation(op.to_apply.data[0])
    if len(op.operands) == 2:
        return computation_kind(body) != ""
    kind = argument_kind(op, module)
    if kind not in EXTREMES:
        return False
    op.properties["kind"] = hlo.StrAttr(kind)
    return True


class _Fold:
    """One reduction; arrays are folded together, one for each operand."""

    def __init__(self, module: HloModule, op: hlo.ReduceOp, timing: Timing):
        self.op, self.timing = op, timing
        self.build = Build.before(module, op)
        self.body = module.computation(op.to_apply.data[0])
        self.loops = loops_on_scalars(module, self.body)
        count = len(op.operands) // 2
        self.arrays, self.starts = list(op.operands[:count]), list(op.operands[count:])

    def results(self) -> list[Value]:
        dims = hlo.shape_of(self.arrays[0]).dims
        folded = sorted(self.op.dimensions.data)
        kept = [axis for axis in range(len(dims)) if axis not in folded]
        out = tuple(dims[axis] for axis in kept)
        count, size = prod(dims[axis] for axis in folded), prod(out)
        starts = [self.build.broadcast(start, out) for start in self.starts]
        if count == 0 or size == 0:
            return starts
        leading = max((axis for axis in folded if dims[axis] > 1), default=-1)
        run = size * min(itemsize(hlo.shape_of(x).dtype) for x in self.arrays)
        # rows that a DMA moves at half of its rate at the least are folded onto each other
        together = 2 * run >= self.timing.long_run
        if leading < min((axis for axis in kept if dims[axis] > 1), default=len(dims)) and together:
            order = [*folded, *kept]
            rows = [self.build.reshape(self.build.transpose(x, order), (count, size)) for x in self.arrays]
            rows = self._fold(rows, 0)
        else:
            order = [*kept, *folded]
            rows = [self.build.reshape(self.build.transpose(x, order), (size, count)) for x in self.arrays]
            rows = self._trailing(rows)
        return self._combine(starts, [self.build.reshape(x, out) for x in rows], out)

    def _combine(self, first: Sequence[Value], second: Sequence[Value], dims: tuple[int, ...]) -> list[Value]:
        if self.loops:
            return apply_loops(self.build, self.body, [*first, *second], dims)
        return apply_body(self.op, self.body, [*first, *second], dims)

    def _fold(self, rows: list[Value], axis: int) -> list[Value]:
        """Arrays folded along dim ``axis``, which goes; an odd element at the end waits in ``tail``."""
        dims = hlo.shape_of(rows[0]).dims
        n, before, after = dims[axis], dims[:axis], dims[axis + 1 :]
        tail: list[Value] = []
        while n > 1:
            half = n // 2
            if n % 2:
                last = [strided_slice(self.build, x, axis, n - 1, 1) for x in rows]
                tail = self._combine(last, tail, (*before, 1, *after)) if tail else last
            even, odd = ([strided_slice(self.build, x, axis, start, half, 2) for x in rows] for start in (0, 1))
            rows = self._combine(even, odd, (*before, half, *after))
            n = half
        if tail:
            rows = self._combine(rows, tail, (*before, 1, *after))
        return [self.build.reshape(x, (*before, *after)) for x in rows]

    def _trailing(self, rows: list[Value]) -> list[Value]:
        """Arrays [size, n] folded to [size]; few long rows are cut into blocks, whose results follow."""
        size, n = hlo.shape_of(rows[0]).dims
        if n == 1:
            return [self.build.reshape(x, (size,)) for x in rows]
        partitions = self.timing.sizes.partitions
        blocks = 1 if size >= partitions or n <= SHORT else min(isqrt(n), -(-partitions // size))
        length = n // blocks
        main = [strided_slice(self.build, x, 1, 0, blocks * length) for x in rows]
        partial = self._fold([self.build.reshape(x, (size * blocks, length)) for x in main], 1)
        partial = self._trailing([self.build.reshape(x, (size, blocks)) for x in partial])
        if blocks * length == n:
            return partial
        rest = [strided_slice(self.build, x, 1, blocks * length, n - blocks * length) for x in rows]
        return self._combine(partial, self._trailing(rest), (size,))
