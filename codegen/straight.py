"""Operands whose neighbours lie a step apart, or backwards: copied dense ahead of the kernels that load whole runs.

Maps load what lies between and step over it on chip; copies do so, too (``relayout_kernel``).
"""

from __future__ import annotations

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.graph import is_view
from neuronx_cc.codegen.relayout_plan import LEAST_ELEMENTS
from neuronx_cc.codegen.views import View
from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import itemsize

_READERS = (hlo.DotOp, hlo.ConvolutionOp, hlo.ReduceOp)


def straighten(context: Context, op: hlo.HloOp) -> None:
    """Give operands of a contraction or reduction ``op`` a dense home where no other lets a DMA move runs."""
    if not isinstance(op, _READERS):
        return
    for index, operand in enumerate(op.operands):
        if not _steps(operand) or hlo.shape_of(operand).size < LEAST_ELEMENTS:
            continue
        if (op, index) in context.staged or context.literal(operand) is not None:
            continue
        if all(_is_stepped(view) for view in context.in_place(operand)):
            context.dense(operand)


def _steps(value: hlo.SSAValue) -> bool:
    """Whether a reversal or a slice with a step is among the views that ``value`` is."""
    while isinstance(value, hlo.OpResult) and is_view(value.op):
        if isinstance(value.op, hlo.ReverseOp):
            return True
        if isinstance(value.op, hlo.SliceOp) and any(dim.stride > 1 for dim in value.op.slice.data):
            return True
        value = value.op.operands[0]
    return False


def _is_stepped(view: View) -> bool:
    """Whether no two elements of an HBM view are neighbours in order."""
    strides = [atom.stride for atoms in view.dims for atom in atoms if atom.stride]
    return not view.in_sbuf and min(strides, key=abs, default=0) not in (0, itemsize(view.dtype))
