"""Which elements of a loop's state are worth a place on chip: those that only on-chip instructions read."""

from __future__ import annotations

from neuronx_cc.codegen.graph import ELEMENTWISE, is_view
from neuronx_cc.ir import hlo


def stays_on_chip(module: hlo.HloModule, op: hlo.WhileOp, index: int) -> bool:
    """Whether body and condition read element ``index`` by elementwise ops, reductions and contractions alone.

    Inner loops and branches may do so in turn; a number may also say where a window starts.
    """
    names = (*op.body.data, *op.condition.data)
    return all(_parameter(module, name, index) for name in names)


def _parameter(module: hlo.HloModule, name: str, index: int) -> bool:
    parameter = module.computation(name).block.args[0]
    elements = [use.operation for use in parameter.uses]
    return all(
        _read_on_chip(module, element.result)
        for element in elements
        if isinstance(element, hlo.GetTupleElementOp) and element.index.data == index
    )


def _read_on_chip(module: hlo.HloModule, value: hlo.SSAValue) -> bool:
    return all(_reads_on_chip(module, use.operation, use.index) for use in value.uses)


def _reads_on_chip(module: hlo.HloModule, user: hlo.Operation, place: int) -> bool:
    if isinstance(user, hlo.TupleOp):
        return all(_hands_on(module, use.operation, use.index, place) for use in user.result.uses)
    if not isinstance(user, hlo.HloOp):
        return False
    if is_view(user):
        return _read_on_chip(module, user.results[0])
    if isinstance(user, hlo.DynamicSliceOp):
        return place >= 1
    if isinstance(user, hlo.DynamicUpdateSliceOp):
        return place >= 2
    return user.opcode in ELEMENTWISE or isinstance(user, hlo.ReduceOp | hlo.DotOp)


def _hands_on(module: hlo.HloModule, user: hlo.Operation, operand: int, index: int) -> bool:
    """A tuple whose element ``index`` is the value, as an operand of ``user``."""
    if isinstance(user, hlo.WhileOp):
        return stays_on_chip(module, user, index)
    if isinstance(user, hlo.ConditionalOp):
        return operand == 0 or _parameter(module, user.branches.data[operand - 1], index)
    return isinstance(user, hlo.ReturnOp)
