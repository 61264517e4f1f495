"""Calls of functions of the host: operands side by side in one piece of HBM, one ``host_call``, results out of another.

Input: ops as ``passes.resolve_host_calls`` leaves them. No function is called while the program is compiled.
"""

from __future__ import annotations

import numpy as np

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.views import Atom, View, linear
from neuronx_cc.codegen.movement.transfer import transfer
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.host import HOST_CALL, HostCall, Slot, slots
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.passes.resolve_host_calls import function_and_partition


def lower(context: Context, op: hlo.CustomCallOp, step: int) -> None:
    """A custom call with the target ``HOST_CALL``."""
    if op.target.data != HOST_CALL:
        message = f"custom call {op.target.data} has no code generation"
        raise CompileError("EVRF001", message, "write it with plain operators", op.loc)
    assert isinstance(op.result.type, hlo.TupleType), "resolve_host_calls gives calls tuples"
    function, partition = function_and_partition(op)
    operands, operand_bytes = slots([_typed(operand.type) for operand in op.operands])
    results, result_bytes = slots([_typed(type_) for type_ in op.result.type.data])
    made = context.own_hbm(op.result, hlo.Shape("u8", (max(1, result_bytes),)))
    if operand_bytes:
        given = context.own_hbm(op.result, hlo.Shape("u8", (operand_bytes,)))
    else:
        given = context.constant(np.zeros(1, np.uint8), "u8")
    for slot, operand in zip(operands, op.operands, strict=True):
        context.store(operand, _place(given, slot))
    program = context.builder.program
    program.host_calls.append(HostCall(function, partition, operands, results, op.loc))
    number = len(program.host_calls) - 1
    context.builder.emit("host_call", Stream.SYNC, [_piece(made)], [_piece(given)], imm=[number])
    for index, values in context.elements(op.result).items():
        target = context.new_hbm(values[0])
        if hlo.shape_of(values[0]).size:
            transfer(context.builder, target, _place(made, results[index]), Stream.DMA_LOAD)
        for value in values:
            context.lies_within(value, values[0])
            context.homes[value] = [target]


def _typed(type_: hlo.Attribute) -> tuple[str, tuple[int, ...]]:
    assert isinstance(type_, hlo.ArrayType)
    return type_.data.dtype, type_.data.dims


def _place(piece: View, slot: Slot) -> View:
    """The array of ``slot`` in a piece."""
    return linear(piece.alloc, piece.start + slot.offset, slot.dtype, slot.dims)


def _piece(view: View) -> Block:
    """[bytes] of a whole piece."""
    return Block(view.alloc, view.dtype, view.start, (Atom(view.shape[0], 1),))
