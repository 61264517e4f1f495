"""What the body of a loop finds unchanged in each iteration. No pass: passes that move ops out of loops ask it.

Loops have ``flatten_control``'s form.
"""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, insert_before, ops_of, retype
from neuronx_cc.passes.analysis.trip_count import Count, element_of
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.simplify_control import elements, packed

FREE = (hlo.ConstantOp, hlo.IotaOp, hlo.ViewOp)
"""Ops that cost nothing wherever they are: what they make is addressed, or made where it is read."""


class Invariants:
    """The values of a loop's body that are the same in all iterations, and their copies ahead of the loop."""

    def __init__(self, module: HloModule, loop: hlo.WhileOp) -> None:
        self.module = module
        self.loop = loop
        self.body = module.computation(loop.body.data[0])
        initial = packed(loop.operand)
        same = {index for index, result in enumerate(packed(self.body.root)) if element_of(result, self.body) == index}
        self.outside: dict[hlo.SSAValue, hlo.SSAValue] = {
            element.result: initial[index]
            for index, found in elements(self.body.block.args[0]).items()
            if index in same
            for element in found
        }
        """Value of the body -> the same ahead of the loop, as far as it is there already."""

    def __contains__(self, value: hlo.SSAValue) -> bool:
        """Whether ``value`` is known ahead of the loop, or free to make from what is."""
        if value in self.outside:
            return True
        op = defining_op(value)
        return isinstance(op, FREE) and all(operand in self for operand in op.operands)

    def copy(self, value: hlo.SSAValue) -> hlo.SSAValue:
        """``value`` ahead of the loop; the ops that make it are copied, once."""
        if value not in self.outside:
            op = defining_op(value)
            assert isinstance(op, hlo.HloOp), "elements that stay the same are known"
            made = copy_op(op, [self.copy(operand) for operand in op.operands])
            block = self.loop.parent
            assert block is not None
            block.insert_op_before(made, self.loop)
            self.outside[value] = made.results[0]
        return self.outside[value]

    def hand_in(self, values: Sequence[hlo.SSAValue]) -> list[hlo.SSAValue]:
        """Make ``values`` from ahead of the loop elements of its state; the values in the body that they are there."""
        loop, body = self.loop, self.body
        condition = self.module.computation(loop.condition.data[0])
        initial, results = packed(loop.operand), packed(body.root)
        type_ = hlo.tuple_type(tuple(value.type for value in (*initial, *values)))
        loop.operands = [insert_before(loop, hlo.TupleOp, [*initial, *values], type_, loop.loc)]
        for typed in (loop.result, body.block.args[0], condition.block.args[0]):
            retype(typed, type_)
        first, last = next(ops_of(body.block)), body.block.last_op
        assert last is not None
        made = []
        for index, value in enumerate(values, len(initial)):
            properties = {"index": hlo.IntAttr(index)}
            loc = hlo.loc_of(value)
            made.append(insert_before(first, hlo.GetTupleElementOp, [body.block.args[0]], value.type, loc, properties))
        root = insert_before(last, hlo.TupleOp, [*results, *made], type_, hlo.loc_of(body.root))
        last.operands = [root]
        self.outside.update(zip(made, values, strict=True))
        return made


def place_of(module: HloModule, body: hlo.ComputationOp, counted: Count, value: hlo.SSAValue) -> tuple[int, int] | None:
    """What ``value`` is in the first iteration, and by how much it grows with each one."""
    if element_of(value, body) == counted.index:
        return counted.start, counted.step
    number, op = splat_number(value, module), defining_op(value)
    if number is not None:
        return int(number), 0
    if not isinstance(op, hlo.AddOp | hlo.SubtractOp):
        return None
    lhs, rhs = (place_of(module, body, counted, operand) for operand in op.operands)
    sign = 1 if isinstance(op, hlo.AddOp) else -1
    return None if lhs is None or rhs is None else (lhs[0] + sign * rhs[0], lhs[1] + sign * rhs[1])


def is_each_part(
    module: HloModule, body: hlo.ComputationOp, counted: Count, whole: Sequence[int], part: Sequence[int],
    starts: Sequence[hlo.SSAValue],
) -> bool:  # fmt: skip
    """Whether a window is a part of its array, in the iterations each of them once, first to last or last to first."""
    if tuple(part) != (1, *whole[1:]) or counted.trips != whole[0] or counted.trips < 2:
        return False
    place = place_of(module, body, counted, starts[0])
    return place in ((0, 1), (whole[0] - 1, -1))
