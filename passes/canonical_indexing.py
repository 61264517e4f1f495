"""Brings gathers and scatters into the few forms that code generation has.

Input: an inlined, canonical module without 64-bit integers. Output: gathers and scatters of rows only, with index
arithmetic as ordinary ops around them: see ``indexing.gather`` and ``indexing.scatter``; dynamic slices and updates
with starts of 32 bits, as sequencer registers load them, and none of what only counts.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.indexing.gather import canonical_gather
from neuronx_cc.passes.indexing.known import separated
from neuronx_cc.passes.indexing.rows import clamped
from neuronx_cc.passes.indexing.scatter import canonical_scatter
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.GatherOp, hlo.ScatterOp, hlo.DynamicSliceOp, hlo.DynamicUpdateSliceOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):
            b = Build.before(module, op, context.timing)
            if isinstance(op, hlo.GatherOp):
                if not separated(b, op):
                    canonical_gather(b, op)
            elif isinstance(op, hlo.ScatterOp):
                canonical_scatter(b, op)
            elif isinstance(op, hlo.DynamicSliceOp):
                if not _of_counts(b, op):
                    _wide_starts(b, op, 1)
            elif isinstance(op, hlo.DynamicUpdateSliceOp):
                _wide_starts(b, op, 2)


def _of_counts(b: Build, op: hlo.DynamicSliceOp) -> bool:
    """A window of numbers that count is computed from where it starts: ``jnp.arange(n)[i]`` is ``i``."""
    counts = defining_op(op.operands[0])
    if not isinstance(counts, hlo.IotaOp) or counts.shape.dtype not in ("s32", "u32"):
        return False
    axis, dims = counts.iota_dimension.data, op.dynamic_slice_sizes.data
    start = op.operands[1 + axis]
    if hlo.shape_of(start).dtype != "s32":
        return False
    start = clamped(b, start, counts.shape.dims[axis] - dims[axis])
    found = b.broadcast(b.convert(start, op.shape.dtype), dims, ())
    replace(op, found if dims[axis] == 1 else b.each(hlo.AddOp, found, b.iota(dims, axis, op.shape.dtype)))
    return True


def _wide_starts(b: Build, op: hlo.HloOp, first: int) -> None:
    """Convert start indices (operands from ``first`` on) of 8 and 16 bits."""
    for position in range(first, len(op.operands)):
        start = op.operands[position]
        if hlo.shape_of(start).dtype not in ("s32", "u32"):
            op.operands[position] = b.convert(start, "s32")
