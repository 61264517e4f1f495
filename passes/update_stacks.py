"""Updates parts of a stacked array where they lie, where a loop takes it apart and stacks the updated parts again.

Input: ``flatten_control``'s form, after ``canonical_indexing``. A scan over layers is given their caches stacked, and
stacks the new ones: iteration i takes part i of one array, updates a few of its elements, and writes the part as part i
of another array. Output: one array is the state of the loop, and iteration i writes those few elements alone:

    update(new, reshape(update(reshape(slice(old, i)), few, at)), i)  ->  update(state, reshape(few), (i, at))

A scatter of rows of the part becomes one of rows of all parts. What else reads the updated part reads a slice of the
state. The old part must be read by its updates alone and by what they are made of, for what still reads it after them
would have to read a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, insert_before, replace, users
from neuronx_cc.passes.analysis.effects import effectful_computations
from neuronx_cc.passes.analysis.loop_state import is_each_part, place_of
from neuronx_cc.passes.analysis.trip_count import Count, counted_loops, element_of
from neuronx_cc.passes.dce import sweep
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.simplify_control import elements, packed

ROWS = hlo.ScatterDims((1,), (0,), (0,), 1)
"""Of scatters that ``canonical_indexing`` leaves."""


@only_for(hlo.WhileOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    effectful = effectful_computations(module)
    for loop, counted in counted_loops(module):
        sweep(module.computation(loop.body.data[0]), effectful)
        for index in range(len(packed(loop.operand))):
            found = _stacked(module, loop, counted, index)
            if found is not None:
                _update_inplace_of(module, loop, found)


@dataclass(frozen=True, slots=True)
class _Stack:
    """Element ``index`` of a loop's state, whose parts are those of element ``source``, updated."""

    index: int
    source: int
    part: hlo.DynamicSliceOp
    """The old one."""
    chain: tuple[hlo.HloOp, ...]
    """Reshapes and updates from the old part on, an update last."""
    write: hlo.DynamicUpdateSliceOp
    """Of the whole part."""

    def old(self) -> list[hlo.HloOp]:
        """The old part, and the reshapes of it."""
        first = next(at for at, op in enumerate(self.chain) if not isinstance(op, hlo.ReshapeOp))
        return [self.part, *self.chain[:first]]


def _stacked(module: HloModule, loop: hlo.WhileOp, counted: Count, index: int) -> _Stack | None:
    body = module.computation(loop.body.data[0])
    write = defining_op(packed(body.root)[index])
    if not isinstance(write, hlo.DynamicUpdateSliceOp) or element_of(write.args[0], body) != index:
        return None
    whole = hlo.shape_of(write.args[0]).dims
    if not is_each_part(module, body, counted, whole, hlo.shape_of(write.args[1]).dims, write.args[2:]):
        return None
    chain, made = list[hlo.HloOp](), defining_op(write.args[1])
    while isinstance(made, hlo.HloOp) and (isinstance(made, hlo.ReshapeOp) or _is_update(made, whole[0])):
        chain.append(made)
        made = defining_op(made.operands[0])
    while chain and isinstance(chain[0], hlo.ReshapeOp):
        del chain[0]
    if not chain or not isinstance(made, hlo.DynamicSliceOp) or made.args[0].type != write.args[0].type:
        return None
    source = element_of(made.args[0], body)
    if source is None or not is_each_part(module, body, counted, whole, made.shape.dims, made.args[1:]):
        return None
    if place_of(module, body, counted, made.args[1]) != place_of(module, body, counted, write.args[2]):
        return None
    found = _Stack(index, source, made, tuple(reversed(chain)), write)
    return found if _is_alone(module, loop, found) else None


def _is_update(op: hlo.HloOp, parts: int) -> bool:
    """Whether ``op`` updates a window of its operand, or rows of it that are found among those of all parts, too."""
    if isinstance(op, hlo.DynamicUpdateSliceOp):
        return True
    if not isinstance(op, hlo.ScatterOp) or len(op.operands) != 3 or op.dims.data != ROWS:
        return False
    array, rows = (hlo.shape_of(operand) for operand in op.operands[:2])
    return array.rank == 2 and (rows.dtype, rows.rank) == ("s32", 1) and parts * array.dims[0] < 1 << 31


def _is_alone(module: HloModule, loop: hlo.WhileOp, stack: _Stack) -> bool:
    """Whether nothing reads the old parts, or what lies between them and the new ones, after the first update, and
    nothing but the loop's result the new ones as a whole.
    """
    body, condition = (module.computation(names.data[0]) for names in (loop.body, loop.condition))
    root = defining_op(body.root)
    if stack.source != stack.index and element_of(packed(body.root)[stack.source], body) != stack.source:
        return False
    for index in (stack.index, stack.source):
        if elements(condition.block.args[0]).get(index):
            return False
        readers = {op for each in elements(body.block.args[0]).get(index, ()) for op in users(each.result)}
        handed_on = {root} if index == stack.source != stack.index else set()
        if not readers <= {stack.part, stack.write} | handed_on:
            return False
    old = stack.old()
    between = [op for op in (*stack.chain[:-1], stack.write) if op not in old]
    if not all(op.results[0].has_one_use() for op in between):
        return False
    early = {op for each in old for op in users(each.results[0]) if op not in stack.chain}
    return not early or early <= _made_of(stack.chain[len(old) - 1].operands[1:])


def _made_of(values: Sequence[Value]) -> set[hlo.HloOp]:
    """All ops of the body that ``values`` are computed from."""
    found, pending = set[hlo.HloOp](), [*values]
    while pending:
        op = defining_op(pending.pop())
        if isinstance(op, hlo.HloOp) and op not in found:
            found.add(op)
            pending += op.operands
    return found


def _update_inplace_of(module: HloModule, loop: hlo.WhileOp, stack: _Stack) -> None:
    if stack.source != stack.index:
        initial = packed(loop.operand)
        initial[stack.index] = initial[stack.source]
        loop.operands = [insert_before(loop, hlo.TupleOp, initial, loop.operand.type, loop.loc)]
    state, number = stack.write.args[0], stack.part.args[1]
    whole = hlo.shape_of(state).dims
    stack.part.operands[0] = state
    for old in stack.old():
        for op in users(old.results[0]):
            if isinstance(op, hlo.DynamicSliceOp):
                replace(op, _from_all_parts(Build.before(module, op), op, state, number))
    for op in stack.chain:
        if not isinstance(op, hlo.ReshapeOp):
            state = _of_all_parts(Build.before(module, op), op, state, number)
    last = stack.chain[-1]
    b, dims = Build.before(module, last), hlo.shape_of(last.results[0]).dims
    zero = b.number_like(0, number)
    part = b.dynamic_slice(b.reshape(state, (whole[0], *dims)), (number, *[zero] * len(dims)), (1, *dims))
    last.results[0].replace_all_uses_with(b.reshape(part, dims))
    replace(stack.write, b.reshape(state, whole))


def _from_all_parts(b: Build, op: hlo.DynamicSliceOp, state: Value, number: Value) -> Value:
    """The window that ``op`` reads of part ``number`` of ``state``."""
    array, *starts = op.args
    whole = b.reshape(state, (hlo.shape_of(state).dims[0], *hlo.shape_of(array).dims))
    return b.reshape(b.dynamic_slice(whole, _at(b, number, starts), (1, *op.shape.dims)), op.shape.dims)


def _of_all_parts(b: Build, op: hlo.HloOp, state: Value, number: Value) -> Value:
    """``state``, of whose part ``number`` alone ``op`` would be the update."""
    parts, dims = hlo.shape_of(state).dims[0], hlo.shape_of(op.results[0]).dims
    if isinstance(op, hlo.DynamicUpdateSliceOp):
        _, update, *starts = op.args
        few = b.reshape(update, (1, *hlo.shape_of(update).dims))
        return b.dynamic_update_slice(b.reshape(state, (parts, *dims)), few, _at(b, number, starts))
    _, rows, updates = op.operands
    found = hlo.shape_of(rows).dims
    least, end = b.number(0, "s32", found), b.number(dims[0], "s32", found)
    inside = (b.compare(rows, least, "GE"), b.compare(rows, end, "LT"))
    is_row = b.typed(hlo.AndOp, inside, hlo.array_type("pred", found))
    first = b.mul(b.convert(number, "s32"), b.number(dims[0], "s32"))
    rows = b.select(is_row, b.add(rows, b.broadcast(first, found)), b.number(-1, "s32", found))
    flat = b.reshape(state, (parts * dims[0], *dims[1:]))
    properties = {**op.properties, "indices_are_sorted": hlo.BoolAttr(False)}
    return b.typed(hlo.ScatterOp, (flat, rows, updates), flat.type, **properties)


def _at(b: Build, number: Value, starts: Sequence[Value]) -> list[Value]:
    """Where a window of part ``number`` starts."""
    return [b.convert(number, hlo.shape_of(starts[0]).dtype) if starts else number, *starts]
