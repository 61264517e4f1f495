"""Models that cannot be imported: one error with a code, the node and a remedy, and no traceback."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import onnx_models  # noqa: E402
from onnx import helper  # noqa: E402

import neuronx_cc  # noqa: E402
from neuronx_cc.driver.cli import main as command  # noqa: E402

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
CYCLE = "g (float[2] x) => (float[2] y) { a = Add(x, b)  b = Relu(a)  y = Neg(b) }"
NOBODY = "g (float[2] x) => (float[2] y) { y = Add(x, ghost) }"
TWICE = "g (float[2] x) => (float[2] y) { y = Neg(x)  y = Abs(x) }"
HUGE = "g (float[1000000,1000000] x) => (float[N,M] y) { y = Neg(x) }"
GROWN = """g (float[1] x) => (float[N] y) {
    s = Constant<value: tensor = int64[3] {1000000, 1000000, 1000000}>()
    y = Expand(x, s)
}"""
MISFIT = "g (float[2,3] x, float[4,5] w) => (float[N,M] y) { y = MatMul(x, w) }"
TOO_FEW = "g (float[2] x) => (float[2] y) { y = Add(x) }"
TOO_MANY = "g (float[2] x) => (float[2] y) { y = Neg(x, x) }"
LEFT_OUT = "g (float[2] x) => (float[2] y) { y = Sub(, x) }"
OTHER_TYPE = "g (float[2] x) => (float[2] y) { y = Softmax<axis: float = 1.0>(x) }"
REQUIRED = "g (float[2] x) => (float[N] y) { y = Cast(x) }"
NO_OP = "g (float[2] x) => (float[2] y) { y = Frobnicate(x) }"
ATTRIBUTE = "g (float[2] x) => (float[2] y) { y = Elu<beta: float = 2.0>(x) }"
DYNAMIC = "g (float[2,3] x, int64[2] s) => (float[N,M] y) { y = Reshape(x, s) }"
NON_ZERO = "g (float[2,3] x) => (int64[N,M] y) { y = NonZero(x) }"
STRINGS = "g (string[2] x) => (string[2] y) { y = Identity(x) }"
OPEN = "g (float[batch,3] x) => (float[N,M] y) { y = Neg(x) }"
OLD = (
    '<ir_version: 6, opset_import: ["" : 11]> g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis: int = 1>(x) }'
)
CUSTOM = '<ir_version: 8, opset_import: ["" : 17, "acme" : 1]> g (float[2] x) => (float[2] y) { y = acme.Thing(x) }'
DOMAIN = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = acme.Thing(x) }'
NEWER = '<ir_version: 8, opset_import: ["" : 9000]> g (float[2] x) => (float[2] y) { y = Neg(x) }'

REFUSED = {
    "cycle": (CYCLE, "EVRF064", "cycle through 'Add_0', 'Relu_1'"),
    "undefined": (NOBODY, "EVRF064", "reads 'ghost', which nothing defines"),
    "defined twice": (TWICE, "EVRF064", "defines 'y', which is defined already"),
    "huge input": (HUGE, "EOOM001", "fits no device"),
    "huge result": (GROWN, "EOOM001", "Expand: an array of dimensions"),
    "misfit": (MISFIT, "EVRF064", "MatMul: does not fit its inputs"),
    "too few inputs": (TOO_FEW, "EVRF064", "Add: takes 2 inputs, is given 1"),
    "too many inputs": (TOO_MANY, "EVRF064", "Neg: takes 1 inputs, is given 2"),
    "input left out": (LEFT_OUT, "EVRF064", "Sub: its input 'A' is left out"),
    "attribute of another type": (OTHER_TYPE, "EVRF064", "Softmax: expected INT as attribute 'axis'"),
    "no required attribute": (REQUIRED, "EVRF064", "Cast: lacks the attribute 'to'"),
    "no such operator": (NO_OP, "EVRF001", "no operator Frobnicate is defined in opset 17"),
    "unknown attribute": (ATTRIBUTE, "EVRF001", "attribute 'beta' is not supported"),
    "run-time shape": (DYNAMIC, "EMOD025", "its input 'shape' is known only at run time"),
    "data-dependent shape": (NON_ZERO, "EMOD025", "NonZero: its input 'X' is known only at run time"),
    "strings": (STRINGS, "ESPP004", "elements of type string"),
    "open dimension": (OPEN, "EMOD025", "has dimensions batch, 3"),
    "old opset": (OLD, "EVRF001", "definition of opset 11 is older"),
    "custom operator": (CUSTOM, "EVRF001", "no operator acme.Thing is defined"),
    "custom domain": (DOMAIN, "EVRF064", "imports no opset of its domain 'acme'"),
    "newer opset": (NEWER, "EVRF001", "opset 9000, the installed onnx knows up to"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_and_where(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, code, words = REFUSED[name]
    proto = onnx.parser.parse_model(text if text.startswith("<") else f"{HEAD} {text}")
    path = tmp_path / "bad.onnx"
    path.write_bytes(proto.SerializeToString())
    assert command(["compile", str(path), "--logfile", str(tmp_path / "log"), "--output", str(tmp_path / "o")]) == 70
    said = capsys.readouterr().err
    assert f"[NCC_{code}]" in said
    assert words in said
    assert "Traceback" not in said
    assert not (tmp_path / "o").exists()


def test_shapes_that_fit_nothing_are_refused() -> None:
    proto = onnx.parser.parse_model(f"{HEAD} {OPEN}")
    for shapes, words in (
        ({"y": (1,)}, "no input or dimension 'y'"),
        ({"x": (1, 2, 3)}, "has 2 dimensions, --shape gives 3"),
        ({"x": (1, 4)}, "has a dimension of 3, --shape gives 4"),
        ({"batch": (1, 2)}, "has one size, --shape gives 2"),
    ):
        with pytest.raises(neuronx_cc.UsageError, match=words):
            neuronx_cc.load_model(proto, shapes=shapes)
    assert neuronx_cc.load_model(proto, shapes={"batch": [4]}).inputs == ("x",)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    data = onnx_models.cnn()[0].SerializeToString()
    for number, part in enumerate(
        (data[: len(data) // 2], data[:9], data[:-1], data[:200] + b"\xff" * 40 + data[240:])
    ):
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(part)
        with pytest.raises(neuronx_cc.NeuronError) as caught:
            neuronx_cc.load_model(path)
        assert caught.value.code in ("EVRF064", "EVRF001")


def with_location(folder: Path, **entries: str) -> Path:
    """A model whose one weight, 12 bytes, lies elsewhere."""
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[3], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    value = [helper.make_tensor_value_info(name, 1, [3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", value[:1], value[1:], [tensor])
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return path


def _link(folder: Path) -> None:
    (folder / "link.bin").symlink_to(folder.parent / "secret.bin")


def _folder_link(folder: Path) -> None:
    (folder / "sub").symlink_to(folder.parent)


def _nothing(folder: Path) -> None:
    pass


BAD_PLACES: dict[str, tuple[dict[str, str], Callable[[Path], None], str, str]] = {
    "absolute": ({"location": "/etc/hostname"}, _nothing, "EFIL903", "leaves the model's folder"),
    "above": ({"location": "../secret.bin"}, _nothing, "EFIL903", "leaves the model's folder"),
    "above inside": ({"location": "a/../../secret.bin"}, _nothing, "EFIL903", "leaves the model's folder"),
    "drive": ({"location": "C:\\secret.bin"}, _nothing, "EFIL903", "leaves the model's folder"),
    "backslashes": ({"location": "..\\secret.bin"}, _nothing, "EFIL903", "leaves the model's folder"),
    "nameless": ({}, _nothing, "EFIL903", "does not say where"),
    "zero byte": ({"location": "a\0b"}, _nothing, "EFIL903", "leaves the model's folder"),
    "link": ({"location": "link.bin"}, _link, "EFIL903", "a link that leaves"),
    "link of a folder": ({"location": "sub/secret.bin"}, _folder_link, "EFIL903", "a link that leaves"),
    "missing": ({"location": "gone.bin"}, _nothing, "EFIL903", "cannot read 'gone.bin'"),
    "a folder": ({"location": "."}, _nothing, "EFIL903", "no regular file"),
    "a pipe": ({"location": "pipe"}, lambda folder: os.mkfifo(folder / "pipe"), "EFIL903", "no regular file"),
    "short": ({"location": "here.bin", "offset": "4"}, _nothing, "EFIL903", "bytes 4 to 16"),
    "far": ({"location": "here.bin", "offset": "9" * 18}, _nothing, "EFIL903", "which has 12"),
    "negative": ({"location": "here.bin", "offset": "-4"}, _nothing, "EVRF064", "number of bytes as offset"),
    "other length": ({"location": "here.bin", "length": "8"}, _nothing, "EFIL903", "takes 12 bytes"),
}


@pytest.mark.parametrize("name", BAD_PLACES)
def test_external_data_stays_in_the_folder(name: str, tmp_path: Path) -> None:
    entries, prepare, code, words = BAD_PLACES[name]
    (tmp_path / "secret.bin").write_bytes(b"\0" * 12)
    path = with_location(tmp_path / "model", **entries)
    (path.parent / "here.bin").write_bytes(b"\0" * 12)
    prepare(path.parent)
    with pytest.raises(neuronx_cc.CompileError) as caught:
        neuronx_cc.load_model(path)
    assert caught.value.code == code
    assert words in caught.value.message


def test_external_data_needs_a_folder(tmp_path: Path) -> None:
    path = with_location(tmp_path / "model", location="here.bin")
    (path.parent / "here.bin").write_bytes(np.arange(3, dtype=np.float32).tobytes())
    executable = neuronx_cc.compile(neuronx_cc.load_model(path))
    np.testing.assert_array_equal(executable.run([np.ones(3, np.float32)]).outputs[0], [1, 2, 3])
    with pytest.raises(neuronx_cc.CompileError, match="came without a folder"):
        neuronx_cc.load_model(path.read_bytes())


def test_functions_that_call_themselves_are_refused() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[2] x) => (float[2] y) { y = local.f(x) }
    <domain: "local", opset_import: ["" : 17, "local" : 1]> f (a) => (b) { b = local.f(a) }"""
    proto: Any = onnx.parser.parse_model(text)
    with pytest.raises(neuronx_cc.CompileError, match="more than 64 deep"):
        neuronx_cc.load_model(proto)
