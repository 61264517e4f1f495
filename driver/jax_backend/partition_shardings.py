"""What Shardy makes of a module's annotations, before XLA divides the module: asked, not changed.

Ops that are asked about carry a number, by which they are found again in a copy that Shardy has gone through.
"""

from collections.abc import Container, Iterator, Sequence
from math import prod
from typing import Any, Self

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo
from jaxlib.mlir.passmanager import PassManager

PIPELINE = "builtin.module(sdy-propagation-pipeline)"
_NUMBER = "neuron.number"

Axes = tuple[tuple[str, ...], ...]
"""The mesh axes that split each dim of a value."""


class Found:
    """Axes of operands and results of one op; None of what is split by parts of axes."""

    def __init__(self, op: Any) -> None:
        self.operands = [axes_of(value) for value in op.operands]
        self.results = [axes_of(value) for value in op.results]
        self.touched = [_named(value) for value in op.results]
        """Of results: the axes of which a part, or all, splits each dim."""


def shardings_of(module: Any, ops: Sequence[Any]) -> list[Found | None]:
    """What Shardy finds of each of ``ops`` of ``module``; None of one that it takes away."""
    for number, op in enumerate(ops):
        op.attributes[_NUMBER] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
    copy = module.operation.clone()
    for op in ops:
        del op.attributes[_NUMBER]
    PassManager.parse(PIPELINE).run(copy)
    found: list[Found | None] = [None] * len(ops)

    def note(op: Any) -> Any:
        if _NUMBER in op.attributes:
            found[ir.IntegerAttr(op.attributes[_NUMBER]).value] = Found(op)
        return ir.WalkResult.ADVANCE

    copy.operation.walk(note)
    return found


def shape_of(value: Any) -> list[int]:
    """The sizes of the dims of an array."""
    return list(ir.RankedTensorType(value.type).shape)


def axes_of(value: Any) -> Axes | None:
    """The axes of ``value``, of a module that Shardy has gone through."""
    dims = _references(value)
    parts = any(axis.sub_axis_info is not None for dim in dims for axis in dim)
    return None if parts else tuple(tuple(axis.name for axis in dim) for dim in dims)


def _named(value: Any) -> Axes:
    return tuple(tuple({axis.name: None for axis in dim}) for dim in _references(value))


def _references(value: Any) -> list[list[Any]]:
    """The axes, or parts of these, that split each dim."""
    sharding = _sharding(value)
    if sharding is None:
        return [[] for _ in shape_of(value)] if isinstance(value.type, ir.RankedTensorType) else []
    return [[sdy.AxisRefAttr(axis) for axis in sdy.DimensionShardingAttr(dim).axes] for dim in sharding]


def _sharding(value: Any) -> Any:
    """The dims' shardings, or None where all devices have the value whole."""
    owner = value.owner
    if not isinstance(owner, ir.Block):
        return _result_sharding(owner, ir.OpResult(value).result_number)
    number, parent = ir.BlockArgument(value).arg_number, owner.owner.operation
    if parent.name == "func.func":
        if "arg_attrs" not in parent.attributes:
            return None
        attributes = ir.DictAttr(ir.ArrayAttr(parent.attributes["arg_attrs"])[number])
        if "sdy.sharding" not in attributes:
            return None
        return sdy.TensorShardingAttr(attributes["sdy.sharding"]).dimension_shardings
    return _result_sharding(parent, number) if parent.name == "stablehlo.while" else None


def _result_sharding(op: Any, number: int) -> Any:
    op = op.operation if hasattr(op, "operation") else op
    key = "sdy.sharding" if "sdy.sharding" in op.attributes else "sharding"
    if key not in op.attributes:
        return None
    attribute = op.attributes[key]
    if sdy.TensorShardingAttr.isinstance(attribute):
        return sdy.TensorShardingAttr(attribute).dimension_shardings
    if not sdy.TensorShardingPerValueAttr.isinstance(attribute):
        return None
    return sdy.TensorShardingAttr(list(sdy.TensorShardingPerValueAttr(attribute).shardings)[number]).dimension_shardings


def meshes_of(module: Any) -> dict[str, dict[str, int]]:
    """The axes, and their sizes, of each mesh of ``module``."""
    found = {}
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            axes = [sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(op.attributes["mesh"]).axes]
            found[str(ir.StringAttr(op.attributes["sym_name"]).value)] = {axis.name: axis.size for axis in axes}
    return found


def replicate(op: Any, number: int) -> None:
    """Let every device have an operand of ``op``, in a module with GSPMD's annotations."""
    with ir.InsertionPoint(op), op.location:
        op.operands[number] = replicated_value(op.operands[number]).result


def replicated_value(value: Any) -> Any:
    """The op that makes ``value`` what every device has, at the point of insertion of such a module."""
    call = stablehlo.CustomCallOp([value.type], [value], ir.StringAttr.get("Sharding"))
    call.operation.attributes["mhlo.sharding"] = ir.StringAttr.get("{replicated}")
    return call


def has_manual_parts(module: Any) -> bool:
    """Whether a module with GSPMD's annotations has computations that each device does by itself."""
    return any(_target(op).startswith("SPMD") for op in ops_named(module, ("stablehlo.custom_call",)))


def _target(op: Any) -> str:
    return str(ir.StringAttr(op.attributes["call_target_name"]).value)


def ops_named(module: Any, names: Sequence[str]) -> Iterator[Any]:
    """Ops with one of ``names``, in order, but those inside of manual computations."""
    found: list[Any] = []

    def note(op: Any) -> Any:
        if op.name in names:
            found.append(op)
        return ir.WalkResult.SKIP if op.name == "sdy.manual_computation" else ir.WalkResult.ADVANCE

    module.operation.walk(note, ir.WalkOrder.PRE_ORDER)
    yield from found


class Constraints:
    """Constraints on values of one module."""

    def __init__(self, mesh: str, sizes: dict[str, int]) -> None:
        self.mesh, self.sizes = mesh, sizes
        self.made = 0

    @classmethod
    def of(cls, module: Any) -> Self | None:
        """None where ``module`` does not have one mesh."""
        meshes = meshes_of(module)
        return cls(*next(iter(meshes.items()))) if len(meshes) == 1 else None

    def rows(self, value: Any, axes: Axes | None, added: Sequence[str], but: Container[int] = ()) -> Axes | None:
        """``axes``, and ``added`` on the first dim, none of ``but``, that they divide; None if there is no such dim."""
        if axes is None:
            return None
        axes = self.without(axes, added)
        for dim, (size, old) in enumerate(zip(shape_of(value), axes, strict=True)):
            if dim not in but and size % prod(self.sizes[axis] for axis in (*old, *added)) == 0:
                return tuple((*each, *added) if at == dim else each for at, each in enumerate(axes))
        return None

    def without(self, axes: Axes, removed: Container[str]) -> Axes:
        """``axes`` but those ``removed``."""
        return tuple(tuple(axis for axis in dim if axis not in removed) for dim in axes)

    def operand(self, op: Any, number: int, axes: Axes | None, closed: bool) -> None:
        """Of what ``op`` reads."""
        if axes is not None:
            with ir.InsertionPoint(op), op.location:
                op.operands[number] = self._constraint(op.operands[number], axes, closed).result

    def value(self, op: Any, result: Any, axes: Axes | None, closed: bool) -> None:
        """Of what everyone reads of a result of ``op``."""
        if axes is not None:
            with ir.InsertionPoint.after(op), op.location:
                made = self._constraint(result, axes, closed)
            result.replace_all_uses_except(made.result, made.operation)

    def made_of(self, value: Any, axes: Axes) -> Any:
        """``value``, split by ``axes``, at the point of insertion."""
        return self._constraint(value, axes, closed=True).result

    def _constraint(self, value: Any, axes: Axes, closed: bool) -> Any:
        self.made += 1
        dims = [
            sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(axis) for axis in dim], is_closed=closed) for dim in axes
        ]
        sharding = sdy.TensorShardingAttr.get(ir.FlatSymbolRefAttr.get(self.mesh), dims)
        return sdy.ShardingConstraintOp(value, sharding)
