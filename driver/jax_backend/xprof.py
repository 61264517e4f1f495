"""Runs in XProf's terms, so that its analyses work: op profile, roofline, HLO stats, memory and graph viewers.

XProf computes statistics of ops for planes named as TPUs or GPUs are, no others; so planes have such a name here, and
only when asked for (``write_xprof``, ``NEURON_XPROF=1``). Device type and a warning in the file say what it really is.

The line "XLA Ops" has each HLO op once a run, in order of its start, for its time on the critical path (``runtime.
profiling.path``), so that the ops add up to the run; one that others hide altogether is there without time. The
tracks of engines and queues say when what was done. Names of properties are those that XProf reads; field numbers of
protos are those of xla/service/hlo.proto.
"""

from __future__ import annotations

from typing import Any

from neuronx_cc.driver.jax_backend.analysis import module_proto
from neuronx_cc.driver.jax_backend.program import Unit
from neuronx_cc.driver.jax_backend.wire import message, number
from neuronx_cc.driver.jax_backend.xspace import Facts, Plane
from neuronx_cc.hlo_import.wire import FieldSpec, decode
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.machine import Machine
from neuronx_cc.runtime.profiling.analysis import Analysis, analyse
from neuronx_cc.runtime.profiling.counters import peak_flops
from neuronx_cc.runtime.profiling.execution import Execution
from neuronx_cc.runtime.profiling.operators import Operator

NOTICE = (
    "Simulated NeuronCore-v2: times are those of a model. The planes are named TPU because XProf computes statistics "
    "of ops for no other name."
)
STEPS, MODULES, OPS = 1, 2, 3
"""Numbers of lines, before those of engines."""
HBM = 1
"""XProf's number of that memory."""
SPANS = {
    "Module": {3: FieldSpec("computations", "Computation", True)},
    "Computation": {1: FieldSpec("name", "str"), 2: FieldSpec("instructions", "Instruction", True)},
    "Instruction": {1: FieldSpec("name", "str"), 35: FieldSpec("id", "int")},
}
"""What is read of a HloModuleProto."""


def peaks(machine: Machine) -> Facts:
    """Properties of a plane: what the device is, and its limits."""
    hbm, dma = float(machine["hbm.bw_per_core"]), float(machine["dma.engines"] * machine["dma.bw_both_per_engine"])
    return {
        "device_type_string": f"NeuronCore-v2 of {machine.name} (simulated)",
        "peak_teraflops_per_second": peak_flops(machine) / 1e3,
        "peak_hbm_bw_gigabytes_per_second": hbm,
        "peak_sram_rd_bw_gigabytes_per_second": dma,
        "peak_sram_wr_bw_gigabytes_per_second": dma,
    }


class Modules:
    """Adds runs to the planes of devices, and collects their modules."""

    def __init__(self) -> None:
        self._analyses: dict[object, Analysis] = {}
        self._units: dict[int, tuple[Unit, Analysis]] = {}

    def add(self, plane: Plane, unit: Unit, execution: Execution, step: int, at: float, length: float) -> None:
        """One run on one device; ``at`` and ``length`` in microseconds."""
        key = (id(unit), execution.course.key())
        analysis = self._analyses.get(key)
        if analysis is None:
            analysis = self._analyses[key] = analyse(execution)
        program = program_id(unit)
        self._units.setdefault(program, (unit, analysis))
        run = {"run_id": step, "program_id": program}
        plane.add(STEPS, "Steps", plane.kind(("step", step), str(step)), at, length, {"step_name": str(step)})
        name = f"{unit.signature.name}({program})"
        plane.add(MODULES, "XLA Modules", plane.kind(("module", program), name), at, length, run)
        begin = at + float(execution.machine["run.preamble_us"])
        for row in sorted(analysis.operators, key=lambda row: row.start_ns):
            kind = plane.kind((program, row.name), _text(row), row.name, op_facts(row, program))
            plane.add(OPS, "XLA Ops", kind, begin, row.critical_ns * 1e-3, {"run_id": step})
            begin += row.critical_ns * 1e-3

    def plane(self) -> Plane:
        """The plane of modules."""
        made = Plane(1 << 20, "/host:metadata")
        for program, (unit, analysis) in self._units.items():
            module = module_proto(unit)
            proto = message(1, module) + message(3, buffer_assignment(module, analysis))
            made.kind(program, f"{unit.signature.name}({program})", "", {"Hlo Proto": proto}, program)
        return made


def program_id(unit: Unit) -> int:
    """A number of a program that fits what XProf keeps it in."""
    return int(unit.key[:12], 16)


def _text(row: Operator) -> str:
    return f"%{row.name} = {row.shape} {row.opcode}()"


def op_facts(row: Operator, program: int) -> Facts:
    """Properties of one op, in XProf's words."""
    written = round(row.written_bytes)
    read = max(0, round(row.hbm_bytes) - written)
    accesses = [number(1, kind) + number(2, HBM) + number(3, nbytes) for kind, nbytes in ((1, read), (2, written))]
    return {
        "hlo_category": row.opcode or "other",
        "flops": round(row.flops),
        "model_flops": round(row.flops),
        "bytes_accessed": read + written,
        "memory_access_breakdown": b"".join(message(1, access) for access in accesses),
        "program_id": program,
        "symbol_id": abs(hash_of(row.name)),
        "tf_op": f"{row.op_name or row.name}:{row.opcode}",
        "source": row.source,
        "deduplicated_name": row.name,
    }


def hash_of(name: str) -> int:
    """A number of a name that is the same in every process."""
    value = 0
    for character in name:
        value = (value * 131 + ord(character)) & 0x7FFFFFFF
    return value


def buffer_assignment(module: bytes, analysis: Analysis) -> bytes:
    """A BufferAssignmentProto: what lies in HBM when, by the op that makes it; one allocation holds it all.

    Values in SBUF are no buffers of XLA's kind and are not there.
    """
    read: dict[str, Any] = decode(SPANS, "Module", module, 0, len(module))
    places = {
        instruction["name"]: (computation["name"], instruction.get("id", 0))
        for computation in read.get("computations", ())
        for instruction in computation.get("instructions", ())
    }
    values: dict[str, list[float]] = {}
    for span in analysis.spans:
        if span.space is Space.HBM and span.name in places:
            value = values.setdefault(span.name, [span.begin, span.end, span.low, 0])
            value[:3] = min(value[0], span.begin), max(value[1], span.end), min(value[2], span.low)
            value[3] += span.nbytes
    logical = assigned = b""
    events: list[tuple[float, int, int, str]] = []
    size = 0
    for index, (name, (begin, end, low, nbytes)) in enumerate(values.items(), 1):
        place = number(3, 0) + number(4, places[name][1])
        logical += message(1, number(1, index) + number(2, int(nbytes)) + message(3, place) + number(4, 0))
        assigned += message(9, number(1, index) + number(2, int(low)) + number(3, int(nbytes)))
        events += [(begin, 0, index, name), (end, 1, index, name)]
        size = max(size, int(low + nbytes))
    allocation = number(1, 0) + number(2, size) + assigned
    trace = b""
    for _, kind, index, name in sorted(events):
        event = number(1, kind) + number(2, index) + message(3, places[name][0].encode()) + message(4, name.encode())
        trace += message(1, event)
    return logical + message(3, allocation) + message(4, trace + number(2, 1) + number(3, 0))
