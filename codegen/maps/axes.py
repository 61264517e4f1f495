"""Views of a map's operands over the axes of its iteration space."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.views import View, coalesce
from neuronx_cc.codegen.formation.graph import Kernel, base, squeeze
from neuronx_cc.codegen.movement.transfer import transfer
from neuronx_cc.codegen.view_ops import squeezed
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize

SMALL_SHARE = 64
"""How many times smaller than the space an array is that it costs little to copy; such a resident along the innermost
axis does not decide the partitions."""


def axes_view(view: View, kernel: Kernel) -> View:
    """A view of a full or row value, with the axes of the kernel as its dims."""
    view = squeezed(view)
    view = view.of(tuple(kernel.in_order(view.dims)))
    if not kernel.joined:
        return view
    pending, dims = iter(view.dims), []
    for count in kernel.joined:
        if group := tuple(islice(pending, count)):
            dims.append(coalesce(tuple(chain.from_iterable(group))))
    return view.of(tuple(dims))


def value_view(view: View, kernel: Kernel, dims: Sequence[int]) -> View | None:
    """A view of the kernel's axes as one of a value of ``dims``; None where that is no view."""
    own = squeeze(tuple(dims))
    apart = view.reshape(kernel.in_order(own)) if kernel.joined else view
    if apart is not None and len(own) == len(kernel.order):
        apart = apart.transpose([kernel.order.index(dim) for dim in range(len(own))])
    return None if apart is None else unsqueezed(apart, dims)


def full_view(view: View, kernel: Kernel) -> View:
    """A view of a full or row value, as one of the kernel's whole shape."""
    view = axes_view(view, kernel)
    if len(view.dims) < len(kernel.shape):
        return view.broadcast(kernel.shape, range(len(view.dims)))
    return view


def is_small(view: View, kernel: Kernel) -> bool:
    """Whether few elements of an array are repeated for all of the kernel's space."""
    elements = prod(atom.size for atoms in view.dims for atom in atoms if atom.stride or atom.partition)
    return elements * SMALL_SHARE <= prod(kernel.shape)


def varying(view: View) -> list[int]:
    """The axes along which a view varies."""
    return [axis for axis, atoms in enumerate(view.dims) if any(atom.stride or atom.partition for atom in atoms)]


def minor_axis(view: View) -> int:
    """The axis of one stride along which neighbours lie in memory; -1 without one."""
    size = itemsize(view.dtype)
    return next((axis for axis, atoms in enumerate(view.dims) if len(atoms) == 1 and atoms[0].stride == size), -1)


def is_laid_out(full: View, axis: int, step: int) -> bool:
    """Whether a view of the kernel's space goes on along ``axis`` in parts of ``step`` elements."""
    atoms = coalesce(full.dims[axis])
    return len(atoms) < 2 or atoms[-1].size % step == 0


def laid_out(context: Context, value: hlo.SSAValue, kernel: Kernel) -> View:
    """A dense copy in HBM of the axes along which ``value`` varies, repeated along the others."""
    views = [full_view(view, kernel) for view in context.views(value)]
    axes = varying(views[0])
    shape = hlo.Shape(views[0].dtype, tuple(kernel.shape[axis] for axis in axes))
    target = context.own_hbm(base(value), shape)

    def copied(view: View) -> bool:
        part = view.of(tuple(view.dims[axis] for axis in axes))
        return transfer(context.builder, target, part, Stream.DMA_LOAD)

    if not any(map(copied, views)):
        made = copied(full_view(context.hbm(value), kernel))
        assert made, "an HBM view copies to an HBM view"
    return target.broadcast(kernel.shape, axes)


def unsqueezed(view: View, dims: Sequence[int]) -> View:
    pending = iter(view.dims)
    return view.of(tuple([() if size == 1 else next(pending) for size in dims]))
