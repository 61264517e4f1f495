"""Damage, systematically: files of four frameworks cut short, bent, patched and packed anew, through ``load_model``.

``python damaged_models.py keras|saved_model|onnx|pt2 COUNT`` prints a line of JSON for every damage: the code of the
error, or what should not have come. One process for all, so that one which dies is seen by the line that lacks.
"""

import json
import os
import random
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

PICKLE = b"cos\n_exit\n(I9\ntR."
"""Ends the process that loads it."""
RENAMED = {
    "keras": (b'"Conv2D"', b'"Conv2Q"'), "saved_model": (b"Relu", b"Rezu"), "onnx": (b"Relu", b"Rezu"),
    "pt2": (b"aten.relu.", b"aten.rezu."),
}  # fmt: skip
"""An operator of each model, and one that nobody knows."""


def damages(data: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """``count`` cuts, stretches left out and doubled, and twice as many flips of single bits, spread over the whole."""
    chance = random.Random(seed)
    for number in range(count):
        size = len(data) * number // count
        yield f"cut at {size}", data[:size]
        more = chance.randrange(1, 1 + len(data) // 4)
        yield f"{more} bytes less at {size}", data[:size] + data[size + more :]
        yield f"{more} bytes twice at {size}", data[: size + more] + data[size:]
    for number in range(2 * count):
        at = (len(data) * number + chance.randrange(len(data))) // (2 * count)
        changed = bytearray(data)
        changed[at] ^= 1 << chance.randrange(8)
        yield f"bit of byte {at}", bytes(changed)


def members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(members: dict[str, bytes]) -> bytes:
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return made.getvalue()


def repacked(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Archives whose checksums are right: members missing, halved, exchanged, pickled; one outside."""
    members = members_of(data)
    names = list(members)
    for number, (name, other) in enumerate(zip(names, names[1:] + names[:1], strict=True)):
        yield f"without {name}", packed({each: members[each] for each in names if each != name})
        yield f"{name} pickled", packed({**members, name: PICKLE})
        if number % 2:
            yield f"half of {name}", packed({**members, name: members[name][: len(members[name]) // 2]})
        else:
            yield f"{name} for {other}", packed({**members, name: members[other], other: members[name]})
    yield "a member outside", packed({**members, "../../outside": b"x"})


def another_operator(kind: str, data: bytes) -> bytes:
    if not zipfile.is_zipfile(BytesIO(data)):
        return data.replace(*RENAMED[kind])
    return packed({name: each.replace(*RENAMED[kind]) for name, each in members_of(data).items()})


def keras_file(folder: Path) -> list[Path]:
    import keras

    image = keras.Input((4, 4, 2), batch_size=1, name="image")
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(2, 3, activation="relu")(image))
    path = folder / "model.keras"
    keras.Model(image, keras.layers.Dense(2)(keras.layers.Flatten()(x))).save(path)
    return [path]


def onnx_file(folder: Path) -> list[Path]:
    import onnx

    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[3,2] y)
        <float[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, int64[2] dims = {3, 2}> {
        a = MatMul(x, w)  b = Relu(a)  y = Reshape(b, dims)
    }"""
    onnx.save(onnx.parser.parse_model(text), path := folder / "model.onnx")
    return [path]


def pt2_file(folder: Path) -> list[Path]:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    torch.export.save(torch.export.export(model, (torch.ones(2, 4),)), path := folder / "model.pt2")
    return [path]


def saved_model(folder: Path) -> list[Path]:
    import tensorflow as tf

    module = tf.Module()
    module.w = tf.Variable(tf.ones((3, 2)))
    specs = [tf.TensorSpec([2, 3], tf.float32, name="x")]
    module.f = tf.function(lambda x: {"y": tf.nn.relu(x @ module.w)}, input_signature=specs)
    tf.saved_model.save(module, str(folder), signatures=module.f)
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def main(kind: str, count: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        whole.mkdir()
        makers = {"keras": keras_file, "saved_model": saved_model, "onnx": onnx_file, "pt2": pt2_file}
        files = makers[kind](whole)
        wanted = text_of(whole if kind == "saved_model" else files[0])
        for path in files:
            data = path.read_bytes()
            archive = zipfile.is_zipfile(path)
            checked = archive or path.name.startswith("variables.")
            cases = [*damages(data, count, len(path.name)), *(repacked(data) if archive else ())]
            if (other := another_operator(kind, data)) != data:
                cases.append(("another operator", other))
            for name, changed in cases:
                folder = Path(place) / "damaged"
                shutil.copytree(whole, folder)
                (folder / path.relative_to(whole)).write_bytes(changed)
                found = {"file": path.name, "damage": name}
                print(json.dumps({**found, "began": True}), flush=True)
                found |= outcome(folder if kind == "saved_model" else folder / path.name, wanted if checked else None)
                print(json.dumps(found), flush=True)
                shutil.rmtree(folder)


def text_of(path: Path) -> str:
    import neuronx_cc
    from neuronx_cc.hlo_import.printer import print_module

    # TensorFlow numbers functions as it loads them
    return re.sub(r"__\d+__", "__", print_module(neuronx_cc.load_model(path).load()))


def outcome(path: Path, wanted: str | None) -> dict[str, Any]:
    """The error's code; ``none``, or ``other`` where checksums should have kept the ``wanted`` model."""
    from neuronx_cc import NeuronError

    try:
        return {"code": "none" if text_of(path) == wanted or wanted is None else "other"}
    except NeuronError as error:
        return {"code": error.code, "said": str(error)}
    except Exception as error:
        return {"code": "foreign", "said": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL="3")
    main(sys.argv[1], int(sys.argv[2]))
