"""Gives while and conditional one form: flat tuples of arrays, and computations of their own.

Input: an inlined module. Output: every ``while`` takes a ``tuple`` op of arrays; its body and condition take that tuple
and use it through ``get-tuple-element`` alone; the body's root is a ``tuple`` op. Every operand of a ``conditional``
after the selector is such a tuple, and so are the parameters and roots of its branches. Results are used through
``get-tuple-element`` alone, once for each element. No computation serves two of these ops. An index that selects a
branch is not negative. What is not used any more is left to ``dissolve_tuples``.
"""

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, erase, insert_before, insert_constant, ops_of, retype
from neuronx_cc.passes.analysis.calls import called_names
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.dissolve_tuples import Path, leaves, pack
from neuronx_cc.passes.expansions.combiners import duplicate
from neuronx_cc.passes.inline_calls import inline, name_under
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.RegionOp)
def run(module: HloModule, context: PassContext) -> None:
    separate(module)
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.RegionOp):
                _flatten(module, op)


def control_computations(module: HloModule) -> set[str]:
    """Names of the bodies, conditions and branches."""
    return {
        name
        for computation in module.computations()
        for op in ops_of(computation.block)
        if isinstance(op, hlo.RegionOp)
        for name in called_names(op)
    }


def inlined(module: HloModule) -> HloModule:
    """A copy without calls, in which each loop and branch has computations of its own.

    Raises CompileError where calls of calls repeat too much.
    """
    copy = module.copy()
    inline(copy)
    separate(copy)
    return copy


def separate(module: HloModule) -> None:
    """Copy computations that more than one op, or one op in two places, has, and tell their ops which one that is."""
    names = {computation.computation_name: computation for computation in module.computations()}
    callers: dict[str, set[str]] = {}
    for computation in names.values():
        for op in ops_of(computation.block):
            for name in called_names(op) if isinstance(op, hlo.RegionOp) else ():
                callers.setdefault(name, set()).add(op.loc.name)
    claimed: set[str] = set()
    called: list[tuple[hlo.RegionOp, hlo.ComputationOp, bool]] = []
    pending = [module.entry]
    while pending:
        caller = pending.pop()
        for op in ops_of(caller.block):
            if not isinstance(op, hlo.RegionOp):
                continue
            for key in ("condition", "body", "branches"):
                attr = op.properties.get(key)
                if not isinstance(attr, hlo.StrsAttr):
                    continue
                own = []
                for name in attr.data:
                    shared = len(callers[name]) > 1  # copies of one loop are told apart by the calls that made them
                    if name in claimed:
                        callers[made := _copy(module, names, name, caller)] = callers[name]
                        name = made
                    claimed.add(name)
                    own.append(name)
                    pending.append(names[name])
                    called.append((op, names[name], shared))
                op.properties[key] = hlo.StrsAttr(tuple(own))
    for above, computation, shared in called:
        for op in ops_of(computation.block):
            name_under(op, above, shared)


def _copy(module: HloModule, names: dict[str, hlo.ComputationOp], name: str, caller: hlo.ComputationOp) -> str:
    number = 1
    while f"{name}.{number}" in names:
        number += 1
    copy = duplicate(module, names[name], f"{name}.{number}")
    module.op.body.block.insert_op_before(copy, caller)
    names[copy.computation_name] = copy
    return copy.computation_name


def _flatten(module: HloModule, op: hlo.RegionOp) -> None:
    for name in called_names(op):
        computation = module.computation(name)
        _flatten_parameter(computation)
        condition = op.properties.get("condition")
        if condition is None or name not in condition.data:  # type: ignore[attr-defined]
            _flatten_root(computation)
    operands = list(op.operands)
    start = 1 if isinstance(op, hlo.ConditionalOp) else 0
    op.operands = [*operands[:start], *(_packed(op, operand) for operand in operands[start:])]
    if isinstance(op, hlo.ConditionalOp):
        _bound_selector(module, op)
    _unpack_result(op)


def _bound_selector(module: HloModule, op: hlo.ConditionalOp) -> None:
    """A negative index selects the last branch, as one that is too large does."""
    index = op.operands[0]
    clamp = defining_op(index)
    if hlo.shape_of(index).dtype == "pred":
        return
    least = splat_number(clamp.operands[0], module) if isinstance(clamp, hlo.ClampOp) else None
    if least is not None and least >= 0:
        return
    zero, last = (
        insert_constant(module, op, np.asarray(number, np.int32), "s32", op.loc)
        for number in (0, len(op.branches.data) - 1)
    )
    pred = hlo.array_type("pred", ())
    properties = {"direction": hlo.StrAttr("LT"), "comparison_type": hlo.StrAttr("SIGNED")}
    negative = insert_before(op, hlo.CompareOp, (index, zero), pred, op.loc, properties)
    op.operands[0] = insert_before(op, hlo.SelectOp, (negative, last, index), index.type, op.loc)


def _packed(anchor: hlo.Operation, value: hlo.SSAValue) -> hlo.SSAValue:
    """``value`` as a ``tuple`` op of its leaves, above ``anchor``."""
    flat = leaves(value.type)
    source = defining_op(value)
    if isinstance(source, hlo.TupleOp) and all(len(path) == 1 for path, _ in flat):
        return value
    parts = [_leaf(anchor, value, path) for path, _ in flat]
    type_ = hlo.tuple_type(tuple(part for _, part in flat))
    return insert_before(anchor, hlo.TupleOp, parts, type_, hlo.loc_of(value))


def _leaf(anchor: hlo.Operation, value: hlo.SSAValue, path: Path) -> hlo.SSAValue:
    for index in path:
        source = defining_op(value)
        if isinstance(source, hlo.TupleOp):
            value = source.operands[index]
            continue
        assert isinstance(value.type, hlo.TupleType)
        properties = {"index": hlo.IntAttr(index)}
        value = insert_before(
            anchor, hlo.GetTupleElementOp, (value,), value.type.data[index], hlo.loc_of(value), properties
        )
    return value


def _flatten_root(computation: hlo.ComputationOp) -> None:
    last = computation.block.last_op
    assert last is not None
    last.operands = [_packed(last, computation.root)]


def _flatten_parameter(computation: hlo.ComputationOp) -> None:
    (parameter,) = computation.block.args
    first = computation.block.first_op
    assert first is not None
    _spread(parameter, first)


def _unpack_result(op: hlo.RegionOp) -> None:
    following = op.next_op
    assert following is not None
    _spread(op.results[0], following)


def _spread(value: hlo.SSAValue, anchor: hlo.Operation) -> None:
    """Make ``value`` a flat tuple; its users get what it was, put together again above ``anchor``."""
    type_ = value.type
    flat = leaves(type_)
    uses = [(use.operation, use.index) for use in value.uses]
    retype(value, hlo.tuple_type(tuple(part for _, part in flat)))
    loc = hlo.loc_of(value)
    elements: dict[Path, hlo.SSAValue] = {}
    for number, (path, part) in enumerate(flat):
        properties = {"index": hlo.IntAttr(number)}
        elements[path] = insert_before(anchor, hlo.GetTupleElementOp, (value,), part, loc, properties)
    reads = [user for user, _ in uses if isinstance(user, hlo.GetTupleElementOp) and (user.index.data,) in elements]
    if len(reads) < len(uses):
        whole = pack(anchor, type_, (), elements, loc)
        for user, index in uses:
            user.operands[index] = whole
    for read in reads:
        # last, for one of them may be the anchor
        read.results[0].replace_all_uses_with(elements[(read.index.data,)])
        erase(read)
