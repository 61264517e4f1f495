"""Brings collectives to one form: one operand, groups as device numbers, a reduction that the hardware has.

Input: an inlined module; its header says how many replicas and partitions run it. Output: each collective has one array
as operand and result, and lists the groups (or pairs) of *devices* it connects, device = replica * partitions +
partition, whatever mode and spelling it came in (StableHLO specification, "Collective ops"). Collectives within one
device are gone, as are the identifiers of a dimension of one. A reduction by any other computation becomes an exchange
and a local reduction, an exchange of ragged rows one of all rows and a choice (``ragged_exchange``). Without devices of
their own (one replica, one partition) programs lose them all.
"""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import insert_before, ops_of, replace
from neuronx_cc.passes.analysis.devices import device_counts, state_counts
from neuronx_cc.passes.analysis.values import computation_kind, identity_of
from neuronx_cc.passes.expansions.bodies import apply_body, is_elementwise
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.expansions.ragged_exchange import exchange_rows
from neuronx_cc.passes.manager import PassContext

Groups = tuple[tuple[int, ...], ...]

MAX_DEVICES = 1 << 16
"""That a module without counts may name."""


def run(module: HloModule, context: PassContext) -> None:
    replicas, partitions = _settle_counts(module)
    for computation in module.computations():
        for op in ops_of(computation.block):
            if (isinstance(op, hlo.ReplicaIdOp) and replicas == 1) or (
                isinstance(op, hlo.PartitionIdOp) and partitions == 1
            ):
                replace(op, Build.before(module, op).number(0, "u32"))
            elif isinstance(op, hlo.CollectiveOp):
                _resolve(module, op, replicas, partitions)


def spread(module: HloModule, devices: int) -> None:
    """States that ``devices`` devices run ``module``, as what its collectives number.

    Raises CompileError EVRF001 where the header states another number of them.
    """
    if device_counts(module) != (1, 1):
        replicas, partitions = device_counts(module)
        if replicas * partitions != devices:
            raise CompileError(
                "EVRF001",
                f"the module states {replicas} replicas of {partitions} partitions, {devices} modules are given",
                "give one module for each device",
            )
        return
    _number_alike(module)
    ops = [op for computation in module.computations() for op in ops_of(computation.block)]
    numbered = {_numbering(op) for op in ops if isinstance(op, hlo.CollectiveOp)}
    of_partitions = "partitions" in numbered or numbered == {"devices"}
    state_counts(module, *((1, devices) if of_partitions else (devices, 1)))


def _settle_counts(module: HloModule) -> tuple[int, int]:
    """Replicas and partitions: what the header leaves open is what the groups name, and stands there from now on.

    PyTorch/XLA states neither, and has one numbering of devices: where some of its groups are of replicas, all are.
    Groups of all devices (``use_global_device_ids``) are of partitions, as SPMD programs' are, unless partitions or
    replicas are known otherwise.
    """
    header = dict(module.header)
    given = (header.get("replica_count"), header.get("num_partitions"))
    if None not in given:
        return device_counts(module)
    if given == (None, None):
        _number_alike(module)
    named = {"replicas": 1, "partitions": 1, "devices": 1}
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.CollectiveOp):
                highest = max((number for group in _given_groups(op) for number in group), default=0)
                named[_numbering(op)] = max(named[_numbering(op)], highest + 1)
                if highest >= MAX_DEVICES:
                    raise CompileError(
                        "EVRF001", f"{op.opcode} names device {highest}", f"use fewer than {MAX_DEVICES}", op.loc
                    )
    replicas = int(given[0] or named["replicas"])
    partitions = int(given[1] or max(named["partitions"], -(-named["devices"] // replicas)))
    if given[0] is None:
        replicas = max(replicas, -(-named["devices"] // partitions))
    if replicas * partitions > 1:
        state_counts(module, replicas, partitions)
    return replicas, partitions


def _number_alike(module: HloModule) -> None:
    """Groups of partitions become groups of replicas where there are groups of both."""
    ops = [op for computation in module.computations() for op in ops_of(computation.block)]
    numbering = {op: _numbering(op) for op in ops if isinstance(op, hlo.CollectiveOp) and _given_groups(op)}
    if not {"replicas", "partitions"} <= set(numbering.values()):
        return
    for op, counted in numbering.items():
        if counted == "partitions" and op.extra is not None:
            op.extra = hlo.ExtraAttr(tuple(item for item in op.extra.data if item[0] != "channel_id"))


def _given_groups(op: hlo.HloOp) -> Groups:
    name = "source_target_pairs" if isinstance(op, hlo.CollectivePermuteOp) else "replica_groups"
    attr = op.properties.get(name)
    return attr.data if isinstance(attr, hlo.GroupsAttr) else ()


def _numbering(op: hlo.HloOp) -> str:
    """What the numbers in the groups of ``op`` count."""
    extra = dict(op.extra.data) if op.extra is not None else {}
    if extra.get("use_global_device_ids", "false") == "true":
        return "devices"
    across = isinstance(op, hlo.ExchangeOp) and not isinstance(op, hlo.AllGatherOp)
    return "partitions" if across and _has_channel(op) else "replicas"


def _has_channel(op: hlo.HloOp) -> bool:
    extra = dict(op.extra.data) if op.extra is not None else {}
    return int(extra.get("channel_id", 0)) > 0


def _resolve(module: HloModule, op: hlo.HloOp, replicas: int, partitions: int) -> None:
    groups = device_groups(op, replicas, partitions)
    build = Build.before(module, op)
    if isinstance(op, hlo.AllToAllOp) and op.split_dimension is None:
        _exchange_operands(build, op, groups)
        return
    if isinstance(op, hlo.RaggedAllToAllOp):
        _group_size(op, groups)
        replace(op, exchange_rows(build, op, groups, replicas, partitions))
        return
    is_tuple = isinstance(op.results[0].type, hlo.TupleType)
    types = op.results[0].type.data if isinstance(op.results[0].type, hlo.TupleType) else [op.results[0].type]
    results = [_one(build, op, operand, type_, groups) for operand, type_ in zip(op.operands, types, strict=True)]
    replace(op, insert_before(op, hlo.TupleOp, results, op.results[0].type, op.loc) if is_tuple else results[0])


def device_groups(op: hlo.HloOp, replicas: int, partitions: int) -> Groups:
    """The groups, or pairs, of devices that ``op`` connects. Raises CompileError EVRF001 for numbers out of range."""
    given, numbering = _given_groups(op), _numbering(op)
    limit = {"devices": replicas * partitions, "partitions": partitions, "replicas": replicas}[numbering]
    if not given and not isinstance(op, hlo.CollectivePermuteOp):
        given = (tuple(range(limit)),)
    if any(not 0 <= number < limit for group in given for number in group):
        raise CompileError(
            "EVRF001",
            f"{op.opcode} names device {max(max(group) for group in given)}, but the module is for {replicas} replicas "
            f"and {partitions} partitions",
            "state replica_count and num_partitions in the module's header, or --num-replicas and --num-partitions",
            op.loc,
        )
    if numbering == "devices":
        return given
    if numbering == "partitions":
        return tuple(tuple(r * partitions + p for p in group) for r in range(replicas) for group in given)
    if _has_channel(op):
        return tuple(tuple(r * partitions + p for r in group for p in range(partitions)) for group in given)
    return tuple(tuple(r * partitions + p for r in group) for p in range(partitions) for group in given)


def _one(build: Build, op: hlo.HloOp, operand: hlo.SSAValue, type_: hlo.Attribute, groups: Groups) -> hlo.SSAValue:
    """The collective on one operand."""
    attr = hlo.GroupsAttr(groups)
    if isinstance(op, hlo.CollectivePermuteOp):
        if all(source == target for source, target in groups) and len(groups) == _devices(build.module):
            return operand
        return build.typed(type(op), (operand,), type_, source_target_pairs=attr)
    size = _group_size(op, groups)
    if isinstance(op, hlo.AllGatherOp | hlo.ReduceScatterOp) and not hlo.shape_of(operand).rank:
        return operand
    _check_parts(op, hlo.shape_of(operand).dims, type_, size)
    if size == 1:
        return operand
    properties = {
        name: value
        for name, value in op.properties.items()
        if name in ("to_apply", "all_gather_dimension", "scatter_dimension", "split_dimension")
    }
    if isinstance(op, hlo.ReducingOp) and not _has_reduction(build.module, op, operand):
        return _reduce_locally(build, op, operand, attr, size)
    return build.typed(type(op), (operand,), type_, replica_groups=attr, **properties)


def _check_parts(op: hlo.HloOp, operand: tuple[int, ...], type_: hlo.Attribute, size: int) -> None:
    """Raises CompileError EVRF064 where operand or result is not as many parts as there are devices in a group."""
    assert isinstance(type_, hlo.ArrayType)
    result = type_.data.dims
    if isinstance(op, hlo.AllGatherOp):
        part, whole = operand[op.all_gather_dimension.data] * size, result[op.all_gather_dimension.data]
    elif isinstance(op, hlo.ReduceScatterOp):
        part, whole = result[op.scatter_dimension.data] * size, operand[op.scatter_dimension.data]
    elif isinstance(op, hlo.AllToAllOp) and op.split_dimension is not None:
        whole = operand[op.split_dimension.data]
        part = whole - whole % size
    else:
        return
    if part != whole:
        raise CompileError(
            "EVRF064",
            f"{op.opcode}: expected as many equal parts of {whole} as a group has devices, {size}",
            loc=op.loc,
        )


def _devices(module: HloModule) -> int:
    replicas, partitions = device_counts(module)
    return replicas * partitions


def _group_size(op: hlo.HloOp, groups: Groups) -> int:
    sizes = {len(group) for group in groups}
    if len(sizes) > 1 and not isinstance(op, hlo.AllReduceOp | hlo.CollectiveBroadcastOp):
        raise CompileError("EVRF001", f"{op.opcode} has groups of different sizes", "make them equal", op.loc)
    return max(sizes, default=1)


def _has_reduction(module: HloModule, op: hlo.HloOp, operand: hlo.SSAValue) -> bool:
    kind = computation_kind(module.computation(_body(op)))
    return bool(kind) and identity_of(kind, hlo.shape_of(operand).dtype) is not None


def _body(op: hlo.HloOp) -> str:
    attr = op.properties["to_apply"]
    assert isinstance(attr, hlo.StrsAttr)
    return attr.data[0]


def _reduce_locally(
    build: Build, op: hlo.HloOp, operand: hlo.SSAValue, groups: hlo.GroupsAttr, size: int
) -> hlo.SSAValue:
    """Gather all members' blocks along a new first dim (of a reduce-scatter only those for this one), then reduce."""
    shape = hlo.shape_of(operand)
    if isinstance(op, hlo.ReduceScatterOp):
        axis = op.scatter_dimension.data
        dims = [*shape.dims[:axis], size, shape.dims[axis] // size, *shape.dims[axis + 1 :]]
        split = build.reshape(operand, dims)
        order = [axis, *(other for other in range(len(dims)) if other != axis)]
        blocks = build.transpose(split, order)
        parts = build.typed(
            hlo.AllToAllOp, (blocks,), blocks.type, replica_groups=groups, split_dimension=hlo.IntAttr(0)
        )
    else:
        row = build.reshape(operand, (1, *shape.dims))
        parts = build.op(
            hlo.AllGatherOp,
            (row,),
            shape.dtype,
            (size, *shape.dims),
            replica_groups=groups,
            all_gather_dimension=hlo.IntAttr(0),
        )
    # XLA folds the members' values without an initial value: the first member's serves as one
    each = hlo.shape_of(parts).dims[1:]
    total = build.reshape(build.slice(parts, 0, 0, 1), each)
    body = build.module.computation(_body(op))
    if not is_elementwise(body):
        raise CompileError("EVRF001", f"{op.opcode} by a computation that is not elementwise", "reduce by one", op.loc)
    for member in range(1, size):
        part = build.reshape(build.slice(parts, 0, member, member + 1), each)
        (total,) = apply_body(op, body, (total, part), each)
    return total


def _exchange_operands(build: Build, op: hlo.AllToAllOp, groups: Groups) -> None:
    """The tuple form: operand j goes to member j of the group."""
    size = _group_size(op, groups)
    operands: Sequence[hlo.SSAValue] = list(op.operands)
    if size != len(operands):
        raise CompileError("EVRF001", f"all-to-all of {len(operands)} operands in groups of {size}", "", op.loc)
    if size > 1:
        shape = hlo.shape_of(operands[0])
        rows = build.concatenate([build.reshape(operand, (1, *shape.dims)) for operand in operands], 0)
        moved = build.typed(
            hlo.AllToAllOp,
            (rows,),
            rows.type,
            replica_groups=hlo.GroupsAttr(groups),
            split_dimension=hlo.IntAttr(0),
        )
        operands = [build.reshape(build.slice(moved, 0, j, j + 1), shape.dims) for j in range(size)]
    replace(op, insert_before(op, hlo.TupleOp, operands, op.results[0].type, op.loc))
