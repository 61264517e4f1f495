"""Says of floats that are converted to integers that they are rounded, which costs nothing there.

Input: hlo after the last simplification, for others look for conversions of what is rounded down. Output: whole
numbers are rounded to the nearest ahead of a conversion to integers, and whole bounds come ahead of a rounding:
``convert(round(max(x, 0)))`` for ``convert(max(round(x), 0))``. Engines round what they write as integers (hardware
sheet 5.2), where a program of GpSimd's cuts off what follows the point.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, has_one_use, ops_of, replace
from neuronx_cc.ir.types import WORDS, itemsize
from neuronx_cc.passes.analysis.values import is_float, is_whole, splat_number
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.ConvertOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.ConvertOp) and op.shape.dtype in WORDS:
                _round_last(module, op)


def _round_last(module: HloModule, op: hlo.ConvertOp) -> None:
    """Let ``op`` convert what is rounded, if it is or may be."""
    bounds, value = list[tuple[type[hlo.HloOp], Value]](), op.operand
    if not is_float(hlo.shape_of(value).dtype) or itemsize(hlo.shape_of(value).dtype) > 4:
        return
    while has_one_use(value) and isinstance(outer := defining_op(value), hlo.ClampOp | hlo.ExtremeOp):
        found = _bounds(module, outer)
        if not found:
            break
        value = outer.operand if isinstance(outer, hlo.ClampOp) else outer.operands[0]
        bounds = [*found, *bounds]
    rounding, b = defining_op(value), Build.before(module, op)
    if bounds and isinstance(rounding, hlo.RoundNearestEvenOp) and has_one_use(value):
        value = rounding.operand
        for kind, bound in bounds:
            value = b.each(kind, value, bound)
    elif not isinstance(defining_op(op.operand), hlo.RoundingOp) and is_whole(op.operand, module):
        value = op.operand
    else:
        return
    replace(op, b.convert(b.each(hlo.RoundNearestEvenOp, value), op.shape.dtype))


def _bounds(module: HloModule, op: hlo.ClampOp | hlo.ExtremeOp) -> list[tuple[type[hlo.HloOp], Value]]:
    """The bounds that ``op`` sets, in order; empty if these are not whole numbers."""
    found: list[tuple[type[hlo.HloOp], Value]]
    if isinstance(op, hlo.ClampOp):
        found = [(hlo.MaximumOp, op.minimum), (hlo.MinimumOp, op.maximum)]
    else:
        found = [(type(op), op.operands[1])]
    numbers = [splat_number(bound, module) for _, bound in found if bound.type == op.results[0].type]
    whole = [number for number in numbers if number is not None and float(number).is_integer()]
    return found if len(whole) == len(found) else []
