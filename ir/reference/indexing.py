"""Reference semantics of gather, scatter, sort and topk.

Gather clamps its start indices so that every slice fits; scatter skips updates whose window does not fit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.combiners import COMBINERS
from neuronx_cc.ir.reference.elementwise import total_order_key
from neuronx_cc.ir.reference.evaluator import Evaluator, unpack
from neuronx_cc.ir.reference.values import Array, Value, is_float


def _start_vectors(
    indices: Array,
    vector_dim: int,
    rank: int,
    index_map: Sequence[int],
    operand_batching: Sequence[int],
    indices_batching: Sequence[int],
) -> Array:
    """Full start positions, ``[*batch dims, rank]`` as int64."""
    vectors = indices[..., None] if vector_dim == indices.ndim else np.moveaxis(indices, vector_dim, -1)
    batch = vectors.shape[:-1]
    starts = np.zeros((*batch, rank), np.int64)
    for position, dim in enumerate(index_map):
        starts[..., dim] = vectors[..., position]
    for dim, indices_dim in zip(operand_batching, indices_batching, strict=True):
        axis = indices_dim if indices_dim < vector_dim else indices_dim - 1
        starts[..., dim] = np.arange(batch[axis]).reshape([-1 if i == axis else 1 for i in range(len(batch))])
    return starts


def _window_indices(starts: Array, sizes: Sequence[int]) -> tuple[Array, ...]:
    """Index arrays that broadcast to ``[*batch, *sizes]``."""
    batch, rank = starts.shape[:-1], len(sizes)
    arrays = []
    for dim, size in enumerate(sizes):
        first = starts[..., dim].reshape(*batch, *(1,) * rank)
        arrays.append(first + np.arange(size).reshape([-1 if i == dim else 1 for i in range(rank)]))
    return tuple(arrays)


def gather(op: hlo.GatherOp, operand: Array, indices: Array) -> Array:
    """Slices of the operand at clamped start indices; batch dims and ``offset_dims`` interleave in the result."""
    dims, sizes = op.dims.data, op.slice_sizes.data
    starts = _start_vectors(
        indices,
        dims.index_vector_dim,
        operand.ndim,
        dims.start_index_map,
        dims.operand_batching_dims,
        dims.start_indices_batching_dims,
    )
    limits = np.array([total - size for total, size in zip(operand.shape, sizes, strict=True)], np.int64)
    starts = np.clip(starts, 0, limits)
    batch = starts.shape[:-1]
    gone = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    kept = [size for dim, size in enumerate(sizes) if dim not in gone]
    slices = np.asarray(operand[_window_indices(starts, sizes)]) if operand.ndim else np.broadcast_to(operand, batch)
    slices = slices.reshape((*batch, *kept))
    return np.moveaxis(slices, range(len(batch), len(batch) + len(kept)), dims.offset_dims)


def scatter(evaluator: Evaluator, op: hlo.ScatterOp, *args: Array) -> Value:
    """Operands with the updates combined in, in the order of the indices; windows that do not fit are skipped."""
    count = len(args) // 2
    operands, indices, updates = args[:count], args[count], args[count + 1 :]
    dims = op.dims.data
    rank = operands[0].ndim
    starts = _start_vectors(
        indices,
        dims.index_vector_dim,
        rank,
        dims.scatter_dims_to_operand_dims,
        dims.input_batching_dims,
        dims.scatter_indices_batching_dims,
    )
    gone = {*dims.inserted_window_dims, *dims.input_batching_dims}
    window_dims = dims.update_window_dims
    batch_rank = updates[0].ndim - len(window_dims)
    moved = [np.moveaxis(update, window_dims, range(batch_rank, update.ndim)) for update in updates]
    window = iter(moved[0].shape[batch_rank:])
    sizes = [1 if dim in gone else next(window) for dim in range(rank)]
    rows = [update.reshape(-1, *sizes) for update in moved]
    starts = starts.reshape(rows[0].shape[0], rank)
    limits = np.array([total - size for total, size in zip(operands[0].shape, sizes, strict=True)], np.int64)
    fits = np.all((starts >= 0) & (starts <= limits), axis=1)
    places = _window_indices(starts[fits], sizes)
    results = [operand.copy() for operand in operands]
    _combine(evaluator, op.to_apply.data[0], results, places, [row[fits] for row in rows])
    return unpack(results)


def _combine(
    evaluator: Evaluator, name: str, results: list[Array], places: tuple[Array, ...], updates: list[Array]
) -> None:
    opcode = evaluator.binary_opcode(name)
    if opcode in COMBINERS and len(results) == 1 and results[0].dtype.kind != "V":
        COMBINERS[opcode].at(results[0], places, updates[0])
        return
    for row in range(updates[0].shape[0]):
        at = tuple(np.broadcast_to(place, updates[0].shape)[row] for place in places)
        parts = evaluator.call_on_arrays(
            name, *(result[at] for result in results), *(update[row] for update in updates)
        )
        for result, part in zip(results, parts, strict=True):
            result[at] = part


def sort(evaluator: Evaluator, op: hlo.SortOp, *arrays: Array) -> Value:
    """Sorts the arrays together along ``dimension``, always stably."""
    axis = op.dimension.data
    partitions = [np.moveaxis(array, axis, -1) for array in arrays]
    order = _key_order(evaluator.computation(op.to_apply.data[0]), partitions)
    if order is None:
        order = _merge_order(evaluator, op.to_apply.data[0], partitions)
    return unpack(np.moveaxis(np.take_along_axis(partition, order, -1), -1, axis) for partition in partitions)


def _key_order(comparator: hlo.ComputationOp, partitions: list[Array]) -> Array | None:
    """Indices that sort the last dim stably by one of the arrays, if ``comparator`` compares that alone; no NaNs."""
    op, parameters = comparator.block.first_op, comparator.block.args
    if not isinstance(op, hlo.CompareOp) or comparator.root is not op.result or op.direction.data not in ("LT", "GT"):
        return None
    sides = [next((at for at, x in enumerate(parameters) if x is side), -1) for side in op.operands]
    if min(sides) < 0 or sides[0] ^ 1 != sides[1] or op.comparison_type.data == "TOTALORDER":
        return None
    key = partitions[sides[0] // 2]
    if is_float(key):
        key = key.astype(np.float64)
        if np.isnan(key).any():
            return None
    elif key.dtype.kind not in "biu":
        return None
    if (op.direction.data == "GT") != (sides[0] % 2 == 1):
        key = -key if key.dtype.kind == "f" else ~key
    return np.argsort(key, axis=-1, kind="stable")


def _merge_order(evaluator: Evaluator, comparator: str, partitions: list[Array]) -> Array:
    """Indices that sort the last dim stably: bottom-up merge, each merge by binary searches done all at once."""
    dims, length = partitions[0].shape, partitions[0].shape[-1]
    position = np.arange(length)
    order = np.broadcast_to(position, dims).copy()

    def before(left: Array, right: Array) -> Array:
        """Whether the element at index ``left`` sorts strictly before that at ``right`` (indices of the input)."""
        pairs = [np.take_along_axis(partition, at, -1) for partition in partitions for at in (left, right)]
        return evaluator.call_on_arrays(comparator, *pairs)[0]

    width = 1
    while width < length and order.size:
        block = position // (2 * width) * (2 * width)
        in_left = position - block < width
        middle = np.minimum(block + width, length)
        other_first = np.where(in_left, middle, block)
        other_last = np.where(in_left, np.minimum(block + 2 * width, length), middle)
        low, high = (np.broadcast_to(bound, dims).copy() for bound in (other_first, other_last))
        while np.any(low < high):
            probe = (low + high) // 2
            candidate = np.take_along_axis(order, np.minimum(probe, length - 1), -1)
            # an equal element of the left run goes first, one of the right run after
            goes_first = np.where(in_left, before(candidate, order), ~before(order, candidate))
            open_ = low < high
            low = np.where(open_ & goes_first, probe + 1, low)
            high = np.where(open_ & ~goes_first, probe, high)
        target = position - np.where(in_left, 0, width) + (low - other_first)
        merged = np.empty_like(order)
        np.put_along_axis(merged, target, order, -1)
        order = merged
        width *= 2
    return order


def topk(op: hlo.TopkOp, x: Array) -> Value:
    """(values, s32 indices) of the k first of the last dim in descending (or ascending) total order, stably."""
    key: Any = total_order_key(x) if is_float(x) else x
    if op.largest.data:
        key = ~key  # reverses the order of any integers and keeps ties stable
    order = np.argsort(key, axis=-1, kind="stable")[..., : op.k.data]
    return (np.take_along_axis(x, order, -1), order.astype(np.int32))


INDEXING: dict[str, Callable[..., Value]] = {"gather": gather, "topk": topk}

INDEXING_CALLING: dict[str, Callable[..., Value]] = {"scatter": scatter, "sort": sort}
