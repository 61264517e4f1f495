"""Formats told apart by content, errors that say what to install, frameworks that are imported late."""

import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.driver.cli import main
from neuronx_cc.driver.frontends.formats import Format, detect
from neuronx_cc.driver.frontends.model import Fixed
from neuronx_cc.ir.errors import CompileError, UsageError

LOWERED = jax.jit(lambda x: jnp.tanh(x) + 1).lower(jax.ShapeDtypeStruct((4,), jnp.float32))
PROTO = LOWERED.compiler_ir("hlo").as_serialized_hlo_module_proto()


def archive(*names: str) -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name in names:
            made.writestr(name, b"content")
    return file.getvalue()


def exported() -> bytes:
    """As jax.export writes it, whose own writer needs a package that may be missing."""
    made = jax.export.export(jax.jit(lambda x: jnp.tanh(x) + 1))(jax.ShapeDtypeStruct((4,), jnp.float32))
    module = made.mlir_module_serialized
    return b"\x20\0\0\0" + bytes(60) + len(module).to_bytes(4, "little") + module + bytes(32)


ONNX_HEAD = b"\x08\x08\x12\x07pytorch\x3a\x02\x0a\x00\x42\x04\x0a\x00\x10\x11"
CONTENTS = {
    "HLO text": (LOWERED.compiler_ir("hlo").as_hlo_text().encode(), Format.HLO),
    "a HloModuleProto": (PROTO, Format.HLO),
    "StableHLO text": (str(LOWERED.compiler_ir("stablehlo")).encode(), Format.HLO),
    "nothing": (b"", Format.HLO),
    "text": (b"\x08 no model", Format.HLO),
    "ONNX": (ONNX_HEAD, Format.ONNX),
    "ONNX, its version last": (ONNX_HEAD[2:] + ONNX_HEAD[:2], Format.ONNX),
    "ONNX without a version": (ONNX_HEAD[2:], Format.ONNX),
    "a SavedModel": (b"\x08\x01\x12\x02\x0a\x00", Format.SAVED_MODEL),
    ".keras": (archive("metadata.json", "config.json", "model.weights.h5"), Format.KERAS),
    ".pt2": (archive("model/archive_format", "model/models/model.json"), Format.PT2),
    "older .pt2": (archive("serialized_exported_program.json", "version"), Format.PT2),
    "a checkpoint": (archive("model/data.pkl", "model/data/0"), Format.PICKLE),
    "a pickle": (b"\x80\x04\x95", Format.PICKLE),
    "jax.export": (exported(), Format.JAX_EXPORT),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_formats_are_told_apart_by_content(name: str) -> None:
    data, wanted = CONTENTS[name]
    assert detect(data) is wanted


def test_what_jax_writes_is_loaded() -> None:
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    for name in ("HLO text", "a HloModuleProto", "StableHLO text", "jax.export"):
        executable = neuronx_cc.compile(neuronx_cc.load_model(CONTENTS[name][0]))
        np.testing.assert_allclose(executable.run([x]).outputs[0], np.tanh(x) + 1, rtol=1e-5)
    model = neuronx_cc.load_model(jax.jit(jnp.sin), x)
    np.testing.assert_allclose(neuronx_cc.compile(model).run([x]).outputs[0], np.sin(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["a checkpoint", "a pickle"])
def test_pickles_are_never_loaded(name: str) -> None:
    with pytest.raises(CompileError, match=r"never run here.*torch\.export\.save"):
        neuronx_cc.load_model(CONTENTS[name][0])


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2", "model.keras"])
@pytest.mark.parametrize(
    ("data", "found"), [(b"", "empty"), (b"\x89PNG\r\n", "PNG"), (bytes(99), "damaged"), (b"hello", "hello")]
)
def test_files_that_are_not_what_their_name_says(name: str, data: bytes, found: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CompileError, match=rf"EVRF064.*as its name says, found .*{found}"):
        neuronx_cc.load_model(tmp_path / name).load()


def test_what_lies_under_another_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("HloModule m\nENTRY e { ROOT x = f32[2] parameter(0) }")
    assert neuronx_cc.load_model(tmp_path / "model.onnx").load().entry


def test_a_cut_archive_is_not_the_one_within() -> None:
    """Zip finds the last directory, which may be that of a stored member."""
    inner, outer = BytesIO(), BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("model/data.pkl", b"x")
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("model/archive_format", b"pt2")
        archive.writestr("model/sample_inputs/model.pt", inner.getvalue())
    assert detect(outer.getvalue()) is Format.PT2
    assert detect(outer.getvalue()[:-8]) is Format.PT2
    assert detect(inner.getvalue()) is Format.PICKLE


def test_artifacts_are_what_jax_writes() -> None:
    pytest.importorskip("flatbuffers")
    made = jax.export.export(jax.jit(lambda x: jnp.tanh(x) + 1))(jax.ShapeDtypeStruct((4,), jnp.float32))
    written = bytes(made.serialize())
    assert detect(written) is Format.JAX_EXPORT
    assert neuronx_cc.load_model(written).module == made.mlir_module_serialized


def test_damaged_artifacts_are_refused() -> None:
    data = exported()
    for size in (len(data) - 300, len(data) // 2):
        with pytest.raises(CompileError, match="EVRF064"):
            neuronx_cc.load_model(data[:size])


def missing(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize(("name", "package"), [("ONNX", "onnx"), ("a SavedModel", "tensorflow"), (".keras", "keras")])
def test_missing_frameworks_are_named(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing(monkeypatch, package)
    path = tmp_path / ("saved_model.pb" if name == "a SavedModel" else "model")
    path.write_bytes(CONTENTS[name][0])
    assert main(["compile", str(path), "--logfile", str(tmp_path / "log")]) == 2
    said = capsys.readouterr().err
    assert "[NCC_EARG914]" in said
    assert "need" in said
    assert package in said
    assert "pip install" in said
    assert "Traceback" not in said


def test_saved_models_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing(monkeypatch, "tensorflow")
    (tmp_path / "saved_model.pb").write_bytes(CONTENTS["a SavedModel"][0])
    with pytest.raises(UsageError, match=r"EARG914.*SavedModel of TensorFlow"):
        neuronx_cc.load_model(tmp_path)
    with pytest.raises(UsageError, match="EFIL901"):
        neuronx_cc.load_model(tmp_path / "nothing")


def test_fixed_shapes_cannot_be_set() -> None:
    with pytest.raises(UsageError, match=r"EARG915.*fixed shapes; 'x' cannot be set"):
        neuronx_cc.load_model(PROTO, shapes={"x": (4,)})


def test_weights_are_parameters_of_some_formats_only() -> None:
    with pytest.raises(UsageError, match=r"EARG915.*--no-inline-weights-to-neff"):
        neuronx_cc.load_model(PROTO, inline_weights_to_neff=False)


def test_words_are_read() -> None:
    fixed = Fixed.of_words(["a=1,128", "b=c=2", "s="], ["v=1,2.5", "w=(3,)"])
    assert fixed == Fixed({"a": [1, 128], "b=c": [2], "s": []}, {"v": [1, 2.5], "w": [3]})
    for word in ("a", "=1", "a=x", "a=1;2", "a=1.5"):
        with pytest.raises(UsageError, match=r"EARG902.*NAME=1,128"):
            Fixed.of_words([word], [])


def test_objects_that_hold_no_model_are_refused() -> None:
    with pytest.raises(UsageError, match="EARG906"):
        neuronx_cc.load_model(3)


def test_frameworks_are_imported_late() -> None:
    program = (
        "import sys, neuronx_cc, neuronx_cc.driver.frontends.door, neuronx_cc.driver.cli\n"
        "neuronx_cc.load_model, neuronx_cc.compile\n"
        "print(sorted(m for m in ('onnx', 'torch', 'tensorflow', 'keras', 'jax') if m in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr
