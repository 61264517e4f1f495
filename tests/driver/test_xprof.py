"""Profiles in XProf's terms: what is in them, and what XProf's own converters make of them."""

import json
import logging
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from trace_checker import check_trace

from neuronx_cc.hlo_import.wire import FieldSpec, decode

SUPPORT = Path(__file__).resolve().parent.parent / "support"
SCHEMA = {
    "Space": {1: FieldSpec("planes", "Plane", True), 3: FieldSpec("warnings", "str", True)},
    "Plane": {
        2: FieldSpec("name", "str"),
        3: FieldSpec("lines", "Line", True),
        4: FieldSpec("kinds", "KindEntry", True),
        5: FieldSpec("keys", "KeyEntry", True),
        6: FieldSpec("stats", "Stat", True),
    },
    "Line": {2: FieldSpec("name", "str"), 4: FieldSpec("events", "Event", True)},
    "Event": {1: FieldSpec("kind", "int"), 2: FieldSpec("offset", "int"), 3: FieldSpec("length", "int")},
    "KindEntry": {1: FieldSpec("key", "int"), 2: FieldSpec("value", "Kind")},
    "Kind": {2: FieldSpec("name", "str"), 4: FieldSpec("display", "str"), 5: FieldSpec("stats", "Stat", True)},
    "KeyEntry": {1: FieldSpec("key", "int"), 2: FieldSpec("value", "Key")},
    "Key": {2: FieldSpec("name", "str")},
    "Stat": {
        1: FieldSpec("key", "int"),
        2: FieldSpec("double", "double"),
        4: FieldSpec("int", "int"),
        5: FieldSpec("str", "str"),
        6: FieldSpec("bytes", "bytes"),
    },
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    place = tmp_path_factory.mktemp("xprof")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("NEURON_", "JAX_", "XLA_"))
    }
    environment |= {"JAX_PLATFORMS": "neuron,cpu", "NEURON_NUM_DEVICES": "2"}
    command = [sys.executable, str(SUPPORT / "xprof_cases.py"), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout) | {"place": place}


def planes(path):
    """Name -> plane: its lines as (name of the event, offset, length), its kinds and its properties."""
    data = Path(path).read_bytes()
    space = decode(SCHEMA, "Space", data, 0, len(data))
    made = {}
    for plane in space["planes"]:
        keys = {entry["key"]: entry["value"]["name"] for entry in plane.get("keys", ())}

        def stats(owner, keys=keys):
            return {
                keys[stat["key"]]: next((stat[kind] for kind in ("double", "int", "str", "bytes") if kind in stat), 0)
                for stat in owner.get("stats", ())
            }

        kinds = {entry["key"]: entry["value"] for entry in plane.get("kinds", ())}
        lines = {
            line["name"]: [
                (kinds[event["kind"]]["name"], event.get("offset", 0), event.get("length", 0))
                for event in line.get("events", ())
            ]
            for line in plane.get("lines", ())
        }
        known = {kind.get("display") or kind["name"]: stats(kind) for kind in kinds.values()}
        made[plane["name"]] = {"lines": lines, "kinds": known, "stats": stats(plane)}
    return made, space.get("warnings", [])


def test_a_profile_says_that_it_is_simulated(told):
    found, warnings = planes(told["files"]["runs"])
    assert "Simulated" in warnings[0]
    assert set(found) == {"/device:TPU:0", "/host:metadata"}
    stats = found["/device:TPU:0"]["stats"]
    assert "simulated" in stats["device_type_string"]
    assert stats["peak_teraflops_per_second"] == pytest.approx(91.75, abs=0.01)
    assert stats["peak_hbm_bw_gigabytes_per_second"] == 410


def test_ops_follow_each_other_and_add_up(told):
    found, _ = planes(told["files"]["runs"])
    lines = found["/device:TPU:0"]["lines"]
    assert [name for name, *_ in lines["Steps"]] == ["0", "1", "2"]
    assert len(lines["XLA Modules"]) == 3
    assert lines["XLA Modules"][0][2] == pytest.approx(told["time_ns"] * 1e3, rel=1e-6)
    for events in (lines["Steps"], lines["XLA Modules"], lines["XLA Ops"]):
        for (_, begin, length), (_, after, _) in pairwise(events):
            assert begin + length <= after + 2
    assert sum(length for *_, length in lines["XLA Ops"]) == pytest.approx(
        3e3 * sum(row[0] for row in told["operators"].values()), rel=1e-6
    )
    for name, (_, flops, nbytes, opcode, source) in told["operators"].items():
        facts = found["/device:TPU:0"]["kinds"][name]
        assert facts["flops"] == round(flops)
        assert facts["bytes_accessed"] == pytest.approx(nbytes, abs=2)
        assert facts["hlo_category"] == opcode
        assert facts["source"] == source
    assert any("xprof_cases.py:" in row[4] for row in told["operators"].values())
    # an epilogue may be hidden behind its contraction altogether
    assert "tanh" in {row[3] for row in told["operators"].values()}


def test_engines_are_lines_too(told):
    found, _ = planes(told["files"]["one"])
    assert {"tensor: products", "vector", "scalar"} <= set(found["/device:TPU:0"]["lines"])


def test_every_device_has_a_plane(told):
    found, _ = planes(told["files"]["devices"])
    assert {"/device:TPU:0", "/device:TPU:1"} <= set(found)
    trace = check_trace((told["place"] / "devices.json").read_text())
    assert {event["pid"] for event in trace["traceEvents"]} == {0, 1}
    assert any(event["name"] == "meeting" for event in trace["traceEvents"])


def test_the_profiler_of_jax_on_request(told):
    found, _ = planes(told["files"]["session"])
    assert len(found["/device:TPU:0"]["lines"]["XLA Modules"]) == 1
    assert not any("CUSTOM" in name for name in found)


def test_refusals(told):
    assert "ERUN905" in told["empty"]
    assert "EFIL902" in told["unwritable"]


def test_reports_of_runs(told):
    assert "xprof_cases.py" in (told["place"] / "report.html").read_text()


@pytest.fixture(scope="module")
def converter():
    found = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="XProf is not installed")
    logging.getLogger().setLevel(logging.ERROR)
    return found


def converted(converter, path, tool, **params):
    data, _ = converter.xspace_to_tool_data([path], tool, {"use_saved_result": False, **params})
    return data if isinstance(data, str) else data.decode()


@pytest.fixture(scope="module")
def module_name(told, converter):
    path = told["files"]["runs"]
    converter.xspace_to_tool_names([path])
    (name,) = (file.name for file in Path(path).parent.glob("*.hlo_proto.pb"))
    return name.removesuffix(".hlo_proto.pb")


def test_op_profile(told, converter):
    profile = json.loads(converted(converter, told["files"]["runs"], "op_profile"))
    (program,) = (
        child for child in profile["byProgramExcludeIdle"]["children"] if child["name"].startswith("jit_step")
    )
    assert program["metrics"]["rawFlops"] == pytest.approx(3 * sum(row[1] for row in told["operators"].values()))
    assert profile["byProgram"]["metrics"]["bandwidthUtils"][0] == pytest.approx(told["mbu"], rel=0.02)
    leaves = {leaf["name"]: leaf for category in program["children"] for leaf in category["children"]}
    for name, (critical, *_) in told["operators"].items():
        assert leaves[name]["metrics"]["rawTime"] == pytest.approx(3e3 * critical, rel=1e-3)


def test_hlo_stats_and_roofline(told, converter):
    stats = json.loads(converted(converter, told["files"]["runs"], "hlo_stats"))
    names = [column["id"] for column in stats["cols"]]
    rows = [dict(zip(names, (cell["v"] for cell in row["c"]), strict=False)) for row in stats["rows"]]
    assert {row["hlo_op_name"] for row in rows} == set(told["operators"])
    assert {row["bound_by"] for row in rows} <= {"HBM", "Compute", "Unknown", "No roofline"}
    assert any("xprof_cases.py" in str(row.get("source_info", "")) for row in rows)
    roofline = converted(converter, told["files"]["runs"], "roofline_model")
    assert "NeuronCore-v2" in roofline
    for name in told["operators"]:
        assert name in roofline


def test_overview_and_framework_ops(told, converter):
    assert "jit(step)/dot_general" in converted(converter, told["files"]["runs"], "overview_page")
    assert "jit(step)/tanh" in converted(converter, told["files"]["runs"], "framework_op_stats")


def test_memory_viewer(told, converter, module_name):
    path = told["files"]["runs"]
    viewed = json.loads(converted(converter, path, "memory_viewer", host=module_name, module_name=module_name))
    assert max(viewed["heapSizes"]) * 2**20 == pytest.approx(told["hbm_peak"], rel=0.05)
    assert any(value["opCode"] == "parameter" for value in viewed["maxHeap"])


def test_graph_viewer(told, converter, module_name):
    name = max(told["operators"], key=lambda name: told["operators"][name][0])
    options = {"type": "graph", "node_name": name, "module_name": module_name, "graph_width": 2, "format": "html"}
    options |= {"show_metadata": 0, "merge_fusion": 0}
    graph = converted(converter, told["files"]["runs"], "graph_viewer", graph_viewer_options=options)
    assert name in graph


def test_trace_viewer(told, converter):
    trace = converted(converter, told["files"]["runs"], "trace_viewer")
    for line in ("XLA Ops", "XLA Modules", "tensor: products"):
        assert line in trace
