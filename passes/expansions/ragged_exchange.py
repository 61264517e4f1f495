"""``ragged-all-to-all`` by a collective of fixed size. No pass: ``resolve_collectives`` asks for it.

Every device gathers all operands with their offsets and sizes, and takes the rows that are meant for it: the number of
rows between any two devices is known at run time only, and an exchange of fixed size must have room for all of them.
"""

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.passes.expansions.build import Build, Value

Groups = tuple[tuple[int, ...], ...]


def exchange_rows(b: Build, op: hlo.RaggedAllToAllOp, groups: Groups, replicas: int, partitions: int) -> Value:
    """The second operand [m, ...] with the rows that the group's devices send from their first one [n, ...].

    Input offsets, send sizes and output offsets hold equally many numbers for each member of the group. They are the
    sender's: which rows of its operand go to which rows of the receiver's output. The sizes that a device says it
    receives are the senders' again. Source: ``jax.lax.ragged_all_to_all``, whose lowering is this op.
    Raises CompileError EVRF001 for another number of them.
    """
    operand, output, *numbers = op.operands[:5]
    size = max(map(len, groups), default=1)
    shape, result = hlo.shape_of(operand), hlo.shape_of(output)
    slices, rest = divmod(hlo.shape_of(numbers[0]).size, size)
    if rest:
        raise CompileError(
            "EVRF001",
            f"ragged-all-to-all of {slices * size + rest} slices in groups of {size}",
            "give equally many offsets and sizes for each device of the group",
            op.loc,
        )
    if 0 in (result.size, shape.dims[0], slices):
        return output
    rows = _gathered(b, operand, groups, size)
    table = b.concatenate([b.reshape(b.convert(each, "s32"), (1, size * slices)) for each in numbers], 0)
    told = b.reshape(_gathered(b, table, groups, size), (size, 3, size, slices))
    zero = b.number(0, "s32")
    told = b.dynamic_slice(told, (zero, zero, _place(b, groups, replicas, partitions), zero), (size, 3, 1, slices))
    each = (size * slices, result.dims[0])
    source, count, target = (
        b.broadcast(b.reshape(b.slice(told, 1, kind, kind + 1), each[:1]), each, [0]) for kind in range(3)
    )
    first = np.repeat(np.arange(size, dtype=np.int32) * shape.dims[0], slices)
    row = b.iota(each, 1)
    inside = b.each(hlo.AndOp, b.compare(row, target, "GE"), b.compare(row, b.add(target, count), "LT"))
    origin = b.add(b.add(b.sub(row, target), source), b.broadcast(b.array(first, "s32"), each, [0]))
    origin = b.reduce(hlo.MaximumOp, b.select(inside, origin, b.number(-1, "s32", each)), [0], -1)
    found = _rows(b, b.reshape(rows, (size * shape.dims[0], *shape.dims[1:])), origin)
    is_sent = b.compare(origin, b.number_like(0, origin), "GE")
    return b.select(b.broadcast(is_sent, result.dims, [0]), found, output)


def _gathered(b: Build, array: Value, groups: Groups, size: int) -> Value:
    """All members' arrays along a new first dim."""
    shape = hlo.shape_of(array)
    row = b.reshape(array, (1, *shape.dims))
    if size == 1:
        return row
    attributes = {"replica_groups": hlo.GroupsAttr(groups), "all_gather_dimension": hlo.IntAttr(0)}
    return b.op(hlo.AllGatherOp, (row,), shape.dtype, (size, *shape.dims), **attributes)


def _place(b: Build, groups: Groups, replicas: int, partitions: int) -> Value:
    """This device's place in its group."""
    order = np.zeros(replicas * partitions, np.int32)
    for group in groups:
        order[list(group)] = np.arange(len(group))
    device = b.number(0, "s32")
    if replicas > 1:
        replica = b.convert(b.op(hlo.ReplicaIdOp, (), "u32", ()), "s32")
        device = b.mul(replica, b.number(partitions, "s32"))
    if partitions > 1:
        device = b.add(device, b.convert(b.op(hlo.PartitionIdOp, (), "u32", ()), "s32"))
    return b.reshape(b.dynamic_slice(b.array(order, "s32"), (device,), (1,)), ())


def _rows(b: Build, table: Value, places: Value) -> Value:
    """``table[places]``; places before the first row are the first."""
    shape = hlo.shape_of(table)
    dims = (*hlo.shape_of(places).dims, *shape.dims[1:])
    return b.typed(
        hlo.GatherOp,
        (table, places),
        hlo.array_type(shape.dtype, dims),
        dims=hlo.GatherDimsAttr(hlo.GatherDims(tuple(range(1, shape.rank)), (0,), (0,), 1)),
        slice_sizes=hlo.IntsAttr((1, *shape.dims[1:])),
        indices_are_sorted=hlo.BoolAttr(False),
    )
