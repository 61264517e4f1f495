"""What the body of a loop finds unchanged in each iteration. No pass: passes that move ops out of loops ask it.

Loops have ``flatten_control``'s form.
"""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, insert_before, ops_of, retype
from neuronx_cc.passes.analysis.trip_count import Count, element_of
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.simplify_control import elements, pack_root, packed

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

    def row_of(self, value: hlo.SSAValue) -> tuple[hlo.DynamicSliceOp, int, list[str]] | None:
        """What reads ``value`` from an array that the loop does not change, at one index along a dim, which is left
        out; that dim; and the types that it is cast to after that, in order. None where it is no such row.
        """
        casts: list[str] = []
        op = defining_op(value)
        while isinstance(op, hlo.ConvertOp):
            casts.insert(0, op.shape.dtype)
            op = defining_op(op.operand)
        window = defining_op(op.operand) if isinstance(op, hlo.ReshapeOp) else None
        if (
            not isinstance(op, hlo.ReshapeOp)
            or not isinstance(window, hlo.DynamicSliceOp)
            or window.args[0] not in self
        ):
            return None
        whole, part = hlo.shape_of(window.args[0]).dims, window.shape.dims
        cut = [axis for axis, (dim, size) in enumerate(zip(whole, part, strict=True)) if dim != size]
        if len(cut) != 1 or part[cut[0]] != 1 or op.shape.dims != (*part[: cut[0]], *part[cut[0] + 1 :]):
            return None
        return window, cut[0], casts

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
        first = next(ops_of(body.block))
        made = []
        for index, value in enumerate(values, len(initial)):
            properties = {"index": hlo.IntAttr(index)}
            loc = hlo.loc_of(value)
            made.append(insert_before(first, hlo.GetTupleElementOp, [body.block.args[0]], value.type, loc, properties))
        pack_root(body, [*results, *made])
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
