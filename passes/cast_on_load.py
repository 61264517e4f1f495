"""Puts casts of what lies in HBM right ahead of what loads it.

Input: any inlined module, after ``clean_casts`` and ``canonicalize``, which let narrowing casts go ahead of views.
Output: ``view(cast(x))`` of an ``x`` in HBM, which contractions alone read, is ``cast(view(x))``: they cast what they
load, and no kernel of its own does. So is ``repeat(widen(x))`` of what maps alone read: the DMA casts what they load,
engines compute with narrow floats as they are, and a kernel on few elements would leave its result where these lie in
other partitions than those that read it, or in HBM.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, erase, insert_before, ops_of, replace, users, viewed
from neuronx_cc.ir.types import NARROW
from neuronx_cc.passes.analysis.conversions import is_lossless
from neuronx_cc.passes.analysis.stored import lies_in_hbm, only_contractions_read
from neuronx_cc.passes.manager import PassContext, only_for

DEPTH = 6
"""Ops after a contraction."""


@only_for(hlo.ConvertOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        for op in ops_of(computation.block):
            cast = defining_op(op.operands[0]) if isinstance(op, hlo.ViewOp) else None
            if isinstance(cast, hlo.ConvertOp) and lies_in_hbm(cast.operand) and _is_read_so(cast, op):
                _move_down(op, cast)
            elif isinstance(op, hlo.BroadcastOp):
                _repeat_narrow(op)


def _is_read_so(cast: hlo.ConvertOp, view: hlo.HloOp) -> bool:
    """Whether what reads a view of ``cast`` may as well cast a view: it casts what it loads."""
    if only_contractions_read(cast.result):
        return True
    narrows = cast.shape.dtype in NARROW and hlo.shape_of(cast.operand).dtype == "f32"
    return narrows and not isinstance(defining_op(cast.operand), hlo.ConstantOp) and _maps_read(view.results[0])


def _maps_read(value: hlo.SSAValue) -> bool:
    """Whether elementwise ops read ``value``, perhaps through views, and none that may be a contraction's epilogue."""
    readers = users(value)
    return bool(readers) and all(
        (isinstance(reader, hlo.ElementwiseOp) and not _follows_contraction(reader, DEPTH))
        or (isinstance(reader, hlo.ViewOp) and _maps_read(reader.results[0]))
        for reader in readers
    )


def _follows_contraction(op: hlo.Operation, depth: int) -> bool:
    """Whether elementwise ops and views, few after each other, make what ``op`` reads of a contraction's result."""
    if isinstance(op, hlo.ContractionOp):
        return True
    if not depth or not isinstance(op, hlo.ElementwiseOp | hlo.ViewOp):
        return False
    return any(_follows_contraction(made, depth - 1) for made in map(defining_op, op.operands) if made is not None)


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
    if narrow not in NARROW or not is_lossless(narrow, above.shape.dtype) or not _is_loaded_by_maps(above):
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


def _is_loaded_by_maps(cast: hlo.ConvertOp) -> bool:
    """Whether maps alone load what ``cast`` widens, or it is a window."""
    window = isinstance(viewed(cast.operand).owner, hlo.DynamicSliceOp)
    return window or (lies_in_hbm(cast.operand) and _maps_read(cast.result))
