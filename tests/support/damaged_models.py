"""Damage, systematically: a ``.keras`` file and a SavedModel cut short and with bits flipped, through ``load_model``.

``python damaged_models.py keras|saved_model COUNT`` prints a line of JSON for every damage: the code of the error, or
what should not have come. One process for all, so that one which dies is seen by the line that lacks.
"""

import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


def damages(data: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """``count`` cuts and twice as many flips of single bits, spread over the whole."""
    chance = random.Random(seed)
    for number in range(count):
        size = len(data) * number // count
        yield f"cut at {size}", data[:size]
    for number in range(2 * count):
        at = (len(data) * number + chance.randrange(len(data))) // (2 * count)
        changed = bytearray(data)
        changed[at] ^= 1 << chance.randrange(8)
        yield f"bit of byte {at}", bytes(changed)


def keras_file(folder: Path) -> list[Path]:
    import keras

    image = keras.Input((4, 4, 2), batch_size=1, name="image")
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(2, 3, activation="relu")(image))
    path = folder / "model.keras"
    keras.Model(image, keras.layers.Dense(2)(keras.layers.Flatten()(x))).save(path)
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
    import neuronx_cc

    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        whole.mkdir()
        files = {"keras": keras_file, "saved_model": saved_model}[kind](whole)
        neuronx_cc.load_model(files[0] if kind == "keras" else whole)
        for path in files:
            for name, data in damages(path.read_bytes(), count, len(path.name)):
                folder = Path(place) / "damaged"
                shutil.copytree(whole, folder)
                (folder / path.relative_to(whole)).write_bytes(data)
                found = {"file": path.name, "damage": name}
                print(json.dumps({**found, "began": True}), flush=True)
                try:
                    neuronx_cc.load_model(folder / path.name if kind == "keras" else folder)
                    found["code"] = "none"
                except neuronx_cc.NeuronError as error:
                    found["code"], found["said"] = error.code, str(error)
                except Exception as error:
                    found["code"], found["said"] = "foreign", f"{type(error).__name__}: {error}"
                print(json.dumps(found), flush=True)
                shutil.rmtree(folder)


if __name__ == "__main__":
    os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL="3")
    main(sys.argv[1], int(sys.argv[2]))
