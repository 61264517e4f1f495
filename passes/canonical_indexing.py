"""Brings gathers and scatters into the few forms that code generation has.

Input: an inlined, canonical module without 64-bit integers. Output: gathers and scatters of rows only, with index
arithmetic as ordinary ops around them: see ``indexing_gather`` and ``indexing_scatter``.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.passes.build import Build
from neuronx_cc.passes.indexing_gather import canonical_gather
from neuronx_cc.passes.indexing_scatter import canonical_scatter
from neuronx_cc.passes.manager import PassContext


def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):
            b = Build.before(module, op)
            if isinstance(op, hlo.GatherOp):
                replace(op, canonical_gather(b, op))
            elif isinstance(op, hlo.ScatterOp):
                canonical_scatter(b, op)
