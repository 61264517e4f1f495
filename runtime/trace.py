"""A run as a Chrome / Perfetto trace: one track per engine and DMA queue, slices named by HLO op, arrows for waits.

Input: a program and a ``Timing`` with events. Output: a JSON-ready dict with times in
microseconds, as the format wants.
"""

from typing import Any

from neuronx_cc.ir.isa.program import Program, Stream
from neuronx_cc.runtime.clock import Event, Timing
from neuronx_cc.runtime.report import ENGINE_NAME


def make_trace(program: Program, timing: Timing, flows: bool = True) -> dict[str, Any]:
    """The trace-event document of a timing; without ``flows`` it has no arrows."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "NeuronCore-v2"}}]
    for stream in timing.streams:
        name = ENGINE_NAME.get(stream, f"q{stream.name.lower()}")
        events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": int(stream), "args": {"name": name}})
        events.append(
            {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": int(stream), "args": {"sort_index": int(stream)}}
        )
    latest: dict[Stream, Event] = {}
    for number, event in enumerate(timing.events or []):
        events.append(_slice(program, event))
        cause = latest.get(event.cause) if event.cause is not None else None
        if flows and cause is not None and event.cause is not event.stream:
            events += _arrow(number, cause, event)
        latest[event.stream] = event
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"is_simulation": "true"}}


def _slice(program: Program, event: Event) -> dict[str, Any]:
    instr = event.node.instr
    debug = program.debug[instr.debug] if instr.debug < len(program.debug) else None
    args: dict[str, Any] = {"record": event.node.index, "opcode": instr.op}
    if instr.alu:
        args["operators"] = " ".join(instr.alu)
    if event.node.nbytes:
        args["bytes"] = event.node.nbytes
    if debug is not None:
        args |= {"kernel": debug.kernel, "hlo_name": debug.hlo, "op_name": debug.op_name}
        if debug.source_file:
            args["source"] = f"{debug.source_file}:{debug.source_line}"
    return {
        "ph": "X",
        "name": (debug.hlo if debug is not None else "") or instr.op,
        "cat": instr.op,
        "pid": 0,
        "tid": int(event.stream),
        "ts": event.start / 1e3,
        "dur": max(event.end - event.start, 0.0) / 1e3,
        "args": args,
    }


def _arrow(number: int, cause: Event, event: Event) -> list[dict[str, Any]]:
    common = {"cat": "semaphore", "name": "wait", "id": number, "pid": 0}
    return [
        common | {"ph": "s", "tid": int(cause.stream), "ts": cause.start / 1e3},
        common | {"ph": "f", "bp": "e", "tid": int(event.stream), "ts": event.start / 1e3},
    ]
