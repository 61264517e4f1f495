"""``neuronx-cc run`` and ``inspect`` on NEFFs that ``compile`` makes."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from trace_checker import check_trace, slices_of

from neuronx_cc.driver.cli import main
from neuronx_cc.driver.tensors import random_inputs
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.types import Shape
from neuronx_cc.runtime.arguments import Name
from neuronx_cc.runtime.native import library

MODULE = """
HloModule g, input_output_alias={ {1}: (2, {}, may-alias) }

ENTRY main {
  x = f32[4,8] parameter(0)
  w = f32[8,3] parameter(1)
  h = bf16[5] parameter(2)
  d = f32[4,3] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/dot" source_file="model.py" source_line=3}
  n = f32[4,3] negate(d), metadata={op_name="jit(f)/neg"}
  k = bf16[5] negate(h)
  ROOT r = (f32[4,3], bf16[5]) tuple(n, k)
}
"""  # noqa: E501
SHAPES = [(Name("x"), Shape("f32", (4, 8))), (Name("w"), Shape("f32", (8, 3))), (Name("h"), Shape("bf16", (5,)))]


@pytest.fixture(autouse=True)
def _inside_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("graph.hlo").write_text(MODULE)
    assert main(["compile", "graph.hlo", "--auto-cast", "none", "--output", "g.neff", "--logfile", "c.log"]) == 0


@pytest.fixture
def inputs():
    arrays = random_inputs(SHAPES, 5)
    np.savez("in.npz", arg0=arrays[0], w=arrays[1], arg2=arrays[2].view("V2"))
    return arrays


def test_values(inputs, capsys):
    assert main(["run", "g.neff", "--inputs", "in.npz", "--outputs", "out.npz"]) == 0
    with np.load("out.npz") as file:
        assert file.files == ["out0", "out1"]
        np.testing.assert_allclose(file["out0"], -(inputs[0] @ inputs[1]), rtol=1e-5, atol=1e-6)
        assert file["out1"].dtype == np.dtype("V2")
        np.testing.assert_array_equal(file["out1"].view(inputs[2].dtype), -inputs[2])
    assert capsys.readouterr().err == ""


def test_random_inputs_follow_the_seed():
    outputs = []
    for seed in ("1", "1", "2"):
        assert main(["run", "g.neff", "--seed", seed, "--outputs", "out.npz"]) == 0
        with np.load("out.npz") as file:
            outputs.append(file["out0"])
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[0], outputs[2])
    arrays = random_inputs(SHAPES, 1)
    np.testing.assert_allclose(outputs[0], -(arrays[0] @ arrays[1]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("argv", "status", "mentions"),
    [
        (["--inputs", "absent.npz"], 2, "No such file"),
        (["--inputs", "graph.hlo"], 1, "no readable .npz file: it holds no arrays"),
        (["--inputs", "short.npz"], 1, "no value for parameter 1, 2"),
        (["--inputs", "wide.npz"], 1, "found float64"),
        (["--outputs", "no/such/out.npz"], 2, "no directory"),
        (["--outputs", "g.neff"], 2, "it is the input"),
        (["--inputs", "in.npz", "--outputs", "in.npz"], 2, "it is the input"),
        (["--trace", "."], 2, "directory"),
        (["--timing-only", "--outputs", "o.npz"], 2, "--outputs needs them"),
        (["--timing-only", "--check"], 2, "--check needs them"),
        (["--check", "--stochastic-rounding", "3"], 2, "rounding to nearest"),
        (["--check", "--module", "other.hlo"], 1, "is not the module"),
    ],
)
def test_bad_input(argv, status, mentions, inputs, capsys):
    np.savez("short.npz", x=inputs[0])
    np.savez("wide.npz", x=inputs[0].astype(np.float64), w=inputs[1], h=inputs[2].view("V2"))
    Path("other.hlo").write_text(MODULE.replace("negate", "tanh"))
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    assert main(["run", "g.neff", *argv]) == status
    captured = capsys.readouterr()
    assert captured.err.startswith("[NCC_E")
    assert mentions in captured.err
    assert "Traceback" not in captured.err
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


@pytest.mark.parametrize("command", ["run", "inspect"])
def test_damaged_neffs(command, capsys):
    whole = Path("g.neff").read_bytes()
    cases = [b"", whole[:100], whole[:1024], whole[:-40], b"\x00" * 5000, whole[:600] + whole[700:]]
    for content in cases:
        Path("bad.neff").write_bytes(content)
        assert main([command, "bad.neff"]) == 1
        err = capsys.readouterr().err
        assert err.startswith("[NCC_E")
        assert "Traceback" not in err


def test_check_passes(capsys):
    assert main(["run", "g.neff", "--check"]) == 0
    assert "check: outputs agree with the reference semantics" in capsys.readouterr().out
    assert main(["run", "g.neff", "--check", "--json", "--module", "graph.hlo"]) == 0
    assert json.loads(capsys.readouterr().out)["check"]["passed"] is True


@pytest.mark.parametrize("mode", ["matmult", "all"])
@pytest.mark.parametrize("cast", ["bf16", "fp16", "tf32", "fp8_e4m3"])
def test_check_repeats_the_casts_of_the_neff(mode, cast, capsys):
    assert main(["compile", "graph.hlo", "--auto-cast", mode, "--auto-cast-type", cast]) == 0
    assert main(["run", "file.neff", "--check"]) == 0


def test_check_needs_the_module(capsys):
    Path("graph.hlo").rename("elsewhere.hlo")
    assert main(["run", "g.neff", "--check"]) == 1
    assert "'graph.hlo' is not found" in capsys.readouterr().err
    assert main(["run", "g.neff", "--check", "--module", "elsewhere.hlo"]) == 0


def test_check_names_the_diverging_op(capsys, monkeypatch):
    from neuronx_cc.ir.reference import REFERENCE

    right = REFERENCE["negate"]
    monkeypatch.setitem(REFERENCE, "negate", lambda op, value: right(op, value) + value.dtype.type(1))
    assert main(["run", "g.neff", "--check"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("[NCC_ERUN902] (%n) ")
    assert "the first op to differ is negate f32[4,3]: 12 of 12 elements differ" in err
    assert "jit(f)/neg" in err


def test_inspect(capsys):
    assert main(["inspect", "g.neff"]) == 0
    out = capsys.readouterr().out
    for text in ("f32[4,8]", "bf16[5]", "auto_cast                      none", "SBUF peak", "tensor", "jit"):
        assert (text in out) is (text != "jit"), text
    assert main(["inspect", "g.neff", "--disassemble"]) == 0
    out = capsys.readouterr().out
    assert "; %d jit(f)/dot model.py:3" in out


def test_inspect_json(capsys):
    assert main(["inspect", "g.neff", "--json", "--disassemble"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [entry["shape"] for entry in document["inputs"]] == ["f32[4,8]", "f32[8,3]", "bf16[5]"]
    assert [entry["shape"] for entry in document["outputs"]] == ["f32[4,3]", "bf16[5]"]
    assert document["options"]["auto_cast"] == "none"
    assert document["target"] == "trn1"
    assert sum(entry["instructions"] for entry in document["streams"].values()) == sum(
        entry["instructions"] for entry in document["kernels"]
    )
    assert document["memory"]["by_kind"]["input"] == {"count": 3, "bytes": 4 * 8 * 4 + 8 * 3 * 4 + 5 * 2}
    assert any("multiply_moving" in line for line in document["disassembly"])


def test_run_log(capsys):
    assert main(["run", "g.neff", "--logfile", "r.log"]) == 0
    assert "run g.neff" in Path("r.log").read_text()


def report(capsys, *argv):
    assert main(["run", "g.neff", "--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_report_as_text(capsys):
    assert main(["run", "g.neff"]) == 0
    out = capsys.readouterr().out
    for text in ("Simulated on trn1", "tensor", "of peak", "DMA", "GB/s", "SBUF", "HBM"):
        assert text in out


def test_timing_only_gives_the_same_time(capsys):
    full, timed = report(capsys), report(capsys, "--timing-only")
    assert full.pop("simulator") in ("native", "numpy")
    assert full == timed
    assert full["is_simulation"] is True
    assert full["time_ns"] > 0
    assert {"tensor_engine_active_time_percent", "dma_total_bytes", "sbuf_peak_bytes"} <= set(full["summary"])


def test_the_simulator_can_be_chosen(capsys, monkeypatch):
    monkeypatch.setattr(library, "load", lambda: None)
    assert report(capsys, "--simulator", "auto")["simulator"] == "numpy"
    assert report(capsys, "--simulator", "numpy")["simulator"] == "numpy"
    library.prefer("native")
    with pytest.raises(RunError, match="was not built"):
        library.chosen()
    library.prefer(None)


def test_machine_and_settings(capsys):
    slow = report(capsys, "--timing-only", "--set", "clock.tensor_ghz=0.1", "--set=dma.bw_per_engine=1")
    assert slow["time_ns"] > report(capsys, "--timing-only")["time_ns"]
    assert report(capsys, "--timing-only", "--machine", "inf2")["machine"] == "inf2"


@pytest.mark.parametrize(
    ("argv", "mentions"),
    [
        (["--machine", "absent.toml"], "absent.toml"),
        (["--machine", "trn9"], "targets: inf2, trn1"),
        (["--machine", os.devnull], "has no key"),
        (["--machine", "graph.hlo"], "graph.hlo"),
        (["--set", "clock.tensor_ghs=1"], "clock.tensor_ghz"),
        (["--set", "clock.tensor_ghz=fast"], "fast"),
        (["--set", "clock.tensor_ghz=-1"], "clock.tensor_ghz"),
    ],
)
def test_bad_machines(argv, mentions, capsys):
    assert main(["run", "g.neff", *argv]) == 2
    err = capsys.readouterr().err
    assert err.startswith("[NCC_E")
    assert mentions in err


def test_trace():
    assert main(["run", "g.neff", "--trace", "t.json", "--timing-only"]) == 0
    text = Path("t.json").read_text()
    trace = check_trace(text)
    tracks = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert {"tensor: products", "tensor: stationary", "scalar"} <= tracks
    assert {"d"} <= {event["args"]["hlo_name"] for event in slices_of(trace)}
    assert main(["run", "g.neff", "--trace", "t.json.gz", "--timing-only"]) == 0
    assert gzip.decompress(Path("t.json.gz").read_bytes()).decode() == text


def test_stochastic_rounding_follows_its_seed(inputs):
    module = "HloModule s\n\nENTRY main {\n  x = f32[4096] parameter(0)\n  ROOT r = bf16[4096] convert(x)\n}\n"
    Path("s.hlo").write_text(module)
    np.savez("s.npz", arg0=np.full(4096, 1 + 2**-9, np.float32))
    assert main(["compile", "s.hlo", "--output", "s.neff"]) == 0
    outputs = []
    for argv in ([], ["--stochastic-rounding", "1"], ["--stochastic-rounding=1"], ["--stochastic-rounding", "2"]):
        assert main(["run", "s.neff", "--inputs", "s.npz", "--outputs", "o.npz", *argv]) == 0
        with np.load("o.npz") as file:
            outputs.append(file["out0"].view(inputs[2].dtype).astype(np.float32))
    assert set(outputs[0]) == {1.0}
    np.testing.assert_array_equal(outputs[1], outputs[2])
    assert not np.array_equal(outputs[1], outputs[3])
    assert set(outputs[1]) == {1.0, 1 + 2**-7}
    assert abs(outputs[1].mean() - (1 + 2**-9)) < 2**-11
