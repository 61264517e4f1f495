"""Puts casts of what lies in HBM right ahead of what loads it.

Input: any inlined module, after ``clean_casts`` and ``canonicalize``, which let narrowing casts go ahead of views.
Output: ``view(cast(x))`` of an ``x`` in HBM, which contractions alone read, is ``cast(view(x))``: they cast what they
load, and no kernel of its own does. So is ``repeat(widen(x))`` that maps read: engines compute with narrow floats as
they are, and a kernel on few elements would leave its result in HBM for the next one to load. That is for windows, as
loops take them: what is given is widened once.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, erase, insert_before, ops_of, replace, users
from neuronx_cc.passes.analysis.conversions import is_lossless
from neuronx_cc.passes.analysis.stored import is_stored, only_contractions_read
from neuronx_cc.passes.manager import PassContext, only_for

_NARROW = ("bf16", "f16")


@only_for(hlo.ConvertOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        for op in ops_of(computation.block):
            cast = defining_op(op.operands[0]) if isinstance(op, hlo.ViewOp) else None
            if isinstance(cast, hlo.ConvertOp) and is_stored(cast.operand) and only_contractions_read(cast.result):
                _move_down(op, cast)
            elif isinstance(op, hlo.BroadcastOp):
                _repeat_narrow(op)


def _move_down(view: hlo.HloOp, cast: hlo.ConvertOp) -> None:
    moved_type = hlo.array_type(hlo.shape_of(cast.operand).dtype, view.shape.dims)
    moved = insert_before(view, type(view), (cast.operand,), moved_type, view.loc, view.properties)
    replace(view, insert_before(view, hlo.ConvertOp, (moved,), view.results[0].type, cast.loc))
    if cast.result.first_use is None:
        erase(cast)


def _repeat_narrow(repeat: hlo.BroadcastOp) -> None:
    """``repeat(views(widen(x)))`` -> ``widen(repeat(views(x)))``."""
    views: list[hlo.HloOp] = [repeat]
    while isinstance(above := defining_op(views[-1].operands[0]), hlo.ViewOp):
        views.append(above)
    if not isinstance(above, hlo.ConvertOp) or repeat.shape.size == above.shape.size == 1:
        return
    narrow = hlo.shape_of(above.operand).dtype
    if narrow not in _NARROW or not is_lossless(narrow, above.shape.dtype) or not _is_window(above.operand):
        return
    if not all(isinstance(reader, hlo.ElementwiseOp | hlo.ReduceOp) for reader in users(repeat.result)):
        return
    value = above.operand
    for view in reversed(views):
        moved = hlo.array_type(narrow, view.shape.dims)
        value = insert_before(repeat, type(view), (value,), moved, view.loc, view.properties)
    replace(repeat, insert_before(repeat, hlo.ConvertOp, (value,), repeat.result.type, above.loc))
    for op in (*views[1:], above):
        if op.results[0].first_use is None:
            erase(op)


def _is_window(value: hlo.SSAValue) -> bool:
    while isinstance(made := defining_op(value), hlo.ViewOp):
        value = made.operands[0]
    return isinstance(made, hlo.DynamicSliceOp)
