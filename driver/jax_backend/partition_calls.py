"""Custom calls that XLA's partitioner must be told about: functions of the host, and questions about shardings.

Both have effects, so XLA refuses them unless a function of Python partitions them. A function of the host is called on
every device with whole arrays (its configuration says which device's results count); a question is noted and vanishes.
Inside of manual computations XLA leaves both alone.
"""

import base64
from typing import Any

from jaxlib import _hlo, _jax, xla_client  # type: ignore[attr-defined,unused-ignore]
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from neuronx_cc.ir.isa.host import HOST_CALL

JAX_INSPECTION = "InspectSharding"
"""The custom call of ``jax.debug.inspect_array_sharding``; its configuration is a number (``host_calls``)."""
INSPECTION = "neuron.inspection"
"""Its name here: jaxlib has a partitioner for JAX's name, which takes the configuration for an address."""
EFFECT = "neuron.effect"
"""The name here of calls of the host that have effects."""


class Calls:
    """What has to be done with the custom calls of the module that is being partitioned."""

    def __init__(self) -> None:
        self.inspections: list[tuple[int, str]] = []
        """Number of a function, and the serialized OpSharding in base64 of the value that it asks about."""
        for name, rule in ((EFFECT, self._whole), (INSPECTION, self._inspect)):
            xla_client.register_custom_call_partitioner(
                name, lambda sharding, *_: sharding, rule, lambda *_: replicated(), True
            )

    def prepare(self, module: Any) -> None:
        """Give the calls in ``module`` the names that have a partitioner here."""
        self.inspections.clear()
        single = {
            ir.StringAttr(op.attributes["sym_name"]).value
            for op in module.body.operations
            if op.operation.name == "sdy.mesh" and not len(sdy.MeshAttr(op.attributes["mesh"]).axes)
        }

        def visit(op: Any) -> Any:
            if op.name == "stablehlo.custom_call":
                self._prepare(op, single)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)

    def _prepare(self, op: Any, single: set[str]) -> None:
        name = ir.StringAttr(op.attributes["call_target_name"]).value
        if name == JAX_INSPECTION:
            op.attributes["call_target_name"] = ir.StringAttr.get(INSPECTION)
        elif (
            name == HOST_CALL
            and "has_side_effect" in op.attributes
            and ir.BoolAttr(op.attributes["has_side_effect"]).value
        ):
            op.attributes["call_target_name"] = ir.StringAttr.get(EFFECT)
        if "sdy.sharding" in op.attributes:
            each = sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings
            meshes = {ir.FlatSymbolRefAttr(sdy.TensorShardingAttr(one).mesh_or_ref).value for one in each}
            if meshes & single or name == HOST_CALL:
                del op.attributes["sdy.sharding"]

    def _whole(self, shapes: Any, shardings: Any, result: Any, made: Any, config: bytes) -> Any:
        parameters = [f"p{index} = {shape} parameter({index})" for index, shape in enumerate(shapes)]
        names = ", ".join(f"p{index}" for index in range(len(shapes)))
        call = (
            f'ROOT c = {result} custom-call({names}), custom_call_target="{HOST_CALL}", '
            "custom_call_has_side_effect=true, api_version=API_VERSION_STATUS_RETURNING, "
            f'backend_config="{config.decode()}"'
        )
        whole = replicated()
        if result.is_tuple():
            whole = _hlo.HloSharding.tuple_sharding(result, [replicated() for _ in result.tuple_shapes()])
        given = [each if each.is_manual() else replicated() for each in shardings]
        return computation([*parameters, call]), given, made if is_manual(made) else whole

    def _inspect(self, shapes: Any, shardings: Any, result: Any, _: Any, config: bytes) -> Any:
        given = shardings[0].to_proto().SerializeToString()
        self.inspections.append((int(config), base64.b64encode(given).decode()))
        return computation([f"ROOT p = {shapes[0]} parameter(0)"]), [shardings[0]], shardings[0]


def is_manual(sharding: Any) -> bool:
    """Of a value or a tuple: whether a manual computation has it."""
    return any(each.is_manual() for each in [sharding, *sharding.tuple_elements()])


def replicated() -> Any:
    return _hlo.HloSharding.replicate()


def computation(lines: list[str]) -> bytes:
    """The module, as the partitioner wants it, of which these are the instructions in HLO text."""
    text = "HloModule call\nENTRY main {\n" + "\n".join(lines) + "\n}\n"
    proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    module: str = _jax.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(proto))
    return module.encode()
