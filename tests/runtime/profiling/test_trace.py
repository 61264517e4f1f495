"""Traces: what the strict checker asks of them, on compiled programs, several devices, and very many instructions."""

import shutil
import tracemalloc
from functools import cache
from io import StringIO
from typing import Any

import numpy as np
import pytest
from generated import compile_text
from one_instruction import dense
from trace_checker import check_trace, slices_of

from neuronx_cc.ir.isa.program import End, Instr, Loop, Program, Space, Stream, Wait
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime.course import assumed
from neuronx_cc.runtime.devices import replicate, run_devices
from neuronx_cc.runtime.executable import Executable
from neuronx_cc.runtime.profiling.execution import Execution
from neuronx_cc.runtime.profiling.trace import write_trace

LAYER = """HloModule m
ENTRY main {
  x = f32[256,384] parameter(0), metadata={op_name="x" source_file="model.py" source_line=1}
  w = f32[384,512] parameter(1)
  d = f32[256,512] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  e = f32[256,512] exponential(d), metadata={op_name="exp" source_file="model.py" source_line=3}
  ROOT t = f32[512,256] transpose(e), dimensions={1,0}
}
"""
LOOP = """HloModule m
body { p = (s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[64,64] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[64,64] tanh(y)
  ROOT t = (s32[], f32[64,64]) tuple(j, z) }
condition { p = (s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(20000)
  ROOT l = pred[] compare(i, n), direction=LT }
ENTRY main {
  zero = s32[] constant(0)
  x = f32[64,64] parameter(0)
  start = (s32[], f32[64,64]) tuple(zero, x)
  w = (s32[], f32[64,64]) while(start), condition=condition, body=body
  ROOT r = f32[64,64] get-tuple-element(w), index=1 }
"""
TRANSPOSE = """HloModule m
ENTRY main { x = f32[40,300] parameter(0)
  ROOT c = f32[300,40] transpose(x), dimensions={1,0} }
"""
REDUCED = """HloModule m, replica_count=4
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY main { x = f32[128,64] parameter(0)
  y = f32[128,64] tanh(x)
  r = f32[128,64] all-reduce(y), replica_groups={{0,2},{1,3}}, to_apply=add
  s = f32[128,64] exponential(r)
  ROOT q = f32[128,64] all-reduce(s), replica_groups={{0,1,2,3}}, to_apply=add }
"""


@cache
def executable(text: str) -> Executable:
    compiled = compile_text(text)
    return Executable.from_program(compiled.program, compiled.constants)


def trace_of(*executions: Execution) -> tuple[dict[str, Any], str]:
    text = StringIO()
    write_trace(text, executions)
    return check_trace(text.getvalue()), text.getvalue()


@pytest.mark.parametrize("text", [LAYER, LOOP, TRANSPOSE], ids=["layer", "loop", "transpose"])
@pytest.mark.parametrize("settings", [(), ("dma.fixed_latency_ns=20000",), ("pe.ls_background_depth=0",)])
def test_traces_keep_the_rules(text: str, settings: tuple[str, ...]) -> None:
    execution = executable(text).execution(machine=find_machine("trn1").with_settings(settings))
    document, _ = trace_of(execution)
    total = execution.report().kernel_ns
    (whole,) = (event for event in document["traceEvents"] if event["name"] == "program")
    assert whole["dur"] * 1000 == pytest.approx(total, abs=1)
    assert max(event["ts"] + event["dur"] for event in slices_of(document)) <= whole["dur"] + 0.001


@pytest.mark.parametrize("count", [1, 5])
def test_a_queue_has_as_many_lanes_as_transfers_in_flight(count: int) -> None:
    """Transfers start every 1.1 us here, and each takes a bit more than the latency."""
    target, source = dense(Space.SBUF, "f32", 0, (128, 512)), dense(Space.HBM, "f32", 0, (128, 512))
    program = Program(records=[Instr("dma_copy", Stream.DMA_LOAD, (target,), (source,)) for _ in range(12)])
    machine = find_machine("trn1").with_settings([f"dma.fixed_latency_ns={1100 * (count - 1)}"])
    document, _ = trace_of(Execution(program, machine, assumed(program)[0]))
    names = [event["args"].get("name", "") for event in document["traceEvents"] if event["ph"] == "M"]
    assert sum("qdma" in name for name in names) in (count, count + 1)


def test_slices_name_opcode_op_and_source() -> None:
    document, _ = trace_of(executable(LAYER).execution())
    products = [event for event in slices_of(document) if event["cat"] == "multiply_moving"]
    assert {event["name"] for event in products} <= {"multiply_moving d", "multiply_moving t", "multiply_moving e"}
    exponentials = [event for event in slices_of(document) if event["name"] == "activation exp e"]
    assert exponentials
    assert {event["args"]["source"] for event in exponentials} == {"model.py:3"}


def test_counters_add_up() -> None:
    execution = executable(LAYER).execution()
    document, _ = trace_of(execution)
    report = execution.report()
    for name, expected in (
        ("DMA bandwidth (GB/s)", report.summary["dma_total_bytes"]),
        ("HBM bandwidth (GB/s)", report.summary["hbm_read_bytes"] + report.summary["hbm_write_bytes"]),
    ):
        points = [event for event in document["traceEvents"] if event["ph"] == "C" and event["name"] == name]
        times = [event["ts"] * 1000 for event in points]
        area = sum(p["args"]["value"] * (b - a) for p, a, b in zip(points, times, times[1:], strict=False))
        assert area == pytest.approx(expected, rel=0.02)
    sbuf = [e["args"]["value"] for e in document["traceEvents"] if e["ph"] == "C" and e["name"].startswith("SBUF")]
    assert 0 < max(sbuf) * 1024 <= report.summary["sbuf_peak_bytes"]


def test_repetitions_are_named() -> None:
    document, _ = trace_of(executable(LOOP).execution())
    assert any(event["name"] in ("runs 19999 times", "runs 20000 times") for event in document["traceEvents"])
    assert any(event["name"] == "repeated, shown once" for event in document["traceEvents"])


def test_devices_meet_in_collectives() -> None:
    group = replicate(executable(REDUCED))
    results = run_devices(group, [[np.full((128, 64), 0.1 * number, np.float32)] for number in range(4)])
    document, _ = trace_of(*(result.execution for result in results))
    assert {event["pid"] for event in document["traceEvents"]} == {0, 1, 2, 3}
    meetings = [event for event in document["traceEvents"] if event["name"] == "meeting" and event["ph"] == "s"]
    assert len(meetings) == 2 * 1 + 3  # two pairs, then one group of four
    collectives = [event for event in slices_of(document) if event["cat"] == "collective"]
    assert len(collectives) == 8
    assert {event["args"]["groups"] for event in collectives} == {"((0, 2), (1, 3))", "((0, 1, 2, 3),)"}


class Count:
    """Counts characters and forgets them."""

    characters = 0

    def write(self, text: str) -> None:
        self.characters += len(text)


def test_a_long_trace_is_not_held_in_memory() -> None:
    tile, other = dense(Space.SBUF, "f32", 0, (128, 8)), dense(Space.SBUF, "f32", 64, (128, 8))
    streams = frozenset([Stream.VECTOR, Stream.SCALAR])

    def peak(trips: int) -> int:
        program = Program(
            records=[
                Loop(trips, 3, (), streams),
                Instr("tensor_copy", Stream.VECTOR, (tile,), (other,)),
                Instr(
                    "activation", Stream.SCALAR, (other,), (tile,), ("exp",), (1.0,),
                    waits=(Wait(Stream.VECTOR, 1, ((3, 1),)),),
                ),
                End(),
            ]
        )  # fmt: skip
        execution = Execution(program, find_machine("trn1"), assumed(program)[0])
        sink = Count()
        tracemalloc.start()
        write_trace(sink, [execution])
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sink.characters > trips * 500
        return most

    assert (peak(12000) - peak(2000)) / 20000 < 80  # bytes an instruction


def test_perfetto_reads_a_trace(tmp_path: Any) -> None:
    processor = pytest.importorskip("perfetto.trace_processor", reason="Perfetto's Python package is not installed")
    shell = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if shell is None:
        pytest.skip("the package of Perfetto downloads its trace processor; none is installed here")
    document, text = trace_of(executable(LAYER).execution())
    (tmp_path / "t.json").write_text(text)
    with processor.TraceProcessor(
        trace=str(tmp_path / "t.json"), config=processor.TraceProcessorConfig(bin_path=shell)
    ) as loaded:
        (row,) = loaded.query("select count(*) as n from slice where category is not null")
        assert row.n == len(slices_of(document))
        (row,) = loaded.query("select count(*) as n from flow")
        assert row.n == sum(event["ph"] == "s" for event in document["traceEvents"])
        bad = list(loaded.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0"))
        assert not bad
