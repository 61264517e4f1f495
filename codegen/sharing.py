"""Which values may lie in one buffer one after the other, and when a kernel may write its result there.

``dynamic-update-slice``, ``scatter`` and ``all-reduce`` update a buffer in place, loops keep their state in it, and
branches hand it on: a buffer is free only when nothing reads any of these *occupants* any more.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.formation.graph import base, is_view
from neuronx_cc.ir import hlo

_UPDATES = hlo.DynamicUpdateSliceOp | hlo.ScatterOp | hlo.AllReduceOp


def occupants(context: Context, value: hlo.SSAValue, kept: Container[hlo.SSAValue] = ()) -> list[hlo.SSAValue]:
    """``value`` and all that may come to lie in its buffer, but for ``kept``: what is computed elsewhere for sure."""
    found = {value: None}
    pending = [value]
    while pending:
        for result in successors(context, pending.pop()):
            if result not in found and result not in kept:
                found[result] = None
                pending.append(result)
    return list(found)


def successors(context: Context, value: hlo.SSAValue) -> Iterator[hlo.SSAValue]:
    """The results in the same computation that may take over the buffer of ``value``, or show it."""
    for use in _uses(value):
        user = use.operation
        if isinstance(user, _UPDATES) and use.index == 0:
            yield user.results[0]
        elif isinstance(user, hlo.TupleOp):
            for outer in user.result.uses:
                if isinstance(outer.operation, hlo.WhileOp):
                    yield from context.elements(outer.operation.result).get(use.index, ())
                elif isinstance(outer.operation, hlo.ConditionalOp):
                    for same in context.elements(outer.operation.result).values():
                        yield from (element for element in same if element.type == value.type)


def _uses(value: hlo.SSAValue) -> Iterator[Any]:
    """Uses of ``value`` and of its views."""
    for use in value.uses:
        if is_view(use.operation):
            yield from _uses(use.operation.results[0])
        else:
            yield use


def is_free(
    context: Context,
    old: hlo.SSAValue,
    step: int,
    kept: Container[hlo.SSAValue],
    meets: Callable[[hlo.SSAValue], bool],
) -> bool:
    """Whether the buffer of ``old`` may be written at ``step``: what reads an occupant of it comes before.

    ``kept`` as for ``occupants``; what is written is among them. ``meets``: whether the kernel that writes reads an
    occupant only where it writes, so that it may be the last to read it.
    """
    for value in occupants(context, old, kept):
        last = context.last_use(value)
        if last > step or (last == step and not meets(value)):
            return False
    return True


def updates(old: hlo.SSAValue, result: hlo.SSAValue) -> bool:
    """Whether the op of ``result`` may find ``old`` in the buffer that it writes: an update, or a loop."""
    if not isinstance(result, hlo.OpResult):
        return False
    op = result.op
    if isinstance(op, _UPDATES):
        first, *others = op.operands
        return base(first) is old and all(base(other) is not old for other in others)
    if isinstance(op, hlo.GetTupleElementOp) and isinstance(op.operand.owner, hlo.WhileOp):
        initial = op.operand.owner.operand.owner
        if not isinstance(initial, hlo.TupleOp):
            return False
        place = op.index.data
        same = [number for number, value in enumerate(initial.operands) if base(value) is old]
        return same == [place] and initial.operands[place] is old
    return False
