"""Casts, transposes and orders stacks of constant weights once, of which loops take one by one for their contractions.

Input: any inlined module. Output: ``dot(x, view(cast(dynamic-slice(stack))))``, where no cast widens, reads an element
of a stack of what it multiplies by, with the dims that are summed over ahead of the others: whatever lies in another
order would be transposed on chip in every iteration. Single constants are laid out by ``fold_large_constants`` and code
generation.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of
from neuronx_cc.passes.analysis.constant_stacks import constant_of_stack, element
from neuronx_cc.passes.analysis.contracted import contracted_by
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.DynamicSliceOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.DotOp | hlo.ConvolutionOp):
                for index in range(2):
                    _lay_out(module, op, index)


def _lay_out(module: HloModule, op: hlo.DotOp | hlo.ConvolutionOp, index: int) -> None:
    operand, order = op.operands[index], _order(op, index)
    transposed = order != sorted(order)
    changed = _is_changed(operand)
    if changed is None or not (changed or transposed):
        return
    stack = constant_of_stack(module, operand)
    if stack is None or not stack.places:
        return
    b, ahead = Build.before(module, op), len(stack.places)
    array = stack.array.transpose([*range(ahead), *(ahead + axis for axis in order)])
    op.operands[index] = element(b, b.array(array, hlo.shape_of(operand).dtype), stack.places)
    if transposed:
        assert isinstance(op, hlo.DotOp)
        _rename(op, index, order)


def _order(op: hlo.DotOp | hlo.ConvolutionOp, index: int) -> list[int]:
    """The dims of an operand in the order in which it is to lie."""
    rank = hlo.shape_of(op.operands[index]).rank
    if not isinstance(op, hlo.DotOp):
        return list(range(rank))
    numbers, contracted = op.dims.data, contracted_by(op, index)
    batch = (numbers.lhs_batch, numbers.rhs_batch)[index]
    first = sorted(batch)
    return [*first, *sorted(contracted), *(axis for axis in range(rank) if axis not in (*batch, *contracted))]


def _rename(op: hlo.DotOp, index: int, order: list[int]) -> None:
    numbers = op.dims.data
    contracting, batch = [numbers.lhs_contracting, numbers.rhs_contracting], [numbers.lhs_batch, numbers.rhs_batch]
    for dims in (contracting, batch):
        dims[index] = tuple(order.index(axis) for axis in dims[index])
    op.properties["dims"] = hlo.DotDimsAttr(hlo.DotDims(*contracting, *batch))


def _is_changed(value: hlo.SSAValue) -> bool | None:
    """Whether a cast or a transpose is among what takes ``value`` from an array for one op; None where that is no
    movement, or serves others, or a cast widens. What parts are sliced of serves these.
    """
    changed, sliced, made = False, False, defining_op(value)
    while isinstance(made, hlo.ViewOp | hlo.ConvertOp) and (sliced or made.results[0].has_one_use()):
        sliced |= isinstance(made, hlo.SliceOp)
        before, after = (hlo.shape_of(each).dtype for each in (made.operands[0], made.results[0]))
        if hlo.itemsize(after) > hlo.itemsize(before):
            return None
        changed |= after != before or isinstance(made, hlo.TransposeOp)
        made = defining_op(made.operands[0])
    return changed if isinstance(made, hlo.DynamicSliceOp) and (sliced or made.results[0].has_one_use()) else None
