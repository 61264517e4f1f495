"""Gathers that contractions read as ``table.Listed``: the home that is planned for, and the numbers on chip."""

from __future__ import annotations

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.table import APART, WORD, Listed
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.views import Atom, View, linear
from neuronx_cc.codegen.formation.graph import base
from neuronx_cc.codegen.indexing.indexed_kernel import stays
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.listed import listed_rows, uses_of


def lay_out(context: Context, op: hlo.GatherOp) -> bool:
    """Give the result of ``op`` such a home, if contractions alone read it and the table stays as it is until then."""
    found = listed_rows(op)
    uses = uses_of(op, context.timing)
    if found is None or not uses or op.result in context.outputs:
        return False
    if any(base(context.source_of(dot.operands[index])) is not op.result for dot, index in uses):
        return False  # a cast is a kernel of its own
    rows, width, count = found
    table = context.hbm(op.lhs)
    size = itemsize(table.dtype)
    if table != linear(table.alloc, table.start, table.dtype, (rows, width)) or table.start.terms:
        return False
    if hlo.shape_of(op.rhs).dtype != "s32" or not stays(context, op.lhs, table):
        return False
    alloc = context.new_resident(op.result, count * WORD)
    if alloc is None:
        return False
    builder, numbers = context.builder, context.dense(op.rhs)
    on_chip = Block(alloc, "s32", Affine(alloc.lo), (Atom(1, 1, True), Atom(count, WORD)))
    stored = Block(numbers.alloc, "s32", numbers.start, (Atom(1, count * WORD), Atom(count, WORD)))
    copy(builder, on_chip, stored, Stream.DMA_LOAD)
    pitch = APART * width * size
    home = linear(table.alloc, table.start, table.dtype, op.shape.dims)
    home = replace(home, dims=((Atom(count, pitch),) if count > 1 else (), *home.dims[1:]))
    context.homes[op.result] = [home]
    kept = View(alloc, "s32", Affine(alloc.lo), ())
    context.listed[op.result] = Listed(kept, pitch, width * size, rows - 1)
    for operand in op.operands:
        context.lies_within(op.result, operand)
    return True
