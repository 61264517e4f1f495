"""Which dims of operands and result of an op are the same rows: element i of one is made of elements i of the other."""

from __future__ import annotations

from math import prod

from neuronx_cc.ir import hlo

Sources = tuple[tuple[int, int], ...]
"""(number of an operand, its dim)."""


def kept_dims(op: hlo.Operation) -> dict[int, Sources]:
    """Dims of the result of ``op`` of which each element is made of the same element of dims of operands, if of any
    along these; the op computes as many elements as it is given.
    """
    if not isinstance(op, hlo.HloOp) or not all(isinstance(x.type, hlo.ArrayType) for x in (*op.results, *op.sources)):
        return {}
    if isinstance(op, hlo.ElementwiseOp):
        rank = op.shape.rank
        whole = [index for index, x in enumerate(op.sources) if hlo.shape_of(x).rank == rank]
        return {axis: tuple((index, axis) for index in whole) for axis in range(rank)}
    if isinstance(op, hlo.IotaOp | hlo.ConstantOp):
        return {axis: () for axis in range(op.shape.rank)}
    if isinstance(op, hlo.DotOp):
        return _of_dot(op)
    if isinstance(op, hlo.BroadcastOp):
        return _of_broadcast(op)
    if isinstance(op, hlo.ConcatenateOp):
        sources = range(len(op.sources))
        axes = [axis for axis in range(op.shape.rank) if axis != op.dimension.data]
        return {axis: tuple((index, axis) for index in sources) for axis in axes}
    return {result: ((0, axis),) for result, axis in _of_views(op)}


def _of_dot(op: hlo.DotOp) -> dict[int, Sources]:
    dims = op.dims.data
    found: list[Sources] = [((0, left), (1, right)) for left, right in zip(dims.lhs_batch, dims.rhs_batch, strict=True)]
    around = ((*dims.lhs_batch, *dims.lhs_contracting), (*dims.rhs_batch, *dims.rhs_contracting))
    for index, taken in enumerate(around):
        rank = hlo.shape_of(op.sources[index]).rank
        found += [((index, axis),) for axis in range(rank) if axis not in taken]
    return dict(enumerate(found))


def _of_broadcast(op: hlo.BroadcastOp) -> dict[int, Sources]:
    sizes, dims = hlo.shape_of(op.operand).dims, op.shape.dims
    found: dict[int, Sources] = {axis: () for axis in range(len(dims))}
    for axis, result in enumerate(op.dimensions.data):
        if sizes[axis] == dims[result]:
            found[result] = ((0, axis),)
    return found


def _of_views(op: hlo.HloOp) -> list[tuple[int, int]]:
    """(dim of the result, dim of the first operand) of ops that move elements, or fold them over other dims."""
    if isinstance(op, hlo.TransposeOp):
        return list(enumerate(op.dimensions.data))
    sizes = hlo.shape_of(op.sources[0]).dims if op.sources else ()
    if isinstance(op, hlo.ReshapeOp):
        dims = op.shape.dims
        ahead = {(prod(sizes[:axis]), size): axis for axis, size in enumerate(sizes) if size > 1}
        pairs = [(axis, ahead.get((prod(dims[:axis]), size))) for axis, size in enumerate(dims) if size > 1]
        return [(axis, source) for axis, source in pairs if source is not None]
    if isinstance(op, hlo.ReduceOp) and len(op.sources) == 2:
        return list(enumerate(axis for axis in range(len(sizes)) if axis not in op.dimensions.data))
    if isinstance(op, hlo.SliceOp):
        cuts = enumerate(op.slice.data)
        return [(axis, axis) for axis, cut in cuts if (cut.start, cut.limit, cut.stride) == (0, sizes[axis], 1)]
    if isinstance(op, hlo.PadOp):
        return [(axis, axis) for axis, dim in enumerate(op.padding.data) if dim == hlo.PadDim(0, 0)]
    if isinstance(op, hlo.ReverseOp):
        return [(axis, axis) for axis in range(len(sizes)) if axis not in op.dimensions.data]
    return []


def counts_along(value: hlo.SSAValue) -> int | None:
    """The dim along which ``value`` counts from 0."""
    op = value.owner
    if isinstance(op, hlo.IotaOp):
        return op.iota_dimension.data
    inner = counts_along(op.operand) if isinstance(op, hlo.BroadcastOp | hlo.ReshapeOp) else None
    if isinstance(op, hlo.ReshapeOp):
        return next((axis for axis, source in _of_views(op) if source == inner), None)
    if inner is None or not isinstance(op, hlo.BroadcastOp):
        return None
    axis = op.dimensions.data[inner]
    return axis if hlo.shape_of(op.operand).dims[inner] == op.shape.dims[axis] else None
