"""Reads and writes of windows at run-time positions: dynamic-slice, dynamic-update-slice.

The start of a window is loaded into a sequencer register, clamped there as HLO demands, and added to the address. Where
the start is affine in the counts of loops, and so needs no clamp, the address is affine in their registers; what reads
such a window of an array that the loop does not change reads it in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.control import counters
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.views import View, coalesce
from neuronx_cc.codegen.formation.graph import base
from neuronx_cc.codegen.movement.concatenate_kernel import fill
from neuronx_cc.codegen.movement.transfer import blocks_of, copy, is_scattered, put, reordered
from neuronx_cc.codegen.parts import is_there
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.passes.analysis.stored import is_given


def _stride(view: View, axis: int) -> int:
    atoms = coalesce(view.dims[axis])
    return atoms[-1].stride if atoms else 0


def dynamic_slice(context: Context, op: hlo.DynamicSliceOp, step: int) -> None:
    """A DMA whose source address holds the clamped starts; or no more than a view."""
    del step
    operand, *starts = op.args
    source = context.hbm(operand)
    shape = hlo.shape_of(operand)
    window: View | None = source
    for axis, size in enumerate(op.shape.dims):
        window = window.slice(axis, 0, size) if window is not None else None
    if window is None or any(len(atoms) > 1 for atoms in source.dims):
        source = context.dense(operand)
        window = source
        for axis, size in enumerate(op.shape.dims):
            window = window.slice(axis, 0, size) or window
    counted = counters.is_counted(context, op)
    offset = _dynamic_offset(context, source, starts, shape.dims, op.shape.dims, counted)
    window = replace(window, start=window.start + offset)
    stays = is_given(base(operand)) and not context.may_overwrite(operand, source)
    if counted and stays and op.result not in context.outputs:
        context.homes[op.result] = [window]
        return
    target = context.new_hbm(op.result)
    context.homes[op.result] = [target]
    blocks = blocks_of([target, window], op.shape.dims)
    assert blocks is not None, "HBM views align"
    stream = Stream.DMA_LOAD if counted else Stream.DMA_DYNAMIC
    reordered(context.builder, blocks[0], blocks[1], stream, stream)
    if not counted:
        _release_registers(context, offset)


def dynamic_update_slice(context: Context, op: hlo.DynamicUpdateSliceOp, step: int) -> None:
    """The operand's buffer itself when nothing else reads it, else a copy, with the update written into it."""
    _, update, *starts = op.args
    shape, part = op.shape, hlo.shape_of(update)
    target = update_in_place(context, op, step)
    if part.size == 0:
        return
    window: View = target
    for axis, size in enumerate(part.dims):
        cut = window.slice(axis, 0, size)
        assert cut is not None, "a dense array slices"
        window = cut
    counted = counters.is_counted(context, op)
    offset = _dynamic_offset(context, target, starts, shape.dims, part.dims, counted)
    window = replace(window, start=window.start + offset)
    if counted and is_there(context, update, window):
        return
    written, source = _blocks(context, window, update)
    put(context.builder, written, source, Stream.DMA_STORE if counted else Stream.DMA_DYNAMIC)
    if not counted:
        _release_registers(context, offset)


def _blocks(context: Context, window: View, update: hlo.SSAValue) -> list[Block]:
    """Blocks of the window and of a home of ``update`` that is copied there in long runs."""
    dims = hlo.shape_of(update).dims
    for views in (context.views, lambda value: [context.hbm(value)]):
        for view in views(update):
            blocks = blocks_of([window, view], dims)
            if blocks is not None and not is_scattered(context.timing, blocks[0], blocks[1], alone=True):
                return blocks
    blocks = blocks_of([window, context.dense(update)], dims)
    assert blocks is not None, "dense arrays align"
    return blocks


def update_in_place(context: Context, op: hlo.DynamicUpdateSliceOp | hlo.ScatterOp, step: int) -> View:
    """A dense home of the result that holds the first operand: its buffer when nothing else reads it, else a copy.

    The result of the program, or of a loop's iteration, may be that buffer.
    """
    operand, *others = op.args
    result = op.results[0]
    if context.splat(operand) is not None:
        target = context.new_hbm(result)
        fill(context, target, operand)
    else:
        home = context.dense(operand)
        dead = context.last_use(operand) <= step and all(base(other) is not base(operand) for other in others)
        if dead and context.may_overwrite(operand, home) and context.outputs.get(result, home) == home:
            target = home
            context.adopt(result, operand)
        else:
            target = context.new_hbm(result)
            blocks = blocks_of([target, home], hlo.shape_of(operand).dims)
            assert blocks is not None, "dense arrays align"
            copy(context.builder, blocks[0], blocks[1], Stream.DMA_STORE)
    context.homes[result] = [target]
    return target


def _dynamic_offset(
    context: Context,
    view: View,
    starts: Sequence[hlo.SSAValue],
    dims: Sequence[int],
    sizes: Sequence[int],
    counted: bool,
) -> Affine:
    """Byte offset of a window of ``sizes`` at run-time ``starts`` of a dense array, clamped so that it fits."""
    offset = Affine()
    for axis, (start, dim, size) in enumerate(zip(starts, dims, sizes, strict=True)):
        if dim == size:
            continue
        stride = _stride(view, axis)
        constant = context.splat(start)
        if constant is not None:
            offset = offset + min(max(int(constant), 0), dim - size) * stride
            continue
        if counted:
            offset = offset + context.counted[start] * stride
            continue
        register = context.builder.load_register(context.views(start)[0], 0, dim - size, Stream.DMA_DYNAMIC)
        offset = offset + Affine(0, ((register, stride),))
    return offset


def _release_registers(context: Context, offset: Affine) -> None:
    for register, _ in offset.terms:
        context.builder.release_register(register)
