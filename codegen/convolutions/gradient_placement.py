"""Where the arrays of a gradient of a kernel lie, and the problem that this poses."""

from __future__ import annotations

from collections.abc import Sequence

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.convolutions.axis import Axis, Taps, axis_of, batch_axis
from neuronx_cc.codegen.convolutions.form import Form
from neuronx_cc.codegen.convolutions.gradient_problem import Face, Problem
from neuronx_cc.codegen.convolutions.placement import dense_view
from neuronx_cc.codegen.convolutions.problem import Home, operand
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace


def arrays_of(context: Context, form: Form) -> list[View]:
    """Both operands in HBM as [contracted, kept, positions...]."""
    op, dims = form.op, form.op.dims.data
    sides = (
        (op.lhs, (dims.lhs_feature, dims.lhs_batch, *dims.lhs_spatial)),
        (op.rhs, (dims.rhs_input_feature, dims.rhs_output_feature, *dims.rhs_spatial)),
    )
    return [
        dense_view(context, context.source_of(value), order, hlo.shape_of(value).dims[order[1]])
        for value, order in sides
    ]


def pose(context: Context, form: Form, home: View, wholes: Sequence[View]) -> Problem:
    """What is planned; there is room for zeros beside."""
    builder, faces = context.builder, []
    for swapped in (False, True)[: 1 + may_swap(form)]:
        axes, taps = geometry_of(form, swapped)
        left, right = (operand(whole, Home.HBM) for whole in (reversed(wholes) if swapped else wholes))
        kept = tuple(whole.shape[1] // form.groups for whole in wholes)
        out = operand(home.transpose(order_of(form, swapped)), Home.HBM)
        faces.append(Face(axes, taps, (left, right), (kept[swapped], kept[not swapped]), out.dims))
    gap = builder.sbuf.planned_room()
    room = int(gap * 0.95) - min(2 * builder.sizes.bank_bytes, gap // 8)
    fast = context.moves_values(form.pe_dtype)
    return Problem(tuple(faces), form.groups, form.pe_dtype, form.op.shape.dtype, fast, room)


def order_of(form: Form, swapped: bool) -> tuple[int, ...]:
    """Dims of the result as [n, o, taps...]."""
    first, second, *taps = form.orders[2]
    return (second, first, *taps) if swapped else (first, second, *taps)


def geometry_of(form: Form, swapped: bool) -> tuple[tuple[Axis, ...], tuple[Taps, ...]]:
    """Axes and taps of a face.

    ``out[t] = sum over k of x[k + t * stride - pad] * w[k] = sum over q of w[q - t * stride + pad] * x[q]``, which
    are the same taps from the last to the first one.
    """
    lhs, _, out = form.sizes
    channels, images, others = lhs[1], lhs[2:], tuple(dim.size for dim in form.window)
    shifts = [
        replace(dim, size=size, stride=dim.rhs_dilation, rhs_dilation=dim.stride)
        for dim, size in zip(form.window, out[2:], strict=True)
    ]
    if swapped:
        shifts = [replace(dim, pad_low=(dim.size - 1) * dim.rhs_dilation - dim.pad_low) for dim in shifts]
        images, others = others, images
    axes = (
        batch_axis(channels),
        *(axis_of(size, count, dim) for size, count, dim in zip(images, others, shifts, strict=True)),
    )
    taps = tuple(axis.taps[0] for axis in axes)
    if swapped:
        last = [0, *(size - 1 for size in out[2:])]
        taps = tuple(replace(tap, first=end - tap.first, step=-1) for tap, end in zip(taps, last, strict=True))
    return axes, taps


def may_swap(form: Form) -> bool:
    """Whether the taps may move either operand."""
    _, taps = geometry_of(form, False)
    return form.groups == 1 and all(tap.count for tap in taps) and all(dim.rhs_dilation == 1 for dim in form.window)
