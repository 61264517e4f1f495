"""Gathers of neighbours of the same places become one gather, of all neighbours side by side.

Samplers read an image at the four pixels around each place: four gathers, whose indices differ by one and are held
inside of the image. Input: gathers of one operand whose indices are functions of the same numbers, by few steps with
constants (``indexing.shifts``). Output: one gather from as many copies of the operand, each of the rows that one of
them takes where the numbers meet, if that takes less time. What is found is the same, bit for bit, at any index.
"""

from collections import defaultdict
from math import prod
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.indexing.costs import costs_of
from neuronx_cc.passes.indexing.gather_plan import Asked, choose
from neuronx_cc.passes.indexing.known import taken
from neuronx_cc.passes.indexing.rows import Windows, counting_axis, whole_labels
from neuronx_cc.passes.indexing.shifts import Met, Place, met, place_of
from neuronx_cc.passes.manager import PassContext, only_for

Array = np.ndarray[Any, Any]
MOST_TOGETHER = 16
"""Gathers of one group."""
COPIES = 2
"""Times that an operand's copies are moved, to be put together."""
OVERLAP = 0.9
"""Of the time of a gather by GpSimd, where another follows whose tables are loaded meanwhile."""
MOST_COPIES = 4
"""Times the numbers along a dim at which places meet, of those that the dim has."""


@only_for(hlo.GatherOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        groups: dict[object, list[hlo.GatherOp]] = defaultdict(list)
        for op in ops_of(computation.block):
            if isinstance(op, hlo.GatherOp) and op.shape.size:
                key = _array(op.lhs), op.dims.data, op.slice_sizes.data, hlo.shape_of(op.rhs)
                groups[key].append(op)
        for group in groups.values():
            if len(group) > 1:
                _merge(group, module, context)


def _array(value: hlo.SSAValue) -> object:
    """Equal for equal views of one value, of which each gather may have its own."""
    op = defining_op(value)
    if isinstance(op, hlo.TransposeOp):
        return value.type, op.dimensions.data, _array(op.operand)
    return (value.type, _array(op.operand)) if isinstance(op, hlo.ReshapeOp) else value


def _merge(gathers: list[hlo.GatherOp], module: HloModule, context: PassContext) -> None:
    """Replace those of ``gathers``, which take windows of one size from one operand, that belong together."""
    apart: dict[object, list[tuple[hlo.GatherOp, list[Place]]]] = defaultdict(list)
    for op in gathers:
        parts = _components(op)
        if parts is not None:
            places = [place_of(part, module) for part in parts]
            apart[tuple(place.key for place in places)].append((op, places))
    for together in apart.values():
        if 1 < len(together) <= MOST_TOGETHER:
            b = Build.before(module, together[0][0], context.timing)
            _merged(b, [op for op, _ in together], [places for _, places in together])


def _components(op: hlo.GatherOp) -> list[hlo.SSAValue] | None:
    """The parts of the index vectors, as they are put together."""
    dims, made = op.dims.data, defining_op(op.rhs)
    if len(dims.start_index_map) == 1:
        return [op.rhs]
    joined = isinstance(made, hlo.ConcatenateOp) and made.dimension.data == dims.index_vector_dim
    return list(made.operands) if joined and len(made.operands) == len(dims.start_index_map) else None  # type: ignore[union-attr]


def _merged(b: Build, gathers: list[hlo.GatherOp], places: list[list[Place]]) -> None:
    op = gathers[0]
    dims, shape, sizes = op.dims.data, hlo.shape_of(op.lhs), op.slice_sizes.data
    found: dict[int, Met] = {}
    for part, dim in enumerate(dims.start_index_map):
        meeting = met([each[part] for each in places], shape.dims[dim] - sizes[dim])
        if meeting is None:
            return
        if (meeting.rows != meeting.rows[0]).any():
            if isinstance(defining_op(meeting.root), hlo.IotaOp | hlo.ConstantOp):
                return  # known places, which are no gather in the end
            if sizes[dim] != 1 or meeting.rows.shape[1] > MOST_COPIES * shape.dims[dim] + MOST_COPIES:
                return
            found[dim] = meeting
    if not found or not _is_quicker(b, op, len(gathers), found):
        return
    copies = [b.reshape(copy, (1, *hlo.shape_of(copy).dims)) for copy in _copies(b, op.lhs, len(gathers), found)]
    indices = _components(op)
    assert indices is not None, "asked before"
    numbers = [
        found[dim].number(b) if dim in found else part for dim, part in zip(dims.start_index_map, indices, strict=True)
    ]
    stacked = b.concatenate(copies, 0)
    together = b.typed(
        hlo.GatherOp,
        (stacked, numbers[0] if len(numbers) == 1 else b.concatenate(numbers, dims.index_vector_dim)),
        hlo.array_type(op.shape.dtype, (len(gathers), *op.shape.dims)),
        dims=hlo.GatherDimsAttr(_with_copies(dims)),
        slice_sizes=hlo.IntsAttr((len(gathers), *sizes)),
        indices_are_sorted=hlo.BoolAttr(False),
    )
    results = [b.reshape(b.slice(together, 0, index, index + 1), op.shape.dims) for index in range(len(gathers))]
    for each, result in zip(gathers, results, strict=True):
        replace(each, result)


def _copies(b: Build, operand: hlo.SSAValue, count: int, found: dict[int, Met]) -> list[hlo.SSAValue]:
    """Of ``operand`` the rows that each of ``count`` gathers takes: parts of one array with a few more rows, if any."""
    copies = [operand] * count
    for dim, together in found.items():
        whole, firsts = _joined(together.rows)
        if whole is None:
            copies = [taken(b, copy, dim, rows) for copy, rows in zip(copies, together.rows, strict=True)]
            continue
        held = {id(copy): taken(b, copy, dim, whole) for copy in copies}
        length = together.rows.shape[1]
        copies = [b.slice(held[id(copy)], dim, at, at + length) for copy, at in zip(copies, firsts, strict=True)]
    return copies


def _joined(rows: Array) -> tuple[Array | None, list[int]]:
    """A list of which each of ``rows`` is a part, not much longer, and where they start; None if there is none."""
    length = rows.shape[1]
    order = sorted(range(len(rows)), key=lambda index: tuple(rows[index].tolist()))
    whole, firsts = rows[order[0]], [0] * len(rows)
    for index in order:
        part = rows[index]
        starts = range(len(whole) - length, len(whole))
        first = next((at for at in starts if (whole[at : at + length] == part[: len(whole) - at]).all()), None)
        if first is None:
            return None, []
        firsts[index] = first
        whole = np.concatenate([whole, part[len(whole) - first :]])
    return whole, firsts


def _with_copies(dims: hlo.GatherDims) -> hlo.GatherDims:
    """The same with a dim that is taken whole ahead of the operand's, and of the result's."""

    def moved(each: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dim + 1 for dim in each)

    return hlo.GatherDims(
        (0, *moved(dims.offset_dims)),
        moved(dims.collapsed_slice_dims),
        moved(dims.start_index_map),
        dims.index_vector_dim,
        moved(dims.operand_batching_dims),
        dims.start_indices_batching_dims,
    )


def _is_quicker(b: Build, op: hlo.GatherOp, count: int, found: dict[int, Met]) -> bool:
    """Whether one gather, with the copies that it reads, takes less time than ``count``."""
    costs, dims, shape = costs_of(b), op.dims.data, hlo.shape_of(op.lhs)
    sides = [found[dim].rows.shape[1] if dim in found else size for dim, size in enumerate(shape.dims)]
    nbytes = count * prod(sides) * itemsize(shape.dtype)
    single = choose(costs, _asked(b, op, shape.dims, dims, op.slice_sizes.data, op.shape.rank))
    apart = count * single.ns * (OVERLAP if single.form == "groups" else 1)
    plan = choose(
        costs, _asked(b, op, (count, *sides), _with_copies(dims), (count, *op.slice_sizes.data), op.shape.rank + 1)
    )
    if plan.form == "groups":
        return plan.ns + costs.transposed(COPIES * nbytes) < apart
    # rows of all neighbours, of which what follows reads parts
    run = prod(sides[max(found) + 1 :]) * itemsize(shape.dtype)
    parts = count * op.shape.size * itemsize(shape.dtype)
    reads = costs.timing.transfer(parts, run).bound - costs.moved(parts)
    return plan.ns + costs.transposed(nbytes) + reads < apart


def _asked(
    b: Build, op: hlo.GatherOp, sides: tuple[int, ...], dims: hlo.GatherDims, sizes: tuple[int, ...], rank: int
) -> Asked:
    indices = hlo.shape_of(op.rhs)
    batch = tuple(size for axis, size in enumerate(indices.dims) if axis != dims.index_vector_dim)
    paired = {
        dim: axis - (axis > dims.index_vector_dim)
        for dim, axis in zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True)
    }
    starts = {}
    for dim, part in zip(dims.start_index_map, _components(op) or (), strict=True):
        flat = b.reshape(part, batch)
        axis = counting_axis(b, flat, sides[dim], batch, paired)
        if axis is None:
            starts[dim] = flat
        else:
            paired[dim] = axis
    windows = Windows(sides, sizes, starts, paired, batch)
    gone = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    kept = [axis for axis in range(len(sides)) if axis not in gone]
    wanted = whole_labels(rank, dims.offset_dims, kept)
    dtype = op.shape.dtype
    return Asked(windows, wanted, dtype, itemsize(dtype), True)
