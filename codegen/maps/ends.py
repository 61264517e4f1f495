"""Scans of which others read the state after the last step alone: no other step of theirs is stored.

A loop over ranges of steps hands its state on so. The home of such a scan repeats one step, so that the slices that
read it are views like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.plan import MapPlan, resident_bytes
from neuronx_cc.ir import hlo
from neuronx_cc.ir.scans import scan_of


def find(context: Context, plan: MapPlan, results: Sequence[hlo.SSAValue], step: int) -> None:
    """Note in ``plan`` the scans among ``results`` of which one end is read, and which do not stay on chip."""
    for value in results:
        end, nbytes = _end(context, plan.kernel, value), resident_bytes(context, plan, value, step)
        if end is not None and not (nbytes and context.residents.may_stay(nbytes)):
            plan.ends[value] = end


def home_of(context: Context, value: hlo.SSAValue) -> View:
    """Memory for one step of a scan, as the whole of it."""
    shape, axis = hlo.shape_of(value), _axis(value)
    dims = tuple(size for dim, size in enumerate(shape.dims) if dim != axis)
    placed = context.own_hbm(value, hlo.Shape(shape.dtype, dims))
    return placed.broadcast(shape.dims, [dim for dim in range(shape.rank) if dim != axis])


def stored_of(home: Block, tile: Block, walk: Sequence[int], last: bool) -> tuple[Block, Block]:
    """What is stored of a tile, and where, for ``walk``: the dims of the tile that the scan runs along."""
    for dim in walk:
        at = Affine(tile.dims[dim].size - 1 if last else 0)
        home, tile = home.index(dim, Affine(0), 1), tile.index(dim, at, 1)
    return home, tile


def _axis(value: hlo.SSAValue) -> int:
    scan = scan_of(value.owner)  # type: ignore[arg-type]  # the result of an instruction
    assert scan is not None, "a scan"
    return scan.axis


def _end(context: Context, kernel: Kernel, value: hlo.SSAValue) -> bool | None:
    """Whether it is the last step, not the first, that others than ``kernel`` read of ``value``; None for more."""
    if not isinstance(value.owner, hlo.HloOp) or scan_of(value.owner) is None or value in context.outputs:
        return None
    axis, dims, ends = _axis(value), hlo.shape_of(value).dims, set[bool]()
    for use in value.uses:
        user = use.operation
        if user in kernel.ops:
            continue
        if not isinstance(user, hlo.SliceOp) or user.result in context.outputs or dims[axis] == 1:
            return None
        for dim, (cut, size) in enumerate(zip(user.slice.data, dims, strict=True)):
            if dim == axis and cut.limit - cut.start == 1 and cut.start in (0, size - 1):
                ends.add(cut.start > 0)
            elif (cut.start, cut.limit, cut.stride) != (0, size, 1):
                return None
    return ends.pop() if len(ends) == 1 else None
