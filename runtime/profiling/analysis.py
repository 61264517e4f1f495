"""Everything a report of a run says, as one document of plain values; page, ``--json`` and XProf take it from here.

Input: an ``Execution``. Output: ``Analysis``, whose ``document`` is ready for ``json.dump``. Times are in ns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from neuronx_cc.ir.isa.program import DMA_STREAMS, Program, Space, Stream
from neuronx_cc.runtime.clock import Event, Timing
from neuronx_cc.runtime.profiling.counters import Counters, peak_flops
from neuronx_cc.runtime.profiling.execution import Execution
from neuronx_cc.runtime.profiling.findings import Finding, Totals, find, short
from neuronx_cc.runtime.profiling.liveness import Live, highest, in_use, live_spans
from neuronx_cc.runtime.profiling.operators import Operator, make_operators
from neuronx_cc.runtime.profiling.path import Path, Stretch
from neuronx_cc.runtime.profiling.timeline import Timeline
from neuronx_cc.runtime.report import ENGINE_NAME, RunReport

FORMAT = 1
COLUMNS = 600
"""Of the charts of memory and rates."""
LARGEST = 10
STRETCHES = 400
"""Of the critical path, in the document: the longest ones, in order of time."""


@dataclass(slots=True)
class Analysis:
    """What is known of one run."""

    execution: Execution
    timing: Timing
    report: RunReport
    operators: list[Operator]
    findings: list[Finding]
    spans: list[Live]
    document: dict[str, Any]


class _Watcher:
    """Tells path, timeline and counters of everything."""

    def __init__(self, execution: Execution, timing: Timing) -> None:
        self.path = Path(timing.nodes)
        self.timeline = Timeline(timing.total, [debug.kernel for debug in execution.program.debug])
        self.counters = Counters(execution.machine, timing.total)
        self.pieces = 0
        self.repeated = 0

    def piece(self, begin: float, duration: float, repeats: int) -> None:
        self.path.piece(begin, duration, repeats)
        self.pieces += 1
        self.repeated += repeats

    def instruction(self, event: Event) -> None:
        self.path.add(event)
        self.timeline.add(event)
        self.counters.add(event)


def analyse(execution: Execution, options: Mapping[str, Any] | None = None) -> Analysis:
    """Go through a run; ``options`` are those it was compiled with. Raises RunError ERUN913 on a deadlock."""
    timing, seen = execution.watch(lambda timing: _Watcher(execution, timing))
    seen.path.finish()
    seen.timeline.finish()
    program, machine = execution.program, execution.machine
    report = execution.report_of(timing)
    operators = make_operators(program, timing.nodes, seen.path, machine)
    barriers = max(0.0, timing.total - seen.path.covered)
    totals = Totals(report, machine, barriers, seen.repeated if seen.pieces > 1 else 0, operators)
    findings = find(totals)
    spans = live_spans(program, timing.nodes, timing.total)
    numbers = {row.name: index for index, row in enumerate(operators)}
    document: dict[str, Any] = {
        "format": FORMAT,
        "is_simulation": True,
        "name": execution.name,
        "machine": execution.machine.name,
        "device": execution.device,
        "options": {name: value for name, value in sorted((options or {}).items()) if value is not None},
        "time_ns": report.time_ns,
        "kernel_ns": report.kernel_ns,
        "barriers_ns": barriers,
        "peak_flops_per_ns": peak_flops(machine),
        "hbm_bytes_per_ns": machine["hbm.bw_per_core"],
        "dma_bytes_per_ns": machine["dma.engines"] * machine["dma.bw_both_per_engine"],
        "notices": report.notices(),
        "verdict": _verdict(report, operators, findings),
        "findings": [asdict(finding) | {"sentence": finding.sentence} for finding in findings],
        "summary": report.summary,
        "waited_ns": report.waited_ns,
        "operators": [_operator(row) for row in operators],
        "sources": _sources(operators),
        "timeline": _timeline(seen.timeline, program, numbers),
        "rates": _rates(seen.counters),
        "memory": {space.name: _memory(space, spans, execution, timing.total) for space in Space},
        "dma_sizes": _dma_sizes(timing),
        "precision": _precision(operators),
        "critical_path": _critical_path(seen.path, program, timing.total),
    }
    return Analysis(execution, timing, report, operators, findings, spans, rounded(document))


def rounded(value: Any) -> Any:
    """The value with floats of six significant digits more than a page shows."""
    if isinstance(value, float):
        return round(value, 3) if abs(value) >= 1 else float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value


def _verdict(report: RunReport, operators: Sequence[Operator], findings: Sequence[Finding]) -> list[str]:
    """A few sentences: how long, what it is spent on, the costliest ops, what to change first."""
    summary = report.summary
    parts: dict[str, float] = defaultdict(float)
    for row in operators:
        for part, ns in row.critical_parts.items():
            parts[part] += ns
    words = {"tensor": "TensorE", "vector": "VectorE", "scalar": "ScalarE", "gpsimd": "GpSimdE", "dma": "DMA"}
    words |= {"latency": "results on their way", "wait": "semaphores and other waits", "sync": "the sync engine"}
    top = sorted(parts.items(), key=lambda item: -item[1])[:3]
    spent = ", ".join(f"{words.get(part, part)} {ns / report.time_ns:.0%}" for part, ns in top)
    sentences = [
        f"The program takes {microseconds(report.time_ns)} and uses TensorE to "
        f"{summary['mfu_inst_estimated_percent']:.1%} of its peak and HBM to {summary['mbu_estimated_percent']:.1%}.",
        f"Its critical path goes through {spent}.",
    ]
    largest = [row for row in _sources(operators)[:3] if row["critical_ns"] >= 0.01 * report.time_ns]
    if largest:
        names = [
            f"{short(row['line'])} ({row['critical_ns'] / report.time_ns:.0%}, bound by {row['bound']}; "
            f"{row['operators'][0]}{f' and {more} more' if (more := len(row['operators']) - 1) else ''})"
            for row in largest
        ]
        sentences.append(f"Most of the time is in {', '.join(names)}.")
    for finding in findings[:2]:
        sentences.append(finding.sentence)
    return sentences


def microseconds(ns: float) -> str:
    """A time as people read it."""
    if ns >= 1e9:
        return f"{ns / 1e9:.3g} s"
    return f"{ns / 1e6:.3g} ms" if ns >= 1e6 else f"{ns / 1e3:.3g} us"


def _operator(row: Operator) -> dict[str, Any]:
    fields = asdict(row)
    reached = row.roofline_ns / row.critical_ns if row.critical_ns else 0.0
    return fields | {
        "engine": row.engine,
        "run_bytes": row.run_bytes,
        "intensity": row.flops / row.hbm_bytes if row.hbm_bytes else 0.0,
        "roofline_share": min(1.0, reached),
    }


def _sources(operators: Iterable[Operator]) -> list[dict[str, Any]]:
    """Time on the critical path by source line, the costliest first; ops without a line go by their op_name."""
    rows: dict[str, dict[str, Any]] = {}
    for operator in operators:
        line = operator.source or operator.op_name or "(no source)"
        row = rows.setdefault(line, {"line": line, "critical_ns": 0.0, "busy_ns": {}, "operators": [], "bound": {}})
        row["critical_ns"] += operator.critical_ns
        row["operators"].append(operator.name)
        row["bound"][operator.bound] = row["bound"].get(operator.bound, 0.0) + operator.critical_ns
        for engine, ns in operator.busy_ns.items():
            row["busy_ns"][engine] = row["busy_ns"].get(engine, 0.0) + ns
    for row in rows.values():
        row["bound"] = max(row["bound"], key=lambda bound: row["bound"][bound])
    return sorted(rows.values(), key=lambda row: (-row["critical_ns"], row["line"]))


def stream_name(stream: int) -> str:
    """Engine or queue."""
    return ENGINE_NAME.get(Stream(stream), Stream(stream).name.lower())


def _timeline(timeline: Timeline, program: Program, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Stream -> flat rows of begin, length, per cent busy, number of the op."""
    rows = {}
    for stream, runs in sorted(timeline.runs.items()):
        flat: list[int] = []
        for run in runs:
            name = program.debug[run.debug].hlo if run.debug < len(program.debug) else ""
            length = run.end - run.begin
            flat += [round(run.begin), round(length), round(100 * run.busy / length) if length else 100]
            flat.append(numbers.get(name, -1))
        rows[stream_name(stream)] = flat
    return rows


def _rates(counters: Counters) -> dict[str, Any]:
    columns = min(COLUMNS, counters.columns)
    series = {}
    for name, values in counters.rates().items():
        edges = [len(values) * column // columns for column in range(columns + 1)]
        series[name] = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    return {"column_ns": counters.width * counters.columns / columns, "series": series}


def _memory(space: Space, spans: Sequence[Live], execution: Execution, total: float) -> dict[str, Any]:
    """Use over time and the largest values where it is highest. SBUF and PSUM in bytes of a partition."""
    machine = execution.machine
    mine = [span for span in spans if span.space is space]
    points = in_use(mine)
    at, most = max(points, key=lambda point: point[1], default=(0.0, 0))
    values: dict[str, dict[str, Any]] = {}
    for span in mine:
        if span.begin <= at < span.end or (span.begin <= at and span.end == at == total):
            debug = execution.program.debug[span.debug] if 0 <= span.debug < len(execution.program.debug) else None
            source = debug.place if debug is not None else ""
            value = values.setdefault(
                span.name, {"name": span.name, "bytes": 0, "begin": span.begin, "end": span.end, "source": source}
            )
            value["bytes"] += span.nbytes
            value["begin"], value["end"] = min(value["begin"], span.begin), max(value["end"], span.end)
    largest = sorted(values.values(), key=lambda value: (-value["bytes"], value["name"]))
    capacity = {
        Space.SBUF: machine["memory.sbuf_partition_bytes"] - machine["sbuf.reserved_bytes"],
        Space.PSUM: machine["memory.psum_partition_bytes"],
        Space.HBM: machine["memory.hbm_bytes"],
    }
    return {
        "capacity": capacity[space],
        "peak_bytes": most,
        "peak_at": at,
        "columns": highest(points, total, COLUMNS),
        "values": largest[:LARGEST],
        "others": {"count": max(0, len(largest) - LARGEST), "bytes": sum(v["bytes"] for v in largest[LARGEST:])},
    }


def _dma_sizes(timing: Timing) -> list[dict[str, Any]]:
    """Contiguous runs by size, in powers of two."""
    rows: dict[int, dict[str, float]] = {}
    for node in timing.nodes:
        if node.instr.stream not in DMA_STREAMS or not node.descriptors or not node.count:
            continue
        low = 1 << max(0, (node.nbytes // node.descriptors).bit_length() - 1)
        row = rows.setdefault(low, {"runs": 0.0, "bytes": 0.0, "busy_ns": 0.0})
        row["runs"] += node.descriptors * node.count
        row["bytes"] += node.nbytes * node.count
        row["busy_ns"] += node.busy
    return [{"from": low, "to": 2 * low, **row} for low, row in sorted(rows.items())]


def _precision(operators: Iterable[Operator]) -> dict[str, Any]:
    """TensorE ns by the type of products, ns of the other engines by the widest operand, bytes in HBM by type."""
    result: dict[str, dict[str, float]] = {"products_ns": {}, "compute_ns": {}, "hbm_bytes": {}}
    for row in operators:
        for key, types in (
            ("products_ns", row.product_types),
            ("compute_ns", row.compute_types),
            ("hbm_bytes", row.stored_types),
        ):
            for dtype, amount in types.items():
                result[key][dtype] = result[key].get(dtype, 0.0) + amount
    return result


def _critical_path(path: Path, program: Program, total: float) -> dict[str, Any]:
    """The longest stretches, in order of time."""
    chosen = sorted(path.stretches, key=lambda stretch: stretch.begin - stretch.end)[:STRETCHES]
    chosen.sort(key=lambda stretch: stretch.begin)
    shown = sum(stretch.end - stretch.begin for stretch in chosen)
    known = sum(stretch.end - stretch.begin for stretch in path.stretches)
    return {
        "stretches": [_stretch(stretch, program) for stretch in chosen],
        "count": len(path.stretches),
        "shown_ns": shown,
        "known_ns": known,
    }


def _stretch(stretch: Stretch, program: Program) -> dict[str, Any]:
    name = program.debug[stretch.debug].hlo if stretch.debug < len(program.debug) else ""
    row = {"name": name, "stream": stream_name(stretch.stream), "begin": stretch.begin, "end": stretch.end}
    return row | {"instructions": stretch.instructions, "why": stretch.why, "parts": stretch.parts}
