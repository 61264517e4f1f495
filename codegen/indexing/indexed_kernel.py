"""Reads and writes of windows at run-time positions: dynamic-slice, dynamic-update-slice.

The start of a window is loaded into a sequencer register, clamped there as HLO demands, and added to the address. Where
the start is affine in the counts of loops, and so needs no clamp, the address is affine in their registers; what reads
such a window reads it in place, if the loop does not change the array, or not after it was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.control import counters
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.codegen.formation.graph import base
from neuronx_cc.codegen.movement.concatenate_kernel import fill
from neuronx_cc.codegen.movement.transfer import blocks_of, copy, is_scattered, put, reordered
from neuronx_cc.codegen.sharing import successors
from neuronx_cc.codegen.view_ops import as_stored
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.passes.analysis.stored import is_given


def dynamic_slice(context: Context, op: hlo.DynamicSliceOp, step: int) -> None:
    """A DMA whose source address holds the clamped starts; or no more than a view."""
    del step
    operand, counted = op.args[0], counters.is_counted(context, op)
    with _window(context, op, context.hbm(operand)) as window:
        if counted and op.result not in context.outputs and stays(context, operand, window):
            context.lies_within(op.result, operand)
            context.homes[op.result] = [window]
            return
        target = context.new_hbm(op.result)
        context.homes[op.result] = [target]
        blocks = blocks_of([target, window], op.shape.dims)
        assert blocks is not None, "HBM views align"
        stream = Stream.DMA_LOAD if counted else Stream.DMA_DYNAMIC
        reordered(context.builder, blocks[0], blocks[1], stream, stream)


def stays(context: Context, array: hlo.SSAValue, window: View) -> bool:
    """Whether nothing is written over a window of ``array`` until the end of the computation."""
    source = base(array)
    if is_given(source):
        return not context.may_overwrite(source, window)
    return next(successors(context, source), None) is None


def dynamic_update_slice(context: Context, op: hlo.DynamicUpdateSliceOp, step: int) -> None:
    """The operand's buffer itself when nothing else reads it, else a copy, with the update written into it."""
    update, target = op.args[1], update_in_place(context, op, step)
    if hlo.shape_of(update).size == 0:
        return
    counted = counters.is_counted(context, op)
    with _window(context, op, target) as window:
        if not (counted and context.lies_in(update, window)):
            written, source = _blocks(context, window, update)
            put(context.builder, written, source, Stream.DMA_STORE if counted else Stream.DMA_DYNAMIC)


@contextmanager
def _window(context: Context, op: counters.Windowed, array: View) -> Iterator[View]:
    """Where the window of ``op`` lies in ``array``, or in its dense array; registers with its starts are free after."""
    builder, counted = context.builder, counters.is_counted(context, op)
    registers: list[int] = []

    def place(start: hlo.SSAValue, most: int) -> Affine:
        if counted:
            return context.counted[start]
        registers.append(builder.load_register(context.views(start)[0], 0, most, Stream.DMA_DYNAMIC))
        return Affine(0, ((registers[-1], 1),))

    window = counters.window(context, op, array, place)
    if window is None:
        window = counters.window(context, op, context.dense(op.args[0]), place)
    assert window is not None, "a dense array can be cut"
    yield window
    for register in sorted(registers):
        builder.release_register(register)


def _blocks(context: Context, window: View, update: hlo.SSAValue) -> list[Block]:
    """Blocks of the window and of a home of ``update`` that is copied there in long runs."""
    dims = hlo.shape_of(update).dims

    def quick(view: View | None) -> list[Block] | None:
        blocks = blocks_of([window, view], dims) if view is not None else None
        scattered = blocks is None or is_scattered(context.timing, blocks[0], blocks[1], alone=True)
        return None if scattered else blocks

    views = context.views(update)
    found = next((blocks for blocks in map(quick, views) if blocks is not None), None)
    if found is not None:
        return found
    if all(view.in_sbuf for view in views) and quick(as_stored(update)) is not None:
        blocks = blocks_of([window, context.hbm(update)], dims)
    else:
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
        alone = all(base(other) is not base(operand) for other in others)
        if alone and context.takes_over(result, operand, home, step):
            target = home
        else:
            target = context.new_hbm(result)
            blocks = blocks_of([target, home], hlo.shape_of(operand).dims)
            assert blocks is not None, "dense arrays align"
            copy(context.builder, blocks[0], blocks[1], Stream.DMA_STORE)
    context.homes[result] = [target]
    return target
