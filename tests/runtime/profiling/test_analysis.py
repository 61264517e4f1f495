"""Analyses: sums that must agree with the clock's, findings where their causes were put, and memory over time."""

from io import StringIO
from itertools import pairwise

import pytest
from generated import compile_text
from hypothesis import HealthCheck, given, settings
from mixed_graphs import mixed_modules
from one_instruction import dense
from profiled import ALL, BF16, analysis
from trace_checker import check_trace

from neuronx_cc.ir.isa.program import Debug, Instr, Program, Ref, Space, Stream, Wait
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime.course import assumed
from neuronx_cc.runtime.executable import Executable
from neuronx_cc.runtime.profiling.analysis import analyse
from neuronx_cc.runtime.profiling.diff import compare
from neuronx_cc.runtime.profiling.execution import Execution
from neuronx_cc.runtime.profiling.liveness import in_use, live_spans
from neuronx_cc.runtime.profiling.page import make_page
from neuronx_cc.runtime.profiling.trace import write_trace

TRN1 = find_machine("trn1")


@pytest.mark.parametrize("name", ALL)
def test_the_critical_path_adds_up_to_the_time(name: str) -> None:
    found = analysis(name)
    assert sum(row.critical_ns for row in found.operators) + found.document["barriers_ns"] == pytest.approx(
        found.report.kernel_ns
    )
    assert sum(row["critical_ns"] for row in found.document["sources"]) == pytest.approx(
        sum(row.critical_ns for row in found.operators), rel=1e-4
    )
    for row in found.operators:
        assert sum(row.critical_parts.values()) == pytest.approx(row.critical_ns)
        assert all(part >= -1e-6 for part in row.critical_parts.values())
    stretches = found.document["critical_path"]["stretches"]
    for before, after in pairwise(stretches):
        assert before["end"] <= after["begin"] + 1e-3


@pytest.mark.parametrize("name", ALL)
def test_operators_add_up_to_the_report(name: str) -> None:
    found = analysis(name)
    summary, rows = found.report.summary, found.operators
    assert sum(row.dma_bytes for row in rows) == pytest.approx(summary["dma_total_bytes"])
    assert sum(row.descriptors for row in rows) == pytest.approx(summary["dma_descriptor_count"])
    assert sum(row.flops + row.transpose_flops for row in rows) == pytest.approx(summary["matmul_flops"])
    assert sum(row.busy_ns.get("dma", 0) for row in rows) == pytest.approx(summary["dma_active_time"] * 1e9)
    memory = found.document["memory"]
    assert memory["SBUF"]["peak_bytes"] <= summary["sbuf_peak_bytes"]
    assert memory["PSUM"]["peak_bytes"] <= summary["psum_peak_bytes"]
    assert memory["HBM"]["peak_bytes"] <= summary["hbm_peak_bytes"]
    assert sum(row["runs"] for row in found.document["dma_sizes"]) == pytest.approx(summary["dma_descriptor_count"])


def test_products_without_transposes_are_those_of_the_model() -> None:
    rows = {row.name: row for row in analysis("dot").operators}
    assert sum(row.flops for row in rows.values()) == 2 * 512 * 1024 * 1024
    assert sum(row.transpose_flops for row in rows.values()) > 0


@pytest.mark.parametrize(
    ("name", "rule", "line"),
    [
        ("dot", "fp32-products", 4),
        ("sort", "gpsimd", 9),
    ],
)
def test_findings_name_cause_line_and_remedy(name: str, rule: str, line: int) -> None:
    found = {finding.rule: finding for finding in analysis(name).findings}
    assert rule in found, found
    finding = found[rule]
    assert finding.source == f"/home/user/model.py:{line}"
    assert f"(model.py:{line})" in finding.sentence
    assert 0.01 <= finding.share <= 1
    assert finding.remedy.endswith(".")


def test_products_in_16_bits_are_not_blamed() -> None:
    assert "fp32-products" not in {finding.rule for finding in analysis("bf16").findings}
    assert "wide-parameters" not in {finding.rule for finding in analysis("bf16").findings}


def test_moves_element_by_element_are_called_that() -> None:
    target = dense(Space.SBUF, "f32", 0, (128, 64))
    source = Ref(Space.HBM, "f32", 0, ((128, 4), (64, 512)))
    records = [Instr("dma_copy", Stream.DMA_LOAD, (target,), (source,)) for _ in range(4)]
    program = Program(records=list(records), debug=[Debug("k", "t.2", "t", "model.py", 7)])
    found = analyse(Execution(program, TRN1, assumed(program)[0]))
    (finding,) = (finding for finding in found.findings if finding.rule == "short-runs")
    assert finding.subject == "t.2"
    assert "element by element" in finding.cause
    assert "32,768 descriptors" in finding.cause
    assert finding.share > 0.8


def test_loops_of_run_time_values_pay_for_barriers() -> None:
    found = analysis("loop")
    assert found.document["barriers_ns"] > 0
    (finding,) = (finding for finding in found.findings if finding.rule == "barriers")
    assert "20,00" in finding.cause


def test_a_slower_machine_moves_the_verdict() -> None:
    compiled = compile_text(BF16)
    executable = Executable.from_program(compiled.program, compiled.constants)
    fast = analyse(executable.execution()).document
    slow = analyse(executable.execution(machine=TRN1.with_settings(["hbm.bw_per_core=5"]))).document
    assert slow["sources"][0]["bound"] == "HBM bandwidth"
    diff = compare(slow, fast)
    assert "slower" in diff["sentence"]
    assert diff["rows"][0]["change_ns"] > 0
    assert diff["summary"]["time_ns"] == [fast["time_ns"], slow["time_ns"]]
    assert "as fast as" in compare(fast, fast)["sentence"]


def test_bytes_live_from_the_first_write_to_the_last_read() -> None:
    a, b, c = (dense(Space.SBUF, "f32", offset, (128, 16)) for offset in (0, 64, 128))
    copies = [(b, a), (c, b), (a, c), (c, a)]
    records = [Instr("memset", Stream.VECTOR, (a,), (), imm=(0.0,))]
    records += [
        Instr("tensor_copy", Stream.VECTOR, (out,), (source,), waits=(Wait(Stream.VECTOR, number + 1),))
        for number, (out, source) in enumerate(copies)
    ]
    for number, record in enumerate(records):
        record.debug = number
    program = Program(records=list(records), debug=[Debug("k", f"v{number}") for number in range(5)])
    execution = Execution(program, TRN1, assumed(program)[0])
    found = analyse(execution)
    nodes = found.timing.nodes
    spans = {span.name: span for span in live_spans(program, nodes, found.timing.total)}
    assert {name: (span.low, span.high) for name, span in spans.items()} == {
        "v0": (0, 64), "v1": (64, 128), "v2": (128, 192), "v3": (0, 64), "v4": (128, 192)
    }  # fmt: skip
    for number, name in enumerate(spans):
        assert spans[f"v{number}"].begin == nodes[number].first, name
    for value, reader in ((0, 1), (1, 2), (2, 3), (3, 4)):
        assert spans[f"v{value}"].end == nodes[reader].last
    assert max(used for _, used in in_use(spans.values())) == 128


def test_empty_programs_have_analyses() -> None:
    program = Program()
    document = analyse(Execution(program, TRN1, assumed(program)[0])).document
    assert document["operators"] == []
    assert document["memory"]["SBUF"]["peak_bytes"] == 0


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(mixed_modules())
def test_any_program_keeps_its_sums(text: str) -> None:
    """Loops, branches, windows, sorts: traces keep the rules, and the critical path adds up to the time."""
    compiled = compile_text(text)
    execution = Executable.from_program(compiled.program, compiled.constants).execution()
    found = analyse(execution)
    told = sum(row.critical_ns for row in found.operators) + found.document["barriers_ns"]
    assert told == pytest.approx(found.report.kernel_ns, abs=1e-3)
    assert sum(row.dma_bytes for row in found.operators) == pytest.approx(found.report.summary["dma_total_bytes"])
    assert found.document["memory"]["SBUF"]["peak_bytes"] <= found.report.summary["sbuf_peak_bytes"]
    assert all(0 < finding.share <= 1 and finding.remedy for finding in found.findings)
    sink = StringIO()
    write_trace(sink, [execution])
    check_trace(sink.getvalue())
    assert make_page(found.document).startswith("<!doctype html>")
