"""Models as exporters write them: compiled, run, compared with ``onnx.reference``; names, shapes, external data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import onnx_models  # noqa: E402
from onnx import version_converter  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import neuronx_cc  # noqa: E402
from neuronx_cc.driver.cli import main as command  # noqa: E402


@pytest.mark.parametrize("name", onnx_models.MODELS)
def test_models_agree_with_the_reference(name: str) -> None:
    proto, shapes, inputs = onnx_models.MODELS[name]()
    model = neuronx_cc.load_model(proto.SerializeToString(), shapes=shapes)
    assert model.inputs == tuple(value.name for value in proto.graph.input)
    assert model.outputs == tuple(value.name for value in proto.graph.output)
    executable = neuronx_cc.compile(model, auto_cast="none")
    assert executable.input_names == list(model.inputs)
    wanted = ReferenceEvaluator(proto).run(None, inputs)
    for got, want in zip(executable.run(inputs).outputs, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", onnx_models.MODELS)
def test_models_agree_in_each_opset(name: str) -> None:
    """From 13 to the newest, as far as onnx itself converts the model."""
    given, shapes, inputs = onnx_models.MODELS[name]()
    wanted = ReferenceEvaluator(given).run(None, inputs)
    converted = 0
    for opset in range(13, onnx.defs.onnx_opset_version() + 1):
        try:
            proto = version_converter.convert_version(given, opset)
        except RuntimeError:
            continue
        model = neuronx_cc.load_model(proto.SerializeToString(), shapes=shapes)
        for got, want in zip(neuronx_cc.compile(model, auto_cast="none").run(inputs).outputs, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6, err_msg=f"opset {opset}")
        converted += 1
    assert converted >= 12


def test_shape_arithmetic_leaves_no_op() -> None:
    """The transformer's reshapes follow from ``Shape`` by Gather, Unsqueeze and Concat: all of it is known."""
    proto, shapes, _ = onnx_models.transformer()
    module = neuronx_cc.load_model(proto, shapes=shapes).load()
    opcodes = {
        op.opcode for computation in module.computations() for op in computation.block.ops if hasattr(op, "opcode")
    }
    assert not opcodes & {"gather", "dynamic-slice", "concatenate"}


def test_nodes_name_ops() -> None:
    proto, shapes, _ = onnx_models.cnn()
    module = neuronx_cc.load_model(proto, shapes=shapes).load()
    named = {op.loc.op_name for op in module.entry.block.ops if getattr(op, "opcode", "") == "convolution"}
    assert named == {
        "jit(tested)/block0/conv/Conv/conv_general_dilated",
        "jit(tested)/block1/conv/Conv/conv_general_dilated",
    }
    assert not any(op.loc.source_file for op in module.entry.block.ops if hasattr(op, "opcode"))


def test_the_command_compiles_runs_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto, _, inputs = onnx_models.mlp()
    path, neff = tmp_path / "mlp.onnx", tmp_path / "mlp.neff"
    path.write_bytes(proto.SerializeToString())
    np.savez(tmp_path / "in.npz", **inputs)
    logfile = ["--logfile", str(tmp_path / "log")]
    assert command(["compile", str(path), "--shape", "n=5", "--output", str(neff), *logfile]) == 0
    assert (
        command(
            ["run", str(neff), "--inputs", str(tmp_path / "in.npz"), "--check", "--outputs", str(tmp_path / "out.npz")]
        )
        == 0
    )
    assert "check: outputs agree" in capsys.readouterr().out
    (want,) = ReferenceEvaluator(proto).run(None, inputs)
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")[proto.graph.output[0].name], want, rtol=0.02, atol=0.01)


def test_quantised_weights_stay_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """int8 weights between QuantizeLinear and DequantizeLinear are loaded by the products as int8."""
    proto, _, inputs = onnx_models.quantised_mlp()
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    neff = tmp_path / "m.neff"
    words = ["--auto-cast", "none", "--print-schedules", "--output", str(neff), "--logfile", str(tmp_path / "log")]
    assert command(["compile", str(tmp_path / "m.onnx"), *words]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if ".dot: " in line]
    assert len(lines) == 2
    assert all("as s8" in line for line in lines), lines
    (want,) = ReferenceEvaluator(proto).run(None, inputs)
    np.testing.assert_allclose(neuronx_cc.load(neff).run(inputs).outputs[0], want, rtol=1e-4, atol=1e-4)


def external(proto: Any, path: Path) -> Path:
    """Written with its weights in another file."""
    onnx.save_model(proto, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_external_data_is_read(tmp_path: Path) -> None:
    proto, shapes, inputs = onnx_models.mlp()
    (want,) = ReferenceEvaluator(proto).run(None, inputs)
    path = external(proto, tmp_path / "mlp.onnx")
    assert path.stat().st_size < (tmp_path / "weights.bin").stat().st_size
    executable = neuronx_cc.compile(neuronx_cc.load_model(path, shapes=shapes), auto_cast="none")
    np.testing.assert_allclose(executable.run(inputs).outputs[0], want, rtol=1e-5, atol=1e-6)


def test_values_make_inputs_constants() -> None:
    """The loop's trip count decides the shape of what it collects."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    counted (int64 trips, float[3] x) => (float[3] last, float[N, 3] all)
    {
        going = Constant<value: tensor = bool {1}>()
        last, all = Loop(trips, going, x)<
            body = step (int64 i, bool c, float[3] state) => (bool c2, float[3] next, float[3] kept)
            { c2 = Identity(c)  next = Add(state, state)  kept = Identity(next) }>
    }"""
    proto = onnx.parser.parse_model(text)
    with pytest.raises(neuronx_cc.CompileError, match=r"EMOD025.*decided at run time"):
        neuronx_cc.load_model(proto)
    x = np.array([1, 2, 3], np.float32)
    for trips in (1, 5, 40):
        model = neuronx_cc.load_model(proto, values={"trips": trips})
        assert model.inputs == ("x",)
        last, kept = neuronx_cc.compile(model).run({"x": x}).outputs
        np.testing.assert_array_equal(last, x * np.float32(2.0**trips))
        np.testing.assert_array_equal(kept, x * 2.0 ** np.arange(1, trips + 1, dtype=np.float32)[:, None])
