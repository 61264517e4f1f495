"""The problem that a convolution poses, as its arrays lie, and whether it is easier where they lie in HBM.

Images whose features are convolved each by itself stay on chip at the price of a product of all features for each
kernel position. Where that takes longer, they go through HBM and are computed patch by patch, features last where a
transposed copy of the image pays.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from neuronx_cc.codegen.choose import DOUBT
from neuronx_cc.codegen.context import Context, Transposes
from neuronx_cc.codegen.convolutions import patches
from neuronx_cc.codegen.convolutions.candidates import most_natural
from neuronx_cc.codegen.convolutions.form import Form
from neuronx_cc.codegen.convolutions.problem import Contracted, Home, Operand, Problem, contracted, operand, stride_of
from neuronx_cc.codegen.dots.problem import rounding_of
from neuronx_cc.codegen.emission.views import View, outermost, unplaced
from neuronx_cc.codegen.movement.transfer import nanoseconds, transfer
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

PLANNED_SHARE = (23, 25)
"""Of the room in one piece: what is planned with, for pieces of memory leave gaps."""


@dataclass(frozen=True, slots=True)
class Lying:
    """Arrays of a convolution in canonical order, and how its features lie if they are on chip."""

    x: View
    w: View
    out: View
    constant: bool
    """Whether the kernel is one."""
    features: Contracted | None
    pack: int


def problems_of(
    context: Context, form: Form, lying: Lying, apart: bool, arrays: tuple[Operand, ...] = ()
) -> list[Problem]:
    """Statements of the problem, without an epilogue. ``apart``: groups share no products."""
    x, w, out, sizes = lying.x, lying.w, lying.out, context.builder.sizes
    share, parts = PLANNED_SHARE
    room = context.builder.sbuf.planned_room() * share // parts
    ways = [] if lying.features is None else [lying.features]
    if lying.features is None:
        direct = lying.constant or stride_of(w, 0) < stride_of(w, 1)
        whole = form.inputs * prod(form.sizes[1][2:]) * itemsize(form.pe_dtype) <= most_natural(sizes, room)
        long_run = context.timing.long_run
        short = prod(form.sizes[0][2:]) * itemsize(x.dtype) < long_run
        # transposed positions are runs of features however these are dealt out
        beside = (direct or whole) and (short or stride_of(x, 1) == itemsize(x.dtype))
        thin = not lying.constant and stride_of(w, 1) == form.outputs * itemsize(w.dtype) < long_run
        height = min(sizes.rows, sizes.columns)
        ways = contracted(form.inputs, height, beside, beside and form.groups == 1 and (thin or short))
    return [
        Problem(
            axes=form.axes,
            kernel=form.sizes[1][2:],
            groups=form.groups,
            batch_groups=form.batch_groups,
            outputs=form.outputs,
            features=each,
            pack=lying.pack,
            x=_lies(x),
            w=operand(w, Home.CONSTANT if lying.constant else Home.HBM),
            out=_lies(out),
            dtype=form.pe_dtype,
            flags=rounding_of(form.op),
            moves_values=not apart and context.transposes is not Transposes.BITS,
            room=room,
            arrays=arrays,
        )
        for each in ways
    ]


def _lies(view: View) -> Operand:
    return operand(view, Home.CHIP if view.partition_atom is not None else Home.HBM)


def patches_of(posed: Problem, sizes: Sizes) -> patches.Problem | None:
    """The same as a problem of patches, without its epilogue; None where it is none."""
    if not patches.applies(posed, sizes.rows):
        return None
    batch, rows, columns = posed.axes
    return patches.Problem(
        axes=(batch, rows, columns),
        kernel=(posed.kernel[0], posed.kernel[1]),
        features=posed.groups,
        x=posed.x,
        w=posed.w,
        out=posed.out,
        dtype=posed.dtype,
        flags=posed.flags,
        fast=posed.fast,
        room=posed.room,
        arrays=posed.arrays,
    )


class _Way(NamedTuple):
    """An image in HBM: nanoseconds until it is there, or computed from there, and whether its features are last."""

    time: float
    last: bool


def through_hbm(context: Context, form: Form, value: hlo.SSAValue, lying: Lying) -> View | None:
    """A home of the image ``value`` in HBM, if patches of it take less time beyond doubt than what lies on chip now."""
    alone = (form.inputs, form.outputs, form.batch_groups, len(form.axes)) == (1, 1, 1, 3) and form.groups > 1
    if not alone or not (lying.x.in_sbuf or lying.out.in_sbuf):
        return None
    here = min(map(context.planner.time, problems_of(context, form, lying, False)))
    ways = _ways(context, form, value, lying, DOUBT * here)
    if not ways or min(ways).time > DOUBT * here:
        return None
    order = form.orders[0]
    given = context.hbm(value)
    if not min(ways).last:
        return given.transpose(order)
    turned = outermost(context.own_hbm(value, hlo.shape_of(value)), _positions(form))
    transfer(context.builder, turned, given, Stream.DMA_LOAD, force=True)
    context.homes.setdefault(value, []).append(turned)
    return turned.transpose(order)


def _positions(form: Form) -> tuple[int, ...]:
    batch, _, *spatial = form.orders[0]
    return (batch, *spatial)


def _ways(context: Context, form: Form, value: hlo.SSAValue, lying: Lying, most: float) -> list[_Way]:
    """Those in which patches can be computed, but for some that take more than ``most`` nanoseconds."""
    timing, shape, (order, _, made) = context.timing, hlo.shape_of(value), form.orders
    dense = unplaced(shape.dtype, shape.dims)
    known = [view for view in context.views(value) if not view.in_sbuf]
    given = known[0] if known else dense
    stored = 0.0 if known else timing.transfer(shape.nbytes, timing.long_run, "write").bound + timing.transfer_latency
    result = form.op.shape
    out = unplaced(result.dtype, result.dims).transpose(made)
    ways = []
    for last, view in ((False, given), (True, outermost(dense, _positions(form)))):
        time = stored + (nanoseconds(context.builder, view, given) if last else 0.0)
        for posed in problems_of(context, form, replace(lying, x=view.transpose(order), out=out, features=None), False):
            cut = patches_of(posed, context.builder.sizes)
            if cut is not None and time + patches.least_products(cut, timing) <= most:
                ways.append(_Way(time + context.planner.time(cut), last))
    return ways
