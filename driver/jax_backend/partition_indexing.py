"""Gathers and additive scatters whose indices are split over devices: each device takes or adds its own rows.

jaxlib's conversion to local shapes does not know these ops. Where the array that is indexed lies whole on every device,
they become manual computations: a gather takes the rows of its part of the indices, a scatter adds the rows of its part
to zeros, and an all-reduce adds up what the devices have made.
"""

from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from neuronx_cc.driver.jax_backend.partition_reductions import is_splat, kind_of
from neuronx_cc.driver.jax_backend.partition_sums import groups_along, summed, zeros_of

Axes = list[list[str]]
"""Axes of each dim."""


def spread(op: Any, meshes: dict[str, Any]) -> bool:
    """Replace ``op`` by a manual computation; False where it must be computed whole."""
    if op.name == "stablehlo.gather":
        return _spread_gather(op, meshes)
    return op.name == "stablehlo.scatter" and _spread_scatter(op, meshes)


def _spread_gather(op: Any, meshes: dict[str, Any]) -> bool:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    if list(numbers.operand_batching_dims):
        return False
    mesh, axes = _split_of(op.results[0])
    inside = [each for dim, each in enumerate(axes) if dim not in set(numbers.offset_dims)]
    indices = _of_indices(op.operands[1], numbers.index_vector_dim, inside)
    rows = [[] if dim in set(numbers.offset_dims) else each for dim, each in enumerate(axes)]
    used = {axis for each in rows for axis in each}
    if not used:
        return False
    whole: Axes = [[] for _ in _dims(op.operands[0])]

    def body(table: Any, local: Any) -> Any:
        return _again(op, [table, local], _local(op.results[0].type, rows, meshes[mesh])).results[0]

    _manual(op, mesh, meshes[mesh], used, [whole, indices], rows, body)
    return True


def _spread_scatter(op: Any, meshes: dict[str, Any]) -> bool:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    if len(op.operands) != 3 or list(numbers.input_batching_dims) or kind_of(op) != "stablehlo.add":
        return False
    mesh, axes = _split_of(op.operands[2])
    updates = [[] if dim in set(numbers.update_window_dims) else each for dim, each in enumerate(axes)]
    used = {axis for each in updates for axis in each}
    if not used:
        return False
    inside = [each for dim, each in enumerate(axes) if dim not in set(numbers.update_window_dims)]
    indices = _of_indices(op.operands[1], numbers.index_vector_dim, inside)
    whole: Axes = [[] for _ in _dims(op.operands[0])]
    groups = groups_along(meshes[mesh], used)

    def body(table: Any, local: Any, rows: Any) -> Any:
        kind = op.results[0].type
        total = summed(_again(op, [zeros_of(kind), local, rows], kind).results[0], groups)
        return total if is_splat(op.operands[0], 0) else stablehlo.AddOp(table, total).result

    _manual(op, mesh, meshes[mesh], used, [whole, indices, updates], whole, body)
    return True


def _of_indices(indices: Any, vector_dim: int, inside: Axes) -> Axes:
    """Axes of the indices: those of the result's or updates' dims that enumerate them, none for the index vector."""
    return inside if vector_dim == len(_dims(indices)) else [*inside[:vector_dim], [], *inside[vector_dim:]]


def _manual(op: Any, mesh: str, known: Any, used: set[str], given: list[Axes], made: Axes, body: Any) -> None:
    """Put a manual computation of ``body`` over the axes ``used`` in the place of ``op``."""
    order = [axis.name for axis in map(sdy.MeshAxisAttr, known.axes) if axis.name in used]
    with ir.InsertionPoint(op), op.location:
        shardings = [_sharding(mesh, axes) for axes in given]
        operands = [
            sdy.ReshardOp(value, sharding).result for value, sharding in zip(op.operands, shardings, strict=True)
        ]
        manual = sdy.ManualComputationOp(
            [op.results[0].type],
            operands,
            sdy.TensorShardingPerValueAttr.get(shardings),
            sdy.TensorShardingPerValueAttr.get([_sharding(mesh, made)]),
            sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in order]),
        )
        types = [_local(value.type, axes, known) for value, axes in zip(op.operands, given, strict=True)]
        block = manual.regions[0].blocks.append(*types)
        with ir.InsertionPoint(block):
            sdy.ReturnOp([body(*block.arguments)])
    op.results[0].replace_all_uses_with(manual.results[0])
    op.erase()


def _again(op: Any, operands: list[Any], kind: Any) -> Any:
    """``op`` on other operands."""
    attributes = {name: op.attributes[name] for name in op.attributes if name != "sdy.sharding"}
    new = ir.Operation.create(op.name, [kind], operands, attributes, regions=len(op.regions))
    for old, region in zip(op.regions, new.regions, strict=True):
        for block in old.blocks:
            copy = region.blocks.append(*[argument.type for argument in block.arguments])
            known = dict(zip(block.arguments, copy.arguments, strict=True))
            with ir.InsertionPoint(copy):
                for each in block.operations:
                    inner = each.operation.clone()
                    for index, operand in enumerate(inner.operands):
                        inner.operands[index] = known.get(operand, operand)
                    known.update(zip(each.operation.results, inner.results, strict=True))
    return new


def _split_of(value: Any) -> tuple[str, Axes]:
    """Mesh and axes of a value; no axes where its sharding is not known."""
    sharding = None
    if isinstance(value.owner, ir.Block):
        function = value.owner.owner.operation
        if function.name == "func.func" and "arg_attrs" in function.attributes:
            named = ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[ir.BlockArgument(value).arg_number])
            sharding = {named[at].name: named[at].attr for at in range(len(named))}.get("sdy.sharding")
    else:
        op = value.owner.operation
        if op.name in ("sdy.reshard", "sdy.sharding_constraint"):
            sharding = op.attributes["sharding"]
        elif "sdy.sharding" in op.attributes:
            each = sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings
            sharding = list(each)[ir.OpResult(value).result_number]
    if sharding is None:
        return "", [[] for _ in _dims(value)]
    sharding = sdy.TensorShardingAttr(sharding)
    axes = [
        [axis.name for axis in map(sdy.AxisRefAttr, dim.axes)]
        for dim in map(sdy.DimensionShardingAttr, sharding.dimension_shardings)
    ]
    return ir.FlatSymbolRefAttr(sharding.mesh_or_ref).value, axes


def _sharding(mesh: str, axes: Axes) -> Any:
    dims = [
        sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(axis) for axis in each], is_closed=True) for each in axes
    ]
    return sdy.TensorShardingAttr.get(ir.FlatSymbolRefAttr.get(mesh), dims)


def _local(kind: Any, axes: Axes, mesh: Any) -> Any:
    sizes = {axis.name: axis.size for axis in map(sdy.MeshAxisAttr, mesh.axes)}
    tensor = ir.RankedTensorType(kind)
    parts = [size // prod(sizes[axis] for axis in each) for size, each in zip(tensor.shape, axes, strict=True)]
    return ir.RankedTensorType.get(parts, tensor.element_type)


def _dims(value: Any) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)
