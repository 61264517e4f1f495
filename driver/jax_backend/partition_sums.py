"""Unreduced axes of shardings, which jaxlib's passes would drop: they become sums and masks.

A value with an unreduced axis is the sum of what the devices along that axis hold. Inside of a program it is an
annotation alone, and any placement of the whole value will do. Where values of single devices are seen (arguments and
results of the program and of manual computations) whole values are made by an all-reduce, and unreduced ones by zeros
on all devices but the first of an axis, or by leaving out the all-reduce that has just made the value.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import product
from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from neuronx_cc.driver.jax_backend.partition_mesh import manual_axes, map_shardings

CHANNEL = 1
MASK = "neuron.mask"
"""Marks the masks of manual computations, with the groups of devices of which only the first keeps its value."""
DEVICE_TO_DEVICE = 1


class Sums:
    """The unreduced axes of a module and of its function ``main``."""

    def __init__(self, module: Any, function: Any) -> None:
        """Remove them from ``module``; manual computations get their sums and masks at once."""
        self._meshes = {
            ir.StringAttr(op.attributes["sym_name"]).value: sdy.MeshAttr(op.attributes["mesh"])
            for op in module.body.operations
            if op.operation.name == "sdy.mesh"
        }
        self._function = function
        self.arguments = _of_function(function, "arg_attrs")
        self.results = _of_function(function, "res_attrs")
        for op in _manual_computations(module):
            self._bound(op)
        map_shardings(module, _reduced)

    def finish(self) -> None:
        """Make the sums of arguments and the masks of results in the local function."""
        block = self._function.regions[0].blocks[0]
        self._sum_arguments(block, self.arguments)
        self._drop_masks_of_sums()
        last = list(block.operations)[-1].operation
        self._change_operands(last, self.results, self._unsummed)

    def _drop_masks_of_sums(self) -> None:
        """Where a sum is masked over the same devices, what was summed is as good, and what other devices expect."""
        found: list[Any] = []

        def note(op: Any) -> Any:
            if MASK in op.attributes:
                found.append(op)
            return ir.WalkResult.ADVANCE

        self._function.operation.walk(note)
        for op in found:
            given = op.operands[1]
            rows = ir.StringAttr(op.attributes[MASK]).value
            del op.attributes[MASK]
            if _sums_over(given) == rows:
                op.results[0].replace_all_uses_with(given.owner.operation.operands[0])
                op.erase()
                if not list(given.uses):
                    given.owner.operation.erase()

    def _bound(self, op: Any) -> None:
        manual = manual_axes(op)

        def inner(key: str) -> list[Any]:
            shardings = sdy.TensorShardingPerValueAttr(op.attributes[key]).shardings
            found = [_unreduced(sdy.TensorShardingAttr(each)) for each in shardings]
            return [each and (each[0], [axis for axis in each[1] if axis in manual]) for each in found]

        block = op.regions[0].blocks[0]
        first = next(iter(block.operations))
        for value, axes in zip(block.arguments, inner("in_shardings"), strict=True):
            if axes and axes[1]:
                with ir.InsertionPoint(first), op.location:
                    self._replace(value, self._marked_mask, axes)
        self._change_operands(list(block.operations)[-1].operation, inner("out_shardings"), self._summed)

    def _sum_arguments(self, block: Any, unreduced: Iterable[Any]) -> None:
        first = next(iter(block.operations))
        for value, axes in zip(block.arguments, unreduced, strict=True):
            if axes:
                with ir.InsertionPoint(first), first.location:
                    self._replace(value, self._summed, axes)

    @staticmethod
    def _replace(value: Any, change: Callable[[Any, Any], Any], axes: Any) -> None:
        uses = [(use.owner, use.operand_number) for use in value.uses]
        new = change(value, axes)
        for owner, index in uses:
            owner.operands[index] = new

    @staticmethod
    def _change_operands(op: Any, unreduced: Iterable[Any], change: Callable[[Any, Any], Any]) -> None:
        for index, axes in enumerate(unreduced):
            if axes and axes[1]:
                old = op.operands[index]
                with ir.InsertionPoint(op), op.location:
                    op.operands[index] = change(old, axes)
                if not isinstance(old.owner, ir.Block) and not list(old.uses):
                    old.owner.erase()

    def _unsummed(self, value: Any, unreduced: tuple[str, list[str]]) -> Any:
        """What a device contributes: its part before a sum or a gathering over these axes, else the mask's."""
        op = None if isinstance(value.owner, ir.Block) else value.owner.operation
        rows = _text(self._groups(*unreduced))
        if op is not None and _sums_over(value) == rows:
            return op.operands[0]
        if op is None or op.name != "stablehlo.all_gather" or _text(_replica_groups(op)) != rows:
            return self._masked(value, unreduced)
        given = _replica_groups(op)
        part, dim = op.operands[0], ir.IntegerAttr(op.attributes["all_gather_dim"]).value
        step = ir.RankedTensorType(part.type).shape[dim]
        offsets = {device: at * step for row in given for at, device in enumerate(row)}
        zero = stablehlo.ConstantOp(ir.Attribute.parse("dense<0> : tensor<i32>")).result
        starts = [zero] * len(ir.RankedTensorType(part.type).shape)
        starts[dim] = _of_this_device([offsets[device] for device in sorted(offsets)])
        return stablehlo.DynamicUpdateSliceOp(zeros_of(value.type), part, starts).result

    def _groups(self, name: str, axes: list[str]) -> list[list[int]]:
        return groups_along(self._meshes[name], axes)

    def _summed(self, value: Any, unreduced: tuple[str, list[str]]) -> Any:
        return summed(value, self._groups(*unreduced))

    def _masked(self, value: Any, unreduced: tuple[str, list[str]]) -> Any:
        name, axes = unreduced
        first = {device: not any(at[axis] for axis in axes) for device, at in _places(self._meshes[name])}
        word = _of_this_device([int(first[device]) for device in sorted(first)])
        bit = stablehlo.ConvertOp(ir.RankedTensorType.get([], ir.IntegerType.get_signless(1)), word).result
        return stablehlo.SelectOp(bit, value, zeros_of(value.type)).result

    def _marked_mask(self, value: Any, unreduced: tuple[str, list[str]]) -> Any:
        masked = self._masked(value, unreduced)
        masked.owner.operation.attributes[MASK] = ir.StringAttr.get(_text(self._groups(*unreduced)))
        return masked


def _places(mesh: Any) -> Iterable[tuple[int, dict[str, int]]]:
    """Every device of a mesh with its coordinates, in row-major order."""
    axes = [(axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, mesh.axes)]
    devices = list(mesh.device_ids) or range(prod(size for _, size in axes))
    places = product(*(range(size) for _, size in axes))
    for device, place in zip(devices, places, strict=True):
        yield device, {axis: at for (axis, _), at in zip(axes, place, strict=True)}


def groups_along(mesh: Any, axes: Collection[str]) -> list[list[int]]:
    """Devices of ``mesh`` that differ in ``axes`` alone."""
    groups: dict[Any, list[int]] = {}
    for device, at in _places(mesh):
        groups.setdefault(tuple(at[axis] for axis in at if axis not in axes), []).append(device)
    return list(groups.values())


def summed(value: Any, rows: list[list[int]]) -> Any:
    """The sum of what each group of devices holds."""
    op = stablehlo.AllReduceOp(
        [value.type],
        [value],
        replica_groups=ir.Attribute.parse(f"dense<{rows}> : tensor<{len(rows)}x{len(rows[0])}xi64>"),
        channel_handle=stablehlo.ChannelHandle.get(CHANNEL, DEVICE_TO_DEVICE),
        use_global_device_ids=True,
    )
    scalar = ir.RankedTensorType.get([], ir.RankedTensorType(value.type).element_type)
    body = op.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(body):
        stablehlo.ReturnOp([stablehlo.AddOp(*body.arguments).result])
    return op.results[0]


def _text(rows: list[list[int]]) -> str:
    return str(sorted(sorted(row) for row in rows))


def _sums_over(value: Any) -> str:
    """The groups of devices that the all-reduce which makes ``value`` adds over."""
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "stablehlo.all_reduce":
        return ""
    op = value.owner.operation
    inner = [each.operation.name for each in op.regions[0].blocks[0].operations]
    return _text(_replica_groups(op)) if inner[0] == "stablehlo.add" else ""


def _of_this_device(table: list[int]) -> Any:
    """The i32 scalar that ``table`` has for this device."""
    values = stablehlo.ConstantOp(ir.Attribute.parse(f"dense<{table}> : tensor<{len(table)}xi32>")).result
    scalar = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
    here = stablehlo.ConvertOp(scalar, stablehlo.PartitionIdOp().result).result
    one = stablehlo.DynamicSliceOp(values, [here], ir.DenseI64ArrayAttr.get([1])).result
    return stablehlo.ReshapeOp(scalar, one).result


def _replica_groups(op: Any) -> list[list[int]]:
    groups = ir.DenseIntElementsAttr(op.attributes["replica_groups"])
    rows, size = ir.RankedTensorType(groups.type).shape
    flat = [groups[index] for index in range(rows * size)]
    return [flat[row * size : (row + 1) * size] for row in range(rows)]


def zeros_of(kind: Any) -> Any:
    """A constant of the tensor type ``kind``."""
    text = _zero(ir.RankedTensorType(kind).element_type)
    return stablehlo.ConstantOp(ir.Attribute.parse(f"dense<{text}> : {kind}")).result


def _zero(element: Any) -> str:
    text = str(element)
    if text.startswith("complex"):
        return "(0.0, 0.0)"
    return "0" if text.startswith(("i", "ui", "si")) else "0.0"


def _manual_computations(module: Any) -> list[Any]:
    found: list[Any] = []

    def note(op: Any) -> Any:
        if op.name == "sdy.manual_computation":
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    return found


def _unreduced(sharding: Any) -> tuple[str, list[str]] | None:
    """Mesh and unreduced axes of a sharding."""
    axes = [axis.name for axis in map(sdy.AxisRefAttr, sharding.unreduced_axes)]
    return (ir.FlatSymbolRefAttr(sharding.mesh_or_ref).value, axes) if axes else None


def _of_function(function: Any, key: str) -> list[tuple[str, list[str]] | None]:
    if key not in function.attributes:
        return []
    found = []
    for dictionary in ir.ArrayAttr(function.attributes[key]):
        named = ir.DictAttr(dictionary)
        has = "sdy.sharding" in named
        found.append(_unreduced(sdy.TensorShardingAttr(named["sdy.sharding"])) if has else None)
    return found


def _reduced(sharding: Any) -> Any:
    if not len(sharding.unreduced_axes):
        return sharding
    return sdy.TensorShardingAttr.get(
        sharding.mesh_or_ref, list(sharding.dimension_shardings), list(sharding.replicated_axes), []
    )
