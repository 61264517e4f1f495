"""Moves and drops casts without changing a bit of any value.

* A conversion that undoes a widening one vanishes: bf16 -> f32 -> bf16. (f32 -> bf16 -> f32 stays: it loses bits.)
* A narrowing conversion, and ``reduce-precision``, moves up through broadcast, reshape, transpose and reverse that
  serve it alone, through slice too when a constant is behind: constants and parameters are cast once, at their size.
* Where all that is read of a value, of slices of it and other views, is cast to one narrower type, that is done once.
* A widening conversion moves down through the same ops but broadcast: they move fewer bytes. It stays ahead of
  reshapes of results: what stores these casts them.

Input and output: any inlined module. One backward sweep for what moves up, one forward for the rest.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, erase, insert_before, ops_of, replace, viewed
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.conversions import is_lossless, skips_middle
from neuronx_cc.passes.analysis.stored import is_stored
from neuronx_cc.passes.manager import PassContext

CASTS = (hlo.ConvertOp, hlo.ReducePrecisionOp)


def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.ConvertOp):
                _cancel(op)
        for op in reversed(list(ops_of(computation.block))):
            if type(op) in CASTS and op.parent is not None:
                _move_up(op)
        for op in list(ops_of(computation.block)):
            if not isinstance(op, hlo.ViewOp | hlo.ConvertOp) and not is_stored(op.results[0]):
                _cast_once(op)
        for op in ops_of(computation.block):
            if isinstance(op, hlo.ConvertOp):
                _cancel(op)
            elif isinstance(op, hlo.ViewOp) and not isinstance(op, hlo.BroadcastOp | hlo.SliceOp):
                if not _leaves(op):
                    _move_down(op)
            elif isinstance(op, hlo.ReducePrecisionOp):
                _round_once(op)


def _cancel(op: hlo.ConvertOp) -> None:
    if op.operand.type == op.results[0].type:
        replace(op, op.operand)
        return
    inner = defining_op(op.operand)
    if not isinstance(inner, hlo.ConvertOp):
        return
    source, middle, target = hlo.shape_of(inner.operand).dtype, inner.shape.dtype, op.shape.dtype
    if not skips_middle(source, middle, target):
        return
    value = inner.operand
    if source != target:
        value = insert_before(op, hlo.ConvertOp, (value,), op.results[0].type, op.loc)
    replace(op, value)
    if inner.results[0].first_use is None:
        erase(inner)


def _round_once(op: hlo.ReducePrecisionOp) -> None:
    inner = defining_op(op.operand)
    if isinstance(inner, hlo.ReducePrecisionOp) and inner.properties == op.properties:
        replace(op, op.operand)


def _move_up(op: hlo.HloOp) -> None:
    """``cast(move(x))`` -> ``move(cast(x))``, as far up as moves serve only the cast."""
    if isinstance(op, hlo.ConvertOp) and not _is_narrowing(op):
        return
    move = defining_op(op.operands[0])
    while isinstance(move, hlo.HloOp) and _serves_only(move) and _is_movable(move):
        source = move.operands[0]
        dtype = op.shape.dtype
        cast_type = hlo.array_type(dtype, hlo.shape_of(source).dims)
        cast = insert_before(op, type(op), (source,), cast_type, op.loc, op.properties)
        replace(op, insert_before(op, type(move), (cast,), op.results[0].type, move.loc, move.properties))
        erase(move)
        above = defining_op(cast)
        assert isinstance(above, hlo.HloOp)
        op, move = above, defining_op(source)


def _cast_once(op: hlo.HloOp) -> None:
    """``cast(view(x))`` of all views of ``x`` -> ``view(cast(x))``."""
    value = op.results[0]
    casts = _casts_alone(value)
    if casts is None or len(casts) < 2 or len({cast.shape.dtype for cast in casts}) > 1:
        return
    if not _is_narrowing(casts[0]) or sum(cast.shape.size for cast in casts) < op.shape.size:
        return
    if not all(_is_read_once(cast.result) for cast in casts):
        return  # parts that are kept for a later use have homes of their own
    following = op.next_op
    assert following is not None, "the return at least"
    dtype = casts[0].shape.dtype
    readers = list(value.uses)
    cast = insert_before(following, hlo.ConvertOp, (value,), hlo.array_type(dtype, op.shape.dims), casts[0].loc)
    for use in readers:
        _read_cast(use.operation, cast)


def _is_read_once(value: hlo.SSAValue) -> bool:
    while value.has_one_use():
        (use,) = value.uses
        if not isinstance(use.operation, hlo.ViewOp):
            return True
        value = use.operation.results[0]
    return False


def _casts_alone(value: hlo.SSAValue) -> list[hlo.ConvertOp] | None:
    """The casts of ``value`` and its views, if nothing else reads these."""
    found: list[hlo.ConvertOp] = []
    for use in value.uses:
        reader = use.operation
        if isinstance(reader, hlo.ConvertOp):
            found.append(reader)
            continue
        casts = _casts_alone(reader.results[0]) if isinstance(reader, hlo.ViewOp) else None
        if casts is None:
            return None
        found += casts
    return found


def _read_cast(reader: hlo.Operation, cast: hlo.SSAValue) -> None:
    """Let a view, or a cast, read ``cast`` in place of what was cast."""
    if isinstance(reader, hlo.ConvertOp):
        replace(reader, cast)
        return
    assert isinstance(reader, hlo.ViewOp), "of views and casts alone"
    moved = hlo.array_type(hlo.shape_of(cast).dtype, reader.shape.dims)
    view = insert_before(reader, type(reader), (cast,), moved, reader.loc, reader.properties)
    for use in list(reader.results[0].uses):
        _read_cast(use.operation, view)
    erase(reader)


def _is_movable(move: hlo.HloOp) -> bool:
    if isinstance(move, hlo.SliceOp):
        return isinstance(viewed(move.results[0]).owner, hlo.ConstantOp)
    return isinstance(move, hlo.ViewOp)


def _serves_only(move: hlo.HloOp) -> bool:
    return move.results[0].has_one_use()


def _is_narrowing(op: hlo.ConvertOp) -> bool:
    return itemsize(op.shape.dtype) < itemsize(hlo.shape_of(op.operand).dtype)


def _leaves(op: hlo.HloOp) -> bool:
    """Whether ``op`` gives a result another form, and nothing else: what stores it casts it."""
    if not isinstance(op, hlo.ReshapeOp):
        return False
    readers = [use.operation for use in op.results[0].uses]
    return bool(readers) and all(
        isinstance(each, hlo.ReturnOp | hlo.TupleOp) or (isinstance(each, hlo.ReshapeOp) and _leaves(each))
        for each in readers
    )


def _move_down(op: hlo.HloOp) -> None:
    """``move(widen(x))`` -> ``widen(move(x))``."""
    widen = defining_op(op.operands[0])
    if not isinstance(widen, hlo.ConvertOp):
        return
    source = hlo.shape_of(widen.operand)
    if itemsize(source.dtype) >= itemsize(widen.shape.dtype) or not is_lossless(source.dtype, widen.shape.dtype):
        return
    moved_type = hlo.array_type(source.dtype, op.shape.dims)
    moved = insert_before(op, type(op), (widen.operand,), moved_type, op.loc, op.properties)
    replace(op, insert_before(op, hlo.ConvertOp, (moved,), op.results[0].type, widen.loc))
    if widen.results[0].first_use is None:
        erase(widen)
