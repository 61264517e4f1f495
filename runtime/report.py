"""What a run cost: the report of the clock, in the vendor profiler's vocabulary where the meaning matches.

Input: a program, its ``Timing`` and the machine. Output: ``RunReport``, whose ``summary`` has the fields of the
profiler's summary table (time, engines, FLOPs, utilisation, DMA, memory) and which also lists kernels, HLO ops and
what each engine waited for. All of it is simulated (``is_simulation``); it depends on data only where regions do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from neuronx_cc.ir.errors import UsageError
from neuronx_cc.ir.isa.program import DMA_STREAMS, Instr, Program, Ref, Space, Stream, in_donated_memory
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.neff import PlannedFor
from neuronx_cc.ir.targets import find_machine, names
from neuronx_cc.ir.types import itemsize
from neuronx_cc.runtime.clock import Timing
from neuronx_cc.runtime.clock_program import Node, hull
from neuronx_cc.runtime.tables import significant, table

ENGINE_NAME = {
    Stream.TENSOR: "tensor",
    Stream.VECTOR: "vector",
    Stream.SCALAR: "scalar",
    Stream.GPSIMD: "gpsimd",
    Stream.SYNC: "sync",
    Stream.COLLECTIVE: "collective",
}
TRAFFIC = {"input": "input_queue_bytes", "output": "output_queue_bytes", "constant": "weight_queue_bytes"}


@dataclass(slots=True)
class Usage:
    """Time of one kernel or HLO op: occupation by engine in ns (``dma``: of the shared DMA engines)."""

    name: str
    instructions: int = 0
    start_ns: float = -1.0
    end_ns: float = 0.0
    busy_ns: dict[str, float] = field(default_factory=dict)
    op_name: str = ""
    source: str = ""

    def add(self, node: Node) -> None:
        engine = ENGINE_NAME.get(node.instr.stream, "dma")
        self.instructions += node.count
        self.busy_ns[engine] = self.busy_ns.get(engine, 0.0) + node.busy
        self.start_ns = node.first if self.start_ns < 0 else min(self.start_ns, node.first)
        self.end_ns = max(self.end_ns, node.last)

    def to_dict(self) -> dict[str, Any]:
        busy = {name: round(time, 3) for name, time in sorted(self.busy_ns.items())}
        row: dict[str, Any] = {"name": self.name, "instructions": self.instructions, "busy_ns": busy}
        row |= {"start_ns": round(self.start_ns, 3), "end_ns": round(self.end_ns, 3)}
        return row | ({"op_name": self.op_name, "source": self.source} if self.op_name or self.source else {})


@dataclass(slots=True)
class RunReport:
    """The report of one program on one machine."""

    machine: str
    time_ns: float
    """Device time with preamble and postamble."""
    kernel_ns: float
    """Device time of the instructions alone."""
    summary: dict[str, float]
    waited_ns: dict[str, dict[str, float]]
    """Stream -> what it waited for -> ns."""
    kernels: list[Usage]
    operators: list[Usage]
    """HLO ops, the costliest first."""
    assumed_regions: int = 0
    """Loops assumed to run once, and branches assumed to take their first case, for lack of values."""
    host_calls: int = 0
    """Calls of functions of the host, whose time is not in the report."""
    planned_for: str = ""
    """The machine description that the program was planned for, when it ran on another one."""
    settings: tuple[str, ...] = ()
    """``key=value`` of the machine where it differs from the description of its name."""

    def __str__(self) -> str:
        return self.to_text()

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, ready for ``json.dump``."""
        return {
            "is_simulation": True,
            "machine": self.machine,
            "settings": list(self.settings),
            "time_ns": round(self.time_ns, 3),
            "kernel_ns": round(self.kernel_ns, 3),
            "summary": {name: significant(value) for name, value in self.summary.items()},
            "waited_ns": {name: {key: round(t, 3) for key, t in row.items()} for name, row in self.waited_ns.items()},
            "kernels": [usage.to_dict() for usage in self.kernels],
            "operators": [usage.to_dict() for usage in self.operators],
        } | {name: fact for name, fact in self._reservations().items() if fact}

    def _reservations(self) -> dict[str, int | str]:
        return {
            "assumed_regions": self.assumed_regions,
            "host_calls": self.host_calls,
            "planned_for": self.planned_for,
        }

    def to_text(self, rows: int | None = 10, columns: int | None = None, operators: bool = True) -> str:
        """The report for a reader; ``rows`` limits the tables (None: all rows), ``columns`` their width.

        ``operators``: with the table of HLO ops.
        """
        s = self.summary
        lines = [
            f"Simulated on {self.machine}: {self.time_ns / 1e3:.1f} us ({self.kernel_ns / 1e3:.1f} us without "
            "preamble and postamble)",
            *self.notices(),
            "",
            *table(("engine", "instructions", "active", "waited for"), self._engine_rows(), columns, (0, 3)),
        ]
        lines += [
            "",
            f"TensorE {s['mfu_inst_estimated_percent'] * 100:.1f} % of peak (adjusted for element types), "
            f"hardware FLOPs {s['hardware_flops'] / 1e9:.3f} G",
            f"DMA {s['dma_total_bytes'] / 1e6:.3f} MB in transfers of {s['dma_average_bytes'] / 1024:.1f} KiB; HBM "
            f"{s['hbm_bandwidth_gbps']:.1f} GB/s ({s['mbu_estimated_percent'] * 100:.1f} % of its peak)",
            f"Memory: SBUF {s['sbuf_peak_bytes'] / 1024:.1f} KiB a partition, PSUM {s['psum_peak_bytes'] / 1024:.1f} "
            f"KiB a partition, HBM {s['hbm_peak_bytes'] / 2**20:.1f} MiB",
        ]
        lines += _table("kernel", self.kernels, rows, columns)
        lines += _table("HLO op", self.operators, rows, columns) if operators else []
        return "\n".join(lines) + "\n"

    def _engine_rows(self) -> list[tuple[str, str, str, str]]:
        s = self.summary
        rows = []
        for engine in ENGINE_NAME.values():
            count = s[f"{engine}_engine_instruction_count"]
            if count:
                active = f"{s[f'{engine}_engine_active_time_percent'] * 100:.1f} %"
                rows.append((engine, f"{count:.0f}", active, _longest(self.waited_ns.get(engine, {}))))
        active = f"{s['dma_active_time_percent'] * 100:.1f} %"
        return [*rows, ("dma", f"{s['dma_transfer_count']:.0f}", active, "")]

    def notices(self) -> list[str]:
        """What a reader must know of these figures."""
        notices = []
        if self.settings:
            notices.append(f"With other values than {self.machine} has: {', '.join(self.settings)}")
        if self.planned_for:
            notices.append(f"The program was planned for another machine: {self.planned_for}")
        if self.assumed_regions:
            notices.append(
                f"Without values the course of {self.assumed_regions} regions is not known: loops without a fixed trip "
                "count are assumed to run once, branches to take their first case"
            )
        if self.host_calls:
            notices.append(f"The time that the host takes for {self.host_calls} calls of its functions is not included")
        return notices


def _longest(waited: dict[str, float]) -> str:
    top = sorted(waited.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {time / 1e3:.1f} us" for name, time in top)


def _table(title: str, usages: Sequence[Usage], limit: int | None, columns: int | None) -> list[str]:
    shown = sorted(usages, key=lambda usage: -max(usage.busy_ns.values(), default=0.0))[:limit]
    if not shown:
        return []
    engines = [*list(ENGINE_NAME.values())[:4], "dma"]
    rows = []
    for usage in shown:
        times = [usage.start_ns, usage.end_ns, *(usage.busy_ns.get(name, 0.0) for name in engines)]
        rows.append((usage.name, *(f"{time / 1e3:.1f}" for time in times), usage.source or usage.op_name))
    header = (
        title,
        "start us",
        "end us",
        *engines,
        "source" if any(usage.source or usage.op_name for usage in shown) else "",
    )
    lines = ["", *table(header, rows, columns, (0, len(header) - 1))]
    return [*lines, f"... and {len(usages) - len(shown)} more"] if len(usages) > len(shown) else lines


def make_report(
    program: Program,
    timing: Timing,
    machine: Machine,
    assumed_regions: int = 0,
    planned_for: PlannedFor | None = None,
) -> RunReport:
    """Fold a timing into a report; of ``assumed_regions`` the course was not known.

    Raises UsageError EARG908 when the program needs more memory than ``machine`` has.
    """
    extra = (machine["run.preamble_us"] + machine["run.postamble_us"]) * 1e3
    total = timing.total + extra
    summary = {"total_time": total / 1e9, "total_exec_time": timing.total / 1e9}
    summary["neuroncore_cycle_count"] = total * machine["clock.base_ghz"]
    summary |= _engines(timing, total) | _flops(timing, machine, total) | _dma(program, timing, machine, total)
    summary |= _memory(program)
    _check_sizes(summary, machine)
    waited = {
        ENGINE_NAME.get(stream, stream.name.lower()): dict(sorted(stats.waited.items()))
        for stream, stats in timing.streams.items()
    }
    kernels, operators = _usages(program, timing.nodes)
    calls = sum(node.count for node in timing.nodes if node.instr.op == "host_call")
    other = planned_for is not None and planned_for.digest != machine.digest()
    planned = f"{planned_for.name} ({planned_for.digest})" if planned_for is not None and other else ""
    return RunReport(
        machine.name,
        total,
        timing.total,
        summary,
        waited,
        kernels,
        operators,
        assumed_regions,
        calls,
        planned,
        settings_of(machine),
    )


def settings_of(machine: Machine) -> tuple[str, ...]:
    """What ``--set`` has changed of a known description; nothing for descriptions that only a file has."""
    return machine.differences(find_machine(machine.name)) if machine.name in names() else ()


def _check_sizes(summary: dict[str, float], machine: Machine) -> None:
    sizes = machine.sizes()
    rooms = {"sbuf": sizes.sbuf_bytes, "psum": sizes.psum_bytes, "hbm": sizes.hbm_bytes}
    for name, room in rooms.items():
        if summary[f"{name}_peak_bytes"] > room:
            raise UsageError(
                "EARG908",
                f"the program uses {summary[f'{name}_peak_bytes']:.0f} B of {name.upper()}"
                f"{'' if name == 'hbm' else ' a partition'}, the machine {machine.name} has {room}",
                "compile it for that machine: --machine and --set are options of compile, too",
            )


def _engines(timing: Timing, total: float) -> dict[str, float]:
    result = {}
    for stream, name in ENGINE_NAME.items():
        stats = timing.streams.get(stream)
        busy = sum(node.busy for node in timing.nodes if node.instr.stream is stream)
        result[f"{name}_engine_instruction_count"] = float(stats.instructions if stats else 0)
        result[f"{name}_engine_instruction_time"] = busy / 1e9
        result[f"{name}_engine_active_time"] = (stats.active if stats else 0.0) / 1e9
        result[f"{name}_engine_active_time_percent"] = (stats.active if stats else 0.0) / total if total else 0.0
    return result


def _flops(timing: Timing, machine: Machine, total: float) -> dict[str, float]:
    """FLOPs of TensorE. Hardware FLOPs count an f32 multiplication twice (two passes), adjusted ones four times."""
    hardware = adjusted = logical = 0.0
    count = 0
    for node in timing.nodes:
        if node.instr.op != "multiply_moving":
            continue
        out, moving = node.instr.outs[0], node.instr.ins[0]
        flops = 2.0 * moving.counts[0] * out.counts[0] * prod(moving.counts[1:]) * node.count
        full = moving.dtype == "f32" and "tf32" not in node.instr.flags
        logical += flops
        hardware += flops * (2 if full else 1)
        adjusted += flops * (machine["pe.fp32_passes"] if full else 1)
        count += node.count
    peak = 2 * machine["pe.rows"] * machine["pe.columns"] * machine["clock.tensor_ghz"]
    possible = peak * total if total else 1.0
    return {
        "matmul_instruction_count": float(count),
        "matmul_flops": logical,
        "hardware_flops": hardware,
        "adjusted_hardware_flops": adjusted,
        "hfu_estimated_percent": hardware / possible,
        "mfu_inst_estimated_percent": adjusted / possible,
        "tensor_utilisation": adjusted / (peak * timing.total) if timing.total else 0.0,
    }


def _dma(program: Program, timing: Timing, machine: Machine, total: float) -> dict[str, float]:
    nodes = [node for node in timing.nodes if node.instr.stream in DMA_STREAMS and node.nbytes]
    transfers = sum(node.count for node in nodes)
    nbytes = sum(node.nbytes * node.count for node in nodes)
    traffic = dict.fromkeys(TRAFFIC.values(), 0.0)
    traffic |= {"hbm_read_bytes": 0.0, "hbm_write_bytes": 0.0, "spill_save_bytes": 0.0, "spill_reload_bytes": 0.0}
    kinds = Kinds(program)
    for node in nodes:
        for ref, write in ((node.instr.outs[0], True), (node.instr.ins[0], False)):
            if ref.space is Space.HBM:
                size = float(_moved(node.instr) * itemsize(ref.dtype) * node.count)
                traffic["hbm_write_bytes" if write else "hbm_read_bytes"] += size
                spill = "spill_save_bytes" if write else "spill_reload_bytes"
                traffic[TRAFFIC.get(kinds.of(ref.offset, write), spill)] += size
    hbm = traffic["hbm_read_bytes"] + traffic["hbm_write_bytes"]
    active = sum(node.busy for node in nodes)
    return traffic | {
        "dma_transfer_count": float(transfers),
        "dma_total_bytes": float(nbytes),
        "dma_average_bytes": nbytes / transfers if transfers else 0.0,
        "dma_descriptor_count": float(sum(node.descriptors * node.count for node in nodes)),
        "dma_queue_count": float(len({node.instr.stream for node in nodes})),
        "dma_active_time": active / 1e9,
        "dma_active_time_percent": active / total if total else 0.0,
        "hbm_bandwidth_gbps": hbm / total if total else 0.0,
        "mbu_estimated_percent": hbm / total / machine["hbm.bw_per_core"] if total else 0.0,
    }


def _moved(instr: Instr) -> int:
    return min(prod(instr.outs[0].counts), prod(instr.ins[0].counts))


class Kinds:
    """Kind of the variable at an HBM offset."""

    def __init__(self, program: Program) -> None:
        shared = in_donated_memory(program.variables)
        own = [variable for variable in program.variables if variable.nbytes and variable not in shared]
        self._variables = sorted(own, key=lambda variable: variable.offset)
        self._offsets = [variable.offset for variable in self._variables]
        self._overwritten = {variable.offset for variable in shared}

    def of(self, offset: int, write: bool) -> str:
        """What is written to a parameter that a result lies in is the result; what is read there, the parameter."""
        at = bisect_right(self._offsets, offset) - 1
        if at < 0 or offset >= self._variables[at].offset + self._variables[at].nbytes:
            return "scratch"
        if write and self._variables[at].offset in self._overwritten:
            return "output"
        return self._variables[at].kind


def _memory(program: Program) -> dict[str, float]:
    psum = 0
    for record in program.records:
        if isinstance(record, Instr):
            for ref in record.outs:
                psum = max(psum, _end(ref)) if ref.space is Space.PSUM else psum
    weights = sum(variable.nbytes for variable in program.variables if variable.kind == "constant")
    return {
        "sbuf_peak_bytes": float(program.sbuf_peak),
        "psum_peak_bytes": float(psum),
        "hbm_peak_bytes": float(program.hbm_bytes),
        "weight_size_bytes": float(weights),
    }


def _end(ref: Ref) -> int:
    return hull(ref)[1]


def _usages(program: Program, nodes: Sequence[Node]) -> tuple[list[Usage], list[Usage]]:
    kernels: dict[str, Usage] = {}
    operators: dict[str, Usage] = {}
    for node in nodes:
        if not node.count or node.instr.debug >= len(program.debug):
            continue
        debug = program.debug[node.instr.debug]
        kernels.setdefault(debug.kernel, Usage(debug.kernel)).add(node)
        operators.setdefault(debug.hlo, Usage(debug.hlo, op_name=debug.op_name, source=debug.place)).add(node)
    ranked = sorted(operators.values(), key=lambda usage: (-max(usage.busy_ns.values()), usage.name))
    return list(kernels.values()), ranked
