"""Makes loops and branches carry less.

Input: ``flatten_control``'s form. Output: the same form, in which

* what a loop hands on unchanged is, after the loop, what it was before it;
* constants and counts among such elements, and among the operands of branches, stand in the computations themselves;
* elements of a loop's state that nothing needs, and results of branches that nothing uses, are gone;
* a loop that is never run is gone, and a branch that is always taken stands where it was chosen.

Callers come first for what is known, callees first for what is needed.
"""

from collections.abc import Sequence, Set

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, erase, insert_before, ops_of, replace, retype
from neuronx_cc.passes.analysis.effects import effectful_computations, has_effects
from neuronx_cc.passes.analysis.trip_count import element_of, trip_count
from neuronx_cc.passes.analysis.values import splat_of
from neuronx_cc.passes.dce import remove_uncalled, sweep
from neuronx_cc.passes.inline_calls import taken_branch
from neuronx_cc.passes.manager import PassContext


def run(module: HloModule, context: PassContext) -> None:
    _take_branches(module)
    computations = list(module.computations())
    for computation in reversed(computations):
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.WhileOp):
                _forward(module, op)
            elif isinstance(op, hlo.ConditionalOp):
                for name, operand in zip(op.branches.data, op.operands[1:], strict=True):
                    values = packed(operand)
                    _place_constants(module, module.computation(name), dict(enumerate(values)))
    effectful = effectful_computations(module)
    for computation in computations:
        sweep(computation, effectful)
        for op in reversed(list(ops_of(computation.block))):
            if isinstance(op, hlo.WhileOp):
                drop_state(module, op, effectful)
            elif isinstance(op, hlo.ConditionalOp):
                _drop_results(module, op, effectful)


def packed(value: hlo.SSAValue) -> list[hlo.SSAValue]:
    """The elements of an operand or root, which a ``tuple`` op packs."""
    source = defining_op(value)
    assert isinstance(source, hlo.TupleOp), "flatten_control gives operands and roots that are tuple ops"
    return list(source.operands)


def pack_root(computation: hlo.ComputationOp, values: Sequence[hlo.SSAValue]) -> None:
    """Let the root of ``computation`` be the tuple of ``values``."""
    last = computation.block.last_op
    assert last is not None
    type_ = hlo.tuple_type(tuple(value.type for value in values))
    last.operands = [insert_before(last, hlo.TupleOp, values, type_, hlo.loc_of(computation.root))]


def elements(value: hlo.SSAValue) -> dict[int, list[hlo.GetTupleElementOp]]:
    """Index -> the ``get-tuple-element``s of a tuple."""
    found: dict[int, list[hlo.GetTupleElementOp]] = {}
    for use in value.uses:
        if isinstance(use.operation, hlo.GetTupleElementOp):
            found.setdefault(use.operation.index.data, []).append(use.operation)
    return found


# what is known


def _take_branches(module: HloModule) -> None:
    """Put the ops of branches that are always taken in the places of their conditionals, callers first."""
    taken = False
    for computation in reversed(list(module.computations())):
        op = computation.block.first_op
        while op is not None:
            following = op.next_op
            index = taken_branch(module, op) if isinstance(op, hlo.ConditionalOp) else None
            if isinstance(op, hlo.ConditionalOp) and index is not None:
                following, taken = _take(module, op, index), True
            op = following
    if taken:
        remove_uncalled(module)


def _take(module: HloModule, op: hlo.ConditionalOp, index: int) -> hlo.Operation:
    """Move the ops of branch ``index`` to the place of ``op``, which goes; returns the first of them."""
    branch, block = module.computation(op.branches.data[index]), op.parent
    assert block is not None
    given = packed(op.operands[1 + index])
    for number, found in elements(branch.block.args[0]).items():
        for element in found:
            replace(element, given[number])
    moved, results = list(ops_of(branch.block)), packed(branch.root)
    for inner in moved:
        branch.block.detach_op(inner)
        block.insert_op_before(inner, op)
    for number, found in elements(op.result).items():
        for element in found:
            replace(element, results[number])
    erase(op)
    return moved[0]


def _forward(module: HloModule, op: hlo.WhileOp) -> None:
    initial = packed(op.operand)
    body = module.computation(op.body.data[0])
    never = trip_count(op, module) == 0
    same = {
        index: initial[index]
        for index, result in enumerate(packed(body.root))
        if never or element_of(result, body) == index
    }
    for index, found in elements(op.result).items():
        for element in found:
            if index in same:
                replace(element, same[index])
    if never:
        erase(op)
    else:
        for computation in (body, module.computation(op.condition.data[0])):
            _place_constants(module, computation, same)


def _place_constants(module: HloModule, computation: hlo.ComputationOp, values: dict[int, hlo.SSAValue]) -> None:
    """Let ``computation`` make those elements of its parameter itself that are constants, splats of one, or count."""
    found = elements(computation.block.args[0])
    first = computation.block.first_op
    assert first is not None
    root = defining_op(computation.root)
    for index, value in values.items():
        source = defining_op(value)
        free = isinstance(source, hlo.ConstantOp | hlo.IotaOp) or splat_of(value, module) is not None
        if index not in found or not free:
            continue
        made = None
        for element in found[index]:
            for use in list(element.result.uses):
                if use.operation is root and use.index == index:
                    continue  # what hands the element on
                made = made or _remade(first, value)
                use.operation.operands[use.index] = made


def _remade(anchor: hlo.Operation, value: hlo.SSAValue) -> hlo.SSAValue:
    """A copy of the ops behind a constant value, above ``anchor``."""
    source = defining_op(value)
    assert isinstance(source, hlo.HloOp)
    copied = copy_op(source, [_remade(anchor, operand) for operand in source.operands])
    block = anchor.parent
    assert block is not None
    block.insert_op_before(copied, anchor)
    return copied.results[0]


# what is needed


def drop_state(module: HloModule, op: hlo.WhileOp, effectful: Set[str]) -> None:
    """Leave out of the loop's state what nothing needs; ``effectful``: computations that do more than compute."""
    body, condition = module.computation(op.body.data[0]), module.computation(op.condition.data[0])
    count = len(packed(op.operand))
    needed = _used(op.result) | _used(condition.block.args[0])
    needs, effects = _dependences(body, effectful)
    needed |= effects
    pending = sorted(needed)
    while pending:
        new = needs[pending.pop()] - needed
        needed |= new
        pending += new
    kept = sorted(needed)
    if len(kept) == count or not kept:
        return
    _keep_root(body, kept)
    sweep(body, effectful)
    _keep_elements(op, kept, body, condition)


def _used(value: hlo.SSAValue) -> set[int]:
    return {
        index
        for index, found in elements(value).items()
        if any(element.result.first_use is not None for element in found)
    }


def _dependences(body: hlo.ComputationOp, effectful: Set[str]) -> tuple[list[set[int]], set[int]]:
    """For each element of the root, the parameter's elements that it is computed from; those that effects need."""
    after: dict[hlo.SSAValue, int] = {body.block.args[0]: 0}
    effects = 0
    for op in ops_of(body.block):
        index = element_of(op.results[0], body)
        mask = 0 if index is None else 1 << index
        for operand in op.operands:
            mask |= after[operand]
        after[op.results[0]] = mask
        if has_effects(op, effectful):
            effects |= mask
    return [_bits(after[value]) for value in packed(body.root)], _bits(effects)


def _bits(mask: int) -> set[int]:
    found = set[int]()
    while mask:
        found.add(mask.bit_length() - 1)
        mask ^= 1 << mask.bit_length() - 1
    return found


def _keep_elements(op: hlo.WhileOp, kept: Sequence[int], body: hlo.ComputationOp, condition: hlo.ComputationOp) -> None:
    """Let the state be its elements ``kept``, which the body's root is already."""
    initial = packed(op.operand)
    type_ = hlo.tuple_type(tuple(initial[index].type for index in kept))
    op.operands = [insert_before(op, hlo.TupleOp, [initial[index] for index in kept], type_, op.loc)]
    for value in (op.result, body.block.args[0], condition.block.args[0]):
        _renumber(value, kept)
        retype(value, type_)


def _keep_root(computation: hlo.ComputationOp, kept: Sequence[int]) -> None:
    results = packed(computation.root)
    pack_root(computation, [results[index] for index in kept])


def _renumber(value: hlo.SSAValue, kept: Sequence[int]) -> None:
    places = {index: place for place, index in enumerate(kept)}
    for index, found in elements(value).items():
        for element in found:
            if index in places:
                element.properties["index"] = hlo.IntAttr(places[index])
            else:
                erase(element)


def _drop_results(module: HloModule, op: hlo.ConditionalOp, effectful: Set[str]) -> None:
    kept = sorted(_used(op.result))
    assert isinstance(op.result.type, hlo.TupleType)
    if len(kept) == len(op.result.type.data) or not kept:
        return
    type_ = hlo.tuple_type(tuple(op.result.type.data[index] for index in kept))
    for name in op.branches.data:
        _keep_root(module.computation(name), kept)
        sweep(module.computation(name), effectful)
    _renumber(op.result, kept)
    retype(op.result, type_)
