"""Answers of ``compiled.cost_analysis()`` and ``compiled.as_text()``, made when they are asked for."""

from jaxlib import _hlo  # type: ignore[attr-defined,unused-ignore]

from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.jax_backend.compiler import import_local
from neuronx_cc.driver.jax_backend.failure import plugin_error
from neuronx_cc.driver.jax_backend.program import DeviceProgram, Unit
from neuronx_cc.driver.jax_backend.service import SERVICE
from neuronx_cc.driver.jax_backend.wire import message, number
from neuronx_cc.driver.machines import planned_machine
from neuronx_cc.driver.pipeline import run_pipeline
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.runtime.report import RunReport


def cost(program: DeviceProgram) -> list[tuple[str, float]]:
    """Figures of one run on one device: floating-point operations, bytes moved, simulated seconds."""
    report = simulated(program)
    summary = report.summary
    return [
        ("flops", summary["hardware_flops"]),
        ("bytes accessed", summary["hbm_read_bytes"] + summary["hbm_write_bytes"]),
        ("optimal_seconds", report.time_ns * 1e-9),
        ("simulated_seconds", report.time_ns * 1e-9),
    ]


def simulated(program: DeviceProgram) -> RunReport:
    """The clock's report of one device. Raises PluginError."""
    try:
        return program.unit.executables[0].run([], timing_only=True).report
    except Exception as error:
        raise plugin_error(error, Session("jax", [])) from None


def optimized(program: DeviceProgram) -> bytes:
    """The module after the passes as a serialized HloModuleProtoWithConfig."""
    made: bytes = SERVICE.run(_optimized, program)
    return made


def _optimized(program: DeviceProgram) -> bytes:
    try:
        proto = _module_proto(program.unit)
    except Exception as error:
        raise plugin_error(error, Session("jax", [], parsed=program.unit.parsed)) from None
    return with_config(proto, program.num_replicas, program.num_partitions)


def module_proto(unit: Unit) -> bytes:
    """The module after the passes as a serialized HloModuleProto. Raises NeuronError."""
    made: bytes = SERVICE.run(_module_proto, unit)
    return made


def _module_proto(unit: Unit) -> bytes:
    module = import_local(unit.code, *unit.neff.program.devices)
    run_pipeline(module, unit.parsed, Session("jax", [], parsed=unit.parsed), planned_machine(unit.parsed))
    proto: bytes = _hlo.hlo_module_from_text(print_module(module)).as_serialized_hlo_module_proto()
    return proto


def with_config(proto: bytes, replicas: int, partitions: int) -> bytes:
    """HloModuleProtoWithConfig {1: module, 2: config {1: entry layout, 4: replicas, 5: partitions}} (xla/xla.proto)."""
    from neuronx_cc.hlo_import.wire import FieldSpec, decode

    schema = {"HloModuleProto": {4: FieldSpec("layout", "bytes")}}
    layout = decode(schema, "HloModuleProto", proto, 0, len(proto))["layout"]
    config = message(1, layout) + number(4, replicas) + number(5, partitions)
    return message(1, proto) + message(2, config)
