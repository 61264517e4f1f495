"""Moves what every iteration of a loop computes anew out of the loop.

Input: ``flatten_control``'s form. Output: an op in the body of a loop all of whose operands are the same in every
iteration stands ahead of the loop, unless it is free, or its result is much larger than what it is computed from; its
result becomes an element of the state that the loop hands on. No op faults, so it may run ahead of a loop that is not
run. Inner loops come first: what leaves them may leave the outer ones too.
"""

from collections.abc import Set

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, users
from neuronx_cc.passes.analysis.effects import effectful_computations
from neuronx_cc.passes.analysis.loop_state import FREE, Invariants
from neuronx_cc.passes.analysis.trip_count import trip_count
from neuronx_cc.passes.dce import sweep
from neuronx_cc.passes.manager import PassContext, only_for

MOVED = (hlo.ElementwiseOp, hlo.MovementOp, hlo.ContractionOp, hlo.ApplyingOp)
KEPT = (hlo.OptBarrierOp, hlo.CollectiveOp, *FREE)
MOST_GROWTH = 4
"""How many times larger than what it is computed from a result may be."""


@only_for(hlo.WhileOp)
def run(module: HloModule, context: PassContext) -> None:
    effectful = effectful_computations(module)
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.WhileOp) and trip_count(op, module) not in (0, 1):
                _hoist(module, op, effectful)


def _hoist(module: HloModule, loop: hlo.WhileOp, effectful: Set[str]) -> None:
    known = Invariants(module, loop)
    moved: dict[hlo.SSAValue, None] = {}
    for op in ops_of(known.body.block):
        movable = isinstance(op, MOVED) and not isinstance(op, KEPT)
        if movable and all(operand in known for operand in op.operands) and _is_worth(op):
            known.copy(op.results[0])
            moved[op.results[0]] = None
    wanted = [value for value in moved if any(not _is_moved(user, moved) for user in users(value))]
    if not wanted:
        return
    for value, element in zip(wanted, known.hand_in([known.outside[value] for value in wanted]), strict=True):
        value.replace_all_uses_with(element)
    sweep(known.body, effectful)


def _is_moved(user: hlo.Operation, moved: dict[hlo.SSAValue, None]) -> bool:
    return bool(user.results) and user.results[0] in moved


def _is_worth(op: hlo.HloOp) -> bool:
    """Whether reading the result is not much more than reading what it is computed from, and it is no cast on load."""
    casts = isinstance(op, hlo.ConvertOp)
    if casts and all(isinstance(user, hlo.DotOp | hlo.ConvolutionOp) for user in users(op.results[0])):
        return False
    if not isinstance(op.results[0].type, hlo.ArrayType):
        return False
    after = sum(hlo.shape_of(source).nbytes for source in {_source(operand) for operand in op.operands})
    return hlo.shape_of(op.results[0]).nbytes <= MOST_GROWTH * after


def _source(value: hlo.SSAValue) -> hlo.SSAValue:
    """What free ops make ``value`` from."""
    op = defining_op(value)
    while isinstance(op, FREE) and op.operands:
        value = op.operands[0]
        op = defining_op(value)
    return value
