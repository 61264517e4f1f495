"""Loops carry, and walk through, what they cast in every iteration as what they cast it to.

Input: ``flatten_control``'s form, after ``clean_casts``, whose casts stand at what they cast. Output: where all that
the body of a counted loop reads of an element of its state is cast to one narrower type, and it hands on what it widens
from that type, or what nothing reads wide after the loop, the element has it: the cast of what the loop is given stands
ahead of it, and the widening one after. So do the casts of what the loop does not change where it is given a widened
value, and those of windows of such an array, where it reads most of the array and anything but contractions, which cast
what they load, reads these: each would be a kernel on few elements in every iteration.
No value changes.
"""

from collections.abc import Iterator, Sequence
from typing import TypeGuard

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
            found = _narrowed(module, loop, counted.trips)
            if found:
                _narrow(module, loop, found)


def _narrowed(module: HloModule, loop: hlo.WhileOp, trips: int) -> dict[int, hlo.SSAValue | str]:
    """Elements of the state that are to be narrower -> what is handed on in their stead, or their type if that is what
    the iteration has been given.
    """
    body, condition = (module.computation(names.data[0]) for names in (loop.body, loop.condition))
    tested, after, root = elements(condition.block.args[0]), elements(loop.result), defining_op(body.root)
    initial = packed(loop.operand)
    results, found = packed(body.root), dict[int, hlo.SSAValue | str]()
    for index, read in elements(body.block.args[0]).items():
        result = results[index]
        if tested.get(index) or hlo.shape_of(result).dtype not in FLOATS:
            continue
        same = element_of(result, body) == index
        readers = [op for element in read for op in _readers(element.result) if not (same and op is root)]
        casts = [op for op in readers if isinstance(op, hlo.ConvertOp)]
        types = {cast.shape.dtype for cast in casts}
        if len(types) != 1 or len(casts) < len(readers):
            continue
        wide, (narrow,) = hlo.shape_of(result).dtype, types
        if narrow not in FLOATS or itemsize(narrow) >= itemsize(wide):
            continue
        widened = defining_op(result)
        if same and (_widens(defining_op(initial[index]), narrow) or _pays(read, casts, trips, root)):
            found[index] = narrow
        elif not same and _widens(widened, narrow) and is_lossless(narrow, wide):
            found[index] = widened.operand
        elif not same and all(_casts(op, narrow) for each in after.get(index, ()) for op in _readers(each.result)):
            assert isinstance(root, hlo.TupleOp), "flatten_control gives roots that are tuples"
            found[index] = Build.before(module, root).convert(result, narrow)
    return found


def _casts(op: hlo.Operation, narrow: str) -> bool:
    return isinstance(op, hlo.ConvertOp) and op.shape.dtype == narrow


def _widens(op: hlo.Operation | None, narrow: str) -> TypeGuard[hlo.ConvertOp]:
    return isinstance(op, hlo.ConvertOp) and hlo.shape_of(op.operand).dtype == narrow


def _pays(
    read: Sequence[hlo.GetTupleElementOp], casts: Sequence[hlo.ConvertOp], trips: int, root: hlo.Operation | None
) -> bool:
    """Whether an array is to be cast ahead of the loop: it reads windows, of most of it, and not for contractions."""
    readers = [use.operation for element in read for use in element.result.uses if use.operation is not root]
    most = trips * sum(cast.shape.size for cast in casts) * MOST >= read[0].shape.size
    windows = all(isinstance(op, hlo.DynamicSliceOp) for op in readers)
    return most and windows and not all(only_contractions_read(cast.result) for cast in casts)


def _readers(value: hlo.SSAValue) -> Iterator[hlo.Operation]:
    """What reads ``value``, or windows and views of it."""
    for use in value.uses:
        op = use.operation
        if isinstance(op, hlo.ViewOp) or (isinstance(op, hlo.DynamicSliceOp) and not use.index):
            yield from _readers(op.results[0])
        else:
            yield op


def _narrow(module: HloModule, loop: hlo.WhileOp, found: dict[int, hlo.SSAValue | str]) -> None:
    """Give elements of the state their narrower types."""
    body, condition = (module.computation(names.data[0]) for names in (loop.body, loop.condition))
    initial, results = packed(loop.operand), packed(body.root)
    roots = [defining_op(loop.operand), defining_op(body.root)]
    b = Build.before(module, loop)
    for index, narrow in found.items():
        initial[index] = b.convert(initial[index], narrow if isinstance(narrow, str) else hlo.shape_of(narrow).dtype)
    type_ = hlo.tuple_type(tuple(value.type for value in initial))
    loop.operands = [insert_before(loop, hlo.TupleOp, initial, type_, loop.loc)]
    for value in (loop.result, body.block.args[0], condition.block.args[0]):
        retype(value, type_)
    given, after = elements(body.block.args[0]), elements(loop.result)
    made = {index: _again(given[index][0], initial[index].type) for index in found}
    for index, narrow in found.items():
        results[index] = made[index] if isinstance(narrow, str) else narrow
    pack_root(body, results)
    for root in roots:
        assert root is not None
        if root.results[0].first_use is None:
            erase(root)
    for index in found:
        for element in given[index]:
            _read(element.result, made[index])
            erase(element)
        for element in after.get(index, []):
            again = _again(element, initial[index].type)
            replace(element, insert_before(element, hlo.ConvertOp, (again,), element.result.type, element.loc))


def _again(element: hlo.GetTupleElementOp, type_: hlo.Attribute) -> hlo.SSAValue:
    return insert_before(element, type(element), element.operands, type_, element.loc, element.properties)


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
