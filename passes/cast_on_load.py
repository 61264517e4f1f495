"""Puts casts of what lies in HBM right ahead of the contractions that load it.

Input: any inlined module, after ``clean_casts`` and ``canonicalize``, which let narrowing casts go ahead of views.
Output: ``view(cast(x))`` of an ``x`` in HBM, which contractions alone read, is ``cast(view(x))``: they cast what they
load, and no kernel of its own does.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, erase, insert_before, ops_of, replace
from neuronx_cc.passes.analysis.stored import is_stored, only_contractions_read
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.ConvertOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        for op in ops_of(computation.block):
            cast = defining_op(op.operands[0]) if isinstance(op, hlo.ViewOp) else None
            if isinstance(cast, hlo.ConvertOp) and is_stored(cast.operand) and only_contractions_read(cast.result):
                _move_down(op, cast)


def _move_down(view: hlo.HloOp, cast: hlo.ConvertOp) -> None:
    moved_type = hlo.array_type(hlo.shape_of(cast.operand).dtype, view.shape.dims)
    moved = insert_before(view, type(view), (cast.operand,), moved_type, view.loc, view.properties)
    replace(view, insert_before(view, hlo.ConvertOp, (moved,), view.results[0].type, cast.loc))
    if cast.result.first_use is None:
        erase(cast)
