"""Loops carry, and walk through, what they cast in every iteration as what they cast it to.

Input: ``flatten_control``'s form, after ``clean_casts``, whose casts stand at what they cast. Output: where all that
the body of a counted loop reads of an element of its state is cast to one narrower type, and it hands on what it widens
from that type, the element has it: the cast of what the loop is given stands ahead of it, and the widening one after.
So do the casts of windows of an array that the loop does not change, where it reads most of the array and anything
but contractions, which cast what they load, reads these: each would be a kernel on few elements in every iteration.
No value changes.
"""

from collections.abc import Iterator

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, erase, insert_before, replace, retype
from neuronx_cc.ir.types import FLOATS, itemsize
from neuronx_cc.passes.analysis.conversions import is_lossless
from neuronx_cc.passes.analysis.stored import only_contractions_read
from neuronx_cc.passes.analysis.trip_count import counted_loops, element_of
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.simplify_control import elements, pack_root, packed

MOST = 2
"""An array is cast as a whole where the loop reads at least one of so many parts of it."""


@only_for(hlo.WhileOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for loop, counted in counted_loops(module):
        if counted.trips:
            for index in range(len(packed(loop.operand))):
                narrow = _narrowed(module, loop, index, counted.trips)
                if narrow is not None:
                    _narrow(module, loop, index, narrow)


def _narrowed(module: HloModule, loop: hlo.WhileOp, index: int, trips: int) -> hlo.SSAValue | None:
    """A value of the type that element ``index`` is to have, the one that is handed on if that is another one."""
    body, condition = (module.computation(names.data[0]) for names in (loop.body, loop.condition))
    read, result = elements(body.block.args[0]).get(index, []), packed(body.root)[index]
    if not read or elements(condition.block.args[0]).get(index) or hlo.shape_of(result).dtype not in FLOATS:
        return None
    same, root = element_of(result, body) == index, defining_op(body.root)
    found = [leaf for element in read for leaf in _leaves(element.result) if not (same and leaf is root)]
    casts = [leaf for leaf in found if isinstance(leaf, hlo.ConvertOp)]
    if not casts or len(casts) < len(found) or len({cast.shape.dtype for cast in casts}) > 1:
        return None
    wide, narrow = hlo.shape_of(result).dtype, casts[0].shape.dtype
    if narrow not in FLOATS or itemsize(narrow) >= itemsize(wide):
        return None
    if same:
        pays = trips * sum(cast.shape.size for cast in casts) * MOST >= hlo.shape_of(result).size
        windows = all(isinstance(use.operation, hlo.DynamicSliceOp) or use.operation is root
                      for element in read for use in element.result.uses)  # fmt: skip
        alone = all(only_contractions_read(cast.result) for cast in casts)
        return casts[0].result if pays and windows and not alone else None
    widened = defining_op(result)
    if not isinstance(widened, hlo.ConvertOp) or hlo.shape_of(widened.operand).dtype != narrow:
        return None
    return widened.operand if is_lossless(narrow, wide) else None


def _leaves(value: hlo.SSAValue) -> Iterator[hlo.Operation]:
    """What reads ``value`` or windows and views of it."""
    for use in value.uses:
        op = use.operation
        if isinstance(op, hlo.ViewOp) or (isinstance(op, hlo.DynamicSliceOp) and not use.index):
            yield from _leaves(op.results[0])
        else:
            yield op


def _narrow(module: HloModule, loop: hlo.WhileOp, index: int, narrow: hlo.SSAValue) -> None:
    """Let element ``index`` have the type of ``narrow``, and be that after an iteration if the body changes it."""
    body, condition = (module.computation(names.data[0]) for names in (loop.body, loop.condition))
    initial, results, dtype = packed(loop.operand), packed(body.root), hlo.shape_of(narrow).dtype
    changed = element_of(results[index], body) != index
    roots = [defining_op(loop.operand), defining_op(body.root)]
    initial[index] = Build.before(module, loop).convert(initial[index], dtype)
    type_ = hlo.tuple_type(tuple(value.type for value in initial))
    loop.operands = [insert_before(loop, hlo.TupleOp, initial, type_, loop.loc)]
    for value in (loop.result, body.block.args[0], condition.block.args[0]):
        retype(value, type_)
    found = elements(body.block.args[0])[index]
    element = found[0]
    again = insert_before(
        element, type(element), element.operands, initial[index].type, element.loc, element.properties
    )
    results[index] = narrow if changed else again
    pack_root(body, results)
    for root in roots:
        assert root is not None
        if root.results[0].first_use is None:
            erase(root)
    for element in found:
        _read(element.result, again)
        erase(element)
    for element in elements(loop.result).get(index, []):
        made = insert_before(element, type(element), element.operands, again.type, element.loc, element.properties)
        replace(element, insert_before(element, hlo.ConvertOp, (made,), element.result.type, element.loc))


def _read(wide: hlo.SSAValue, narrow: hlo.SSAValue) -> None:
    """Let what casts ``wide``, or windows and views of it, take ``narrow`` and those of that."""
    for use in list(wide.uses):
        op = use.operation
        if isinstance(op, hlo.ConvertOp):
            replace(op, narrow)
            continue
        assert isinstance(op, hlo.ViewOp | hlo.DynamicSliceOp), "of views, windows and casts alone"
        moved = hlo.array_type(hlo.shape_of(narrow).dtype, op.shape.dims)
        again = copy_op(op, [narrow, *op.operands[1:]], moved)
        assert op.parent is not None
        op.parent.insert_op_before(again, op)
        _read(op.results[0], again.results[0])
        erase(op)
