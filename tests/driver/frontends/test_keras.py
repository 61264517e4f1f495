"""Keras models and files on each backend of Keras, against Keras' own values."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import neuronx_cc

needs_keras = pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs keras")

PROGRAM = """
import sys
import keras, numpy as np
import neuronx_cc

draw = np.random.default_rng(0)
layers = keras.layers
keras.utils.set_random_seed(0)


def of(model, *given, **how):
    return neuronx_cc.load_model(model, *given, **how)


def values(results):
    return [keras.ops.convert_to_numpy(each) for each in keras.tree.flatten(results)]


def close(loaded, inputs, wanted, outputs):
    assert loaded.outputs == outputs, loaded.outputs
    program = neuronx_cc.compile(loaded, auto_cast="none")
    got = program.run({**inputs, **loaded.weights}).outputs
    for one, other in zip(got, values(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    return program


def refused(code, words, *given, **how):
    try:
        of(*given, **how)
    except neuronx_cc.NeuronError as error:
        assert (error.code, words in str(error)) == (code, True), error
    else:
        raise AssertionError(code)


image = keras.Input((8, 8, 3), name="image")
x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(image)))
scale = keras.Input((4,))
mixed = layers.Multiply()([layers.GlobalAveragePooling2D()(x), scale])
model = keras.Model([image, scale], layers.Dense(5, activation="softmax", name="head")(mixed))
for weight in model.weights:
    weight.assign(draw.uniform(0.1, 1, weight.shape))
path = sys.argv[1]
model.save(path)
named = scale._keras_history.operation.name  # by its layer, from a file as well
inputs = {"image": draw.standard_normal((2, 8, 8, 3), np.float32), named: draw.standard_normal((2, 4), np.float32)}
want = model([inputs["image"], inputs[named]])
shapes = {"image": (2, 8, 8, 3), named: (2, 4)}
for given in (path, model):
    loaded = of(given, shapes=shapes)
    assert loaded.inputs == ("image", named), loaded.inputs
    close(loaded, inputs, want, ("head",))
apart = of(model, shapes=shapes, inline_weights_to_neff=False)
assert {*apart.weights} == {weight.path for weight in model.weights}, list(apart.weights)
program = close(apart, inputs, want, ("head",))
doubled = {name: 2 * array if name == "head/bias" else array for name, array in apart.weights.items()}
assert np.abs(program.run({**inputs, **doubled}).outputs[0] - values(want)[0]).max() > 1e-3
refused("EMOD025", "--shape image=1,8,8,3", model)
refused("EARG915", "'other' cannot be set", model, shapes={"other": (2,)})

# inputs and outputs by names; one layer for two results
a, b = (keras.Input((4,), name=name, batch_size=2) for name in "ab")
given = {name: draw.standard_normal((2, 4), np.float32) for name in "ab"}
named = keras.Model({"a": a, "b": b}, {"z": layers.Dense(2)(a), "x": a * b})
close(of(named), given, named(given), ("x", "z"))
dense = layers.Dense(4, name="d")
twice = keras.Model(a, [dense(a), dense(dense(a))])
close(of(twice), {"a": given["a"]}, twice(given["a"]), ("d", "d_1"))


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, left, right, training=None):
        return {"sum": self.dense(left) + right.sum() if training else self.dense(left), "right": right}


own = Own()
refused("EARG906", "the inputs of Own", own)
right = np.ones((2,), np.int32)
wanted = own(given["a"], right)
close(of(own, given["a"], right), {"left": given["a"], "right": right}, wanted, ("right", "sum"))
refused("EARG906", "the inputs of Sequential", keras.Sequential([layers.Dense(3)]))
"""


@needs_keras
@pytest.mark.parametrize("backend", ["jax", "tensorflow", "torch"])
def test_models_and_files(backend: str, tmp_path: Path) -> None:
    """In a process of its own, for Keras has one backend a process."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "model.keras")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]


@needs_keras
@pytest.mark.parametrize("backend", ["numpy", "no-such-one"])
def test_other_backends_are_refused(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w") as made:
        for name in ("metadata.json", "config.json", "model.weights.h5"):
            made.writestr(name, "{}")
    code = "import sys; from neuronx_cc.driver.cli import main; sys.exit(main(['compile', sys.argv[1]]))"
    environment = {**os.environ, "KERAS_BACKEND": backend}
    command = [sys.executable, "-c", code, str(path)]
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert run.returncode != 0
    assert "[NCC_E" in run.stderr
    assert "Traceback" not in run.stderr


@needs_keras
def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.keras"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("metadata.json", json.dumps({"keras_version": "3.0.0"}))
        made.writestr("config.json", '{"module": "os", "class_name": "system", "config": {}}')
    with pytest.raises(neuronx_cc.CompileError, match="EVRF064"):
        neuronx_cc.load_model(path)


@needs_keras
def test_archives_that_unpack_to_too_much_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name in ("metadata.json", "config.json", "model.weights.h5"):
            made.writestr(name, b" " * (4 << 20))
    with pytest.raises(neuronx_cc.CompileError, match=r"EVRF064.*unpacks to 12582912 bytes"):
        neuronx_cc.load_model(path)
