"""Which sharding the values have that a program asks about (``jax.debug.inspect_array_sharding``)."""

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

TARGET = "InspectSharding"
"""The custom call that JAX emits; its configuration is the number of a function (``host_calls``)."""


def take_inspections(module: Any) -> list[tuple[int, Any, bool]]:
    """(number, TensorShardingAttr or None, whether the value is a device's own) of each call, which is removed."""
    found: list[Any] = []

    def note(op: Any) -> Any:
        if op.name == "stablehlo.custom_call" and ir.StringAttr(op.attributes["call_target_name"]).value == TARGET:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    inspections = []
    for op in found:
        number = int(ir.StringAttr(op.attributes["backend_config"]).value)
        inspections.append((number, _sharding(op.operands[0]), _is_manual(op)))
        op.erase()
    return inspections


def _is_manual(op: Any) -> bool:
    while op is not None and op.name != "builtin.module":
        if op.name == "sdy.manual_computation":
            return True
        op = op.parent
    return False


def _sharding(value: Any) -> Any:
    """The annotation of ``value``, an op's result or a parameter of a function."""
    if isinstance(value.owner, ir.Block):
        function = value.owner.owner
        if "arg_attrs" not in function.attributes:
            return None
        given = ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[ir.BlockArgument(value).arg_number])
        if "sdy.sharding" not in given:
            return None
        return given["sdy.sharding"]
    op = value.owner
    if "sdy.sharding" not in op.attributes:
        return None
    each = sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings
    return sdy.TensorShardingAttr(each[ir.OpResult(value).result_number])
